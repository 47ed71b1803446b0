"""The environment ``tool``: tasks over functions, MCP servers and OpenAPI services, by name and options."""

import asyncio
import json
import shlex
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from envgym.env import Env, Playable
from envgym.messages import ToolSpec
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym.toolbox import Tool, ToolLimits
from envgym_environments.lines import read_lines
from envgym_environments.tool.env import Making, ToolPlay, exact_env
from envgym_environments.tool.office import Office, office_task

__all__ = ["SPEC", "make_tool_env", "tool_tasks"]


@dataclass(frozen=True, slots=True)
class _Foreign:
    """Tools of somebody else: their state is not ours."""

    found: Sequence[Tool]

    def tools(self) -> Sequence[Tool]:
        """As they are."""
        return self.found

    async def close(self) -> None:
        """The toolbox closes them."""


def tool_tasks(count: int = 100, *, things: int = 4, path: str = "") -> TaskSet:
    """Tasks of the built-in office, or of a file: one JSON object per line, with the fields of `envgym.Task`.

    Raises ValueError for a line that is no task, OSError without the file.
    """
    if not path:
        if not 1 <= things <= 10:
            raise ValueError(f"things is {things}; it must be from 1 to 10")
        return TaskSet.lazy(lambda index: office_task(index, things=things), length=count)
    return TaskSet(read_lines(path, Task.model_validate_json, what="task as JSON"))


def make_tool_env(
    task: Task, *, world: str = "", mcp: str | list[str] = "", openapi: str = "", base_url: str = "",
    call_s: float = 20.0, calls: int = 32,
) -> Env | Playable:  # fmt: skip
    """The tools that a task is played over; without any of these options those of the office.

    world: "module:name" of a plain function or class ``make(task, seed) -> ToolWorld``. mcp: the command of an
    MCP server, or its address. openapi: the path of a document; base_url: the address of its service. call_s:
    seconds of one call; calls: in one message. A task may name its own in ``metadata["tools"]``, an object of
    these options.
    """
    own = task.metadata.get("tools")
    given = {"world": world, "mcp": mcp, "openapi": openapi, "base_url": base_url}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value}
    chosen = chosen or (dict(own) if isinstance(own, dict) else {})
    places = [name for name in ("world", "mcp", "openapi") if chosen.get(name)]
    if len(places) > 1:
        raise ValueError(f"tools are named by {' and '.join(places)}; name one of them")
    limits = {"deadline_s": call_s, "calls": calls}
    if not places:
        return exact_env(task, Office, limits)
    if places == ["world"]:
        return _of_world(task, str(chosen["world"]), limits)
    making, specs = _mcp(chosen["mcp"], call_s) if places == ["mcp"] else _openapi(chosen, call_s)
    return ToolPlay(task, making, specs, ToolLimits(deadline_s=call_s, calls=calls))


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


def _mcp(where: str | list[str], call_s: float) -> tuple[Making, Sequence[ToolSpec]]:
    from envgym_environments.tool.mcp_tools import McpServer, McpTools  # of the extra [mcp]

    if isinstance(where, str) and where.startswith(("http://", "https://")):
        server = McpServer(url=where, call_s=call_s)
    else:
        server = McpServer(tuple(shlex.split(where) if isinstance(where, str) else where), call_s=call_s)

    async def make(task: Task, seed: int) -> _Foreign:
        return _Foreign((await McpTools.connect(server)).tools)

    async def specs() -> tuple[ToolSpec, ...]:
        async with await McpTools.connect(server) as mcp:
            return tuple(tool.spec for tool in mcp.tools)

    return make, _known(json.dumps([server.command, server.url]), specs)


def _openapi(chosen: dict[str, Any], call_s: float) -> tuple[Making, Sequence[ToolSpec]]:
    from envgym_environments.tool.openapi import openapi_tools, read_document  # of the extra [mcp]

    document = read_document(str(chosen["openapi"]))
    address = str(chosen.get("base_url", ""))

    def make(task: Task, seed: int) -> _Foreign:
        return _Foreign(openapi_tools(document, base_url=address, timeout_s=call_s))

    return make, [tool.spec for tool in openapi_tools(document, base_url=address, timeout_s=call_s)]


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


SPEC = EnvSpec(
    name="tool",
    tasks=tool_tasks,
    make=make_tool_env,
    description="Tasks over typed functions, MCP servers or OpenAPI services; an office of drawers by default.",
)
