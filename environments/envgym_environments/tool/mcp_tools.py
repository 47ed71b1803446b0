"""The tools of an MCP server: what it does wrong costs one typed observation, never the run.

A server that hangs, floods, lies about its schemas or dies in the middle of a call is answered for with a fault
(`ToolFault`), ended with all its processes, and started again for the next call. Only a server that never came up
is the world's fault: `EnvironmentFailure`, before the episode has begun.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
from mcp import ClientSession, MCPError
from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, CallToolResult, PaginatedRequestParams
from pydantic import JsonValue, ValidationError

from envgym.errors import EnvgymError, EnvironmentFailure
from envgym.messages import ToolSpec
from envgym.sandbox import Sandbox
from envgym.toolbox import ToolFault, ToolResult
from envgym_environments.tool.foreign_schema import foreign_spec, promised_schema, schema_errors, tool_name
from envgym_environments.tool.line_transport import Traffic
from envgym_environments.tool.mcp_places import McpServer, opened

__all__ = ["McpServer", "McpTool", "McpTools"]

_MOST_TOOLS = 512
_BROKEN = (
    MCPError, RuntimeError, ValidationError, ValueError, KeyError, TypeError, OSError, httpx2.HTTPError,
    anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream,
)  # fmt: skip
"""What the official client raises for what a server did, or for a line that is gone."""


class McpTools:
    """A connection to one server, and its tools. An async context manager; made by `connect`."""

    def __init__(self, server: McpServer, sandbox: Sandbox | None = None) -> None:
        self.server, self._sandbox = server, sandbox
        self.tools: tuple[McpTool, ...] = ()
        self.complaints: tuple[str, ...] = ()
        self._promised: dict[str, dict[str, Any]] = {}
        self._line: _Line | None = None
        self._opening = asyncio.Lock()
        self._left = server.restarts

    @classmethod
    async def connect(cls, server: McpServer, sandbox: Sandbox | None = None) -> "McpTools":
        """Start it, or reach it, and read its tools. Raises EnvironmentFailure when it does not come up in time."""
        self = cls(server, sandbox)
        try:
            self._line = await _Line.open(server, sandbox)
            await self._read_tools(self._line)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aenter__(self) -> "McpTools":
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the line and, where it was started here, the server; idempotent."""
        if (line := self._line) is not None:
            self._line = None
            await line.close()

    async def _read_tools(self, line: "_Line") -> None:
        found: dict[str, McpTool] = {}
        complaints: list[str] = []
        for raw in await line.listed():
            name = tool_name(raw.name)
            if name is None or name in found:
                complaints.append(f"tool {str(raw.name)[:80]!r}: the name cannot be used, or is used twice")
                continue
            spec, wrong = foreign_spec(name, raw.description, raw.input_schema)
            if wrong is not None:
                complaints.append(f"tool {name}: {wrong}")
            promised, wrong = promised_schema(raw.output_schema)
            if wrong is not None:
                complaints.append(f"tool {name}, its result: {wrong}")
            elif promised is not None:
                self._promised[raw.name] = promised
            found[name] = McpTool(
                spec, self, raw.name, self.server.start_s + self.server.call_s + 2 * self.server.ping_s + 5
            )
        self.tools, self.complaints = tuple(found.values()), tuple(complaints)

    async def call(self, name: str, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Call a tool by the server's own name for it. Raises EnvgymErrors of a sandbox alone."""
        try:
            line = await self._alive()
        except EnvironmentFailure as error:
            return ToolResult.failed(ToolFault.DIED, str(error))
        if line is None:
            told = f"the server {self.server.name} is gone: it ended {self.server.restarts + 1} times"
            return ToolResult.failed(ToolFault.DIED, told)
        line.traffic.begin()
        try:
            async with asyncio.timeout(self.server.call_s) as timer:
                result = await line.session.call_tool(name, dict(arguments))
        except TimeoutError:
            if not timer.expired():
                raise
            hung = not await line.answers()
            if hung:
                line.traffic.end(ToolFault.TIMEOUT, "it hangs")
                await self._drop(line)
            told = "; the server hangs and is started again, without what it held" if hung else ""
            return ToolResult.failed(
                ToolFault.TIMEOUT, f"{name} gave no answer within {self.server.call_s:g} s{told}"
            )
        except EnvgymError:
            raise
        except _BROKEN as error:
            return await self._broken(line, name, error)
        if (wrong := self._unkept(name, result)) is not None:
            return ToolResult.failed(ToolFault.LIED, f"{name}: its result is not what it promises: {wrong}")
        return _result(result)

    def _unkept(self, name: str, result: CallToolResult) -> str | None:
        """How a result breaks the schema that the tool promised."""
        promised = self._promised.get(name)
        if promised is None or result.is_error:
            return None
        if result.structured_content is None and "structured_content" not in result.model_fields_set:
            return "it has no structured content"
        return schema_errors(promised, result.structured_content, what="result")

    async def _broken(self, line: "_Line", name: str, error: Exception) -> ToolResult:
        """What a call that came to no result means: the server ended, flooded, refused, or lied."""
        ended = line.traffic.fault
        if ended is None and isinstance(error, MCPError) and await line.answers():
            fault, said = _found(error, over_http=bool(self.server.url))
            return ToolResult.failed(fault, f"{name}: {said[:500]}")
        if ended is None and not isinstance(error, MCPError):
            return ToolResult.failed(ToolFault.LIED, f"{name}: {type(error).__name__}: {str(error)[:300]}")
        await self._drop(line)
        fault, said = line.traffic.fault or ToolFault.DIED, line.traffic.said
        again = "it is started again for the next call, without what it held"
        return ToolResult.failed(fault, f"the server {self.server.name} broke off {name}: {said}; {again}")

    async def _alive(self) -> "_Line | None":
        async with self._opening:  # of several calls at once the first starts it
            if self._line is None and self._left:
                self._left -= 1
                self._line = await _Line.open(self.server, self._sandbox)
            return self._line

    async def _drop(self, line: "_Line") -> None:
        if self._line is line:
            self._line = None
        await line.close()


@dataclass(frozen=True, slots=True)
class McpTool:
    """One tool of a server, as a `Tool`."""

    spec: ToolSpec
    tools: McpTools
    raw_name: str
    deadline_s: float | None
    serial: bool = False

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Check against the schema that the server gave, then call."""
        wrong = schema_errors(self.spec.parameters, dict(arguments))
        if wrong is not None:
            return ToolResult.failed(ToolFault.INVALID, f"{self.spec.name}: {wrong}")
        return await self.tools.call(self.raw_name, arguments)

    async def close(self) -> None:
        """Close the connection that it shares with its server's other tools; idempotent."""
        await self.tools.close()


class _Session(ClientSession):
    """The official client without its check of results, which follows whatever a server sends, for ever if it must.

    `McpTools` checks them instead, by what it read and believed.
    """

    async def validate_tool_result(self, name: str, result: CallToolResult) -> None:
        """Nothing."""


class _Line:
    """One life of a server. A task of its own holds it: the official client must end where it began."""

    def __init__(self, server: McpServer, sandbox: Sandbox | None) -> None:
        self.traffic: Traffic = server.traffic()
        self.session: ClientSession
        self._server, self._sandbox = server, sandbox
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold())

    @classmethod
    async def open(cls, server: McpServer, sandbox: Sandbox | None) -> "_Line":
        """A server that has answered. Raises EnvironmentFailure."""
        self = cls(server, sandbox)
        try:
            async with asyncio.timeout(server.start_s) as timer:
                self.session = await asyncio.shield(self._ready)
        except TimeoutError:
            await self.close()
            if not timer.expired():
                raise
            said = f"did not come up within {server.start_s:g} s; {self.traffic.said}"
            raise EnvironmentFailure(f"MCP server {server.name} {said}") from None
        except (*_BROKEN, ExceptionGroup) as error:
            await self.close()
            raise EnvironmentFailure(f"MCP server {server.name} did not come up: {_plain(error)}") from error
        except BaseException:
            await self.close()
            raise
        return self

    async def _hold(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                streams = await stack.enter_async_context(opened(self._server, self.traffic, self._sandbox))
                session = await stack.enter_async_context(_Session(*streams))
                await session.initialize()
                self._ready.set_result(session)
                await self._stop.wait()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # handed to whoever waits for the server
            if not self._ready.done():
                self._ready.set_exception(error)

    async def listed(self) -> list[Any]:
        """The tools it tells, page by page, up to a bound. Raises EnvironmentFailure."""
        found: list[Any] = []
        cursor: str | None = None
        seen: set[str] = set()
        self.traffic.begin()
        try:
            async with asyncio.timeout(self._server.start_s):
                while len(found) < _MOST_TOOLS:
                    page = await self.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
                    found += page.tools
                    cursor = page.next_cursor
                    if not cursor or cursor in seen:
                        break
                    seen.add(cursor)
        except (*_BROKEN, TimeoutError) as error:
            said = self.traffic.said or _plain(error)
            raise EnvironmentFailure(f"MCP server {self._server.name} does not tell its tools: {said}") from error
        return found[:_MOST_TOOLS]

    async def answers(self) -> bool:
        """Whether it is still there: a ping is answered."""
        try:
            async with asyncio.timeout(self._server.ping_s):
                await self.session.send_ping()
        except (TimeoutError, *_BROKEN):
            return False
        return True

    async def close(self) -> None:
        """End the server, and wait until its processes are gone."""
        self._stop.set()
        if not self._ready.done():
            self._task.cancel()
        await asyncio.wait([self._task])
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()  # it was told, or nobody waits for it any more


def _found(error: MCPError, *, over_http: bool) -> tuple[ToolFault, str]:
    """What an error means of a server that still answers: the official client tells its findings as errors, too.

    Over HTTP it does so of an answer that is no JSON, or a page, and of one that ends without a result. Over a
    program's output an error is always the server's own word.
    """
    said = str(error)
    if over_http and (error.code == PARSE_ERROR or said.startswith("Unexpected content type")):
        return ToolFault.LIED, said
    if (
        over_http and error.code == CONNECTION_CLOSED and said.startswith("SSE stream")
    ):  # a server has that code, too
        return ToolFault.DIED, "its answer ended without a result; the server lives"
    return ToolFault.REFUSED, said


def _plain(error: BaseException) -> str:
    while isinstance(error, ExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {str(error)[:300]}"


def _result(result: CallToolResult) -> ToolResult:
    """What the server answered, as text: its parts one below the other, what is no text named by kind and size."""
    parts = []
    for block in result.content:
        inside = getattr(block, "resource", block)  # what is embedded has its text or its bytes in there
        text = getattr(inside, "text", None)
        if text is None:
            data = str(getattr(inside, "data", None) or getattr(inside, "blob", ""))
            kind = getattr(inside, "mime_type", None) or getattr(inside, "uri", "")
            text = f"[{block.type} {kind} of {len(data)} characters]"
        parts.append(str(text))
    value: JsonValue = result.structured_content
    told = "\n".join(parts) or "done"
    if result.is_error:
        return ToolResult(f"error ({ToolFault.REFUSED}): {told}", value, ToolFault.REFUSED)
    return ToolResult(told, value)
