"""The host's ends of the sockets: requests with numbers, answers as futures, no thread and no polling.

`Peer` talks to one sandbox's init over a byte stream, `ZygoteClient` to a zygote over packets that can carry
descriptors. Both belong to the event loop they were made in. A peer that ends or lies fails every open request
with `SandboxDied`; what that means is the caller's matter.
"""

import asyncio
import contextlib
import itertools
import socket
from typing import Any

from envgym.errors import InfrastructureFailure, SandboxDied
from envgym_sandboxes import protocol

__all__ = ["Peer", "ZygoteClient", "job"]

Answer = tuple[protocol.Head, bytes]


class Peer:
    """One framed stream. `on_end` is called once, with the reason, when it is over."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._name = name
        self._decoder = protocol.Decoder()
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Queue[Answer | None]] = {}
        self._unsent = bytearray()
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

    def _take(self, head: protocol.Head, body: bytes) -> None:
        if "dead" in head:
            self.end(str(head["dead"]))
        elif head.get("ready") and not self.ready.done():
            self.ready.set_result(None)
        elif isinstance(head.get("id"), int) and head["id"] in self._open:
            self._open[head["id"]].put_nowait((head, body))

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
        for queue in self._open.values():
            queue.put_nowait(None)

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

    def open(self, head: protocol.Head, body: bytes = b"") -> "Request":
        """Send a request whose answers are then awaited."""
        number = self.send(head, body)
        queue: asyncio.Queue[Answer | None] = asyncio.Queue()
        self._open[number] = queue
        return Request(self, number, queue)

    async def ask(self, head: protocol.Head, body: bytes = b"") -> Answer:
        """One request, one answer. Raises SandboxDied, or the OSError that the other side met."""
        with self.open(head, body) as request:
            return await request.answer()

    def forget(self, number: int) -> None:
        """Drop whatever is still answered to a request."""
        self._open.pop(number, None)

    def died(self) -> SandboxDied:
        """The error for a stream that is over."""
        return SandboxDied(f"sandbox {self._name} is gone: {self.ended}")


class Request:
    """An open request. A context manager, so that no answer is kept for a caller who left."""

    def __init__(self, peer: Peer, number: int, queue: "asyncio.Queue[Answer | None]") -> None:
        self._peer = peer
        self.number = number
        self._queue = queue

    async def answer(self) -> Answer:
        """The next answer."""
        got = await self._queue.get()
        if got is None:
            raise self._peer.died()
        if "errno" in got[0]:
            raise OSError(got[0]["errno"], str(got[0]["error"]))
        return got

    def __enter__(self) -> "Request":
        return self

    def __exit__(self, *_: object) -> None:
        self._peer.forget(self.number)


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
                head, _body, _fds = protocol.receive(self._control)
            except BlockingIOError:
                return
            except (EOFError, OSError):
                self.close()
                return
            if head.get("event") == "exit":
                exited = self._exits.pop(head["sandbox"], None)
                if exited and not exited.done():
                    exited.set_result(head["status"])
                continue
            future = self._open.pop(head["id"], None)
            if future is None or future.done():
                continue
            if "error" in head:
                future.set_exception(OSError(head["errno"], head["error"]))
            else:
                future.set_result(head["result"])

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


async def job(zygote: ZygoteClient, name: str, **arguments: Any) -> tuple[Any, bytes]:
    """Run one of `jobs` in a fork of the zygote: its JSON result and its bytes."""
    ours, theirs = socket.socketpair()
    with theirs:
        asked = zygote.ask("job", [theirs.fileno()], job=name, arguments=arguments)
    peer = Peer(ours, f"job {name}")
    try:
        with peer_request(peer) as request:
            await asked
            head, body = await request.answer()
            return head["result"], body
    except SandboxDied as error:
        raise InfrastructureFailure(f"job {name}: {error}") from None
    finally:
        peer.end("done")


def peer_request(peer: Peer) -> Request:
    """A request that was sent another way; its answer has the number 0."""
    queue: asyncio.Queue[Answer | None] = asyncio.Queue()
    peer._open[0] = queue
    return Request(peer, 0, queue)
