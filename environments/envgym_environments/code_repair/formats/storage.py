"""Items on disk: rows in JSON lines, JSON arrays or Parquet files, and folders with a task in each.

What is written appears whole or not at all, and never over something that is there. Of Parquet, rows are read as
JSON values: columns without a value are absent, times are their ISO text. Objects are written to it as their JSON.
"""

import base64
import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from pydantic import JsonValue

from envgym.formats.contract import FormatError, Where
from envgym.formats.files import read_array, read_lines
from envgym.whole import new_target
from envgym.wire import dumps
from envgym_environments.code_repair.formats.contract import KEY

__all__ = ["FOLDER_MARKS", "Items", "folder_items", "is_folders", "row_items", "write_folders", "write_rows"]

Items = Iterator[tuple[dict[str, JsonValue], Where, str]]
"""Items with their place, and the split that their file's name tells ("" for none)."""

FOLDER_MARKS = ("task.yaml", "task.toml")
"""A folder with one of these files is a task."""

_SUFFIXES = (".jsonl", ".json", ".parquet", ".ndjson")
_MOST_BYTES = 64 << 20
_MOST_FILES = 5_000
_SPLIT = re.compile(r"(train|test|dev|validation|valid|heldout)(?=[-_.]|$)")
_KEPT_APART = (".git", "__pycache__", ".DS_Store")


def _rows_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(one for one in path.rglob("*") if one.suffix in _SUFFIXES and one.is_file())
    # a saved data set's own description is no row
    return [one for one in found if one.name not in ("dataset_info.json", "dataset_infos.json", "state.json")]


def row_items(path: Path, *, most_bytes: int = _MOST_BYTES) -> Items:
    """The rows of a file, or of every file of a folder. Raises FormatError, FileNotFoundError.

    most_bytes: how long one row may be.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    files = _rows_of(path)
    if not files:
        raise FormatError(Where(path), f"the folder holds no file {', '.join('*' + one for one in _SUFFIXES)}")
    for file in files:
        found = _SPLIT.match(file.stem)
        split = found[1] if found else ""
        for row, where in _read(file, most_bytes):
            size = len(dumps(row))
            if size > most_bytes:
                raise FormatError(where, f"the row has {size} bytes; at most {most_bytes} are read")
            yield row, where, split


def _read(file: Path, most_bytes: int) -> Iterator[tuple[dict[str, Any], Where]]:
    if file.suffix == ".parquet":
        return _parquet(file)
    if file.suffix in (".jsonl", ".ndjson"):
        return _bounded_lines(file, most_bytes)
    return read_array(file)


def _bounded_lines(file: Path, most_bytes: int) -> Iterator[tuple[dict[str, Any], Where]]:
    with file.open("rb") as lines:
        number = 1
        while line := lines.readline(most_bytes + 1):
            if len(line) > most_bytes:
                raise FormatError(
                    Where(file, f"line {number}"), f"the line is longer than {most_bytes} bytes; no more are read"
                )
            number += 1
    yield from read_lines(file)


def _parquet(file: Path) -> Iterator[tuple[dict[str, Any], Where]]:
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=64):
                for row in batch.to_pylist():
                    number += 1
                    where = Where(file, f"row {number}")
                    yield (
                        {name: _json(value, name, where) for name, value in row.items() if value is not None},
                        where,
                    )
    except (pyarrow.ArrowException, OSError) as error:
        first = str(error).partition("\n")[0]
        raise FormatError(Where(file, f"row {number + 1}"), f"it is no Parquet that can be read: {first}") from None


def _json(value: object, name: str, where: Where) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, list):
        return [_json(one, name, where) for one in value]
    if isinstance(value, dict):
        return {str(key): _json(one, name, where) for key, one in value.items() if one is not None}
    raise FormatError(where, f"field {name!r} is a {type(value).__name__}; it must be of a kind that JSON has")


def write_rows(target: Path, rows: Iterable[Mapping[str, JsonValue]]) -> None:
    """Write rows by the suffix of the target. Raises ValueError for another suffix, FileExistsError."""
    if target.suffix not in _SUFFIXES:
        raise ValueError(
            f"{target} ends with {target.suffix!r}; rows go to a file that ends with one of {_SUFFIXES}"
        )
    with new_target(target) as part:
        if target.suffix == ".parquet":
            _write_parquet(part, list(rows), target)
            return
        array, before = target.suffix == ".json", b"[\n"
        with part.open("wb") as file:
            for row in rows:
                file.write(before + dumps(row) if array else dumps(row) + b"\n")
                before = b",\n"
            if array:
                file.write(b"[]\n" if before == b"[\n" else b"\n]\n")


def _write_parquet(part: Path, rows: list[Mapping[str, JsonValue]], target: Path) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    try:
        arrays = {name: pyarrow.array(_column([row.get(name) for row in rows])) for name in columns}
        pyarrow.parquet.write_table(pyarrow.table(arrays), part)
    except pyarrow.ArrowException as error:
        first = str(error).partition("\n")[0]
        raise ValueError(f"{target}: Parquet cannot hold a column of mixed kinds: {first}; write .jsonl") from None


def _column(values: list[JsonValue]) -> list[JsonValue]:
    """A column; objects are their JSON, since Parquet gives all of a column the keys of each."""
    if any(isinstance(value, dict) for value in values):
        return [None if value is None else dumps(value).decode() for value in values]
    return values


# -- folders -----------------------------------------------------------------------------------------------------


def is_folders(path: Path) -> bool:
    """Whether a path is a task's folder, or holds some."""
    return path.is_dir() and bool(_task_folders(path))


def _task_folders(path: Path) -> list[Path]:
    """The folders of tasks at a path: itself, those in it, or those in its ``tasks``."""
    if any((path / mark).is_file() for mark in FOLDER_MARKS):
        return [path]
    for place in (path, path / "tasks"):
        if place.is_dir():
            found = sorted(one for one in place.iterdir() if any((one / mark).is_file() for mark in FOLDER_MARKS))
            if found:
                return found
    return []


def folder_items(path: Path) -> Items:
    """Every task's folder as an item: path of a file -> its text, or an object. Raises FormatError."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    found = _task_folders(path)
    if not found:
        raise FormatError(Where(path), f"the folder holds no task: none of {', '.join(FOLDER_MARKS)} in it")
    for folder in found:
        yield _folder(folder), Where(folder), ""


def _folder(folder: Path) -> dict[str, JsonValue]:
    item: dict[str, JsonValue] = {}
    size = 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if any(part in _KEPT_APART for part in path.relative_to(folder).parts):
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise FormatError(
                Where(folder, name), "it is a link or no plain file; a task's folder holds files only"
            )
        if path.is_file():
            size += path.stat().st_size
            if size > _MOST_BYTES or len(item) >= _MOST_FILES:
                raise FormatError(
                    Where(folder, name), f"the folder has more than {_MOST_BYTES} bytes or {_MOST_FILES} files"
                )
            item[name] = _content(path)
    if isinstance(text := item.pop("envgym.json", None), str):
        item[KEY] = text.removesuffix("\n")
    return item


def _content(path: Path) -> JsonValue:
    data, executable = path.read_bytes(), bool(path.stat().st_mode & 0o100)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        found: dict[str, JsonValue] = {"base64": base64.b64encode(data).decode()}
    else:
        if not executable:
            return text
        found = {"text": text}
    return found | {"executable": True} if executable else found


def write_folders(target: Path, items: Iterable[tuple[str, Mapping[str, JsonValue]]], *, below: str = "") -> int:
    """Write a folder for each named item; how many files that made. below: a folder in the target for all."""
    files = 0
    with new_target(target, folder=True) as part:
        for name, item in items:
            folder = part / below / name if below else part / name
            for path, content in item.items():
                place = folder / ("envgym.json" if path == KEY else path)
                place.parent.mkdir(parents=True, exist_ok=True)
                _put(place, content)
                files += 1
    return files


def _put(place: Path, content: JsonValue) -> None:
    if isinstance(content, str):
        place.write_bytes(content.encode() + (b"\n" if place.name == "envgym.json" else b""))
        return
    assert isinstance(content, dict), content
    data = content.get("text")
    place.write_bytes(data.encode() if isinstance(data, str) else base64.b64decode(str(content["base64"])))
    if content.get("executable"):
        place.chmod(0o755)
