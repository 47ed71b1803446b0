"""TextArena's FifteenPuzzle and Sokoban: a way to the end, found by best-first search and then followed.

The whole way is searched for once, from the first board that is shown; the move is its next step.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from heapq import heappop, heappush

__all__ = ["fifteen", "fifteen_way", "sokoban", "sokoban_way"]

Tiles = tuple[int, ...]
"""Sixteen cells row by row; 0 is the gap."""
Cell = tuple[int, int]

_GAP_MOVES = {"up": (1, 0), "down": (-1, 0), "left": (0, 1), "right": (0, -1)}
"""Where the gap goes when a tile slides up, down, left, right."""
_SIDES: dict[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_MOST = 400_000


def fifteen(shown: Sequence[str]) -> str | None:
    """The next slide; None at the end of the way, which for every second board is an exchange short of the goal."""
    rows = re.findall(r"^((?:(?: ?\d+|__) ){3}(?: ?\d+|__))$", shown[0], re.M)[:4]
    tiles = tuple(0 if tile == "__" else int(tile) for row in rows for tile in row.split())
    return _step(fifteen_way(tiles), shown)


def _step(way: Sequence[str], shown: Sequence[str]) -> str | None:
    at = len(shown) - 1
    return f"[{way[at]}]" if at < len(way) else None


@lru_cache(maxsize=16)
def fifteen_way(tiles: Tiles) -> tuple[str, ...]:
    """Slides that bring the tiles in order, as far as they can be brought.

    Half of all boards cannot be solved (the parity of the permutation and the gap's row never change together).
    Then two tiles stay exchanged, and such as lay right before are chosen, as the game counts only the others.
    """
    goal = [*range(1, 16), 0]
    if _odd(tiles) != _odd(goal):
        first, second = sorted(range(15), key=lambda cell: tiles[cell] != goal[cell])[:2]
        goal[first], goal[second] = goal[second], goal[first]
    home = {tile: divmod(cell, 4) for cell, tile in enumerate(goal)}
    far = [[abs(r - home[t][0]) + abs(c - home[t][1]) if t else 0 for t in range(16)]
           for r, c in map(lambda cell: divmod(cell, 4), range(16))]  # fmt: skip
    distance = sum(far[cell][tile] for cell, tile in enumerate(tiles))
    queue: list[tuple[int, int, Tiles]] = [(3 * distance, distance, tiles)]
    came: dict[Tiles, tuple[int, Tiles, str]] = {tiles: (0, tiles, "")}
    while queue:
        _, distance, now = heappop(queue)
        if not distance:
            return _traced(came, now)
        for name, after, changed in _slides(now, far):
            cost = came[now][0] + 1
            if after not in came or cost < came[after][0]:
                came[after] = (cost, now, name)
                heappush(queue, (cost + 3 * (distance + changed), distance + changed, after))
    raise AssertionError("every board of an even parity has a way")


def _odd(tiles: Sequence[int]) -> bool:
    """Parity of the permutation and of the gap's row together: no slide changes it."""
    turned = sum(a > b > 0 for at, a in enumerate(tiles) for b in tiles[at + 1 :])
    return bool((turned + list(tiles).index(0) // 4) % 2)


def _slides(tiles: Tiles, far: list[list[int]]) -> Iterator[tuple[str, Tiles, int]]:
    """What may be slid: its name, the tiles after it, and how much farther they then are from home."""
    gap = tiles.index(0)
    row, column = divmod(gap, 4)
    for name, (down, right) in _GAP_MOVES.items():
        r, c = row + down, column + right
        if 0 <= r < 4 and 0 <= c < 4:
            cell = 4 * r + c
            after = list(tiles)
            after[gap], after[cell] = tiles[cell], 0
            yield name, tuple(after), far[gap][tiles[cell]] - far[cell][tiles[cell]]


def _traced(came: dict, end: object) -> tuple[str, ...]:  # type: ignore[type-arg]  # of either game's states
    way = []
    while came[end][2]:
        _, before, name = came[end]
        way.append(name)
        end = before
    return tuple(reversed(way))


def sokoban(shown: Sequence[str]) -> str | None:
    """The next step; None where no way was found, or at its end."""
    board = re.findall(r"^((?:[#_O√XPS] ?)+)$", shown[0].rpartition("Current Board:")[2], re.M)
    return _step(sokoban_way(tuple(row.replace(" ", "") for row in board)), shown)


@lru_cache(maxsize=16)
def sokoban_way(rows: tuple[str, ...]) -> tuple[str, ...]:
    """Steps after which every box stands on a goal; () where none were found within the bound of the search.

    The board does not show a goal below the player; there is one where the boxes are more than the goals.
    """
    cells = {(r, c): sign for r, row in enumerate(rows) for c, sign in enumerate(row) if sign != "#"}
    player = next(place for place, sign in cells.items() if sign == "P")
    boxes = frozenset(place for place, sign in cells.items() if sign in "X√")
    goals = {place for place, sign in cells.items() if sign in "O√"}
    if len(goals) < len(boxes):
        goals.add(player)
    pushes = _pushes(set(cells), goals)
    if any(box not in pushes for box in boxes):
        return ()
    start = (player, boxes)
    queue = [(sum(pushes[box] for box in boxes), 0, start)]
    came = {start: (0, start, "")}
    while queue and len(came) < _MOST:
        _, cost, now = heappop(queue)
        if now[1] <= goals:
            return _traced(came, now)
        if cost > came[now][0]:
            continue
        for name, after in _steps(now, cells, pushes):
            if after not in came or cost + 1 < came[after][0]:
                came[after] = (cost + 1, now, name)
                heappush(queue, (cost + 1 + sum(pushes[box] for box in after[1]), cost + 1, after))
    return ()


def _steps(
    now: tuple[Cell, frozenset[Cell]], cells: Iterable[Cell], pushes: dict[Cell, int]
) -> Iterator[tuple[str, tuple[Cell, frozenset[Cell]]]]:
    """Where one step leads; a box is never pushed to where it can reach no goal any more."""
    (row, column), boxes = now
    for name, (down, right) in _SIDES.items():
        there, behind = (row + down, column + right), (row + 2 * down, column + 2 * right)
        if there in boxes:
            if behind in pushes and behind not in boxes:
                yield name, (there, boxes - {there} | {behind})
        elif there in cells:
            yield name, (there, boxes)


def _pushes(cells: set[Cell], goals: set[Cell]) -> dict[Cell, int]:
    """How many pushes a box alone needs from each cell to the nearest goal; cells without a way are left out."""
    found = dict.fromkeys(goals, 0)
    queue = deque(goals)
    while queue:
        row, column = place = queue.popleft()
        for down, right in _SIDES.values():
            before, stands = (row - down, column - right), (row - 2 * down, column - 2 * right)
            if before in cells and stands in cells and before not in found:
                found[before] = found[place] + 1
                queue.append(before)
    return found
