"""The state of a site: one SQLite database in memory, put back, copied and compared in milliseconds.

A snapshot is the pages of the file that differ from those of the pristine database; putting it back gives the very
bytes. Tables whose names begin with "_" are the application's own (hits, drafts): they are part of a snapshot but
not of what is compared.
"""

import hashlib
import sqlite3
import zlib
from base64 import b85decode, b85encode
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

__all__ = ["Changes", "Database", "Rows", "by_rows", "changed", "same_answer", "wanted_changes"]

Rows = Mapping[str, Counter[tuple[object, ...]]]
"""Table -> its rows, each as often as it is there."""

Changes = Counter[tuple[str, str, tuple[object, ...]]]
"""(sign, table, row), as often: see `changed`."""


class Database:
    """A site's database. pristine: the bytes that `reset` brings back; content: those that it begins with.

    ignored: tables that do not count, beside those whose names begin with "_".
    """

    def __init__(self, pristine: bytes, content: bytes | None = None, *, ignored: Collection[str] = ()) -> None:
        self.pristine, self.ignored = pristine, ignored
        # the environment may be driven from another thread than it was made in, never from two at once
        self.connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self.connection.row_factory = sqlite3.Row
        self._digest: tuple[int, str] | None = None
        self._load(pristine if content is None else content)

    def reset(self) -> None:
        """The pristine bytes again, whatever was done."""
        self._load(self.pristine)

    def _load(self, content: bytes) -> None:
        self.connection.deserialize(content)
        self.connection.execute("PRAGMA foreign_keys = ON")
        self._digest = None

    def content(self) -> bytes:
        """The database file, byte by byte."""
        return self.connection.serialize()

    def snapshot(self) -> dict[str, str]:
        """What differs from the pristine file, as plain data: "size", and page number -> packed page."""
        now, size = self.content(), _page_size(self.pristine)
        kept = {"size": str(len(now))}
        for at in range(0, len(now), size):
            page = now[at : at + size]
            if page != self.pristine[at : at + size]:
                kept[str(at // size)] = b85encode(zlib.compress(page)).decode()
        return kept

    def restore(self, kept: Mapping[str, str]) -> None:
        """The state of a snapshot of a database with the same pristine bytes."""
        length, size = int(kept["size"]), _page_size(self.pristine)
        content = bytearray(self.pristine[:length].ljust(length, b"\0"))
        for number, packed in kept.items():
            if number != "size":
                at = int(number) * size
                content[at : at + size] = zlib.decompress(b85decode(packed))
        self._load(bytes(content))

    def rows(self) -> Rows:
        """All rows that count, by table. Bytes of a text that are no UTF-8 are lone surrogates."""
        try:
            return self._rows()
        except sqlite3.OperationalError as error:
            if "decode" not in str(error):
                raise
            self.connection.text_factory = _decoded  # a call for each text, which nearly no database needs
            return self._rows()

    def _rows(self) -> Rows:
        quoted = {table: table.replace('"', '""') for table in self.tables()}
        return {
            table: Counter(map(tuple, self.connection.execute(f'SELECT * FROM "{name}"')))
            for table, name in quoted.items()
        }

    def tables(self) -> list[str]:
        """The tables that count, by name."""
        found = self.connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '\\_%' ESCAPE '\\' "
            "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
        )
        return [row[0] for row in found if row[0] not in self.ignored]

    def digest(self) -> str:
        """A digest of all rows that count; equal contents have equal ones, however they came about."""
        changes = self.connection.total_changes
        if self._digest is None or self._digest[0] != changes:
            digest = hashlib.blake2b(digest_size=16)
            for table, rows in self.rows().items():
                digest.update(repr((table, sorted(rows.items(), key=repr))).encode())
            self._digest = (changes, digest.hexdigest())
        return self._digest[1]

    def close(self) -> None:
        """Let go of the memory; idempotent."""
        self.connection.close()


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def _page_size(content: bytes) -> int:
    """Of an SQLite file (https://www.sqlite.org/fileformat.html, 1.3.2): bytes 16 and 17, where 1 is 65,536."""
    size = int.from_bytes(content[16:18])
    return 65_536 if size == 1 else size


def changed(before: Rows, after: Rows) -> Changes:
    """The rows that went ("-") and came ("+"), as often as they did: (sign, table, row)."""
    found: Changes = Counter()
    for table in before.keys() | after.keys():
        old, new = before.get(table, Counter()), after.get(table, Counter())
        found.update({("-", table, row): count for row, count in (old - new).items()})
        found.update({("+", table, row): count for row, count in (new - old).items()})
    return found


def wanted_changes(database: Database, changes: Iterable[tuple[str, Sequence[Any]]]) -> tuple[Rows, Changes]:
    """The pristine rows, and what SQL and its values make of them, as `changed` tells it. Raises sqlite3.Error."""
    pristine = Database(database.pristine, ignored=database.ignored)
    try:
        before = pristine.rows()
        pristine.connection.execute("PRAGMA query_only = OFF")
        for statement, values in changes:
            pristine.connection.execute(statement, values)
        return before, changed(before, pristine.rows())
    finally:
        pristine.close()


def by_rows(database: Database, before: Rows, wanted: Changes) -> dict[str, float]:
    """The verdict of all rows that count. before, wanted: as `wanted_changes` gives them.

    state: the rows are what they should be. done: the share of the wanted changes that were made. harm: something
    was changed that should not have been.
    """
    made = changed(before, database.rows())
    return {
        "state": float(wanted == made),
        "done": (wanted & made).total() / wanted.total() if wanted else 1.0,
        "harm": float(bool(made - wanted)),
    }


def same_answer(given: str | float, wanted: str | float) -> bool:
    """Whether a typed answer is the wanted one: numbers to the cent, texts but for case, space and the last dot."""
    if isinstance(wanted, str):
        return isinstance(given, str) and _plain(given) == _plain(wanted)
    return not isinstance(given, str) and abs(float(given) - float(wanted)) < 0.005


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .\"'")
