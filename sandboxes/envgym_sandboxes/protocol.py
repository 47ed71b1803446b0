"""Frames between a host and the processes it drives: a JSON head and a binary body, both bounded.

One decoder serves both ends. It never trusts the other side: a frame that is too long, is not JSON or is not an
object raises `ProtocolError`, and the host then treats the sandbox as dead. It knows nothing of what is said.
"""

import json
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["MAX_BODY", "MAX_HEAD", "Decoder", "Head", "ProtocolError", "encode", "receive"]

Head = dict[str, Any]
_PREFIX = struct.Struct("!II")
MAX_HEAD = 16 << 20
MAX_BODY = 1 << 30


class ProtocolError(Exception):
    """The peer sent something that is not a frame."""


def encode(head: Head, body: bytes = b"") -> bytes:
    """One frame. Raises ValueError when it is longer than any peer would accept."""
    text = json.dumps(head, separators=(",", ":")).encode()
    if len(text) > MAX_HEAD or len(body) > MAX_BODY:
        raise ValueError(f"a frame of {len(text)} + {len(body)} bytes; the bounds are {MAX_HEAD} + {MAX_BODY}")
    return _PREFIX.pack(len(text), len(body)) + text + body


class Decoder:
    """Turns a byte stream into frames, holding no more than one of them that it may.

    most_head: the longest head, bytes. most_body: the longest body that may follow a head, bytes; it is asked as
    soon as the head is there, so that a body that nobody waits for is never collected.
    """

    def __init__(self, *, most_head: int = MAX_HEAD, most_body: Callable[[Head], int] | None = None) -> None:
        self._data = bytearray()
        self._most_head = most_head
        self._most_body = most_body
        self._head: Head | None = None  # of the frame whose body is still to come
        self.size = 0
        """How many bytes the last frame took."""

    @property
    def waiting(self) -> bool:
        """Whether a part of a frame is here, and the rest is not."""
        return bool(self._data)

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[Head, bytes]]:
        """Yield every frame that is complete after `data`. Raises ProtocolError."""
        self._data += data
        while len(self._data) >= _PREFIX.size:
            head_size, body_size = _PREFIX.unpack_from(self._data)
            if head_size > self._most_head or body_size > MAX_BODY:
                raise ProtocolError(f"a frame announces {head_size} + {body_size} bytes")
            start, end = _PREFIX.size + head_size, _PREFIX.size + head_size + body_size
            if len(self._data) < start:
                return
            if self._head is None:
                self._head = self._parse(bytes(self._data[_PREFIX.size : start]), body_size)
            if len(self._data) < end:
                return
            head, self._head = self._head, None
            body = bytes(self._data[start:end])
            del self._data[:end]
            self.size = end
            yield head, body

    def _parse(self, text: bytes, body_size: int) -> Head:
        try:
            head = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"a frame's head is not JSON: {error}") from None
        if not isinstance(head, dict):
            raise ProtocolError("a frame's head is not an object")
        if self._most_body is not None and body_size > self._most_body(head):
            raise ProtocolError(f"a frame announces a body of {body_size} bytes, more than was asked for")
        return head


_BUFFER = bytearray(1 << 20)
"""Packets are taken into it one at a time: a new megabyte for each would cost more than what is in it."""
_MOST_FDS = 16


def receive(sock: socket.socket) -> tuple[Head, bytes, list[int]]:
    """Wait for exactly one frame that came in one packet, with the descriptors it carries. EOFError at the end."""
    room = socket.CMSG_SPACE(_MOST_FDS * 4)
    size, ancillary, _flags, _address = sock.recvmsg_into([_BUFFER], room, socket.MSG_CMSG_CLOEXEC)
    fds = [
        fd
        for level, kind, data in ancillary
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS
        for (fd,) in struct.iter_unpack("i", data[: len(data) - len(data) % 4])
    ]
    if not size:
        raise EOFError
    for head, body in Decoder().feed(memoryview(_BUFFER)[:size]):
        return head, body, fds
    raise ProtocolError("a packet holds no complete frame")
