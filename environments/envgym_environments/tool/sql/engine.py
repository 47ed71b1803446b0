"""A SQLite database that may only be read, by queries whose work and answers are bounded and repeat exactly.

What a query may do is decided by SQLite's authorizer, not by looking at its text. Work is counted in instructions
of SQLite's own machine, never in seconds, so the same query is stopped at the same point on every computer. The day
is `words.TODAY`, and chance is refused; see `functions` for what SQLite's own functions would do besides.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envgym_environments.tool.sql.functions import BY_CHANCE, Cell, replace_functions
from envgym_environments.tool.sql.reading import read_rows

__all__ = ["Cell", "Database", "Rows", "shown"]

_ALLOWED = {
    sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, getattr(sqlite3, "SQLITE_RECURSIVE", 33),
}  # fmt: skip
_STEP = 1000
_MOST_DRAWN, _MOST_FOREIGN = 20_000, 1_000_000
"""Bytes of one value, in databases that were drawn and in files: `zeroblob` can ask for gigabytes. SQLite does not
count what a function does inside, so this bounds it too. `reading` bounds what a result is in all."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What a query gave: names of columns, rows (at most as asked for), whether there are more; or an error."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    more: bool = False
    error: str = ""


class Database:
    """One connection of its own: to the bytes of a database in memory, or to a file that is never written."""

    def __init__(self, source: bytes | Path, *, instructions: int = 1_000_000) -> None:
        if isinstance(source, bytes):
            self._connection = sqlite3.connect(":memory:", isolation_level=None)
            self._connection.deserialize(source)
        else:
            if not source.is_file():
                raise FileNotFoundError(f"no database file {source}")
            uri = f"{source.absolute().as_uri()}?mode=ro&immutable=1"
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None)
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self._steps, self._most = 0, instructions // _STEP
        replace_functions(self._connection)
        self._longest = _MOST_DRAWN if isinstance(source, bytes) else _MOST_FOREIGN
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, _MOST_DRAWN)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 100)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self._connection.set_progress_handler(self._count, _STEP)
        self._connection.set_authorizer(_authorize)

    def _count(self) -> int:
        self._steps += 1
        return int(self._steps > self._most)

    def query(self, sql: str, *, most: int = 50, values: Sequence[Cell] = ()) -> Rows:
        """The first `most` rows of one SELECT. Whatever is wrong with the query is in `Rows.error`."""
        self._steps = 0
        try:
            read = read_rows(self._connection, sql, most + 1, longest=self._longest, values=values)
        except sqlite3.OperationalError as error:
            if self._steps > self._most:
                return Rows(error="the query was stopped: it does too much work; filter or join it better")
            return Rows(error=str(error))
        # ValueError: a NUL in the text, or TooLarge; MemoryError: too long a value; Warning: two statements in 3.11
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
            return Rows(error=str(error) or type(error).__name__)
        if read is None:
            return Rows(error="this gives no rows: write a SELECT")
        columns, found = read
        return Rows(columns, tuple(found[:most]), len(found) > most)

    def tables(self) -> list[tuple[str, str]]:
        """Name and CREATE statement of every table, in order."""
        found = self.query(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY rowid",
            most=1000,
        )
        return [(str(name), str(sql)) for name, sql in found.rows]

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._connection.close()


def _authorize(action: int, first: str | None, second: str | None, _base: str | None, _where: str | None) -> int:
    if action not in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in BY_CHANCE):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def shown(found: Rows) -> str:
    """Rows as a model reads them: a header, a line for each row, and what there is besides."""
    if found.error:
        return f"error: {found.error}"
    lines = [" | ".join(found.columns), *(" | ".join(_cell(cell) for cell in row) for row in found.rows)]
    if found.more:
        lines.append("... and more rows")
    return "\n".join(lines) if found.rows else f"{lines[0]}\n(no rows)"


def _cell(cell: Cell) -> str:
    if cell is None:
        return "NULL"
    if isinstance(cell, float):
        return f"{cell:.6g}"
    return cell.hex()[:80] if isinstance(cell, bytes) else cell[:200] if isinstance(cell, str) else str(cell)
