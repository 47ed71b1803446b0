"""Forwarded ports over a link: a connection is one call, and its pieces are the bytes of both directions.

On the server the contract's own `forward` leads into the sandbox; on the client `Forward` listens. Neither end
reads faster than the call's window lets it.
"""

import asyncio
from contextlib import AsyncExitStack

from envgym.sandbox import Sandbox
from envgym_sandboxes.flow import PIECE
from envgym_sandboxes.relay import cut, relay
from envgym_sandboxes.remote.link import Call

__all__ = ["CallStream", "Ports"]

_MOST_PORTS = 64


class CallStream:
    """See `envgym_sandboxes.relay.Pipe`. Leaving the call before its end is its reset."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._pieces = call.pieces()

    async def receive(self) -> bytes:
        """See `Pipe`. Raises what the call failed with."""
        while (piece := await anext(self._pieces, None)) is not None:
            if piece[1]:
                return piece[1]
        return b""

    async def send(self, data: bytes) -> None:
        """See `Pipe`. Raises LinkLost too."""
        if not await self._call.send(None, data):
            raise ConnectionResetError(f"{self._call.op}: the other side ended it")

    def end(self) -> None:
        """See `Pipe`."""
        if not self._call.result.done():
            self._call.link.write({"id": self._call.number, "end": True})


class Ports:
    """The forwards that one client uses: one for each port of a sandbox, kept until that sandbox is closed.

    One for each connection would be closed before the inside had taken the last bytes.
    """

    def __init__(self) -> None:
        self._gate = asyncio.Lock()
        self._held: dict[str, AsyncExitStack] = {}
        self._addresses: dict[tuple[str, int], tuple[str, int]] = {}

    async def carry(self, call: Call, sandbox: Sandbox, port: int) -> None:
        """One connection to a port inside, until both directions have ended. Raises OSError where one breaks."""
        reader, writer = await asyncio.open_connection(*await self._address(sandbox, port), limit=PIECE)
        try:
            await relay(reader, writer, CallStream(call))
            writer.close()
            await writer.wait_closed()
        finally:
            cut(writer)

    async def _address(self, sandbox: Sandbox, port: int) -> tuple[str, int]:
        async with self._gate:
            key = (sandbox.id, port)
            if key not in self._addresses:
                if sum(name == sandbox.id for name, _port in self._addresses) >= _MOST_PORTS:
                    raise OSError(24, f"{_MOST_PORTS} ports of one sandbox are forwarded, and no more can be")
                stack = self._held.setdefault(sandbox.id, AsyncExitStack())
                self._addresses[key] = await stack.enter_async_context(sandbox.forward(port))
            return self._addresses[key]

    async def close(self, sandbox: str) -> None:
        """Close a sandbox's."""
        async with self._gate:
            stack = self._held.pop(sandbox, None)
            self._addresses = {key: address for key, address in self._addresses.items() if key[0] != sandbox}
            if stack is not None:
                await stack.aclose()
