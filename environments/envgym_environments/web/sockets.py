"""Unix sockets that one episode's browser alone is told of.

The name is abstract: the kernel forgets it with its socket, it is in no directory, and nothing of it is left, kill
-9 included. Other users are refused by their ids. Each connection is a task of this module's own: asyncio's servers
lose one that is accepted just as they close, and with it an open socket.
"""

import asyncio
import os
import secrets
import socket
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress

__all__ = ["Listener"]

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: `struct ucred` of unix(7)
_BACKLOG = 100
_AGAIN_S = 1.0
"""After which it listens again, where no more files can be opened."""

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


class Listener:
    """Listens between `open` and `close`. talk: serves one connection, whose end it is. limit: of a line, bytes."""

    def __init__(self, talk: Talk, *, limit: int = 1 << 16) -> None:
        self._talk, self._limit = talk, limit
        self._name = f"\0envgym-site-{os.getpid()}-{secrets.token_hex(16)}"
        self._socket: socket.socket | None = None
        self._serving: dict[asyncio.Task[None], socket.socket] = {}

    @property
    def path(self) -> str:
        """Of the socket. Raises RuntimeError where it does not listen."""
        if self._socket is None:
            raise RuntimeError("the server is not open: call open() first")
        return self._name

    def open(self) -> None:
        """Begin to listen; does nothing where it does already."""
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            self._socket.bind(self._name)
            self._socket.listen(_BACKLOG)
            self._listen(self._socket)

    def _listen(self, listening: socket.socket) -> None:
        if listening is self._socket:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            loop.remove_reader(listening)
            loop.call_later(_AGAIN_S, self._listen, listening)
            return
        if not _is_ours(connection):
            connection.close()
            return
        connection.setblocking(False)
        task = loop.create_task(self._serve(connection))
        self._serving[task] = connection
        task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._serving.pop(task).close()  # of one that had not begun, nobody else's

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=self._limit)
        try:
            await self._talk(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def cut(self) -> None:
        """End every connection; it listens on."""
        tasks = tuple(self._serving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """End it and every connection. Idempotent."""
        listening, self._socket = self._socket, None
        if listening is not None:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        await self.cut()


def _is_ours(connection: socket.socket) -> bool:
    """Whether who is at the other end is this process's user."""
    _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid) == os.getuid()
