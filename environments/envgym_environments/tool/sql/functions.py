"""SQLite functions whose work is not bounded or whose answers do not repeat, replaced by ones that are and do.

The clock stands at noon of `words.TODAY`, and the host's time zone is UTC. `instr`, `replace` and `trim` compare
every place with every pattern, and `printf` counts to any width it is told, all within one instruction that nothing
can stop; these here are linear.
"""

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

from envgym_environments.words import TODAY

__all__ = ["BY_CHANCE", "Cell", "replace_functions"]

Cell = None | int | float | str | bytes

BY_CHANCE = frozenset(
    {"random", "randomblob", "current_date", "current_time", "current_timestamp", "load_extension"}
)
"""What an authorizer refuses, as its answer is another each time, or reaches beyond the database."""

_NOON = f"{TODAY} 12:00:00"
_CLOCKS = {"date": 0, "time": 0, "datetime": 0, "julianday": 0, "unixepoch": 0, "strftime": 1}
"""The place of the moment, after which modifiers come."""

_WIDE = re.compile(r"\*|\d{4,}")


def replace_functions(connection: sqlite3.Connection) -> None:
    """Put them in the place of SQLite's own, for this connection."""
    for name, place in _CLOCKS.items():
        connection.create_function(name, -1, _clock(name, place), deterministic=True)
    if sqlite3.sqlite_version_info >= (3, 43):
        connection.create_function("timediff", 2, _difference, deterministic=True)
    for name in ("printf", "format"):
        connection.create_function(name, -1, _printed, deterministic=True)
    connection.create_function("instr", 2, _instr, deterministic=True)
    connection.create_function("replace", 3, _replace, deterministic=True)
    for name, strip in (("trim", str.strip), ("ltrim", str.lstrip), ("rtrim", str.rstrip)):
        connection.create_function(name, -1, _trimmed(strip), deterministic=True)


def _plain(name: str, values: list[Any]) -> Any:
    """What an untouched SQLite gives."""
    with closing(sqlite3.connect(":memory:")) as connection:
        return connection.execute(f"SELECT {name}({','.join('?' * len(values))})", values).fetchone()[0]


def _clock(name: str, place: int) -> Callable[..., Any]:
    def call(*given: Cell) -> Any:
        # where no moment is named SQLite would take the clock's
        moment = _moment(given[place] if len(given) > place else _NOON)
        after = [one for one in given[place + 1 :] if _word(one) not in ("localtime", "utc")]
        return _plain(name, [*given[:place], *moment, *after])

    return call


def _difference(one: Cell, other: Cell) -> Any:
    return _plain("timediff", [_moment(one)[0], _moment(other)[0]])


def _moment(given: Cell) -> list[Cell]:
    """A moment, the clock's where SQLite would ask for that, and the modifier that stands in its place."""
    word = _word(given)
    if word in ("subsec", "subsecond"):
        return [_NOON, word]
    return [_NOON if word == "now" else given]


def _word(given: Cell) -> str:
    """A text as SQLite compares it with its own words: of bytes, too, and until a NUL."""
    return _text(given).partition("\0")[0].strip().lower() if isinstance(given, str | bytes) else ""


def _printed(*given: Cell) -> Any:
    if given and _WIDE.search(_text(given[0])):
        raise ValueError("no width as wide")
    return _plain("printf", list(given))


def _text(value: Cell) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        text = f"{value:.15g}"
        return text if set(text) & set(".en") else f"{text}.0"
    return "" if value is None else str(value)


def _instr(text: Cell, part: Cell) -> int | None:
    if text is None or part is None:
        return None
    if isinstance(text, bytes) and isinstance(part, bytes):
        return text.find(part) + 1
    return _text(text).find(_text(part)) + 1


def _replace(text: Cell, part: Cell, by: Cell) -> str | None:
    if text is None or part is None or by is None:
        return None
    whole, old = _text(text), _text(part)
    return whole.replace(old, _text(by)) if old else whole


def _trimmed(strip: Callable[[str, str], str]) -> Callable[..., str | None]:
    def call(*given: Cell) -> str | None:
        if not 1 <= len(given) <= 2:
            raise ValueError("one or two arguments")
        if None in given:
            return None
        return strip(_text(given[0]), _text(given[1]) if len(given) == 2 else " ")

    return call
