"""JSON records in files, one in memory at a time: lines, one array, or a folder with a file for each."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from envgym.formats.contract import FormatError, Where
from envgym.whole import new_target
from envgym.wire import dumps

__all__ = ["file_name", "read_array", "read_folder", "read_lines", "write_array", "write_folder", "write_lines"]

_CHUNK = 1 << 20


def write_lines(target: Path, records: Iterable[dict[str, Any]]) -> int:
    """One record per line; how many files that made (one)."""
    with new_target(target) as part, part.open("wb") as file:
        for record in records:
            file.write(dumps(record) + b"\n")
    return 1


def write_array(target: Path, records: Iterable[dict[str, Any]]) -> int:
    """One JSON array with one record per line; how many files that made (one)."""
    with new_target(target) as part, part.open("wb") as file:
        before = b"[\n"
        for record in records:
            file.write(before + dumps(record))
            before = b",\n"
        file.write(b"[]\n" if before == b"[\n" else b"\n]\n")
    return 1


def write_folder(target: Path, records: Iterable[tuple[str, dict[str, Any]]]) -> int:
    """A file for each named record; how many that made."""
    files = 0
    with new_target(target, folder=True) as part:
        for name, record in records:
            (part / name).write_bytes(dumps(record) + b"\n")
            files += 1
    return files


def file_name(number: int, name: str, suffix: str) -> str:
    """A file name that sorts by number and shows as much of a record's name as any file system takes."""
    return f"{number:08d}-{re.sub(r'[^A-Za-z0-9._-]+', '_', name)[:80]}{suffix}"


def _parse(data: bytes, where: Where) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise FormatError(
            where, f"byte {error.start} is no UTF-8: {data[error.start : error.start + 16]!r}"
        ) from None
    except RecursionError:
        raise FormatError(where, "it is nested too deeply") from None
    except ValueError as error:
        raise FormatError(where, f"it is no JSON: {error}; it begins with {data[:60]!r}") from None


def _object(value: Any, where: Where) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormatError(where, f"a record is a JSON object; it is {repr(value)[:80]}")
    return value


def read_lines(source: Path) -> Iterator[tuple[dict[str, Any], Where]]:
    """The records of a file of lines, each with its place. Empty lines say nothing."""
    with source.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                where = Where(source, f"line {number}")
                yield _object(_parse(line, where), where), where


def read_array(source: Path) -> Iterator[tuple[dict[str, Any], Where]]:
    """The records of a JSON array, or of lines where it is none, each with its place."""
    with source.open("rb") as file:
        head = file.read(_CHUNK).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head[:1] != b"[":
        yield from read_lines(source)
        return
    where = Where(source)
    try:
        with source.open(encoding="utf-8-sig", newline="") as text:
            for number, value in enumerate(_elements(text, where), 1):
                place = Where(source, f"record {number}")
                yield _object(value, place), place
    except UnicodeDecodeError as error:
        raise FormatError(where, f"it is no UTF-8: {error.object[error.start : error.start + 16]!r}") from None


def _elements(text: Any, where: Where) -> Iterator[Any]:
    """The elements of an array as they are read; never more than the one that is open, and a chunk."""
    decoder, buffer, at, number, step = json.JSONDecoder(), text.read(_CHUNK), 0, 0, _CHUNK
    at = len(buffer) - len(buffer.lstrip()) + 1
    closed = False
    while not closed:
        kept = buffer[at:].lstrip(", \t\r\n") if number else buffer[at:].lstrip()
        if kept[:1] == "]":
            closed = True
            continue
        try:
            if not kept:
                raise ValueError("it ends before its array does")
            value, end = decoder.raw_decode(kept)
            if end == len(kept):
                raise ValueError("it ends before its array does")
        except RecursionError:
            raise FormatError(Where(where.path, f"record {number + 1}"), "it is nested too deeply") from None
        except ValueError as error:
            more = text.read(step)
            if not more:
                place = Where(where.path, f"record {number + 1}")
                raise FormatError(place, f"it is no JSON: {error}; it begins with {kept[:60]!r}") from None
            step *= 2  # a record of any size is parsed a few times, not once per chunk
            buffer, at = kept + more, 0
            continue
        number, buffer, at, step = number + 1, kept, end, _CHUNK
        yield value


def read_folder(source: Path, suffix: str) -> Iterator[tuple[dict[str, Any], Where]]:
    """The records of a folder's files (or of one file), in the order of their names."""
    if source.is_dir():
        paths = sorted(path for path in source.rglob(f"*{suffix}") if path.is_file())
        if not paths and any(source.iterdir()):
            raise FormatError(Where(source), f"the folder holds no file *{suffix}")
    else:
        paths = [source]
    for path in paths:
        where = Where(path)
        yield _object(_parse(path.read_bytes(), where), where), where
