"""The host's ends of the sockets: requests with numbers, answers as futures, no thread and no polling.

`Peer` talks to one sandbox's init over a byte stream, `ZygoteClient` to a zygote over packets that can carry
descriptors. Both belong to the event loop they were made in. A peer that ends or lies fails every open request
with `SandboxDied`; what that means is the caller's matter.
"""

import asyncio
import contextlib
import itertools
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

from envgym.errors import InfrastructureFailure, SandboxDied
from envgym_sandboxes import protocol
from envgym_sandboxes.flow import PIECE
from envgym_sandboxes.streams import Streams

__all__ = ["Answer", "Peer", "ZygoteClient", "job"]

Answer = tuple[protocol.Head, bytes]
_FRAME = 256  # what a frame weighs besides its body: nobody may send endless empty ones
_MOST_STRAY = 1 << 20
_MOST_REASON = 2000


class Peer:
    """One framed stream.

    What the other side sends is bounded by what it was asked for: an open request says how much its answers may
    weigh, and whoever sends more is ended. most_head: the longest head of a frame, bytes.
    """

    def __init__(self, sock: socket.socket, name: str, *, most_head: int = protocol.MAX_HEAD) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._name = name
        self._decoder = protocol.Decoder(most_head=most_head, most_body=self._room)
        self._numbers = itertools.count(1)
        self._open: dict[int, Request] = {}
        self._stray = _MOST_STRAY  # what may still come for nobody, such as answers to who left
        self._unsent = bytearray()
        self.streams = Streams(self)
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.ended: str | None = None
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._read)

    def _read(self) -> None:
        try:
            data = self._sock.recv(1 << 20)
            if not data:
                self.end("its process ended")
                return
            for head, body in self._decoder.feed(data):
                self._take(head, body)
        except BlockingIOError:
            return
        except (OSError, protocol.ProtocolError) as error:
            self.end(f"broken stream: {error}")

    def _room(self, head: protocol.Head) -> int:
        """How long the body of a frame may be."""
        if "stream" in head:
            return PIECE
        request = self._asked(head)
        return request.room if request else self._stray

    def _asked(self, head: protocol.Head) -> "Request | None":
        number = head.get("id")
        return self._open.get(number) if isinstance(number, int) else None

    def _take(self, head: protocol.Head, body: bytes) -> None:
        request = self._asked(head)
        if "dead" in head:
            self.end(str(head["dead"])[:_MOST_REASON])
        elif head.get("ready") and not self.ready.done():
            self.ready.set_result(None)
        elif "stream" in head:
            self.streams.take(head, body)
        elif request is None:
            self._stray -= len(body) + _FRAME
            if self._stray < 0:
                self.end("it sends what nobody asked for")
        else:
            request.room -= len(body) + _FRAME
            if request.room < 0:
                self.end("it sends more than was asked for")
                return
            if head.get("more") is not True:
                request.room = 0  # the last answer
            request.queue.put_nowait((head, body))

    def end(self, reason: str) -> None:
        """Close this end; open requests fail."""
        if self.ended is not None:
            return
        self.ended = reason
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        if not self.ready.done():
            self.ready.set_exception(SandboxDied(f"sandbox {self._name} did not start: {reason}"))
            self.ready.exception()  # it may be that nobody waits for it
        self.streams.fail(reason)
        for request in self._open.values():
            request.queue.put_nowait(None)

    def send(self, head: protocol.Head, body: bytes = b"") -> int:
        """Send a request and return its number. Raises SandboxDied when the stream is over."""
        if self.ended is not None:
            raise SandboxDied(f"sandbox {self._name} is gone: {self.ended}")
        number = next(self._numbers)
        data = protocol.encode({**head, "id": number}, body)
        if not self._unsent:
            with contextlib.suppress(BlockingIOError, ConnectionError):
                data = data[self._sock.send(data) :]
        if data:
            self._unsent += data
            self._loop.add_writer(self._sock.fileno(), self._write)
        return number

    def _write(self) -> None:
        try:
            del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError as error:
            self.end(f"broken stream: {error}")
            return
        if not self._unsent:
            self._loop.remove_writer(self._sock.fileno())

    def open(self, head: protocol.Head, body: bytes = b"", *, most: int = protocol.MAX_BODY) -> "Request":
        """Send a request whose answers are then awaited. most: what they may weigh in all, bytes."""
        request = Request(self, self.send(head, body), most)
        self._open[request.number] = request
        return request

    async def ask(self, head: protocol.Head, body: bytes = b"", *, most: int = protocol.MAX_BODY) -> Answer:
        """One request, one answer. Raises SandboxDied, or the OSError that the other side met."""
        with self.open(head, body, most=most) as request:
            return await request.answer()

    def forget(self, request: "Request") -> None:
        """Drop whatever is still answered to a request."""
        if self._open.pop(request.number, None) is not None:
            self._stray += max(0, request.room)

    def died(self) -> SandboxDied:
        """The error for a stream that is over."""
        return SandboxDied(f"sandbox {self._name} is gone: {self.ended}")


class Request:
    """An open request. A context manager, so that no answer is kept for a caller who left.

    room: how many bytes its answers may still weigh, heads counted as a constant.
    """

    def __init__(self, peer: Peer, number: int, most: int) -> None:
        self._peer = peer
        self.number = number
        self.room = most + _FRAME
        self.queue: asyncio.Queue[Answer | None] = asyncio.Queue()

    async def answer(self, *, within_s: float | None = None) -> Answer:
        """The next answer. Raises SandboxDied, also for a peer that is silent for `within_s`, and its OSError."""
        try:
            async with asyncio.timeout(within_s):
                got = await self.queue.get()
        except TimeoutError:
            self._peer.end(f"silent for {within_s:g} s")
            got = None
        if got is None:
            raise self._peer.died()
        if "errno" in got[0]:
            number = got[0]["errno"]
            raise OSError(number if isinstance(number, int) else 5, str(got[0].get("error"))[:_MOST_REASON])
        return got

    def __enter__(self) -> "Request":
        return self

    def __exit__(self, *_: object) -> None:
        self._peer.forget(self)


class ZygoteClient:
    """One zygote, seen from its owner. Answers come in order of requests' numbers; exits come as calls."""

    def __init__(self, control: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[Any]] = {0: self._loop.create_future()}
        self._exits: dict[str, asyncio.Future[int]] = {}
        self.ready = self._open[0]
        self.ended = False
        control.setblocking(False)
        self._loop.add_reader(control.fileno(), self._read)

    def _read(self) -> None:
        while not self.ended:
            try:
                head, _body, fds = protocol.receive(self._control)
                for fd in fds:  # nobody asked for any
                    os.close(fd)
                self._take(head)
            except BlockingIOError:
                return
            except (EOFError, OSError, protocol.ProtocolError, KeyError, TypeError):
                self.close()
                return

    def _take(self, head: protocol.Head) -> None:
        """One answer. Raises KeyError or TypeError for what is none."""
        if head.get("event") == "exit":
            if type(head["status"]) is not int:
                raise TypeError("a status that is none")
            exited = self._exits.pop(head["sandbox"], None)
            if exited and not exited.done():
                exited.set_result(head["status"])
            return
        error = OSError(head["errno"], head["error"]) if "error" in head else None
        result = None if error else head["result"]
        future = self._open.pop(head["id"], None)
        if future is None or future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def ask(self, op: str, fds: list[int] | None = None, /, **arguments: Any) -> "asyncio.Future[Any]":
        """Send a request. The future raises OSError as the zygote met it; InfrastructureFailure if it is gone."""
        future = self._loop.create_future()
        if self.ended:
            future.set_exception(InfrastructureFailure("the zygote process is gone"))
            return future
        number = next(self._numbers)
        packet = protocol.encode({**arguments, "op": op, "id": number})
        self._open[number] = future
        try:
            socket.send_fds(self._control, [packet], fds or [])
        except OSError as error:
            self._open.pop(number)
            future.set_exception(InfrastructureFailure(f"the zygote does not take requests: {error}"))
        return future

    def exit_of(self, sandbox: str) -> "asyncio.Future[int]":
        """A future of the exit status of a sandbox's init; all of its processes are gone then."""
        return self._exits.setdefault(sandbox, self._loop.create_future())

    def close(self) -> None:
        """Let go; the zygote and all its sandboxes end."""
        if self.ended:
            return
        self.ended = True
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        for future in [*self._open.values()]:
            if not future.done():
                future.set_exception(InfrastructureFailure("the zygote process is gone"))
                future.exception()
        for exited in self._exits.values():
            if not exited.done():
                exited.set_result(-9)
        self._exits.clear()


async def job(
    zygote: ZygoteClient, name: str, /, *, fds: Sequence[int] = (), **arguments: Any
) -> tuple[Any, bytes]:
    """Run one of `jobs` in a fork of the zygote: its JSON result and its bytes. fds: descriptors that it takes.

    What it is told goes past the zygote, in whose memory it would stay, and so into that of later sandboxes.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        asked = zygote.ask("job", [theirs.fileno(), *fds])
    peer = Peer(ours, f"job {name}")
    try:
        with peer.open({"job": name}, json.dumps(arguments).encode()) as request:
            await asked
            head, body = await request.answer()
            return head["result"], body
    except SandboxDied as error:
        raise InfrastructureFailure(f"job {name}: {error}") from None
    finally:
        peer.end("done")
