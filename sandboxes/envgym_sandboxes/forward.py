"""A port of the host's loopback whose connections end at a port inside a sandbox.

Each connection is a stream that shares the sandbox's one connection of frames: the host never enters the sandbox's
network. A snapshot that replaces the sandbox's init ends the streams, not the listener. Other users of this host
are refused, since a loopback is everybody's.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from envgym.arguments import checked_port
from envgym.errors import EnvgymError
from envgym_sandboxes.flow import MOST_STREAMS, PIECE
from envgym_sandboxes.peer_user import is_this_users
from envgym_sandboxes.relay import Pipe, cut, relay

__all__ = ["Forward"]

_HOST = "127.0.0.1"


class Forward:
    """An async context manager of (host, port). Raises ValueError for what is no port.

    ready: waits until the sandbox runs, raises SandboxDied. dial: a stream to a port inside, which is reset when it
    is left too early. live: where it is listed while it listens, so that its sandbox can close it.
    """

    def __init__(
        self,
        port: int,
        *,
        ready: Callable[[], Awaitable[object]],
        dial: Callable[[int], AbstractAsyncContextManager[Pipe]],
        live: "set[Forward]",
    ) -> None:
        self._port = checked_port(port)
        self._ready = ready
        self._dial = dial
        self._live = live
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> tuple[str, int]:
        await self._ready()
        self._live.add(self)
        try:
            self._server = await asyncio.start_server(self._connected, _HOST, 0, limit=PIECE)
        except BaseException:
            self._live.discard(self)
            raise
        return _HOST, self._server.sockets[0].getsockname()[1]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening and end every connection."""
        self._live.discard(self)
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        connections = [*self._connections]
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ours = is_this_users(writer.get_extra_info("socket"))
        if self._server is None or len(self._connections) >= MOST_STREAMS or not ours:
            cut(writer)
            return
        connection = asyncio.ensure_future(self._carry(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection's life. Whatever breaks it, or refuses it inside, is a reset on both sides."""
        try:
            async with self._dial(self._port) as stream:
                await relay(reader, writer, stream)
            writer.close()
            await writer.wait_closed()
        except (EnvgymError, OSError):
            pass  # said to the client below
        finally:
            cut(writer)
