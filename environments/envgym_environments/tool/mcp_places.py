"""Where an MCP server lives: a program beside us, a program in a sandbox, or an address; each with a bounded line.

Whatever is started here is ended here: a program's whole process group, a sandbox's process, a connection.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx2
from mcp.client.streamable_http import streamable_http_client

from envgym.arguments import checked_count, checked_seconds
from envgym.errors import EnvironmentFailure
from envgym.sandbox import Sandbox
from envgym.toolbox import ToolFault
from envgym_environments.tool.line_transport import Ended, Streams, Traffic, carried

__all__ = ["McpServer", "opened"]

_GRACE_S = 2.0
_TAIL = 2000
_RETRY_S = 0.05
_HERE = ("HOME", "LANG", "LOGNAME", "PATH", "TMPDIR", "USER")
_BRIDGE = """
import os, socket, sys
lines = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(line.getsockname()[1] for line in lines), flush=True)
ends = [line.accept()[0] for line in lines]
os.dup2(ends[0].fileno(), 0)
os.dup2(ends[1].fileno(), 1)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Gives a program in a sandbox, where nothing can be written to later, a connection as its input and one as output.

They are two, so that a program that closes its output is seen to have done so while it reads on.
"""


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server and its bounds.

    command: a program that speaks over its input and output. url: instead, an address of streamable HTTP; with
    both, the program serves at that address (its port is forwarded where it runs in a sandbox).
    env: variables it gets besides a few harmless ones. start_s: until it has told its tools; call_s: of one
    call; ping_s: until one that gave no answer counts as hanging. message_bytes: of one message; call_bytes: of
    all it sends for one call. restarts: how often one that died, or hangs, is started again. headers: of each
    request to an address, such as who one is.
    """

    command: tuple[str, ...] = ()
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 30.0
    call_s: float = 20.0
    ping_s: float = 5.0
    message_bytes: int = 4 << 20
    call_bytes: int = 16 << 20
    restarts: int = 3
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.command and not self.url:
            raise ValueError("McpServer has neither command nor url; give the program to start, or its address")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"McpServer.url is {self.url!r}; it must begin with http:// or https://")
        if self.headers and not self.url:
            raise ValueError("McpServer.headers are for an address, and url is ''; a program is told by env")
        checked_seconds("McpServer.start_s", self.start_s)
        checked_seconds("McpServer.call_s", self.call_s)
        checked_seconds("McpServer.ping_s", self.ping_s)
        for name in ("message_bytes", "call_bytes"):
            checked_count(f"McpServer.{name}", getattr(self, name), least=1024)
        checked_count("McpServer.restarts", self.restarts, least=0)

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return self.url or os.path.basename(self.command[-1])

    def traffic(self) -> Traffic:
        """A fresh count of what it sends."""
        return Traffic(self.message_bytes, self.call_bytes)


@asynccontextmanager
async def opened(server: McpServer, traffic: Traffic, sandbox: Sandbox | None = None) -> AsyncIterator[Streams]:
    """A line to a fresh server, as the streams of a `ClientSession`; what was started for it ends with it."""
    if server.url:
        async with _served(server, traffic, sandbox) as url, _http(url, server.headers, traffic) as streams:
            yield streams
    elif sandbox is not None:
        async with _inside(server, sandbox, traffic) as streams:
            yield streams
    else:
        async with _beside(server, traffic) as streams:
            yield streams


@asynccontextmanager
async def _program(
    server: McpServer, traffic: Traffic
) -> AsyncIterator[tuple[asyncio.subprocess.Process, list[bytes]]]:
    """A program of its own process group, and the last that it says on stderr; at the end the group is killed."""
    loop, tail = asyncio.get_running_loop(), [b""]
    protocol = asyncio.subprocess.SubprocessStreamProtocol(limit=server.message_bytes, loop=loop)
    kept = {name: os.environ[name] for name in _HERE if name in os.environ}
    pipe = asyncio.subprocess.PIPE
    transport, _ = await loop.subprocess_exec(
        lambda: protocol, *server.command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True,
        env={**kept, **server.env},
    )  # fmt: skip
    process = asyncio.subprocess.Process(transport, protocol, loop)

    async def listen() -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(65536):
            tail[0] = (tail[0] + chunk)[-_TAIL:]

    listening = asyncio.create_task(listen())
    try:
        yield process, tail
    finally:
        await _ended(process, transport, 0.0 if traffic.fault else _GRACE_S)
        listening.cancel()
        await asyncio.wait([listening])
        transport.close()


async def _ended(
    process: asyncio.subprocess.Process, transport: asyncio.SubprocessTransport, grace_s: float
) -> None:
    """Its input ends; it may leave by itself; then its whole group is killed."""
    assert process.stdin is not None
    process.stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            await process.wait()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    output = transport.get_pipe_transport(1)
    assert output is not None
    output.close()  # of one that flooded nobody reads on, and while it is open asyncio takes the program for alive
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE_S):
            await process.wait()


@asynccontextmanager
async def _beside(server: McpServer, traffic: Traffic) -> AsyncIterator[Streams]:
    async with _program(server, traffic) as (process, tail):
        assert process.stdout is not None
        assert process.stdin is not None
        async with carried(process.stdout, process.stdin, traffic) as streams:
            try:
                yield streams
            finally:
                traffic.last_words(tail[0])


@asynccontextmanager
async def _inside(server: McpServer, sandbox: Sandbox, traffic: Traffic) -> AsyncIterator[Streams]:
    argv = ["python3", "-c", _BRIDGE, *server.command]
    process = await sandbox.start(argv, env=server.env)
    try:
        said = b""
        while not said.endswith(b"\n"):
            status = await sandbox.poll(process, wait_s=server.start_s)
            said += status.stdout
            if not status.running:
                raise EnvironmentFailure(
                    f"MCP server {server.name}: its sandbox has no python3 to start it with: "
                    f"{status.stderr.decode('utf-8', 'replace')[-300:]}"
                )
        into, outof = map(int, said.split())
        async with (
            sandbox.forward(into) as given,
            sandbox.forward(outof) as told,
            _connected(given, server) as (_, writer),
            _connected(told, server) as (reader, _),
            carried(reader, writer, traffic) as streams,
        ):
            yield streams
    finally:
        if traffic.fault is not None:
            traffic.last_words((await sandbox.poll(process, wait_s=0.0)).stderr)
        await sandbox.signal(process, signal.SIGKILL)


@asynccontextmanager
async def _connected(
    place: tuple[str, int], server: McpServer
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*place, limit=server.message_bytes)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@asynccontextmanager
async def _served(server: McpServer, traffic: Traffic, sandbox: Sandbox | None) -> AsyncIterator[str]:
    """The address of a server that is started here if it has a command; it may not listen yet."""
    if not server.command:
        yield server.url
    elif sandbox is None:
        async with _program(server, traffic) as (process, _tail):
            assert process.stdout is not None
            draining = asyncio.create_task(_drained(process.stdout))
            try:
                await _listening(server.url)
                yield server.url
            finally:
                draining.cancel()
                await asyncio.wait([draining])
    else:
        url = httpx2.URL(server.url)
        process_name = await sandbox.start(list(server.command), env=server.env)
        try:
            async with sandbox.forward(url.port or 80) as (host, port):
                here = str(url.copy_with(host=host, port=port))
                await _listening(here)
                yield here
        finally:
            await sandbox.signal(process_name, signal.SIGKILL)


async def _listening(url: str) -> None:
    """Until anything answers at an address; whoever waits has a deadline."""
    async with httpx2.AsyncClient(timeout=2.0) as client:
        while True:
            try:
                async with client.stream("GET", url):
                    return
            except httpx2.HTTPError:
                await asyncio.sleep(_RETRY_S)


async def _drained(stream: asyncio.StreamReader) -> None:
    while await stream.read(65536):
        pass


class _Counted(httpx2.AsyncByteStream):
    """A response's bytes, counted, in all and line by line: a message is one line of an event, or the whole body.

    The SDK bounds an event too, but takes one that is too long for a refusal of the tool's.
    """

    def __init__(self, inner: httpx2.AsyncByteStream, traffic: Traffic) -> None:
        self._inner, self._traffic = inner, traffic
        self._line = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            try:
                self._traffic.count(len(chunk))
                self._count_lines(chunk)
            except Ended:
                raise httpx2.ReadError("too much was sent") from None
            yield chunk

    def _count_lines(self, chunk: bytes) -> None:
        for number, piece in enumerate(chunk.split(b"\n")):
            self._line = len(piece) + (0 if number else self._line)
            if self._line > self._traffic.line_bytes:
                self._traffic.too_long()
                raise Ended

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncBaseTransport):
    """HTTP whose answers are counted."""

    def __init__(self, traffic: Traffic) -> None:
        self._inner, self._traffic = httpx2.AsyncHTTPTransport(), traffic

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"  # a bomb of zeros would be counted packed
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Counted(response.stream, self._traffic)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def _http(url: str, headers: Mapping[str, str], traffic: Traffic) -> AsyncIterator[Streams]:
    try:
        async with _client(url, headers, traffic) as streams:
            yield streams
    finally:
        traffic.end(ToolFault.DIED, "it ended")


@asynccontextmanager
async def _client(url: str, headers: Mapping[str, str], traffic: Traffic) -> AsyncIterator[Streams]:
    patience = httpx2.Timeout(30.0, read=300.0)
    async with (
        httpx2.AsyncClient(transport=_Bounded(traffic), headers=dict(headers), timeout=patience) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=2 * traffic.line_bytes) as streams,
    ):
        yield streams  # type: ignore[misc]  # the SDK's streams are wider than ours
