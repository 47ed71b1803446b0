"""A container that is spoken to over the engine, wherever that is: its agent's standard streams, as a socket here.

Two threads carry bytes, since an engine may be reached by anything that its SDK knows. What the bytes mean is the
caller's matter.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from envgym.errors import InfrastructureFailure
from envgym_sandboxes.cgroups import bound_buffers, memory_group, oom_kills
from envgym_sandboxes.docker_engine.client import Client

__all__ = ["Attached"]

_CHUNK = 1 << 16
_HEAD = 8
_ERRORS, _KEPT = 2, 4000


class Attached:
    """One container and the threads that carry its streams. Whoever starts it calls `remove`, failed or not."""

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self._client = client
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._told = b""
        self._kept: tuple[Any, ...] = ()
        self._line: Any = None
        self._threads: list[threading.Thread] = []
        self._memory: Path | None = None  # its group, where it can be seen: of an engine on this host
        self._kills = 0

    async def start(self, image: str, command: list[str], settings: tuple[dict[str, Any], dict[str, Any]]) -> None:
        """Create and start it. Raises what went wrong."""
        number = await self._client.call(self._client.create, self.name, image, command, *settings)
        *kept, self._line = await self._client.call(self._client.attach, self.name)
        self._kept = tuple(kept)
        group = memory_group(await self._client.call(self._client.start, self.name))
        if group is not None and number in group.name:  # else that process is another one, of another host
            self._memory, self._kills = group, oom_kills(group)

    def bound_buffers(self, memory_bytes: int) -> None:
        """See `cgroups.bound_buffers`; where this user may. The engines' own setting for it is ignored by runc."""
        with contextlib.suppress(PermissionError):
            bound_buffers(self._memory, memory_bytes)

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed for memory in it since the last call, where that can be seen."""
        kills, before = oom_kills(self._memory), self._kills
        self._kills = max(kills, before)
        return kills > before

    def send(self, pieces: Iterable[bytes]) -> None:
        """Send its agent something before all else. Blocks. Raises InfrastructureFailure when nobody listens."""
        try:
            for piece in pieces:
                self._line.sendall(piece)
        except OSError as error:
            raise InfrastructureFailure(f"the agent of container {self.name} does not listen: {error}") from error

    def carry(self, stream: socket.socket) -> None:
        """Connect its agent with one end of a pair of sockets, which stays the caller's to close."""
        ours = stream.dup()
        for carry in (self._carry_in, self._carry_out):
            self._threads.append(threading.Thread(target=carry, args=(ours,), daemon=True))
            self._threads[-1].start()

    def _carry_in(self, ours: socket.socket) -> None:
        """From here to the agent, until this side is let go of: then its input ends, and with it the container."""
        with contextlib.suppress(OSError):
            while data := ours.recv(_CHUNK):
                self._line.sendall(data)
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def _carry_out(self, ours: socket.socket) -> None:
        """From the agent to here: frames of the engine, each of one of two streams."""
        with contextlib.suppress(OSError):
            while len(head := self._exactly(_HEAD)) == _HEAD:
                left = int.from_bytes(head[4:], "big")
                while left and (data := self._line.recv(min(left, _CHUNK))):
                    left -= len(data)
                    if head[0] == _ERRORS:
                        self._told = (self._told + data)[-_KEPT:]
                    else:
                        ours.sendall(data)
        for end in (ours, self._line):  # an agent that nobody hears must not wait to be
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(RuntimeError):  # the loop has ended before
            self._loop.call_soon_threadsafe(self._over, ours)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (more := self._line.recv(size - len(data))):
            data += more
        return data

    def _over(self, ours: socket.socket | None = None) -> None:
        if ours is not None:
            ours.close()
        if not self.ended.done():
            self.ended.set_result(0)

    async def remove(self) -> None:
        """Kill and remove it. Raises InfrastructureFailure, SandboxUnavailable when the engine does not answer."""
        try:
            await self._let_go()
        finally:
            try:
                await self._client.call(self._client.remove, self.name)
            finally:
                self._over()

    async def _let_go(self) -> None:
        """Close its streams. Before anything else: an engine removes nothing whose output it cannot be rid of."""
        if self._line is None:
            return
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        for one in (self._line, *reversed(self._kept)):
            with contextlib.suppress(OSError):
                one.close()
