"""Frames between a host and the processes it drives: a JSON head and a binary body, both bounded.

One decoder serves both ends. It never trusts the other side: a frame that is too long, is not JSON or is not an
object raises `ProtocolError`, and the host then treats the sandbox as dead. It knows nothing of what is said.
"""

import json
import socket
import struct
from collections.abc import Iterator
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
    """Turns a byte stream into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Head, bytes]]:
        """Yield every frame that is complete after `data`. Raises ProtocolError."""
        self._data += data
        while len(self._data) >= _PREFIX.size:
            head_size, body_size = _PREFIX.unpack_from(self._data)
            if head_size > MAX_HEAD or body_size > MAX_BODY:
                raise ProtocolError(f"a frame announces {head_size} + {body_size} bytes")
            start, end = _PREFIX.size + head_size, _PREFIX.size + head_size + body_size
            if len(self._data) < end:
                return
            try:
                head = json.loads(bytes(self._data[_PREFIX.size : start]))
            except ValueError as error:
                raise ProtocolError(f"a frame's head is not JSON: {error}") from None
            if not isinstance(head, dict):
                raise ProtocolError("a frame's head is not an object")
            body = bytes(self._data[start:end])
            del self._data[:end]
            yield head, body


def receive(sock: socket.socket) -> tuple[Head, bytes, list[int]]:
    """Wait for exactly one frame that came in one packet, with the descriptors it carries. EOFError at the end."""
    data, fds, _flags, _address = socket.recv_fds(sock, 1 << 20, 8)
    if not data:
        raise EOFError
    for head, body in Decoder().feed(data):
        return head, body, list(fds)
    raise ProtocolError("a packet holds no complete frame")
