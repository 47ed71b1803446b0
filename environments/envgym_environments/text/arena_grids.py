"""TextArena's Minesweeper and Slitherlink: what the numbers of a grid allow.

Minesweeper is decided by all placements of mines that the shown numbers allow, Slitherlink by all regions whose
border they allow.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product

__all__ = ["loop_edges", "mines", "safest", "slitherlink"]

Cell = tuple[int, int]
Rule = tuple[frozenset[Cell], int]
"""Cells, and how many mines are among them."""

_DENSITY = 0.18
"""How likely a mine is where no number says anything; the game does not tell how many there are."""
_MOST_TOGETHER = 24
"""Cells that are looked at together; larger groups are judged number by number."""


def mines(shown: Sequence[str]) -> str | None:
    """The cell that is least likely to hold a mine; the middle first. A mine that was hit is known from then on."""
    lines = [line.split() for line in shown[-1].rpartition("Board:")[2].split("\n") if line.strip()]
    rows = [line[1:] for line in lines[1:] if len(line) == len(lines[0]) + 1]
    told = re.findall(r"hit a mine at \((\d+), (\d+)\)", "\n".join(shown))
    cell = safest(rows, {(int(row), int(column)) for row, column in told})
    return f"[{cell[0]} {cell[1]}]" if cell else None


def safest(rows: Sequence[Sequence[str]], known: set[Cell]) -> Cell | None:
    """The closed cell (".") that is least likely to hold a mine; None where none is left but those that do."""
    closed = {(r, c) for r, row in enumerate(rows) for c, sign in enumerate(row) if sign == "."} - known
    if len(closed) == len(rows) * len(rows[0]):
        return len(rows) // 2, len(rows[0]) // 2
    rules = set()
    for place, sign in ((place, rows[place[0]][place[1]]) for place in _all(rows)):
        if sign.isdigit():
            around = set(_around(place))
            rules.add((frozenset(around & closed), int(sign) - len(around & known)))
    rules.discard((frozenset(), 0))
    sure = _deduced(rules)
    if safe := [cell for cells, count in sure if not count for cell in cells]:
        return min(safe)
    left = closed - {cell for cells, count in sure if count == len(cells) for cell in cells}
    risks = dict.fromkeys(left, _DENSITY) | {cell: risk for cell, risk in _risks(sure).items() if cell in left}
    return min(risks, key=lambda cell: (risks[cell], cell)) if risks else None


def _all(rows: Sequence[Sequence[str]]) -> Iterator[Cell]:
    return product(range(len(rows)), range(len(rows[0])))


def _around(place: Cell) -> Iterator[Cell]:
    return ((place[0] + r, place[1] + c) for r, c in product((-1, 0, 1), repeat=2) if r or c)


def _deduced(rules: set[Rule]) -> set[Rule]:
    """The rules, and those that follow where the cells of one are among another's; bounded in rounds."""
    for _ in range(4):
        more = {
            (big - small, count - few)
            for small, few in rules
            for big, count in rules
            if small < big
        } - rules  # fmt: skip
        if not more:
            break
        rules = rules | more
    return rules


def _risks(rules: set[Rule]) -> dict[Cell, float]:
    """How likely each cell of a rule holds a mine: over all placements of its group that every rule allows."""
    risks: dict[Cell, float] = {}
    left = {rule for rule in rules if rule[0]}
    while left:
        group: set[Rule] = set()
        cells = set(next(iter(left))[0])
        while more := {rule for rule in left if rule[0] & cells}:
            left, group = left - more, group | more
            cells |= {cell for rule in more for cell in rule[0]}
        if len(cells) <= _MOST_TOGETHER:
            risks |= _shares(sorted(cells), list(group))
        else:
            risks |= {cell: max(n / len(r) for r, n in group if cell in r) for cell in cells}
    return risks


def _shares(cells: list[Cell], rules: list[Rule]) -> dict[Cell, float]:
    """Of all placements that the rules allow, the share in which each cell holds a mine; fewer mines weigh more."""
    odds = _DENSITY / (1 - _DENSITY)
    total, with_mine = 0.0, dict.fromkeys(cells, 0.0)
    for placed in _placed(cells, rules, frozenset()):
        weight = odds ** len(placed)
        total += weight
        for cell in placed:
            with_mine[cell] += weight
    return {cell: share / total if total else _DENSITY for cell, share in with_mine.items()}


def _placed(cells: list[Cell], rules: list[Rule], mined: frozenset[Cell]) -> Iterator[frozenset[Cell]]:
    if any(count < 0 or count > len(left) for left, count in rules):
        return
    if not cells:
        yield mined
        return
    first, rest = cells[0], cells[1:]
    for holds in (0, 1):
        after = [(left - {first}, count - holds) if first in left else (left, count) for left, count in rules]
        yield from _placed(rest, after, mined | {first} if holds else mined)


def slitherlink(shown: Sequence[str]) -> str | None:
    """The next edge of a loop that meets every number; None behind the last one."""
    lines = re.findall(r"^ {4}((?:[ │] [\d·] )+)[ │]$", shown[0], re.M)
    clues = tuple(
        tuple(None if sign == "·" else int(sign) for sign in re.findall(r"[\d·]", line)) for line in lines
    )
    edges, at = loop_edges(clues), len(shown) - 1
    return f"[{edges[at]}]" if at < len(edges) else None


@lru_cache(maxsize=16)
def loop_edges(clues: tuple[tuple[int | None, ...], ...]) -> tuple[str, ...]:
    """The edges ("h row column", "v row column") of the first loop that all clues allow; () where there is none."""
    wide = len(clues[0])
    empty = (0,) * (wide + 2)
    for region in _regions(clues, [empty]):
        if _one_loop(region):
            flat = [f"h {r} {c}" for r in range(len(clues) + 1) for c in range(wide)
                    if region[r][c + 1] != region[r + 1][c + 1]]  # fmt: skip
            return (*flat, *(f"v {r} {c}" for r in range(len(clues)) for c in range(wide + 1)
                             if region[r + 1][c] != region[r + 1][c + 1]))  # fmt: skip
    return ()


Region = list[tuple[int, ...]]
"""Rows of 1 (inside) and 0, with a border of zeros all around."""


def _regions(clues: Sequence[Sequence[int | None]], above: Region) -> Iterator[Region]:
    """Regions, row by row, in which every clue has as many neighbours of the other kind as it says."""
    done = len(above) - 1
    last = done == len(clues)
    for inner in product((0, 1), repeat=len(clues[0])) if not last else [(0,) * len(clues[0])]:
        region = [*above, (0, *inner, 0)]
        if done == 0 or _met(clues[done - 1], region[done - 1 :]):
            if last:
                yield region
            else:
                yield from _regions(clues, region)


def _met(clues: Sequence[int | None], rows: Region) -> bool:
    over, row, under = rows
    return all(
        clue is None or sum(side != row[at] for side in (over[at], under[at], row[at - 1], row[at + 1])) == clue
        for at, clue in enumerate(clues, 1)
    )


def _one_loop(region: Region) -> bool:
    """Whether the region and what is outside are each in one piece, and touch at no corner alone."""
    for one, other in pairwise(region):
        for at in range(len(one) - 1):
            if one[at] == other[at + 1] != one[at + 1] == other[at]:
                return False
    for kind in (0, 1):
        cells = {(r, c) for r, row in enumerate(region) for c, sign in enumerate(row) if sign == kind}
        if not cells:
            return False
        seen, queue = set(), [min(cells)]
        while queue:
            row, column = place = queue.pop()
            if place in cells and place not in seen:
                seen.add(place)
                queue += [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
        if seen != cells:
            return False
    return True
