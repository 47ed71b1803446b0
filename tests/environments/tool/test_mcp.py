"""MCP servers are tools: each way in which one misbehaves costs one typed observation, and leaves no process."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from envgym_environments.tool import mcp_tools
from envgym_environments.tool.mcp_tools import McpServer, McpTools
from mcp.types import CallToolResult

from envgym import Action, EnvironmentFailure, Step, Task, Toolbox, ToolCall, World, make, make_backend
from envgym.testing import check_env
from envgym.toolbox import ToolFault, ToolLimits, ToolResult

SERVERS = Path(__file__).parent / "servers"
LINES = (sys.executable, str(SERVERS / "lines.py"))
OFFICIAL = (sys.executable, str(SERVERS / "official.py"))
PATIENT = {"start_s": 90.0, "call_s": 90.0}


def play(server: McpServer, drive: Callable[[Toolbox, McpTools], Awaitable[None]]) -> None:
    async def main() -> None:
        async with await McpTools.connect(server) as mcp:
            await drive(Toolbox(mcp.tools, ToolLimits(deadline_s=300)), mcp)

    asyncio.run(main())


def test_the_text_of_an_embedded_resource_is_told_and_bytes_by_kind_and_size():
    resources = [
        {"type": "resource", "resource": {"uri": "file:///a", "text": "what it says"}},
        {"type": "resource", "resource": {"uri": "file:///b", "mimeType": "image/png", "blob": "AAAA"}},
    ]
    told = mcp_tools._result(CallToolResult.model_validate({"content": resources})).text
    assert told == "what it says\n[resource image/png of 4 characters]"


async def one(box: Toolbox, name: str, **arguments: object) -> ToolResult:
    return await box.call(ToolCall(name=name, arguments=arguments))  # type: ignore[arg-type]


def children() -> set[int]:
    """The processes below this one that are no zombies, whatever sessions they made."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if words[0] != "Z":
            parents[int(path.parent.name)] = int(words[1])
    found, level = set(), {os.getpid()}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level} - found
        found |= level
    return found


def left(before: set[int]) -> set[int]:
    """The processes that are more than before, once those that were killed had time to go."""
    until = time.monotonic() + 60
    while (more := children() - before) and time.monotonic() < until:
        time.sleep(0.02)
    return more


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_tools_are_listed_checked_and_called():
    async def drive(box: Toolbox, mcp: McpTools) -> None:
        assert (await one(box, "add", a=2, b=3)).text == "5"
        wrong = await one(box, "add", a="two", b=3)
        assert wrong.fault is ToolFault.INVALID
        assert "a: 'two' is not of type 'integer'" in wrong.text
        refused = await one(box, "refuse")
        assert (refused.fault, refused.text) == (ToolFault.REFUSED, "error (refused): not today")
        calls = [ToolCall(name="add", arguments={"a": n, "b": n}) for n in range(8)]
        assert [result.text for result in await box.run(calls)] == [str(2 * n) for n in range(8)]

    before = children()
    play(McpServer(LINES, **PATIENT), drive)
    assert not left(before)


def test_an_error_of_a_servers_own_is_a_refusal_whatever_its_code():
    async def drive(box: Toolbox, mcp: McpTools) -> None:
        told = await one(box, "unread")
        assert (told.fault, "your date is none" in told.text) == (ToolFault.REFUSED, True)

    play(McpServer(LINES, **PATIENT), drive)


PLACES = [
    "stdio",
    "http",
    pytest.param("stdio in a sandbox", marks=pytest.mark.namespaces),
    pytest.param("http in a sandbox", marks=pytest.mark.namespaces),
]


@asynccontextmanager
async def placed(where: str, **bounds: object) -> AsyncIterator[McpTools]:
    """The server that misbehaves, at one of the places where a server can be."""
    async with AsyncExitStack() as stack:
        program, sandbox = LINES, None
        if "sandbox" in where:
            backend = await stack.enter_async_context(make_backend("namespace"))
            world = World(files={"/srv/lines.py": (SERVERS / "lines.py").read_text()})
            sandbox = await stack.enter_async_context(await backend.create(world))
            program = ("python3", "/srv/lines.py")
        port = free_port()
        at = {"command": (*program, str(port)), "url": f"http://127.0.0.1:{port}/mcp"}
        server = McpServer(**(at if "http" in where else {"command": program}), **bounds)  # type: ignore[arg-type]
        yield await stack.enter_async_context(await McpTools.connect(server, sandbox))


@pytest.mark.slow
@pytest.mark.turns(6)
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    ("name", "fault", "said", "lives"),
    [
        ("hang", ToolFault.TIMEOUT, "the server hangs and is started again", False),
        ("hang_alone", ToolFault.TIMEOUT, "gave no answer within 6 s", True),
        ("long_line", ToolFault.FLOODED, "a message of more than 65536 bytes", False),
        ("many_lines", ToolFault.FLOODED, "more than 200000 bytes for one call", False),
        ("bad_output", ToolFault.LIED, "'seven' is not of type 'integer'", True),
        ("no_result", ToolFault.LIED, "should be a valid list", True),
        ("die", ToolFault.DIED, "it ended", False),
        ("kill", ToolFault.DIED, "it ended", False),
        ("garbage", None, "after the garbage", True),
        ("babble", ToolFault.FLOODED, "more than 200000 bytes for one call", False),
        ("other_id", ToolFault.TIMEOUT, "gave no answer within 6 s", True),
        ("shut", ToolFault.DIED, "it ended", False),
    ],
)
def test_what_a_server_does_wrong_costs_one_observation_wherever_it_is(where, name, fault, said, lives):
    if "http" in where:  # there an answer belongs to its request, whatever else is in it
        fault, said, lives = OVER_HTTP.get(name, (fault, said, lives))

    async def main() -> None:
        bounds = {"start_s": 90, "call_s": 6, "ping_s": 2, "message_bytes": 1 << 16, "call_bytes": 200_000}
        async with placed(where, **bounds) as mcp:
            assert sum("the schema" in complaint for complaint in mcp.complaints) == 7, "it lies of its tools, too"
            box = Toolbox(mcp.tools, ToolLimits(deadline_s=300))
            assert (await one(box, "count")).text == "1"
            result = await one(box, name)
            assert result.fault is fault, result.text
            assert said in result.text
            if name == "die" and "stdio" in where:
                assert "my last words" in result.text
            own = name not in ("hang_alone", "other_id")  # it counts no call that it does not take
            assert (await one(box, "count")).text == str(1 + lives + (lives and own))

    before = children()
    asyncio.run(main())
    assert not left(before)


OVER_HTTP = {
    "garbage": (ToolFault.LIED, "Invalid JSON", True),
    "babble": (ToolFault.LIED, "Invalid JSON", True),
    "other_id": (None, "to whom it may concern", True),
    "shut": (ToolFault.DIED, "ended without a result", True),
}


@pytest.mark.slow
def test_what_a_proxy_answers_in_a_servers_place_costs_one_observation():
    async def main() -> None:
        async with placed("http", start_s=90, call_s=6, ping_s=2) as mcp:
            box = Toolbox(mcp.tools, ToolLimits(deadline_s=300))
            for number, (name, fault, said) in enumerate(
                (
                    ("page", ToolFault.LIED, "Unexpected content type: text/html"),
                    ("no_kind", ToolFault.LIED, "Unexpected content type"),
                    ("page_500", ToolFault.REFUSED, "Server returned an error response"),
                    ("page_502_json", ToolFault.REFUSED, "Server returned an error response"),
                    ("moved", ToolFault.REFUSED, "not followed"),
                    ("gone", ToolFault.REFUSED, "Not Found"),
                ),
                1,
            ):
                assert (await one(box, "count")).text == str(number), "it lives, with what it held"
                told = await one(box, name)
                assert (told.fault, said in told.text) == (fault, True), told
            cut = await one(box, "cut_off")
            assert cut.fault is ToolFault.DIED, cut
            assert (await one(box, "count")).text == "1", "its connection broke, so it is begun anew"

    before = children()
    asyncio.run(main())
    assert not left(before)


def test_lies_about_schemas_are_seen():
    async def drive(box: Toolbox, mcp: McpTools) -> None:
        said = "\n".join(mcp.complaints)
        for name in ("bad_schema", "far_reference", "deep"):
            assert f"tool {name}: the schema" in said
            assert "called with" in (await one(box, name, anything=1)).text, "the server is left to judge"
        assert "tool 'add': the name cannot be used, or is used twice" in said
        assert (await one(box, "bad_output")).fault is ToolFault.LIED
        assert (await one(box, "no_result")).fault is ToolFault.LIED
        assert (await one(box, "garbage")).text == "after the garbage"
        assert (await one(box, "count")).text == "7", "none of it ended the server"

    play(McpServer(LINES, **PATIENT), drive)


def test_a_schema_that_takes_for_ever_is_one_observation():
    nested: dict[str, object] = {}
    for _ in range(40):
        nested = {"x": nested}

    async def drive(box: Toolbox, mcp: McpTools) -> None:
        said = "\n".join(mcp.complaints)
        for name in ("doubling", "doubling_output, its result"):
            assert f"tool {name}: the schema has " in said
        assert said.count("schemas for one value") == 2
        assert "tool in_itself: the schema refers to itself without end" in said
        assert "tool into_a_number: the schema points to '#/properties/y/minimum/z', where nothing is" in said
        for name, given in (("doubling", {"x": "a"}), ("in_itself", {"x": 1}), ("doubling_tree", nested)):
            told = await one(box, name, **given)
            assert (told.fault, "called with" in told.text) == (None, True), "the server is left to judge"
        assert (await one(box, "doubling_tree", x={"x": {"x": 1}})).fault is None
        for name in ("slow_pattern", "no_pattern", "doubling_output"):
            told = await one(box, name)
            assert (told.fault, told.text, told.value) == (None, "told", {"n": "a" * 40 + "!"})
        assert (await one(box, "count")).text == "8", "none of it ended the server"

    play(McpServer(LINES, **PATIENT), drive)


def test_arguments_may_be_named_like_keywords_of_schemas():
    async def drive(box: Toolbox, mcp: McpTools) -> None:
        assert (await one(box, "find", pattern="*.py", format="long")).fault is None
        wrong = await one(box, "find", pattern=1, other=2)
        assert wrong.fault is ToolFault.INVALID
        assert "pattern: 1 is not of type 'string'" in wrong.text
        assert "'other' was unexpected" in wrong.text

    play(McpServer(LINES, **PATIENT), drive)


def test_a_server_that_always_dies_is_given_up_and_the_run_is_not():
    async def drive(box: Toolbox, mcp: McpTools) -> None:
        for _ in range(3):
            assert (await one(box, "die")).fault is ToolFault.DIED
        result = await one(box, "add", a=1, b=1)
        assert (result.fault, "it ended 3 times" in result.text) == (ToolFault.DIED, True)

    play(McpServer(LINES, restarts=2, **PATIENT), drive)


@pytest.mark.slow
def test_what_a_server_started_is_gone_after_close():
    async def drive(box: Toolbox, mcp: McpTools) -> None:
        pids[:] = map(int, (await one(box, "leave_child")).text.split())
        assert all(map(alive, pids))

    pids: list[int] = []
    play(McpServer(LINES, **PATIENT), drive)
    until = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.02)  # killed is not yet gone
    assert not any(map(alive, pids))


@pytest.mark.parametrize("command", [(*LINES, "mute"), ("/nowhere/at/all",), (sys.executable, "-c", "")])
def test_a_server_that_never_came_up_is_the_worlds_fault(command):
    before = children()
    with pytest.raises(EnvironmentFailure, match="did not come up"):
        play(McpServer(command, start_s=1.0), lambda box, mcp: asyncio.sleep(0))
    assert not left(before)


def test_a_server_without_a_place_is_refused():
    with pytest.raises(ValueError, match="neither command nor url"):
        McpServer()
    with pytest.raises(ValueError, match="must begin with http"):
        McpServer(url="localhost:1")


def free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize("over", ["stdio", "http"])
def test_a_server_of_the_official_package(over):
    async def drive(box: Toolbox, mcp: McpTools) -> None:
        assert mcp.complaints == ()
        added = await one(box, "add", a=2, b=3)
        assert (added.text, added.value) == ("5", {"result": 5})
        failed = await one(box, "fail")
        assert failed.fault is ToolFault.REFUSED
        hung, added = await box.run(
            [ToolCall(name="hang"), ToolCall(name="add", arguments={"a": 1, "b": 1})],
        )
        assert (hung.fault, added.text) == (ToolFault.TIMEOUT, "2")
        flooded = await one(box, "flood")
        assert flooded.fault is ToolFault.FLOODED, flooded.text
        assert (await one(box, "add", a=4, b=4)).text == "8", "started again"
        died = await one(box, "die")
        assert died.fault is ToolFault.DIED, died.text
        assert (await one(box, "add", a=5, b=4)).text == "9", "started again"

    port = free_port()
    served = {"command": (*OFFICIAL, str(port)), "url": f"http://127.0.0.1:{port}/mcp"}
    where = served if over == "http" else {"command": OFFICIAL}
    before = children()
    play(McpServer(**where, start_s=90, call_s=10, message_bytes=1 << 20, call_bytes=1 << 20), drive)
    assert not left(before)


LINES_TEXT = (SERVERS / "lines.py").read_text()
SUM = Task(
    id="sum", prompt="Add 2 and 3.", metadata={"answer": "5"},
    world=World(files={"/srv/lines.py": LINES_TEXT, "/srv/adds.py": LINES_TEXT.replace("TOOLS,", "TOOLS[:1],")}),
)  # fmt: skip


def _sum(step: Step, tools: object, rng: np.random.Generator) -> Action:
    return Action.call("add", a=int(rng.integers(9)), b=3)


async def added(env) -> Step:
    await env.reset(seed=0)
    assert (await env.step(Action.call("add", a=2, b=3))).text == "5"
    step = await env.step(Action.say("5"))
    await env.close()
    return step


def test_a_program_that_serves_at_an_address_is_asked_for_by_options():
    port = free_port()
    url, before = f"http://127.0.0.1:{port}/mcp", children()
    env = make("tool", SUM, mcp=[*LINES, str(port)], base_url=url, call_s=60)
    assert asyncio.run(added(env)).reward == 1.0
    assert not left(before)
    for options, said in (
        ({"mcp": url, "base_url": url}, "is for a program"),
        ({"base_url": url}, "it belongs to mcp or openapi"),
    ):
        with pytest.raises(ValueError, match=said):
            make("tool", SUM, **options)
    wrong = SUM.model_copy(update={"metadata": {"tools": {"mpc": "x"}}})
    with pytest.raises(ValueError, match=r"metadata\.tools has 'mpc'; did you mean 'mcp'"):
        make("tool", wrong)


def test_a_server_at_an_address_is_told_who_asks(monkeypatch):
    monkeypatch.setenv("SUMS_TOKEN", "open-sesame")
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    command = [*LINES, str(port), "open-sesame"]
    env = make("tool", SUM, mcp=command, base_url=url, headers={"Authorization": "${SUMS_TOKEN}"}, call_s=60)
    assert asyncio.run(added(env)).reward == 1.0
    with pytest.raises(EnvironmentFailure, match=r"does not|did not"):
        make("tool", SUM, mcp=command, base_url=url, headers={"Authorization": "${SUMS_TOKEN}!"}, call_s=60)
    with pytest.raises(ValueError, match="headers are for an address"):
        make("tool", SUM, mcp=LINES, headers={"X-Team": "sums"})
    assert "sesame" not in repr(McpServer(url=url, headers={"Authorization": "open-sesame"}))


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.parametrize("at", [{}, {"base_url": "http://127.0.0.1:8765/mcp"}], ids=["stdio", "http"])
def test_a_server_in_a_sandbox_is_asked_for_by_options(at):
    async def main() -> None:
        async with make_backend("namespace") as backend:
            command = ["python3", "/srv/lines.py", *(["8765"] if at else [])]
            env = make("tool-sandboxed", SUM, backend=backend, mcp=command, **at, call_s=60)
            assert {"add", "die"} <= {spec.name for spec in env.tools}
            assert (await added(env)).reward == 1.0
            if not at:
                adds = {"mcp": "python3 /srv/adds.py", "call_s": 60}  # what waits for ever would be called, too
                await check_env(lambda: make("tool-sandboxed", SUM, backend=backend, **adds), turns=2, policy=_sum)
            assert not [name for name in os.listdir("/srv") if name == "lines.py"], "it ran inside"
            for options, said in (
                ({}, "no server is named"),
                ({"mcp": "http://x/mcp"}, "is for a program"),
                ({"mcp": "x", "openapi": "y.json"}, "two servers are named"),
                ({"mcp": "x", "serve": "y"}, "serve is of openapi"),
                ({"openapi": "y.json", "serve": "y"}, "it needs base_url"),
                ({"openapi": "y.json", "base_url": "http://127.0.0.1:8"}, "it needs serve"),
            ):
                with pytest.raises(ValueError, match=said):
                    make("tool-sandboxed", SUM, backend=backend, **options)

    asyncio.run(main())
