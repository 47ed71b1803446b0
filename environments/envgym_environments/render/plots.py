"""Figures to be drawn again: small charts as scripts of matplotlib, at five levels, from a generator."""

from collections.abc import Callable

import numpy as np

from envgym_environments.words import NOUNS, pick, some, title

__all__ = ["PLOTS", "plot"]

_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:olive")


Drawn = list[tuple[str, str]]
"""Lines of a script, and what each puts into the figure, in words."""


def plot(rng: np.random.Generator, kind: str, level: int) -> tuple[str, str]:
    """A script of a kind, level 1 to 5, and its figure in words."""
    lines: Drawn = [
        ("import matplotlib.pyplot as plt", ""),
        (
            "fig, ax = plt.subplots(figsize=(3.2, 2.4), dpi=100)",
            "a figure of 3.2 x 2.4 inches, 100 dots an inch, layout tight",
        ),
    ]
    lines += PLOTS[kind](rng, level)
    if level > 1:
        says, size = title(rng), int(rng.integers(8, 12))
        lines.append((f"ax.set_title({says!r}, fontsize={size})", f"title {says!r}, size {size}"))
    if level > 3 and kind != "shares":
        for axis in ("x", "y"):
            says = pick(rng, NOUNS).lower()
            lines.append((f"ax.set_{axis}label({says!r})", f"label of the {axis} axis {says!r}"))
    if level > 4 and kind != "shares":
        lines.append(("ax.grid(True)", "a grid"))
    lines.append(("fig.tight_layout()", ""))
    return "\n".join(line for line, _ in lines) + "\n", "\n".join(says for _, says in lines if says)


def _numbers(rng: np.random.Generator, count: int) -> list[int]:
    return [int(value) for value in rng.integers(4, 60, count)]


def _bars(rng: np.random.Generator, level: int) -> Drawn:
    names = [name[:5] for name in some(rng, NOUNS, 2 + level)]
    way, lies = ("barh", "lying") if rng.integers(2) else ("bar", "standing")
    values, colour = _numbers(rng, len(names)), pick(rng, _COLOURS)
    return [(f"ax.{way}({names!r}, {values!r}, color={colour!r})", f"{lies} bars {names} of {values}, {colour}")]


def _lines(rng: np.random.Generator, level: int) -> Drawn:
    found: Drawn = []
    for colour in some(rng, _COLOURS, 1 + level // 2):
        style, marker, values = pick(rng, ("-", "--", ":")), pick(rng, ("None", "o", "s")), _numbers(rng, 3 + level)
        found.append(
            (
                f"ax.plot({values!r}, color={colour!r}, linestyle={style!r}, marker={marker!r})",
                f"a line of {values}, {colour}, style {style!r}, marker {marker!r}",
            )
        )
    return found


def _points(rng: np.random.Generator, level: int) -> Drawn:
    found: Drawn = []
    for colour in some(rng, _COLOURS, 1 + level // 3):
        x, y, size = _numbers(rng, 4 * level), _numbers(rng, 4 * level), int(rng.integers(12, 70))
        found.append(
            (
                f"ax.scatter({x!r}, {y!r}, s={size}, color={colour!r})",
                f"points at x {x}, y {y}, {colour}, size {size}",
            )
        )
    return found


def _shares(rng: np.random.Generator, level: int) -> Drawn:
    names, turned = [name[:5] for name in some(rng, NOUNS, 1 + level)], 90 * int(rng.integers(4))
    values, colours = _numbers(rng, len(names)), some(rng, _COLOURS, len(names))
    return [
        (
            f"ax.pie({values!r}, labels={names!r}, colors={colours!r}, startangle={turned})",
            f"a pie of {names}, shares {values}, {colours}, first at {turned} degrees",
        )
    ]


PLOTS: dict[str, Callable[[np.random.Generator, int], Drawn]] = {
    "bars": _bars,
    "lines": _lines,
    "points": _points,
    "shares": _shares,
}
"""Kind -> the lines of a script of it."""
