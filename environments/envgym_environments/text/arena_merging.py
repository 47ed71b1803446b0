"""2048 of TextArena: look at every tile that may come, as deep as the open cells allow, take the best on average.

Boards are tuples of rows of exponents (0 is open, 1 is the tile 2), so that a row is slid and weighed once and then
looked up. What a line is worth follows the weights of R. Xiao's program for the game (2014): open cells and pairs
that can merge are good, tiles that neither rise nor fall along the line are bad, and many small ones are too.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

__all__ = ["best_slide", "merging"]

Row = tuple[int, ...]
Board = tuple[Row, ...]

_LOST = -1e6
_DEEP, _SHALLOW = 4, 10
"""With at most so many open cells two new tiles are looked at; with at most so many one; with more none."""


def merging(shown: Sequence[str]) -> str | None:
    """The slide of the last board that is shown; None where none moves anything."""
    rows = re.findall(r"^\|(.+)\|$", shown[-1], re.M)
    board = tuple(tuple(0 if cell == "." else int(cell).bit_length() - 1 for cell in row.split()) for row in rows)
    side = best_slide(board)
    return f"[{side}]" if side else None


def best_slide(board: Board) -> str | None:
    """Up, Down, Left or Right, whichever is worth most; None where nothing can be slid."""
    still_open = sum(row.count(0) for row in board)
    depth = 2 if still_open <= _DEEP else 1 if still_open <= _SHALLOW else 0
    found = [(_awaited(after, depth), side) for side, after in _slides(board)]
    return max(found)[1] if found else None


def _slides(board: Board) -> Iterator[tuple[str, Board]]:
    """The slides that change something, and the boards that they give."""
    turned = tuple(zip(*board, strict=True))
    for side, lines in (("Left", board), ("Up", turned)):
        after = tuple(map(_slid, lines))
        if after != lines:
            yield side, after if lines is board else tuple(zip(*after, strict=True))
    for side, lines in (("Right", board), ("Down", turned)):
        after = tuple(_slid(line[::-1])[::-1] for line in lines)
        if after != lines:
            yield side, after if lines is board else tuple(zip(*after, strict=True))


@lru_cache(maxsize=1 << 16)
def _slid(row: Row) -> Row:
    """A row after a slide to its begin: equal neighbours become one, each tile once."""
    made: list[int] = []
    free = False
    for tile in filter(None, row):
        if free and made[-1] == tile:
            made[-1], free = tile + 1, False
        else:
            made.append(tile)
            free = True
    return (*made, *(0,) * (len(row) - len(made)))


@lru_cache(maxsize=1 << 14)
def _awaited(board: Board, depth: int) -> float:
    """What a board is worth before the next tile comes: a 2 nine times of ten, a 4 once, anywhere it is open."""
    if depth == 0:
        return sum(map(_worth, board)) + sum(map(_worth, zip(*board, strict=True)))
    total = count = 0.0
    for at, row in enumerate(board):
        for place, tile in enumerate(row):
            if tile:
                continue
            count += 1
            for new, chance in ((1, 0.9), (2, 0.1)):
                line = (*row[:place], new, *row[place + 1 :])
                came = (*board[:at], line, *board[at + 1 :])
                total += chance * max((_awaited(after, depth - 1) for _, after in _slides(came)), default=_LOST)
    return total / count if count else _LOST


@lru_cache(maxsize=1 << 16)
def _worth(row: Row) -> float:
    """What one row or column is worth."""
    rises = falls = 0.0
    for one, other in pairwise(row):
        change = float(other**4 - one**4)
        rises, falls = rises + max(0.0, change), falls + max(0.0, -change)
    tiles = [tile for tile in row if tile]
    pairs = sum(one == other for one, other in pairwise(tiles))
    many = sum(float(tile**3.5) for tile in tiles)
    return 270.0 * row.count(0) + 700.0 * pairs - 47.0 * min(rises, falls) - 11.0 * many
