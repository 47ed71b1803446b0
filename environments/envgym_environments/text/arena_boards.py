"""Solvers of TextArena's board games: pure functions from a board to the next move; None where there is none.

Each is exact: breadth-first where the way must be short, depth-first where any way will do.
"""

from collections import deque
from functools import cache, lru_cache
from itertools import combinations

__all__ = ["car_move", "hanoi_move", "lake_move", "lights_move", "peg_move", "sudoku_filled"]

Cell = tuple[int, int]
Car = tuple[str, bool, int, int, int]
"""Letter, whether it lies, row, column, length."""

_SIDES: dict[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_LINES = (
    "1-2-4 1-3-6 2-4-7 2-5-9 3-5-8 3-6-10 4-5-6 4-7-11 4-8-13 5-8-12 5-9-14 6-9-13 6-10-15 7-8-9 7-11-13 8-9-10 "
    "8-12-14 9-12-13 9-13-15"
)
_JUMPS = tuple(
    jump
    for first, over, last in (map(int, line.split("-")) for line in _LINES.split())
    for jump in ((first, over, last), (last, over, first))
)
"""The jumps that PegJump of TextArena 0.7.4 allows; four of them are not straight, and its lowest row has none."""


def hanoi_move(towers: dict[str, list[int]], goal: str) -> tuple[str, str] | None:
    """The next move of the shortest way to have all disks on `goal`, from any legal position."""
    where = {disk: name for name, disks in towers.items() for disk in disks}
    move = None
    for disk in sorted(where, reverse=True):
        if where[disk] == goal:
            continue
        move = (where[disk], goal)
        goal = next(name for name in towers if name not in move)  # the smaller ones must make way
    return move


def lake_move(grid: list[str]) -> str | None:
    """The first step of a shortest way from P to G that touches no H."""
    places = {(r, c): cell for r, row in enumerate(grid) for c, cell in enumerate(row) if cell != "H"}
    start = next(place for place, cell in places.items() if cell == "P")
    queue, seen = deque([(start, "")]), {start}
    while queue:
        place, first = queue.popleft()
        if places[place] == "G":
            return first or None
        for name, (down, right) in _SIDES.items():
            there = (place[0] + down, place[1] + right)
            if there in places and there not in seen:
                seen.add(there)
                queue.append((there, first or name))
    return None


def lights_move(lit: set[Cell], size: int) -> Cell | None:
    """One light of a smallest set of presses that puts all out; the first row decides the others."""
    best: list[Cell] | None = None
    for count in range(size + 1):
        for first in combinations(range(size), count):
            left, pressed = set(lit), [(0, column) for column in first]
            for place in pressed:
                left ^= _around(place, size)
            for row in range(1, size):
                for column in range(size):
                    if (row - 1, column) in left:
                        pressed.append((row, column))
                        left ^= _around((row, column), size)
            if not left and (best is None or len(pressed) < len(best)):
                best = pressed
    return best[0] if best else None


def _around(place: Cell, size: int) -> set[Cell]:
    row, column = place
    crossed = {(row + down, column + right) for down, right in ((0, 0), *_SIDES.values())}
    return {(r, c) for r, c in crossed if 0 <= r < size and 0 <= c < size}


def peg_move(pegs: frozenset[int]) -> tuple[int, int] | None:
    """A jump after which one peg can still be reached; where none is left, any jump that is possible."""
    possible = [(a, b) for a, over, b in _JUMPS if a in pegs and over in pegs and b not in pegs]
    solved = _pegs(pegs)
    return solved[0] if solved else (possible[0] if possible else None)


@cache
def _pegs(pegs: frozenset[int]) -> tuple[tuple[int, int], ...] | None:
    if len(pegs) == 1:
        return ()
    for first, over, last in _JUMPS:
        if first in pegs and over in pegs and last not in pegs:
            rest = _pegs(pegs - {first, over} | {last})
            if rest is not None:
                return ((first, last), *rest)
    return None


Grid = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=32)
def sudoku_filled(grid: Grid) -> Grid | None:
    """The grid, filled (0 is empty); kept, as every move of a game asks for the same."""
    return _filled(grid)


def _filled(grid: Grid) -> Grid | None:
    """Try the cell with the fewest possible digits first."""
    best: tuple[int, int, list[int]] | None = None
    for row, column in ((r, c) for r in range(9) for c in range(9) if not grid[r][c]):
        used = set(grid[row]) | {grid[r][column] for r in range(9)}
        r0, c0 = row // 3 * 3, column // 3 * 3
        used |= {grid[r][c] for r in range(r0, r0 + 3) for c in range(c0, c0 + 3)}
        open_digits = [digit for digit in range(1, 10) if digit not in used]
        if best is None or len(open_digits) < len(best[2]):
            best = (row, column, open_digits)
    if best is None:
        return grid
    row, column, open_digits = best
    for digit in open_digits:
        line = (*grid[row][:column], digit, *grid[row][column + 1 :])
        if (filled := _filled((*grid[:row], line, *grid[row + 1 :]))) is not None:
            return filled
    return None


def car_move(rows: list[str]) -> str | None:
    """The first of the fewest one-cell moves (letter, + or -) after which the car X can leave on the right."""
    start = _cars(rows)
    size = len(rows)
    queue, seen = deque([(start, "")]), {start}
    while queue:
        cars, first = queue.popleft()
        if any(car[0] == "X" and car[3] + car[4] >= size for car in cars):
            return first or "X+"
        taken = {cell for car in cars for cell in _cells(car)}
        for at, (name, lies, row, column, length) in enumerate(cars):
            for sign, step, edge in (("+", 1, length), ("-", -1, -1)):
                ahead = (row, column + edge) if lies else (row + edge, column)
                if ahead in taken or not all(0 <= value < size for value in ahead):
                    continue
                moved = (
                    (name, lies, row, column + step, length) if lies else (name, lies, row + step, column, length)
                )
                after = (*cars[:at], moved, *cars[at + 1 :])
                if after not in seen:
                    seen.add(after)
                    queue.append((after, first or name + sign))
    return None


def _cars(rows: list[str]) -> tuple[Car, ...]:
    cells: dict[str, list[Cell]] = {}
    for r, row in enumerate(rows):
        for c, name in enumerate(row):
            if name != ".":
                cells.setdefault(name, []).append((r, c))
    return tuple(
        (name, places[0][0] == places[-1][0], *places[0], len(places)) for name, places in sorted(cells.items())
    )


def _cells(car: Car) -> list[Cell]:
    _, lies, row, column, length = car
    return [(row, column + at) if lies else (row + at, column) for at in range(length)]
