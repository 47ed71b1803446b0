"""What a task format is: how one tool spells a repair task, as an item that maps names to JSON values.

An item is a row of a table (column -> value) or a task's folder (path -> text, or an object with "base64" and
"executable"). Reading files, errors with their place, what does not come back and what travels along for it are
the same for all (`exchange`, `storage`); a format only translates.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import JsonValue

from envgym.formats.contract import Dropped, FormatError, Where
from envgym.plain_text import visible
from envgym_environments.code_repair.record import RepairRecord

__all__ = ["KEY", "Exported", "Imported", "Item", "LeftOut", "TaskFormat", "refused"]

KEY = "envgym"
"""The name under which travels what the other tool has no field for: a column, or the file ``envgym.json``."""

_SHOWN = 80


def refused(where: Where, field: str, value: object, bound: str) -> FormatError:
    """The one error: file and record, field, value, bound."""
    return FormatError(where, f"field {field!r} is {visible(repr(value), _SHOWN)}; it must be {bound}")


@dataclass(frozen=True, slots=True)
class Item:
    """One task as another tool spelled it, with checked access. Every method raises FormatError."""

    values: Mapping[str, JsonValue]
    where: Where
    split: str = ""

    def has(self, name: str) -> bool:
        """Whether there is such a field, and it is not null."""
        return self.values.get(name) is not None

    def _get(self, name: str, default: object) -> Any:
        value = self.values.get(name)
        if value is None:
            if default is None:
                there = sorted(field for field, given in self.values.items() if given is not None)
                have = visible(", ".join(there) or "nothing", 200)
                null = ": it is null" if name in self.values else ""
                raise FormatError(self.where, f"field {name!r} is missing{null}; it has {have}")
            return default
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A text; `default` where there is none, an error if that is None."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise refused(self.where, name, value, "a text")
        return value

    def word(self, name: str) -> str:
        """A text, or a number in its digits; "" where there is none. Versions and dates are spelled both ways."""
        value = self._get(name, "")
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise refused(self.where, name, value, "a text or a number")
        return value if isinstance(value, str) else json.dumps(value)

    def number(self, name: str) -> int:
        """A whole number, not negative."""
        value = self._get(name, None)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise refused(self.where, name, value, "a whole number, at least 0")
        return value

    def table(self, name: str) -> dict[str, Any]:
        """An object, or the JSON of one; empty where there is none."""
        value = self.parsed(name) if isinstance(self.values.get(name), str) else self._get(name, {})
        if not isinstance(value, dict):
            raise refused(self.where, name, value, "an object")
        return value

    def parsed(self, name: str) -> Any:
        """What a text is the JSON of."""
        text = self.text(name)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            why = visible(str(error), _SHOWN)
            raise FormatError(
                self.where, f"field {name!r} is no JSON: {why}; it begins with {text[:40]!r}"
            ) from None

    def ids(self, name: str, *, required: bool = False) -> tuple[str, ...]:
        """A list of test ids, or its JSON; none where there is none, unless it is required."""
        value = self._get(name, None if required else [])
        if isinstance(value, str):
            value = self.parsed(name) if value.strip() else []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            each = value if isinstance(value, list) else []
            wrong = next((one for one in each if not isinstance(one, str)), value)
            raise refused(self.where, name, wrong, "a list of test ids, or the JSON of one")
        return tuple(value)

    def lines(self, name: str) -> tuple[str, ...]:
        """A command, or a list of commands; none where there is none."""
        value = self._get(name, [])
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise refused(self.where, name, value, "a command, or a list of commands")
        return tuple(one for one in value if one.strip())


@runtime_checkable
class TaskFormat(Protocol):
    """One tool's spelling of repair tasks.

    kind: whether tasks are rows of files, or a folder each. summary: one line for people. `claims` says how sure
    it is that an item with these values is its own: 0 is no, and the surest format is taken. `fields` gives the
    fields of a record; `item` the item of a record, made of the record's fields and its origin's style only.
    `fields(item(record))` never raises for a valid record.
    """

    name: str
    kind: Literal["rows", "folders"]
    summary: str

    def claims(self, values: Mapping[str, JsonValue]) -> int:
        """How sure it is that the item is its own."""
        ...

    def fields(self, item: Item) -> dict[str, Any]:
        """The fields of a record, without its origin; the key "style" for the origin's. Raises FormatError."""
        ...

    def item(self, record: RepairRecord) -> dict[str, JsonValue]:
        """The item that this tool expects."""
        ...


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Tasks that are not among the imported: why, how many, and the first of them."""

    why: str
    times: int
    example: str


@dataclass(slots=True)
class Imported:
    """The records of a data set. left_out: those that cannot be played, or were broken and were to be left out."""

    format: str
    records: list[RepairRecord] = field(default_factory=list)
    left_out: dict[str, LeftOut] = field(default_factory=dict)

    def leave_out(self, why: str, example: str) -> None:
        """Count one more that is left out."""
        before = self.left_out.get(why)
        self.left_out[why] = LeftOut(
            why, 1 if before is None else before.times + 1, example if before is None else before.example
        )


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote, and everything that importing it again would not bring back."""

    format: str
    target: Path
    records: int
    files: int
    dropped: tuple[Dropped, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "format": self.format,
            "target": str(self.target),
            "records": self.records,
            "files": self.files,
            "dropped": [
                {"field": one.field, "times": one.times, "example": one.example, "why": one.why}
                for one in self.dropped
            ],
        }


Progress = Callable[[str], None]
Records = Sequence[RepairRecord]
