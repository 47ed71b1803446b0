"""Bytes between a connection of the host and a stream into a sandbox, both ways, each way with an end of its own.

Neither side is read faster than the other takes, so that little is ever kept here. It counts, and lets its caller
stop it, but decides nothing.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from envgym_sandboxes.flow import PIECE

__all__ = ["Pipe", "cut", "relay", "together"]

_RESET = struct.pack("ii", 1, 0)  # lingering for no time: closing is a reset


class Pipe(Protocol):
    """Two byte streams that lead somewhere else: `streams.Stream`, or one over another transport."""

    async def receive(self) -> bytes:
        """The next data; b"" once the other side has ended. Raises ConnectionResetError."""
        ...

    async def send(self, data: bytes) -> None:
        """Send data, as fast as the other side takes it. Raises ConnectionResetError."""
        ...

    def end(self) -> None:
        """Send nothing more; what comes may still be read."""
        ...


async def relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    stream: Pipe,
    *,
    count: Callable[[int, int], None] = lambda _inwards, _outwards: None,
) -> None:
    """Carry bytes until both directions have ended. Raises OSError where one breaks; closing is the caller's.

    count: called with the bytes that came from the connection and from the stream, before they go on; what it
    raises ends both directions.
    """

    async def inwards() -> None:
        while data := await reader.read(PIECE):
            count(len(data), 0)
            await stream.send(data)
        stream.end()

    async def outwards() -> None:
        while data := await stream.receive():
            count(0, len(data))
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    await together(inwards(), outwards())


def cut(writer: asyncio.StreamWriter) -> None:
    """Close a connection as a reset, so that its other side knows that not all was said."""
    sock = writer.get_extra_info("socket")
    if not writer.transport.is_closing() and sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


async def together(*parts: Coroutine[Any, Any, None]) -> None:
    """Run until all are done, or one fails: then the others are cancelled, and its error is raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
