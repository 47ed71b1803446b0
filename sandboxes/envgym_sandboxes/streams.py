"""The host's ends of the streams that share a sandbox's connection.

A stream is two byte streams with ends of their own, opened by the host to a port inside, or by the inside to
whoever takes them here (`on_open`). The inside is not trusted: what it sends is counted against what it was
granted, and a frame that fits no stream raises `ProtocolError`, which ends the connection. Reading and writing wait
in the event loop; whoever holds a stream resets or ends it.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import Protocol

from envgym_sandboxes import protocol
from envgym_sandboxes.flow import MOST_STREAMS, PIECE, WINDOW, Flow, size_of
from envgym_sandboxes.protocol import ProtocolError

__all__ = ["Stream", "Streams"]

_DIAL_S = 15.0


class Carrier(Protocol):
    """The connection, as far as streams use it."""

    def send(self, head: protocol.Head, body: bytes = b"") -> int:
        """Send a frame. Raises SandboxDied."""
        ...

    async def ask(self, head: protocol.Head, body: bytes = b"", *, most: int = ...) -> tuple[protocol.Head, bytes]:
        """Send a frame and wait for its answer. Raises SandboxDied, OSError."""
        ...


class Stream:
    """One end of a stream. Made by `Streams`."""

    def __init__(self, number: int, say: Callable[[protocol.Head, bytes], None]) -> None:
        self.number = number
        self.flow = Flow()
        self.broken: str | None = None
        self._say = say
        self._data = bytearray()
        self._changed = asyncio.Event()

    async def receive(self) -> bytes:
        """The next data; b"" once the other side has ended. Raises ConnectionResetError."""
        while not self._data:
            if self.flow.got_end:
                return b""
            if self.broken is not None:
                raise ConnectionResetError(self.broken)
            await self._change()
        data = bytes(self._data)
        self._data.clear()
        if self.broken is None and (grant := self.flow.delivered(len(data))):
            self._tell({"do": "credit", "size": grant})
        return data

    async def send(self, data: bytes) -> None:
        """Send data, as fast as the other side takes it. Raises ConnectionResetError."""
        at = 0
        while at < len(data):
            if self.broken is not None:
                raise ConnectionResetError(self.broken)
            if self.flow.credit == 0:
                await self._change()
                continue
            piece = data[at : at + min(PIECE, self.flow.credit)]
            self.flow.sent(len(piece))
            at += len(piece)
            self._tell({"do": "data"}, piece)

    def end(self) -> None:
        """Send nothing more; what comes may still be read."""
        if self.broken is None and not self.flow.sent_end:
            self.flow.sent_end = True
            self._tell({"do": "end"})

    def reset(self) -> None:
        """Let go of both directions; what is on its way is lost. Nothing happens to one that is over."""
        if self.broken is None and not self.flow.over:
            self.fail("it was reset here")
            self._tell({"do": "reset"})

    # -- from the other side -----------------------------------------------------------------------------------

    def take(self, do: object, head: protocol.Head, body: bytes) -> None:
        """One frame. Raises ProtocolError."""
        if do == "data":
            self.flow.arrived(len(body))
            self._data += body
        elif do == "credit":
            self.flow.granted(size_of(head.get("size")))
        elif do == "end":
            self.flow.ended()
        elif do == "reset":
            self.fail("the other side reset it")
        else:
            raise ProtocolError(f"a stream is told to {do!r}")
        self._changed.set()

    def fail(self, reason: str) -> None:
        """It is broken: whoever reads or writes is told. What came is kept only if nothing is missing after it."""
        self.broken = reason
        if not self.flow.got_end:
            self._data.clear()
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _tell(self, head: protocol.Head, body: bytes = b"") -> None:
        self._say({**head, "op": "stream", "stream": self.number}, body)


class Streams:
    """All streams of one connection. Those that the host opens have positive numbers, the others negative ones.

    on_open: called with each stream that the inside opens; None where it may open none.
    """

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._numbers = itertools.count(1)
        self._open: dict[int, Stream] = {}
        self._last = [0, 0]  # the last number used by (the host, the inside)
        self._stray = 0  # what may still come for streams that are over here, sent before that was known
        self.on_open: Callable[[Stream], None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    async def open(self, port: int) -> Stream:
        """A stream to a port inside. Raises OSError as the inside met it, SandboxDied."""
        if sum(number > 0 for number in self._open) >= MOST_STREAMS:
            raise OSError(11, f"{MOST_STREAMS} streams into this sandbox are open, and no more can be")
        stream = self._new(next(self._numbers))
        try:
            async with asyncio.timeout(_DIAL_S):
                await self._carrier.ask({"op": "dial", "stream": stream.number, "port": port}, most=4096)
        except BaseException as error:
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                self._forget(stream)  # it never was
            else:
                stream.reset()
            raise
        return stream

    def take(self, head: protocol.Head, body: bytes) -> None:
        """A frame of the inside about a stream. Raises ProtocolError."""
        number, do = size_of(head["stream"]), head.get("do")
        if do == "open":
            self._opened(number)
            return
        stream = self._open.get(number)
        if stream is not None:
            stream.take(do, head, body)
            if stream.flow.over or stream.broken is not None:
                self._forget(stream)
        elif 0 < number <= self._last[0] or self._last[1] <= number < 0:
            self._stray -= max(1, len(body))
            if self._stray < 0:
                raise ProtocolError(f"stream {number} is over, and goes on")
        else:
            raise ProtocolError(f"there is no stream {number}")

    def _opened(self, number: int) -> None:
        if self.on_open is None or number != self._last[1] - 1:
            raise ProtocolError(f"stream {number} is opened by the inside, which may not")
        if sum(number < 0 for number in self._open) >= MOST_STREAMS:
            raise ProtocolError(f"more than {MOST_STREAMS} streams are opened by the inside")
        self.on_open(self._new(number))

    def fail(self, reason: str) -> None:
        """The connection is over."""
        for stream in [*self._open.values()]:
            stream.fail(reason)
        self._open.clear()

    def _new(self, number: int) -> Stream:
        stream = Stream(number, self._say)
        self._open[number] = stream
        self._last[number < 0] = number
        return stream

    def _say(self, head: protocol.Head, body: bytes) -> None:
        stream = self._open.get(head["stream"])
        if stream is None:
            return
        if head["do"] == "reset" or stream.flow.over:
            self._forget(stream)
        self._carrier.send(head, body)

    def _forget(self, stream: Stream) -> None:
        """It is over here. At most: a byte in each frame, a grant for each byte, an end and a reset."""
        self._open.pop(stream.number, None)
        flow = stream.flow
        self._stray += (0 if flow.got_end else flow.room) + WINDOW - flow.credit + 2
