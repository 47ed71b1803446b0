"""Files of records of `tf.train.Example`, read without TensorFlow: TFRecord's framing, protocol buffers' fields.

A record is its length (8 bytes), a checksum of that (4), its bytes, a checksum of them (4), all little-endian; a
checksum is the CRC-32C, rotated and moved (https://www.tensorflow.org/tutorials/load_data/tfrecord). In a file that
is compressed GZIP's own checksum covers all, so there the one of the bytes is not computed a second time. Fields:
https://protobuf.dev/programming-guides/encoding/. What the fields mean is the caller's matter.
"""

import gzip
import zlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import BinaryIO, cast

__all__ = ["Fields", "checksum", "example", "fields", "is_records", "records", "signed"]

_MOST_BYTES = 1 << 30
"""Of one record: an episode with its screenshots has a few megabytes."""
_MOVED = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, its bits in reversed order."""

Fields = Iterator[tuple[int, int | memoryview]]
"""Of a message: the number and the value of each field, in order."""


def _step(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(map(_step, range(256)))


def checksum(content: bytes) -> int:
    """TFRecord's checksum of some bytes."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MOVED) & 0xFFFFFFFF


def _opened(path: Path) -> tuple[BinaryIO, bool]:
    """The file, unpacked where it is GZIP'd, and whether it is."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast("BinaryIO", gzip.open(path) if packed else path.open("rb")), packed


def is_records(path: Path) -> bool:
    """Whether a file begins as one of records does."""
    try:
        file, _ = _opened(path)
        with file:
            head = file.read(12)
    except (OSError, EOFError, zlib.error):
        return False
    return len(head) == 12 and checksum(head[:8]) == int.from_bytes(head[8:], "little")


def records(path: Path) -> Iterator[bytes]:
    """The records of a file, one after the other.

    Raises ValueError, with file and number of the record, for what is cut off, damaged or no file of records.
    """
    file, packed = _opened(path)
    with file:
        for number in count():
            try:
                record = _record(file, packed=packed)
            except (ValueError, EOFError, OSError, zlib.error) as error:
                raise ValueError(f"{path}, record {number}: {error}") from error
            if record is None:
                return
            yield record


def _record(file: BinaryIO, *, packed: bool) -> bytes | None:
    head = file.read(12)
    if not head:
        return None
    length = int.from_bytes(head[:8], "little")
    if len(head) < 12 or checksum(head[:8]) != int.from_bytes(head[8:], "little"):
        raise ValueError("its length has another checksum: the file is damaged, or has no records")
    if length > _MOST_BYTES:
        raise ValueError(f"it has {length:,} bytes; at most {_MOST_BYTES:,} are read")
    content, told = file.read(length), file.read(4)
    if len(content) < length or len(told) < 4:
        raise ValueError(f"it is cut off after {len(content):,} of {length:,} bytes")
    if not packed and checksum(content) != int.from_bytes(told, "little"):
        raise ValueError("its bytes have another checksum: the file is damaged")
    return content


# protocol buffers


def fields(message: memoryview | bytes) -> Fields:
    """The fields of a message: numbers as they are written, unsigned; all else as its bytes. Raises ValueError."""
    view, at = memoryview(message), 0
    while at < len(view):
        key, at = _varint(view, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(view, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(view, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"field {key >> 3} has the kind {kind}, which there is not")
        if at + size > len(view):
            raise ValueError(f"field {key >> 3} is cut off")
        yield key >> 3, view[at : at + size]
        at += size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            raise ValueError("a number is cut off")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than ten bytes")


def signed(number: int) -> int:
    """A field's number as the signed one that it stands for (int32 and int64, 64 bits in two's complement)."""
    return number - (1 << 64) if number >> 63 else number


def _inside(message: memoryview | bytes, number: int) -> Iterator[memoryview]:
    """The messages in a message's field."""
    for found, value in fields(message):
        if found == number:
            if isinstance(value, int):
                raise ValueError(f"field {number} is a number, where a message is expected")
            yield value


def example(record: bytes) -> dict[str, list[bytes] | list[int]]:
    """The features of a `tf.train.Example` by name: lists of bytes, or of integers; those of floats are left out.

    Raises ValueError for what is none.
    """
    found: dict[str, list[bytes] | list[int]] = {}
    for features in _inside(record, 1):
        for entry in _inside(features, 1):
            name = b"".join(_inside(entry, 1)).decode()
            for feature in _inside(entry, 2):
                for kind, values in fields(feature):
                    if isinstance(values, int):
                        raise ValueError(f"feature {name!r} is a number, where a list is expected")
                    if kind == 1:
                        found[name] = [bytes(value) for value in _inside(values, 1)]
                    elif kind == 3:
                        found[name] = [signed(value) for value in _integers(values)]
    return found


def _integers(values: memoryview) -> Iterator[int]:
    """The numbers of a list, packed or one by one."""
    for number, value in fields(values):
        if number != 1:
            continue
        if isinstance(value, int):
            yield value
            continue
        at = 0
        while at < len(value):
            one, at = _varint(value, at)
            yield one
