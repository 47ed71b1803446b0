"""The environment ``tool``: tasks over functions, MCP servers and OpenAPI services, by name and options."""

import asyncio
import json
import shlex
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from envgym.env import Env, Playable
from envgym.messages import ToolSpec
from envgym.options import hint
from envgym.plain_text import visible
from envgym.registry import EnvSpec, make_backend
from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import Task, TaskSet, World
from envgym.toolbox import Tool, ToolLimits
from envgym_environments.lines import read_lines
from envgym_environments.tool.env import Making, ToolPlay, exact_env
from envgym_environments.tool.headers import filled_headers
from envgym_environments.tool.office import Office, office_task

if TYPE_CHECKING:
    from envgym_environments.tool.mcp_tools import McpServer

__all__ = ["SANDBOXED", "SPEC", "make_tool_env", "make_tool_sandboxed", "tool_tasks"]


@dataclass(frozen=True, slots=True)
class _Foreign:
    """Tools of somebody else: their state is not ours."""

    found: Sequence[Tool]
    held: AsyncExitStack | None = None

    def tools(self) -> Sequence[Tool]:
        """As they are."""
        return self.found

    async def close(self) -> None:
        """The toolbox closes the tools; what they ran in ends here."""
        if self.held is not None:
            await self.held.aclose()


def tool_tasks(count: int = 100, *, things: int = 4, seed: int = 0, path: str = "") -> TaskSet:
    """Tasks of the built-in office, or of a file: one JSON object per line, with the fields of `envgym.Task`.

    things: of an office; seed: what is asked in it. Raises ValueError for a line that is no task, OSError without
    the file.
    """
    if not path:
        if not 1 <= things <= 10:
            raise ValueError(f"things is {things}; it must be from 1 to 10")
        return TaskSet.lazy(lambda index: office_task(index, things=things, seed=seed), length=count)
    return TaskSet(read_lines(path, Task.model_validate_json, what="task as JSON"))


def make_tool_env(  # noqa: PLR0913  # one parameter per option
    task: Task, *, world: str = "", mcp: str | list[str] = "", openapi: str = "", base_url: str = "",
    headers: Mapping[str, str] | None = None, call_s: float = 20.0, calls: int = 32,
) -> Env | Playable:  # fmt: skip
    """The tools that a task is played over; without any of these options those of the office.

    world: "module:name" of a plain function or class ``make(task, seed) -> ToolWorld``. mcp: the command of an
    MCP server, or its address. openapi: the path of a document. base_url: the address of its service, or that at
    which the command of `mcp` serves instead of over its input and output. headers: of each request to an address,
    see `filled_headers`. call_s: seconds of one call; calls: in one message. A task may name its own tools in
    ``metadata["tools"]``, an object of these options but for headers: no address that a task names gets a secret.
    What of a document cannot be used is a warning.
    """
    given = {"world": world, "mcp": mcp, "openapi": openapi, "base_url": base_url}
    chosen = _chosen(task, given)
    places = [name for name in ("world", "mcp", "openapi") if chosen.get(name)]
    if len(places) > 1:
        raise ValueError(f"tools are named by {' and '.join(places)}; name one of them")
    if chosen.get("base_url") and places not in (["mcp"], ["openapi"]):
        raise ValueError(f"base_url is {chosen['base_url']!r}, of nothing; it belongs to mcp or openapi")
    if headers and not (mcp or openapi):
        raise ValueError("headers are given, and no address beside them; they belong to mcp or openapi, as options")
    filled = filled_headers(headers or {})
    limits: dict[str, Any] = {"deadline_s": call_s, "calls": calls}
    if not places:
        return exact_env(task, Office, limits)
    if places == ["world"]:
        return _of_world(task, str(chosen["world"]), limits)
    if places == ["openapi"]:
        making, specs = _openapi(chosen, filled, call_s)
    else:
        making, specs = _mcp(task, _server(chosen, filled, call_s), None)
    return ToolPlay(task, making, specs, ToolLimits(**limits))


def make_tool_sandboxed(  # noqa: PLR0913  # one parameter per option
    task: Task, *, backend: SandboxBackend, mcp: str | list[str] = "", openapi: str = "",
    serve: str | list[str] = "", base_url: str = "", call_s: float = 20.0, calls: int = 32,
) -> Playable:  # fmt: skip
    """The tools of an MCP server, or of a service, that is started in a sandbox with the task's world.

    mcp: the server's command there (over input and output that needs a ``python3`` there); base_url: the address in
    the sandbox at which it serves instead. openapi: instead, the path here of a service's document, with `serve`,
    its command in the sandbox, and `base_url`. call_s: seconds of one call; calls: in one message. A task may name
    its own in ``metadata["tools"]``. Raises ValueError without a command.
    """
    chosen = _chosen(task, {"mcp": mcp, "openapi": openapi, "serve": serve, "base_url": base_url})
    if bool(chosen.get("mcp")) == bool(chosen.get("openapi")):
        what = "two servers are named by mcp and openapi" if chosen.get("mcp") else "no server is named"
        raise ValueError(
            f"task {task.id!r}: {what}; give its command as mcp, or its document as openapi, or in metadata.tools"
        )
    if chosen.get("openapi"):
        making, specs = _service(task, chosen, call_s, backend)
    elif chosen.get("serve"):
        raise ValueError(f"task {task.id!r}: serve is of openapi, and mcp is given; its command is mcp itself")
    else:
        making, specs = _mcp(task, _server(chosen, {}, call_s, inside=True), backend)
    return ToolPlay(task, making, specs, ToolLimits(deadline_s=call_s, calls=calls))


def _chosen(task: Task, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that name tools, or else the task's own. Raises ValueError for one of the task's there is not."""
    chosen = {name: value for name, value in given.items() if value}
    own = task.metadata.get("tools")
    if chosen or not isinstance(own, dict):
        return chosen
    for name in own:
        if name not in given:
            raise ValueError(f"task {task.id!r}: metadata.tools has {name!r}; {hint(name, sorted(given))}")
    return dict(own)


def _of_world(task: Task, name: str, limits: dict[str, Any]) -> Env | Playable:
    module, colon, attribute = name.partition(":")
    try:
        make = getattr(import_module(module), attribute) if colon else None
    except (ImportError, AttributeError) as error:
        raise ValueError(f"world is {name!r}, which cannot be imported: {error}") from error
    if not callable(make):
        raise ValueError(f"world is {name!r}; it must be 'module:name' of a function make(task, seed)")
    if all(hasattr(make, part) for part in ("dump", "load")):
        return exact_env(task, make, limits)
    specs = [tool.spec for tool in make(task, 0).tools()]
    return ToolPlay(task, make, specs, ToolLimits(**limits))


async def _opened(backend: SandboxBackend, world: World, held: AsyncExitStack) -> Sandbox:
    """A sandbox that is closed with what holds it."""
    sandbox = await backend.create(world)
    held.push_async_callback(sandbox.close)
    return sandbox


def _mcp(task: Task, server: "McpServer", backend: SandboxBackend | None) -> tuple[Making, Sequence[ToolSpec]]:
    from envgym_environments.tool.mcp_tools import McpTools  # of the extra [mcp]

    async def connected(home: SandboxBackend | None, world: World, held: AsyncExitStack) -> McpTools:
        sandbox = None if home is None else await _opened(home, world, held)
        return await McpTools.connect(server, sandbox)

    async def make(task: Task, seed: int) -> _Foreign:
        async with AsyncExitStack() as held:
            mcp = await connected(backend, task.world or World(), held)
            return _Foreign(mcp.tools, held.pop_all())

    world = task.world or World()

    async def specs() -> tuple[ToolSpec, ...]:
        async with AsyncExitStack() as held:  # in another loop than the backend's, so there is another backend
            own = None if backend is None else await held.enter_async_context(make_backend(backend.name))
            async with await connected(own, world, held) as mcp:
                return tuple(tool.spec for tool in mcp.tools)

    inside = None if backend is None else [backend.name, world.model_dump(mode="json")]
    told = [server.command, server.url, sorted(server.headers.items()), inside]
    return make, _known(json.dumps(told), specs)


def _server(
    chosen: Mapping[str, Any], headers: Mapping[str, str], call_s: float, *, inside: bool = False
) -> "McpServer":
    from envgym_environments.tool.mcp_tools import McpServer  # of the extra [mcp]

    where, url = chosen["mcp"], str(chosen.get("base_url") or "")
    if isinstance(where, str) and where.startswith(("http://", "https://")):
        if url or inside:
            besides = f"base_url {url!r}" if url else "a sandbox"
            raise ValueError(
                f"mcp is the address {where!r}, and {besides} is for a program; give its command as mcp"
            )
        return McpServer(url=where, headers=headers, call_s=call_s)
    command = tuple(shlex.split(where) if isinstance(where, str) else where)
    return McpServer(command, url=url, headers=headers, call_s=call_s)


def _openapi(
    chosen: dict[str, Any], headers: Mapping[str, str], call_s: float
) -> tuple[Making, Sequence[ToolSpec]]:
    from envgym_environments.tool.openapi import OpenApiTools  # of the extra [mcp]

    service: dict[str, Any] = {"base_url": str(chosen.get("base_url", "")), "headers": headers, "timeout_s": call_s}
    document, specs = _document(chosen, service)

    def make(task: Task, seed: int) -> _Foreign:
        return _Foreign(OpenApiTools.of(document, **service).tools)

    return make, specs


def _service(
    task: Task, chosen: dict[str, Any], call_s: float, backend: SandboxBackend
) -> tuple[Making, Sequence[ToolSpec]]:
    """As `_openapi`, of a service that is started in a sandbox, for each episode one."""
    from envgym_environments.tool.openapi import OpenApiTools
    from envgym_environments.tool.openapi_places import served_inside

    serve, url = chosen.get("serve"), str(chosen.get("base_url") or "")
    if not serve or not url:
        lacks = "serve, the command that starts it" if not serve else "base_url, the address where it listens"
        raise ValueError(f"task {task.id!r}: openapi is given for a service in a sandbox; it needs {lacks} there")
    document, specs = _document(chosen, {"base_url": url})
    command = shlex.split(serve) if isinstance(serve, str) else list(serve)

    async def make(task: Task, seed: int) -> _Foreign:
        async with AsyncExitStack() as held:
            sandbox = await _opened(backend, task.world or World(), held)
            here = await held.enter_async_context(served_inside(sandbox, command, url))
            return _Foreign(OpenApiTools.of(document, base_url=here, timeout_s=call_s).tools, held.pop_all())

    return make, specs


def _document(chosen: Mapping[str, Any], service: Mapping[str, Any]) -> tuple[dict[str, Any], list[ToolSpec]]:
    """A document and its tools; what of it cannot be used is a warning."""
    from envgym_environments.tool.openapi import OpenApiTools, read_document

    document = read_document(str(chosen["openapi"]))
    found = OpenApiTools.of(document, **service)
    if found.complaints:
        warnings.warn(f"{chosen['openapi']}: {visible('; '.join(found.complaints), 2000)}", stacklevel=2)
    return document, [tool.spec for tool in found.tools]


_specs: dict[str, tuple[ToolSpec, ...]] = {}


def _known(server: str, ask: Callable[[], Coroutine[Any, Any, tuple[ToolSpec, ...]]]) -> tuple[ToolSpec, ...]:
    """What a server can do, asked once in this process: an agent is told before there is an episode.

    It is asked in a thread with a loop of its own, because whoever makes an environment may not wait; while it is,
    which is once, this loop waits.
    """
    if server not in _specs:
        with ThreadPoolExecutor(1) as thread:
            _specs[server] = thread.submit(lambda: asyncio.run(ask())).result()
    return _specs[server]


SANDBOXED = EnvSpec(
    name="tool-sandboxed",
    tasks=tool_tasks,
    make=make_tool_sandboxed,
    description="Tasks over an MCP server (option mcp) or a service (openapi) that runs in a sandbox.",
    sandbox=True,
)
SPEC = EnvSpec(
    name="tool",
    tasks=tool_tasks,
    make=make_tool_env,
    description="Tasks over typed functions, MCP servers or OpenAPI services; an office of drawers by default.",
)
