"""A bounded piece of a byte stream, and the pipes it is read from.

It needs the standard library only, since it is also used where this package is not installed (`inside`). It waits
for nothing.
"""

import fcntl
import os
import sys
import termios

__all__ = ["Capture", "drain", "pipe"]

_CHUNK = 1 << 16


class Capture:
    """Keeps the head and the tail of a byte stream, `limit` bytes in all, and counts what it dropped."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // 2
        self._tail_limit = limit - limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.lost = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_limit + _CHUNK:
            self._trim()

    @property
    def empty(self) -> bool:
        """Whether nothing was written."""
        return not self._head and not self._tail

    def _trim(self) -> None:
        extra = len(self._tail) - self._tail_limit
        if extra > 0:
            del self._tail[:extra]
            self.lost += extra

    def value(self) -> bytes:
        """Head and tail; `lost` bytes are missing between them."""
        self._trim()
        return bytes(self._head + self._tail)


def drain(fd: int, capture: Capture | None) -> bool:
    """Read what is there now from a non-blocking pipe; False at its end.

    Little more than that: what many writers write meanwhile could keep the caller here for ever.
    """
    there = int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
    while there > -_CHUNK:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        if capture is not None:
            capture.add(data)
        there -= len(data)
    return True


def pipe() -> tuple[int, int]:
    """A pipe whose reading end does not block."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reading, False)
    return reading, writing
