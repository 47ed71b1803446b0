"""Functions are tools: schemas, validated calls, deadlines, costs, parallel calls; failures are observations."""

import asyncio
import gc
import threading
import time
import weakref
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from envgym import (
    Action,
    Message,
    ParseError,
    SandboxDied,
    Toolbox,
    ToolCall,
    ToolLimits,
    ToolRefused,
    tool,
)
from envgym.function_tool import MOST_THREADS
from envgym.toolbox import ToolFault, ToolResult, bounded_text
from envgym.tools import signature, tool_spec


class Point(BaseModel):
    x: int
    y: int = 0


def plot(
    point: Point, colour: Literal["red", "blue"], size: Annotated[int, Field(ge=1, le=9)] = 3
) -> dict[str, int]:
    """Draw a point.

    Args:
        point: where it is,
            in pixels.
        colour (str): of the ink.

    It is drawn at once.
    """
    assert isinstance(point, Point)
    return {"x": point.x, "y": point.y, "size": size}


def run(box: Toolbox, *calls: ToolCall) -> tuple[ToolResult, ...]:
    return asyncio.run(box.run(calls))


def call(name: str, /, **arguments: object) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)  # type: ignore[arg-type]


def test_a_spec_comes_from_signature_and_docstring():
    spec = tool_spec(plot)
    assert spec.description == "Draw a point.\n\nIt is drawn at once."
    properties = spec.parameters["properties"]
    assert properties["colour"]["description"] == "of the ink."
    assert properties["point"]["description"] == "where it is, in pixels."
    assert properties["colour"]["enum"] == ["red", "blue"]
    assert (properties["size"]["minimum"], properties["size"]["maximum"]) == (1, 9)
    assert spec.parameters["required"] == ["point", "colour"]
    assert signature(spec) == 'plot(point: any, colour: "red" | "blue", size: integer = 3)'


def test_a_parameter_without_a_schema_is_refused_at_once():
    def anything(*things: int) -> None:
        """Take anything."""

    def untyped(thing) -> None:  # type: ignore[no-untyped-def]
        """Take a thing."""

    for function, said in ((anything, r"\*things"), (untyped, "'thing' has no type")):
        with pytest.raises(TypeError, match=said):
            tool(function)


def test_calls_are_validated_whole_and_a_wrong_one_is_told_how_to_call():
    box = Toolbox([tool(plot)])
    good, *bad = run(
        box,
        call("plot", point={"x": "3"}, colour="red"),
        call("plot", point={"x": "three"}, colour="red"),
        call("plot", point={"x": 1}, colour="green"),
        call("plot", point={"x": 1}, colour="red", size=10),
        call("plot", point={"x": 1}, colour="red", weight=1),
        call("plot"),
    )
    assert good.value == {"x": 3, "y": 0, "size": 3}
    assert good.fault is None
    assert [result.fault for result in bad] == [ToolFault.INVALID] * 5
    for result, named in zip(bad, ("point.x", "colour", "size", "weight", "point"), strict=True):
        assert f"{named}:" in result.text
        assert "it is called as plot(" in result.text


def test_an_unknown_tool_is_told_the_nearest():
    (result,) = run(Toolbox([tool(plot)]), call("plott"))
    assert result.fault is ToolFault.UNKNOWN
    assert "'plot'" in result.text
    assert result.fault.of_caller


def test_what_a_tool_raises_is_an_observation_but_a_dead_sandbox_is_not():
    def divide(a: float, b: float) -> float:
        """Divide."""
        return a / b

    def refuse() -> None:
        """Refuse."""
        raise ToolRefused("not on Sundays")

    def dead() -> None:
        """Die."""
        raise SandboxDied("gone")

    box = Toolbox([tool(divide), tool(refuse), tool(dead)])
    failed, refused, fine = run(box, call("divide", a=1, b=0), call("refuse"), call("divide", a=1, b=2))
    assert (failed.fault, failed.text) == (
        ToolFault.RAISED,
        "error (failed): divide: ZeroDivisionError: float division by zero",
    )
    assert (refused.fault, refused.text) == (ToolFault.REFUSED, "error (refused): not on Sundays")
    assert fine.text == "0.5"
    with pytest.raises(SandboxDied):
        run(box, call("divide", a=1, b=2), call("dead"))


def test_parallel_calls_run_in_parallel_and_answer_in_order():
    inside = asyncio.Barrier(3)

    async def meet(name: str) -> str:
        """Wait until three are here."""
        await inside.wait()
        return name

    box = Toolbox([tool(meet)])
    results = run(box, *(call("meet", name=name) for name in "abc"))
    assert [result.text for result in results] == ["a", "b", "c"]


def test_serial_calls_of_one_message_keep_their_order():
    seen: list[int] = []

    async def write(number: int) -> int:
        """Write."""
        for _ in range(5 - number):
            await asyncio.sleep(0)
        seen.append(number)
        return number

    async def look(number: int) -> int:
        """Look."""
        return number

    box = Toolbox([tool(write, serial=True), tool(look)])
    results = run(box, call("write", number=1), call("look", number=2), call("write", number=3))
    assert [result.value for result in results] == [1, 2, 3]
    assert seen == [1, 3]


def test_a_deadline_ends_a_call_and_not_its_neighbours():
    async def hang() -> None:
        """Hang."""
        await asyncio.Event().wait()

    async def fine() -> str:
        """Answer."""
        return "here"

    async def expired() -> None:
        """A time-out of the tool's own is a failure like others."""
        raise TimeoutError("own")

    box = Toolbox([tool(hang, deadline_s=0.05), tool(fine), tool(expired)])
    hung, answered, own = run(box, call("hang"), call("fine"), call("expired"))
    assert (hung.fault, answered.text, own.fault) == (ToolFault.TIMEOUT, "here", ToolFault.RAISED)
    assert "within 0.05 s" in hung.text


def test_a_blocking_function_does_not_stop_the_loop():
    release = threading.Event()

    def block() -> str:
        """Block."""
        assert release.wait(60)
        return "blocked"

    async def free() -> str:
        """Free the other."""
        release.set()
        return "freed"

    results = run(Toolbox([tool(block, blocking=True), tool(free)]), call("block"), call("free"))
    assert [result.text for result in results] == ["blocked", "freed"]
    with pytest.raises(TypeError, match="blocking"):
        tool(free, blocking=True)


def test_64_calls_that_block_run_at_once_and_ones_that_hang_hold_up_nobody_else():
    gate, all_there = threading.Event(), threading.Barrier(64, timeout=20)

    def block() -> str:
        """Waits until all are here."""
        all_there.wait()
        return "here"

    def hang() -> str:
        """Hangs."""
        gate.wait()
        return "late"

    async def main():
        box = Toolbox([tool(block, blocking=True), tool(hang, blocking=True, deadline_s=0.2)])
        together = await asyncio.gather(*(box.call(call("block")) for _ in range(64)))
        hung = await asyncio.gather(*(box.call(call("hang")) for _ in range(64)))
        return together, hung, await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 20)

    try:
        together, hung, other = asyncio.run(main())
    finally:
        gate.set()
    assert {one.text for one in together} == {"here"}
    assert {one.fault for one in hung} == {ToolFault.TIMEOUT}
    assert other == "free"


def test_a_thread_that_is_done_takes_the_next_blocking_call_and_keeps_nothing_of_the_last():
    class World:
        """Holds what a tool works on."""

        def name(self) -> str:
            """Of the thread."""
            return str(threading.get_native_id())

    async def main():
        worlds = [World() for _ in range(8)]
        kept = [weakref.ref(world) for world in worlds]
        names = set()
        while worlds:
            result = await Toolbox([tool(worlds.pop().name, blocking=True)]).call(call("name"))
            names.add(result.text)
        del result
        until = time.monotonic() + 20
        while any(ref() is not None for ref in kept) and time.monotonic() < until:
            gc.collect()
            await asyncio.sleep(0.01)
        return names, [ref for ref in kept if ref() is not None]

    names, kept = asyncio.run(main())
    assert len(names) < 8, "threads of earlier tests may become idle between"
    assert not kept


def test_blocking_calls_beyond_the_bound_wait_for_a_thread_and_ones_that_nobody_waits_for_never_run():
    gate, full, ran = threading.Event(), threading.Event(), []

    def block(n: int) -> int:
        """Waits."""
        ran.append(n)
        if len(ran) == MOST_THREADS:
            full.set()
        gate.wait(20)
        return n

    async def main():
        box = Toolbox([tool(block, blocking=True)])
        calls = [asyncio.create_task(box.call(call("block", n=n))) for n in range(MOST_THREADS + 2)]
        assert await asyncio.to_thread(full.wait, 20)
        await asyncio.sleep(0.05)
        begun = list(ran)
        calls[MOST_THREADS].cancel()
        await asyncio.sleep(0)
        gate.set()
        return begun, await asyncio.gather(*calls, return_exceptions=True)

    begun, found = asyncio.run(main())
    first = list(range(MOST_THREADS))
    assert sorted(begun) == first
    assert sorted(ran) == [*first, MOST_THREADS + 1]
    assert [one.text for one in found if isinstance(one, ToolResult)] == list(map(str, sorted(ran)))


@pytest.mark.parametrize("blocking", [False, True])
def test_a_tool_that_leaves_is_answered_and_an_interrupt_passes(blocking):
    def leave() -> None:
        """Leaves."""
        raise SystemExit(3)

    def stop() -> None:
        """Stops."""
        raise asyncio.CancelledError

    box = Toolbox([tool(leave, blocking=blocking), tool(stop, blocking=blocking)])
    (told,) = run(box, call("leave"))
    assert (told.fault, told.text) == (ToolFault.RAISED, "error (failed): leave: SystemExit: 3")
    with pytest.raises(asyncio.CancelledError):
        run(box, call("stop"))


def test_costs_add_up_and_are_told_of_failures_too():
    def ask(right: bool) -> ToolResult:
        """Ask."""
        if not right:
            raise ValueError("no")
        return ToolResult("yes", cost={"tokens": 7.0})

    box = Toolbox([tool(ask, cost={"usd": 0.5})])
    calls = (call("ask", right=True), call("ask", right=False))
    answer = asyncio.run(box.answer(Action(message=Message(role="assistant", tool_calls=calls))))
    assert answer.cost["usd"] == 1.0
    assert answer.cost["tokens"] == 7.0
    assert answer.cost["tool_calls"] == 2.0
    assert answer.faults == (ToolFault.RAISED,)


def test_answers_name_their_calls_and_a_parse_error_is_answered_with_help():
    box = Toolbox([tool(plot)], ToolLimits(text=64))
    calls = (ToolCall(name="plot", id="c1"), ToolCall(name="plot", id="c2"))
    answer = asyncio.run(box.answer(Action(message=Message(role="assistant", tool_calls=calls))))
    assert [message.tool_call_id for message in answer.observation] == ["c1", "c2"]
    assert all("characters cut" in str(message.content) for message in answer.observation)
    wrong = Action(message=Message(role="assistant", content="{"), error=ParseError(message="not JSON"))
    answer = asyncio.run(Toolbox([tool(plot)]).answer(wrong))
    assert answer.faults == (ToolFault.UNREADABLE,)
    assert "not JSON. The tools are: plot(" in str(answer.observation[0].content)


def test_too_many_calls_and_two_tools_of_one_name_are_refused():
    box = Toolbox([tool(plot)], ToolLimits(calls=2))
    assert {result.fault for result in run(box, *[call("plot")] * 3)} == {ToolFault.INVALID}
    with pytest.raises(ValueError, match="two tools are named 'plot'"):
        Toolbox([tool(plot), tool(plot)])
    with pytest.raises(TypeError, match=r"envgym\.tool"):
        Toolbox([plot])  # type: ignore[list-item]


def test_a_long_text_is_cut_in_its_middle():
    text = "a" * 100 + "b" * 100
    assert bounded_text(text, 200) == text
    assert "[110 characters cut]" in bounded_text(text, 90)
