"""JSON-RPC messages as lines, with bounds: what a server sends is counted before it is kept.

The official client reads a line of any length into memory. This transport carries the same messages for it over
the pipes of a program or over a connection, and ends when a line, or all that came for one call, is too long.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from envgym.toolbox import ToolFault

__all__ = ["Ended", "Streams", "Traffic", "carried"]

Streams = tuple[MemoryObjectReceiveStream[Any], MemoryObjectSendStream[Any]]


@dataclass(slots=True)
class Traffic:
    """What came from a server since a call began, and how its line ended."""

    line_bytes: int
    call_bytes: int
    received: int = 0
    fault: ToolFault | None = None
    said: str = ""

    def begin(self) -> None:
        """A call begins."""
        self.received = 0

    def count(self, size: int) -> None:
        """Some bytes came. Raises Ended when those are too many."""
        self.received += size
        if self.received > self.call_bytes:
            self.end(ToolFault.FLOODED, f"it sent more than {self.call_bytes} bytes for one call")
            raise Ended

    def too_long(self) -> None:
        """One message has more bytes than it may."""
        self.end(ToolFault.FLOODED, f"it sent a message of more than {self.line_bytes} bytes")

    def end(self, fault: ToolFault, said: str) -> None:
        """Nothing more comes; the first reason stands."""
        if self.fault is None:
            self.fault, self.said = fault, said

    def last_words(self, stderr: bytes) -> None:
        """What the program said besides its messages, the end of it."""
        if words := stderr.decode("utf-8", "replace").strip():
            self.said += f" (it said: {words[-300:]})"


class Ended(Exception):
    """A server sent too much; `Traffic` says what."""


@asynccontextmanager
async def carried(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, traffic: Traffic
) -> AsyncIterator[Streams]:
    """The streams that a `ClientSession` takes, over a reader and a writer of lines.

    They end when the other side does, or sends too much. The reader's own limit is the bound of one line.
    """
    into, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outof = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = (
        asyncio.create_task(_receive(reader, into, traffic)),
        asyncio.create_task(_send(writer, outof, into, traffic)),
    )
    try:
        yield read, write
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for stream in (into, read, write, outof):
            await stream.aclose()


async def _receive(
    reader: asyncio.StreamReader, into: MemoryObjectSendStream[SessionMessage | Exception], traffic: Traffic
) -> None:
    async with into:
        with suppress(Ended, anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
            while (line := await _line(reader, traffic)) is not None:
                traffic.count(len(line))
                try:
                    message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    continue  # a server that prints to its output: no message, and counted
                await into.send(SessionMessage(message))
        traffic.end(ToolFault.DIED, "it ended")


async def _line(reader: asyncio.StreamReader, traffic: Traffic) -> bytes | None:
    try:
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        traffic.too_long()
    except asyncio.IncompleteReadError:
        pass
    return None


async def _send(
    writer: asyncio.StreamWriter,
    outof: MemoryObjectReceiveStream[SessionMessage],
    into: MemoryObjectSendStream[SessionMessage | Exception],
    traffic: Traffic,
) -> None:
    try:
        async for message in outof:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            writer.write(text.encode("utf-8", "replace") + b"\n")
            await writer.drain()
    except (OSError, anyio.ClosedResourceError):
        traffic.end(ToolFault.DIED, "it ended")
        await into.aclose()
