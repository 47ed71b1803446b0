"""What a file really holds, without what it only claims to: a hole of a terabyte is read and copied at no cost.

It reads open descriptors only; who may open them is decided elsewhere.
"""

import hashlib
import os
import struct
from collections.abc import Iterator
from errno import EINVAL, ENXIO

__all__ = ["content_digest", "held"]

_CHUNK = 1 << 20
_BLOCK = 4096
_ZEROS = bytes(_BLOCK)


def held(fd: int) -> Iterator[tuple[int, bytes]]:
    """Places and bytes of a file from its beginning; between them are zeros that take no room.

    Each piece begins at a multiple of 4096. Its size at the first call bounds all.
    """
    size, at = os.fstat(fd).st_size, 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            hole = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == ENXIO:  # a hole up to the end
                return
            if error.errno != EINVAL:
                raise
            start, hole = at, size  # a kernel that knows no holes (gVisor's)
        at = max(at, start // _BLOCK * _BLOCK)
        end = min(-(-hole // _BLOCK) * _BLOCK, size)
        while at < end:
            data = os.pread(fd, min(_CHUNK, end - at), at)
            if not data:  # it was cut meanwhile
                return
            yield at, data
            at += len(data)


def content_digest(fd: int) -> str:
    """A digest of a file's size and bytes, the same whether zeros take room or not, in time of what takes room."""
    total, runs = hashlib.sha256(), []
    begin = end = 0
    for at, block in _blocks(fd):
        if at != end:
            runs.append((begin, end))
            begin = at
        total.update(block)
        end = at + len(block)
    runs.append((begin, end))
    # At the end, with their number last, so that no other file has the same bytes before the same tail.
    for run in runs:
        total.update(struct.pack("!QQ", *run))
    total.update(struct.pack("!QQ", len(runs), os.fstat(fd).st_size))
    return total.hexdigest()


def _blocks(fd: int) -> Iterator[tuple[int, bytes]]:
    """The pieces of `held` without blocks of zeros."""
    for at, data in held(fd):
        last = data[len(data) // _BLOCK * _BLOCK :]
        if _ZEROS not in data and (not last or last.strip(b"\0")):
            yield at, data
            continue
        for start in range(0, len(data), _BLOCK):
            block = data[start : start + _BLOCK]
            if block.strip(b"\0"):
                yield at + start, block
