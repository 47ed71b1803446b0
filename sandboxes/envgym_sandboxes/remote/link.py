"""Many calls over one authenticated connection: each a request, pieces in both directions, and one end.

A piece is at most 1 MiB and at most eight of a call's are on their way at once, so that no transfer keeps a
command waiting. What a side has taken in for open calls, and what the other side has not read yet, is bounded,
so that neither can fill the other's memory. Cancelling a call cancels it on the other side. A stream that ends
or lies fails every open call. What is asked, and what an end means, is the callers' matter.
"""

import asyncio
import contextlib
import errno
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from envgym.errors import InfrastructureFailure
from envgym_sandboxes import protocol
from envgym_sandboxes.remote.faults import fault_from_json, fault_to_json
from envgym_sandboxes.transfer import PIECE

__all__ = ["Call", "Link", "LinkLost", "keep_alive"]

WINDOW = 8
MOST_CALLS = 4096
MOST_UNREAD = 16 << 20
"""What may wait for a side that does not read, bytes; with it the link is over."""
_READ = 1 << 20

Piece = tuple[Any, bytes]
Serve = Callable[["Call"], Awaitable[tuple[dict[str, Any], bytes]]]


class LinkLost(InfrastructureFailure):
    """The connection is over; whether an open call was carried out is not known."""


class Call:
    """One call. `send` and `pieces` on both sides; `result` on the caller's.

    first: the bytes that came with the request itself. held: what was taken in for it and is still here, bytes.
    fault: why it was refused after it had begun.
    """

    def __init__(self, link: "Link", number: int, op: str, arguments: dict[str, Any], first: bytes = b"") -> None:
        self.link, self.number, self.op, self.arguments, self.first = link, number, op, arguments, first
        self.task: asyncio.Task[None] | None = None
        self.undo: Callable[[dict[str, Any]], None] | None = None
        self.result: asyncio.Future[Piece] = asyncio.get_running_loop().create_future()
        self.fault: Exception | None = None
        self.held = 0
        self._inbox: asyncio.Queue[tuple[Piece, int] | None] = asyncio.Queue()
        self._complete = False
        self._room = WINDOW
        self._has_room = asyncio.Event()
        self._has_room.set()

    # -- sending -----------------------------------------------------------------------------------------------

    async def send(self, piece: Any, body: bytes = b"") -> bool:
        """Send one piece when there is room for it; False when the call is over and nobody wants it."""
        await self._has_room.wait()
        if self.result.done():
            return False
        self._room -= 1
        if not self._room:
            self._has_room.clear()
        await self.link.send({"id": self.number, "piece": piece}, body)
        return True

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes as pieces."""
        for at in range(0, len(data), PIECE):
            if not await self.send(None, data[at : at + PIECE]):
                return

    async def end_input(self) -> None:
        """Say that no piece follows."""
        if not self.result.done():
            await self.link.send({"id": self.number, "end": True})

    # -- receiving ---------------------------------------------------------------------------------------------

    async def pieces(self) -> AsyncIterator[Piece]:
        """The other side's pieces, in order, until its end. Raises what the call failed with."""
        while (got := await self._inbox.get()) is not None:
            piece, size = got
            yield piece
            self.link.let_go(self, size)
            self.link.write({"id": self.number, "ack": 1})
        if self.result.done() and not self.result.cancelled() and (error := self.result.exception()):
            raise error

    async def collected(self, most: int) -> bytes:
        """All bytes of the other side as one. Raises OSError (EFBIG) when they are more than `most`."""
        found = bytearray(self.first)
        async for _piece, body in self.pieces():
            found += body
            self.link.hold(self, len(body))  # it stays
            if len(found) > most:
                raise OSError(errno.EFBIG, f"{self.op}: more than {most} bytes")
        return bytes(found)

    # -- what the link tells -----------------------------------------------------------------------------------

    def take(self, head: protocol.Head, body: bytes, size: int) -> None:
        """One frame of the other side, of `size` bytes. Raises ProtocolError."""
        if "ack" in head:
            self._room = min(WINDOW, self._room + 1)
            self._has_room.set()
        elif "piece" in head:
            if self._complete or self._inbox.qsize() >= WINDOW:
                raise protocol.ProtocolError("more pieces than were asked for")
            self.link.hold(self, size)
            self._inbox.put_nowait(((head["piece"], body), size))
        elif "end" in head:
            self._complete_input()
        elif isinstance(head.get("done"), dict):
            self.over((head["done"], body))
        elif "error" in head:
            self.over(fault_from_json(head["error"]))
        else:
            raise protocol.ProtocolError(f"a frame with {sorted(head)[:8]} says nothing")

    def _complete_input(self) -> None:
        if self._complete:
            raise protocol.ProtocolError("a call's input ended twice")
        self._complete = True
        self._inbox.put_nowait(None)

    def over(self, end: Piece | Exception) -> None:
        """Nothing more will come."""
        if not self.result.done():
            if isinstance(end, Exception):
                self.result.set_exception(end)
                self.result.exception()  # it may be that nobody waits for it
            else:
                self.result.set_result(end)
        if not self._complete:
            self._complete_input()
        self._has_room.set()


class Link:
    """One end of a connection. Without `serve` it is the caller's end.

    on_end: called once, with the reason, when it is over. most_held: what the other side's open requests may hold
    here together, bytes; one that is too much is refused.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        serve: Serve | None = None,
        on_end: Callable[[str], None] | None = None,
        most_held: int = 2 * protocol.MAX_BODY,
    ) -> None:
        self._most_held = most_held
        self._reader, self._writer, self._serve, self._on_end = reader, writer, serve, on_end
        self._decoder = protocol.Decoder(most_body=lambda _head: PIECE)
        self._numbers = itertools.count(1)
        self._calls: dict[int, Call] = {}
        self._heard = asyncio.Event()
        self._turn = asyncio.Lock()
        self._held = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.ended: str | None = None
        self._spawn(self._read())

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- the caller's end --------------------------------------------------------------------------------------

    async def ask(
        self,
        op: str,
        arguments: dict[str, Any],
        body: bytes = b"",
        *,
        undo: Callable[[dict[str, Any]], None] | None = None,
        most: int = protocol.MAX_BODY,
        steady: bool = False,
    ) -> Piece:
        """One call with bytes in and bytes out. Raises what the other side raised, or LinkLost.

        undo: told the result when the caller was cancelled and the other side had done it all the same.
        steady: a cancelled caller does not cancel the other side.
        """
        whole = len(body) <= PIECE
        async with self.call(op, arguments, body if whole else None, undo=undo, steady=steady) as call:
            if not whole:
                await call.send_bytes(body)
                await call.end_input()
            found = await call.collected(most)
            done, rest = await call.result
            return done, found + rest

    @contextlib.asynccontextmanager
    async def call(
        self,
        op: str,
        arguments: dict[str, Any],
        body: bytes | None = None,
        *,
        undo: Callable[[dict[str, Any]], None] | None = None,
        steady: bool = False,
    ) -> AsyncIterator[Call]:
        """Begin a call; leaving before its end cancels it on the other side.

        body: all of its input; None when pieces follow.
        """
        call = Call(self, next(self._numbers), op, arguments)
        try:
            head = {"id": call.number, "op": op, "with": arguments}
            await self.send(head if body is None else head | {"end": True}, body or b"", begins=call)
            yield call
        finally:
            if call.result.done():
                self._calls.pop(call.number, None)
            elif call.number in self._calls:  # else it left before its turn came, and nobody knows of it
                call.undo = undo or _nothing
                if not steady:
                    self.write({"id": call.number, "cancel": True})

    def watch(self, every_s: float, patience: int) -> None:
        """End the link when the other side is silent for `patience` times `every_s`."""
        self._spawn(self._watch(every_s, patience))

    async def _watch(self, every_s: float, patience: int) -> None:
        """Ping until the other side is silent for `patience` times `every_s`; then the link ends.

        Silence is counted in waits of this loop and not by the clock: a loop that was blocked for a minute has not
        listened either.
        """
        silent = 0
        while self.ended is None:
            self._heard.clear()
            self.write({"ping": True})
            try:
                async with asyncio.timeout(every_s):
                    await self._heard.wait()
                silent = 0
                await asyncio.sleep(every_s)
            except TimeoutError:
                silent += 1
            if silent >= patience:
                self.end(f"silent for {every_s * patience:g} s")

    # -- frames ------------------------------------------------------------------------------------------------

    def _alive(self) -> None:
        if self.ended is not None:
            raise LinkLost(f"the connection is over: {self.ended}")

    def write(self, head: protocol.Head) -> None:
        """Send a small frame without waiting; on a link that is over, nothing. Who never reads them is left."""
        if self.ended is None:
            self._writer.write(protocol.encode(head))
            if self._writer.transport.get_write_buffer_size() > MOST_UNREAD:
                self.end(f"the other side has not read {MOST_UNREAD} bytes that it was sent")

    async def send(self, head: protocol.Head, body: bytes = b"", *, begins: Call | None = None) -> None:
        """Send a frame in its turn, and wait until the connection takes more. Raises LinkLost.

        begins: the call that this is the request of.
        """
        async with self._turn:
            self._alive()
            if begins is not None:
                self._calls[begins.number] = begins
            self._writer.write(protocol.encode(head, body))
            try:
                await self._writer.drain()
            except OSError as error:
                self.end(f"broken stream: {error}")
        self._alive()

    def hold(self, call: Call, size: int) -> None:
        """Count what was taken in for a request; one that is too much is refused."""
        if self._serve is None:
            return
        call.held += size
        self._held += size
        if self._held > self._most_held and call.fault is None:
            call.fault = InfrastructureFailure(
                f"{call.op}: the open calls of this connection may hold {self._most_held} bytes on the server"
            )
            if call.task is not None:
                call.task.cancel()

    def let_go(self, call: Call, size: int) -> None:
        """What a request no longer holds."""
        if self._serve is not None:
            call.held -= size
            self._held -= size

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(_READ):
                self._heard.set()
                for head, body in self._decoder.feed(data):
                    self._take(head, body)
                    if self.ended is not None:
                        return
            self.end("the other side hung up")
        except (OSError, protocol.ProtocolError, ValueError) as error:
            self.end(f"broken stream: {error}")

    def _take(self, head: protocol.Head, body: bytes) -> None:
        if "ping" in head:
            self.write({"pong": True})
            return
        if "pong" in head:
            return
        number = head.get("id")
        if not isinstance(number, int):
            raise protocol.ProtocolError("a frame without a number")
        call = self._calls.get(number)
        if self._serve is not None:
            self._take_request(number, call, head, body)
        elif call is not None:
            call.take(head, body, self._decoder.size)
            if call.undo is not None and call.result.done():
                del self._calls[number]
                if call.result.exception() is None:
                    call.undo(call.result.result()[0])

    def _take_request(self, number: int, call: Call | None, head: protocol.Head, body: bytes) -> None:
        if "op" in head:
            op, arguments = head["op"], head.get("with")
            if call is not None or not isinstance(op, str) or not isinstance(arguments, dict):
                raise protocol.ProtocolError("a request that is none")
            if len(self._calls) >= MOST_CALLS:
                full = InfrastructureFailure(f"{MOST_CALLS} calls are open on this connection")
                self.write({"id": number, "error": fault_to_json(full)})
                return
            call = self._calls[number] = Call(self, number, op, arguments, body)
            if "end" in head:
                call.take({"end": True}, b"", 0)
            call.task = self._spawn(self._answer(call))
            call.task.add_done_callback(partial(self._answered, call))
            self.hold(call, self._decoder.size)
        elif call is None:
            return  # it was answered before all of it had come
        elif "cancel" in head:
            if call.task is not None:
                call.task.cancel()
        elif "ack" in head or "piece" in head or "end" in head:
            call.take(head, body, self._decoder.size)
        else:
            raise protocol.ProtocolError(f"a request with {sorted(head)[:8]} says nothing")

    async def _answer(self, call: Call) -> None:
        assert self._serve is not None
        try:
            done, body = await self._serve(call)
            first = len(body) - len(body) % PIECE if len(body) > PIECE else 0
            await call.send_bytes(body[:first])
            await self.send({"id": call.number, "done": done}, body[first:])
        except Exception as error:
            self.write({"id": call.number, "error": fault_to_json(error)})

    def _answered(self, call: Call, task: "asyncio.Task[None]") -> None:
        """The end of a request's task, which may have been cancelled before its first step."""
        self._calls.pop(call.number, None)
        self.let_go(call, call.held)
        if task.cancelled() and call.fault is not None:
            self.write({"id": call.number, "error": fault_to_json(call.fault)})
        elif task.cancelled():
            self.write({"id": call.number, "error": {"kind": "Cancelled", "message": call.op}})

    # -- the end -----------------------------------------------------------------------------------------------

    def end(self, reason: str) -> None:
        """Close this end; open calls fail, and what this end carries out for the other is cancelled."""
        if self.ended is not None:
            return
        self.ended = reason
        self._writer.close()
        for call in list(self._calls.values()):
            call.over(LinkLost(f"the connection was lost: {reason}"))
        current = asyncio.current_task()
        for task in self._tasks - ({current} if current else set()):
            task.cancel()
        if self._on_end is not None:
            self._on_end(reason)

    async def closed(self) -> None:
        """Wait until everything this end ran is over and its socket is closed."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(2):
                await self._writer.wait_closed()
        self._writer.transport.abort()


def _nothing(_result: dict[str, Any]) -> None:
    return


def keep_alive(sock: Any) -> None:
    """Let the kernel notice a peer whose host is gone, and send small frames at once."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
