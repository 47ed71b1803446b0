"""Data that a program learns from: drawn by a seed, rule and all, so that nothing about them can be known before.

A drawing has two tables as text, the second without its targets, and the targets of both. Targets are as a table
writes them. Scores are better when higher: the share of right classes, or the share of variance explained.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

__all__ = ["LEVELS", "Drawing", "draw", "score_of", "score_of_constant"]

LEVELS = (1, 2, 3)
_TRAIN, _TEST = 320, 240
_NOISE = {1: 0.1, 2: 0.3, 3: 0.6}
_Table = tuple[list[str], list[list[str]], list[str]]
"""Names of columns, rows, targets."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """train, test: tables as comma-separated values. train_targets, test_targets: a text for each row."""

    train: str
    test: str
    train_targets: tuple[str, ...]
    test_targets: tuple[str, ...]
    numeric: bool


def draw(family: str, level: int, seed: int) -> Drawing:
    """The tables of a family ("tabular", "sequence", "series") at a level of 1 to 3; any seed from 0 on."""
    rng = np.random.default_rng([seed, level])
    names, rows, targets = _FAMILIES[family](rng, level)
    head, full = ",".join(names), [",".join(row) for row in rows]
    train = [f"{row},{target}" for row, target in zip(full[:_TRAIN], targets[:_TRAIN], strict=True)]
    return Drawing(
        "\n".join([f"{head},target", *train]) + "\n",
        "\n".join([head, *full[_TRAIN:]]) + "\n",
        tuple(targets[:_TRAIN]),
        tuple(targets[_TRAIN:]),
        family == "series",
    )


def _tabular(rng: Generator, level: int) -> _Table:
    """Two classes: the sign of a product, a size and a letter's share; some values are missing, some are huge."""
    count, columns = _TRAIN + _TEST, 4 + level
    values = rng.normal(size=(count, columns))
    first, second, third = rng.permutation(columns)[:3]
    letters = rng.choice(list("pqr"), size=count)
    lift = dict(zip("pqr", rng.permutation([-0.8, 0.0, 0.8]), strict=True))
    sign = rng.choice([-1.0, 1.0])
    total = sign * values[:, first] * values[:, second] + np.abs(values[:, third]) - 0.8
    total = total + np.array([lift[one] for one in letters]) + rng.normal(scale=_NOISE[level], size=count)
    names = rng.permutation(["no", "yes"])
    targets = [str(names[int(one > 0)]) for one in total]
    shown = np.where(rng.random(values.shape) < 0.02, values * 50.0, values)
    missing = rng.random(values.shape) < 0.04 * level
    rows = [
        [*("" if gone else f"{one:.4f}" for one, gone in zip(row, lost, strict=True)), str(letter)]
        for row, lost, letter in zip(shown, missing, letters, strict=True)
    ]
    return [*(f"x{number}" for number in range(columns)), "kind"], rows, targets


def _sequence(rng: Generator, level: int) -> _Table:
    """Two classes: which of two pairs of letters is more frequent, side by side or with one letter between."""
    count, gap = _TRAIN + _TEST, 1 if level == 1 else 2
    pairs = [one + other for one in "abcd" for other in "abcd" if one != other]
    first = str(rng.choice(pairs))
    second, rows, targets = first[::-1], list[list[str]](), list[str]()
    names = rng.permutation(["left", "right"])
    while len(rows) < count:
        text = "".join(rng.choice(list("abcd"), size=int(rng.integers(30, 60))))
        both = [text[at] + text[at + gap] for at in range(len(text) - gap)]
        ahead = both.count(first) - both.count(second) + rng.normal(scale=_NOISE[level])
        if abs(ahead) >= 0.5:
            rows.append([text])
            targets.append(str(names[int(ahead > 0)]))
    return ["text"], rows, targets


def _series(rng: Generator, level: int) -> _Table:
    """The next value of waves of two lengths and a slow drift, behind sixteen values before it."""
    before, count = 16, _TRAIN + _TEST
    lengths = rng.uniform([3.0, 6.0], [5.0, 11.0])
    rows, targets = list[list[str]](), list[str]()
    for _ in range(count):
        at = np.arange(before + 1)
        phases, sizes = rng.uniform(0.0, 2.0 * math.pi, size=2), rng.uniform(0.5, 1.5, size=2)
        waves: NDArray[np.float64] = sum(
            (size * np.sin(2.0 * math.pi * at / length + phase)
             for size, length, phase in zip(sizes, lengths, phases, strict=True)),
            start=np.zeros(before + 1),
        )  # fmt: skip
        values = waves + rng.normal() + rng.normal(scale=0.02) * at
        values = values + rng.normal(scale=_NOISE[level], size=before + 1)
        rows.append([f"{one:.4f}" for one in values[:-1]])
        targets.append(f"{values[-1]:.4f}")
    return [f"t{number}" for number in range(before)], rows, targets


_FAMILIES: dict[str, Callable[[Generator, int], _Table]] = {
    "tabular": _tabular,
    "sequence": _sequence,
    "series": _series,
}


def score_of(targets: Sequence[str], said: Any, *, numeric: bool) -> float | None:
    """How good predictions are, at most 1; None for what are none: another number of them, or not of their kind."""
    if not isinstance(said, list) or len(said) != len(targets):
        return None
    if not numeric:
        if not all(isinstance(one, str) for one in said):
            return None
        return sum(map(str.__eq__, said, targets)) / len(targets)
    plain = (int, float)
    if not all(type(one) in plain and abs(one) < 1e12 for one in said):
        return None
    wanted, given = np.array([float(one) for one in targets]), np.array(said, dtype=float)
    return 1.0 - float(((wanted - given) ** 2).mean() / wanted.var())


def score_of_constant(drawing: Drawing) -> float:
    """The score of the best answer that is the same for every row."""
    if drawing.numeric:
        return 0.0
    return max(drawing.test_targets.count(one) for one in set(drawing.test_targets)) / len(drawing.test_targets)
