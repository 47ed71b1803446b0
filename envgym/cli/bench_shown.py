"""What ``envgym bench credit`` found, as tables that fit the terminal: too many columns become several tables."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["show"]

_COLUMNS = ("mse", "scaled_mse", "bias2", "variance", "rank", "wrong_sign", "cosine", "token_mse")
_HELD = ("mse", "rank", "cosine", "wrong_sign", "noise", "turns", "sure")


def show(found: dict[str, Any]) -> None:
    """Print everything that was measured, in worlds or of a store."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    if "store" in found:
        _store(console, found)
        return
    for name, rows in found["worlds"].items():
        _table(console, name, rows, {one: [_cell(row[one]) for row in rows] for one in (*_COLUMNS, "tokens")})
    rows = found["all"]
    over = ", ".join(found["worlds"])
    _table(
        console,
        f"{over}: interquartile means of runs",
        rows,
        {
            title: [_interval(row[one]) for row in rows]
            for title, one in (("mse / power", "mse"), ("scaled mse / power", "scaled_mse"), ("cosine", "cosine"))
        },
    )
    power = ", ".join(f"{name} {rows[0]['power']:.4g}" for name, rows in found["worlds"].items())
    console.print(f"power, the mean square of the true advantage and the error of no credit at all: {power}")
    if found["setting"]["runs"] == 1:
        console.print("one seed: nothing can be said of bias, variance and intervals (--seeds)")


def _store(console: Console, found: dict[str, Any]) -> None:
    rows = found["schemes"]
    _table(console, found["store"], rows, {one: [_cell(row[one]) for row in rows] for one in _HELD})
    console.print(
        f"{found['continuations']} continuations of {found['episodes']} episodes: {found['fork_tokens']} "
        f"sampled tokens, {found['fork_turns']} turns, {found['fork_s']:.1f} s; variance of an advantage "
        f"{_cell(found['fork_variance'])}, of an outcome in its group {_cell(found['outcome_variance'])}"
    )


def _table(
    console: Console, title: str, rows: Sequence[dict[str, Any]], columns: Mapping[str, Sequence[str]]
) -> None:
    """One table, or several with some of the columns each where the terminal is narrow."""
    labels = [f"{row['name']} ({row['data']})" for row in rows]
    first = max(map(len, ["scheme", *labels])) + 4
    parts: list[list[str]] = [[]]
    width = first
    for name, cells in columns.items():
        size = max(map(len, [name, *cells])) + 3
        if parts[-1] and width + size > console.width:
            parts.append([])
            width = first
        parts[-1].append(name)
        width += size
    for part in parts:
        table = Table(title=title)
        table.add_column("scheme", overflow="fold")
        for name in part:
            table.add_column(name, overflow="fold", min_width=max(map(len, [name, *columns[name]])))
        for place, label in enumerate(labels):
            table.add_row(label, *(columns[name][place] for name in part))
        console.print(table)


def _interval(found: dict[str, float | None]) -> str:
    if found["low"] is None:
        return _cell(found["value"])
    return f"{found['value']:.3g} [{found['low']:.3g}, {found['high']:.3g}]"


def _cell(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"
