"""A well-behaved server of the official package, over standard input and output or, with a port, over HTTP."""

import asyncio
import os
import sys

from mcp.server import MCPServer

server = MCPServer("official")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def hang() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"


@server.tool()
def flood() -> str:
    """Answer with a text that is too long."""
    return "x" * (8 << 20)


@server.tool()
def die() -> str:
    """End at once."""
    os._exit(3)


@server.tool()
def fail() -> str:
    """Raise."""
    raise ValueError("inside the server")


if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run("stdio")
