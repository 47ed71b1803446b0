"""Items to records and back, so that nothing is lost and what cannot be held is known.

Of a row that is read, every field is kept as it stood unless the record spells it the same way again; so a row that
is imported and exported in its own format is the same row, and an edit of the record shows in it. Of a record that
is written in any format, the item is read again at once: what does not come back travels under the key "envgym" as
one text, or is dropped by name. What is written is found by looking, never declared.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from envgym.formats.contract import FormatError, Where
from envgym.plain_text import visible
from envgym_environments.code_repair.formats.contract import KEY, Item, TaskFormat
from envgym_environments.code_repair.record import Origin, RepairRecord

__all__ = ["digest_of_item", "item_of", "record_of"]

_WITHOUT = "without:"
_HALF = re.compile("[\ud800-\udfff]")
_NO_PLACE = Where(Path("(what was written)"))


def digest_of_item(values: Mapping[str, JsonValue]) -> str:
    """BLAKE2b of 128 bits of an item's JSON, whatever the order of its fields."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def record_of(form: TaskFormat, values: Mapping[str, JsonValue], where: Where, *, split: str = "") -> RepairRecord:
    """The record of an item. Raises FormatError with file, record, field, value and bound."""
    plain = {name: value for name, value in values.items() if name != KEY}
    _check_unicode(values, where)
    try:
        fields = form.fields(Item(plain, where, split))
    except ValidationError as error:
        raise _refused(error, where) from None
    style = tuple(fields.pop("style", ()))
    if split and fields.get("split") == split and "split" not in plain:
        style = (*style, "file-split")
    origin = Origin(
        format=form.name, file=where.path.name, place=where.record, digest=digest_of_item(values), style=style
    )
    record = _validated({**fields, "origin": origin}, where)
    record = _with_rest(form, record, plain)
    return _patched(record, values[KEY], where) if values.get(KEY) is not None else record


def _check_unicode(value: object, where: Where, field: str = "") -> None:
    """Raise FormatError where a text or a key has half of a surrogate pair, which no file in UTF-8 can hold."""
    if isinstance(value, str):
        if (found := _HALF.search(value)) is not None:
            at = f"at character {found.start()}, {visible(repr(value[found.start() :][:20]), 80)}"
            raise FormatError(where, f"field {visible(field, 100)!r} has half of a surrogate pair {at}: no Unicode")
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            _check_unicode(name, where, field)
            _check_unicode(inner, where, f"{field}.{name}" if field else name)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _check_unicode(inner, where, f"{field}.{number}")


def _with_rest(form: TaskFormat, record: RepairRecord, plain: dict[str, JsonValue]) -> RepairRecord:
    """The record with everything in its origin that its item does not spell the same way."""
    assert record.origin is not None
    spelled = _canonical(form, record)
    kept = {name: value for name, value in plain.items() if name not in spelled or not _same(spelled[name], value)}
    lacks = tuple(_WITHOUT + name for name in spelled if name not in plain)
    origin = record.origin.model_copy(update={"fields": kept, "style": (*record.origin.style, *lacks)})
    return record.model_copy(update={"origin": origin})


def _canonical(form: TaskFormat, record: RepairRecord) -> dict[str, JsonValue]:
    spelled = form.item(record)
    if record.origin is not None and "file-split" in record.origin.style and record.origin.format == form.name:
        spelled.pop("split", None)
    return spelled


def _same(one: JsonValue, other: JsonValue) -> bool:
    """Equality of JSON values: True is not 1, 1 is not 1.0."""
    return one == other and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _validated(fields: dict[str, Any], where: Where) -> RepairRecord:
    try:
        return RepairRecord.model_validate(fields)
    except ValidationError as error:
        raise _refused(error, where) from None


def _refused(error: ValidationError, where: Where) -> FormatError:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    why = str(first["msg"]).removeprefix("Value error, ")
    if not place:
        return FormatError(where, why)
    return FormatError(where, f"field {place!r} is {visible(repr(first['input']), 80)}: {why}")


def _patched(record: RepairRecord, text: JsonValue, where: Where) -> RepairRecord:
    """The record with what travelled along: fields that the item could not hold."""
    try:
        changes = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        changes = None
    if not isinstance(changes, dict) or not changes.keys() <= RepairRecord.model_fields.keys():
        raise FormatError(where, f"field {KEY!r} is {visible(repr(text), 80)}; it is not what an export writes")
    _check_unicode(changes, where, KEY)
    return _validated({**record.model_dump(mode="json"), **changes}, where)


def item_of(
    form: TaskFormat, record: RepairRecord, *, extra: bool = True
) -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
    """(the item of a record, the fields of the record that it does not hold by itself).

    extra: whether these travel in it under the key "envgym".
    """
    item = _spelled(form, record)
    back = record_of(form, item, _NO_PLACE, split=_file_split(form, record))
    lost = {name: value for name, value in _dump(record).items() if not _same(value, _dump(back)[name])}
    if "origin" in lost and _told(form, record.origin, back.origin):
        del lost["origin"]
    if lost and extra:
        item[KEY] = json.dumps(lost, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return item, lost


def _dump(record: RepairRecord) -> dict[str, Any]:
    return record.model_dump(mode="json")


def _file_split(form: TaskFormat, record: RepairRecord) -> str:
    own = record.origin is not None and record.origin.format == form.name and "file-split" in record.origin.style
    return record.split if own else ""


def _told(form: TaskFormat, before: Origin | None, after: Origin | None) -> bool:
    """Whether an origin is told by the item itself; file, place and digest are those of where it is read next."""
    if before is None or after is None or before.format != form.name:
        return False
    return _same(before.fields, after.fields) and before.style == after.style


def _spelled(form: TaskFormat, record: RepairRecord) -> dict[str, JsonValue]:
    """The item, spelled as the row that the record came from; what was edited since is spelled anew."""
    item, origin = _canonical(form, record), record.origin
    if origin is None or origin.format != form.name:
        return item
    absent = {one.removeprefix(_WITHOUT) for one in origin.style if one.startswith(_WITHOUT)}
    kept = {name: value for name, value in item.items() if name not in absent} | origin.fields
    differing = _differing(form, kept, record)
    for name, value in item.items():
        if differing and not (name in kept and _same(kept[name], value)):
            found = _differing(form, kept | {name: value}, record)
            if found < differing:
                kept, differing = kept | {name: value}, found
    return kept


def _differing(form: TaskFormat, item: Mapping[str, JsonValue], record: RepairRecord) -> int:
    """How many fields of a record are not what an item says; more than there are when it cannot be read."""
    try:
        fields = form.fields(Item(item, _NO_PLACE, _file_split(form, record)))
        fields.pop("style", None)
        said = _validated(fields, _NO_PLACE)
    except (FormatError, ValidationError):
        return len(RepairRecord.model_fields) + 1
    return sum(
        getattr(said, name) != getattr(record, name) for name in RepairRecord.model_fields if name != "origin"
    )
