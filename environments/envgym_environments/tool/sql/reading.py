"""What a query gives, bounded in bytes: of a value, of a row, and of all rows.

A count of rows bounds nothing where each has hundreds of values: twenty columns of `zeroblob` are a gigabyte before
SQLite's machine has counted to a hundred thousand.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from envgym_environments.tool.sql.functions import Cell

__all__ = ["MOST_RESULT_BYTES", "Read", "TooLarge", "bounded", "read_rows"]

MOST_RESULT_BYTES = 64_000_000

_NARROW, _WIDE = 64, 512
"""Columns of a result or a table. Real tables come to some 120; what has more than the first has shorter values."""

_CELL = 64

Read = tuple[tuple[str, ...], list[tuple[Cell, ...]]]


class TooLarge(ValueError):
    """The rows of a query are too many bytes."""


@contextmanager
def bounded(connection: sqlite3.Connection) -> Iterator[None]:
    """The bounds on values and columns that a connection has before are what it has after."""
    kinds = (sqlite3.SQLITE_LIMIT_LENGTH, sqlite3.SQLITE_LIMIT_COLUMN)
    before = [connection.getlimit(kind) for kind in kinds]
    try:
        yield
    finally:
        for kind, bound in zip(kinds, before, strict=True):
            connection.setlimit(kind, bound)


def read_rows(
    connection: sqlite3.Connection, query: str, most: int, *, longest: int, values: Sequence[Cell] = ()
) -> Read | None:
    """The names of columns and at most so many rows; None for what gives none. longest: bytes of one value.

    The rows are read one by one. Each value counts as 64 bytes and its own, four for each character of a text that
    is not ASCII, so that the sum is no less than what Python takes and the same on every computer. Raises TooLarge,
    with one row beyond the bound in memory, and what SQLite raises.
    """
    cursor = _begun(connection, query, longest, values)
    if cursor.description is None:
        return None
    found: list[tuple[Cell, ...]] = []
    size = 0
    while len(found) < most and (row := cursor.fetchone()) is not None:
        size += sum(map(_size, row))
        if size > MOST_RESULT_BYTES:
            raise TooLarge(f"the result is too large: more than {MOST_RESULT_BYTES} bytes")
        found.append(row)
    columns = tuple(str(part[0]) for part in cursor.description)
    cursor.close()
    return columns, found


def _begun(connection: sqlite3.Connection, query: str, longest: int, values: Sequence[Cell]) -> sqlite3.Cursor:
    """The query with no row read yet. What is too wide is refused before it runs, and begun again as a wide one."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, _WIDE)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
    connection.execute("SELECT 1 FROM sqlite_master").close()  # the schema is read within the bound of wide ones
    connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, _NARROW)
    try:
        return connection.execute(query, values)
    except sqlite3.OperationalError as error:
        if not str(error).startswith("too many"):
            raise
    connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, _WIDE)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(longest, MOST_RESULT_BYTES // _WIDE))
    return connection.execute(query, values)


def _size(cell: Cell) -> int:
    if isinstance(cell, str):
        return _CELL + len(cell) * (1 if cell.isascii() else 4)
    return _CELL + len(cell) if isinstance(cell, bytes) else _CELL
