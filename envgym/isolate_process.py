"""The handle of an isolated environment's process: its socket, its process group, and how they end.

See `envgym.isolate` for what it is for, and `envgym.isolate_child` for the other side.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from typing import Any

from envgym.errors import EnvironmentFailure, SandboxDied
from envgym.isolate_child import FRAME, MAX_FRAME_BYTES
from envgym.wire import dumps

__all__ = ["Process"]


class Process:
    """The process, its socket and the pipe whose end tells it that we are gone."""

    def __init__(self, pickled: bytes, task_id: str, memory_bytes: int | None) -> None:
        self._task_id = task_id
        ours, theirs = socket.socketpair()
        read_end, self._life = os.pipe()
        code = "import sys; from envgym.isolate_child import serve; serve(int(sys.argv[1]), int(sys.argv[2]))"
        with theirs:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", code, str(theirs.fileno()), str(read_end)],
                pass_fds=(theirs.fileno(), read_end),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        os.close(read_end)
        self._socket = ours
        self.alive = True
        self._finalizer = weakref.finalize(self, _end, self.popen, self._socket, self._life)
        header = dumps({"path": sys.path, "memory_bytes": memory_bytes})
        for frame in (header, pickled):
            ours.sendall(FRAME.pack(len(frame)) + frame)
        ours.setblocking(False)

    async def send(self, message: dict[str, Any]) -> None:
        """Send one request. Raises SandboxDied."""
        body = dumps(message)
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, FRAME.pack(len(body)) + body)
        except OSError as error:
            raise self._died() from error

    async def receive(self) -> dict[str, Any]:
        """Wait for one answer. Raises SandboxDied, or EnvironmentFailure for what is no answer."""
        (size,) = FRAME.unpack(await self._read(FRAME.size))
        return self._parsed(size, await self._read(self._checked(size)))

    async def _read(self, size: int) -> bytes:
        loop, buffer = asyncio.get_running_loop(), bytearray(size)
        view, at = memoryview(buffer), 0
        while at < size:
            try:
                got = await loop.sock_recv_into(self._socket, view[at:])
            except OSError as error:
                raise self._died() from error
            if got == 0:
                raise self._died()
            at += got
        return bytes(buffer)

    def receive_blocking(self, limit_s: float) -> dict[str, Any]:
        """`receive` for who has no event loop."""
        self._socket.settimeout(limit_s)
        try:
            with self._socket.makefile("rb") as file:  # one frame is awaited, so nothing is read beyond it
                head = file.read(FRAME.size)
                size = self._checked(FRAME.unpack(head)[0]) if len(head) == FRAME.size else 0
                body = file.read(size)
        except OSError as error:
            raise self._died() from error
        finally:
            self._socket.setblocking(False)
        if not body or len(body) < size:
            raise self._died()
        return self._parsed(size, body)

    def _checked(self, size: int) -> int:
        if size > MAX_FRAME_BYTES:
            self.kill()
            raise EnvironmentFailure(
                f"the isolated environment of {self._task_id!r} answered with {size} bytes; the bound is "
                f"{MAX_FRAME_BYTES}"
            )
        return size

    def _parsed(self, size: int, body: bytes) -> dict[str, Any]:
        try:
            reply = json.loads(body)
            if not isinstance(reply, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            self.kill()
            raise EnvironmentFailure(f"the isolated environment broke the protocol: {error}") from error
        return reply

    def _died(self) -> SandboxDied:
        found = os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) if self.alive else None
        self.kill()
        if found is None:
            how = "it was killed, or closed its channel"
        else:
            how = f"{'exit status' if found.si_code == os.CLD_EXITED else 'killed by signal'} {found.si_status}"
        return SandboxDied(f"the process of the environment of task {self._task_id!r} died: {how}")

    def kill(self) -> None:
        """End the whole group; the leader is reaped later, so until then its number cannot be another's."""
        if self.alive:
            self.alive = False
            os.killpg(self.popen.pid, signal.SIGKILL)

    async def reap(self) -> None:
        """Wait until the leader is gone, and give everything back."""
        self.kill()
        await asyncio.to_thread(self._finalizer)


def _end(popen: "subprocess.Popen[bytes]", end: socket.socket, life: int) -> None:
    if popen.returncode is None:
        os.killpg(popen.pid, signal.SIGKILL)
        popen.wait()
    end.close()
    os.close(life)
