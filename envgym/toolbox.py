"""Tools that run: calls of one message in parallel, each with a deadline and a cost, each failure an observation.

A `Tool` is a spec and a coroutine. `Toolbox` checks calls, runs them and says what came of each as a `ToolResult`,
whose `fault` names what went wrong: in a tool's world nothing is exceptional. What a tool raises as an
`EnvgymError` (its sandbox died) is still the world's fault and passes through. It keeps no state of its own.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable
from weakref import WeakSet

from pydantic import JsonValue

from envgym.arguments import checked_count, checked_seconds
from envgym.deadlines import Waiting, begin
from envgym.messages import Action, Message, ParseError, ToolCall, ToolSpec
from envgym.options import hint
from envgym.tools import signature

__all__ = ["Answer", "Tool", "ToolFault", "ToolLimits", "ToolResult", "Toolbox", "bounded_text"]


class ToolFault(StrEnum):
    """What went wrong in a call. The first three are the caller's fault, the others the tool's."""

    UNREADABLE = "unreadable"
    UNKNOWN = "unknown tool"
    INVALID = "invalid call"
    REFUSED = "refused"
    RAISED = "failed"
    TIMEOUT = "timeout"
    DIED = "died"
    FLOODED = "flooded"
    LIED = "lied"

    @property
    def of_caller(self) -> bool:
        """Whether another call could have been right."""
        return self in (ToolFault.UNREADABLE, ToolFault.UNKNOWN, ToolFault.INVALID)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What one call gave.

    text: what the model is shown. value: what the tool returned, where it is plain data. fault: None when the tool
    did what it is for. cost: what the call cost, by name; outside all comparisons, as `Step.cost` is.
    """

    text: str
    value: JsonValue = None
    fault: ToolFault | None = None
    cost: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def failed(cls, fault: ToolFault, message: str) -> "ToolResult":
        """The observation of a failure, in one form everywhere."""
        return cls(f"error ({fault}): {message}", fault=fault)


@runtime_checkable
class Tool(Protocol):
    """Something that can be called.

    deadline_s: of one call, None for the toolbox's. serial: calls of one message run one after another, in order,
    because they change what the others see.
    """

    @property
    def spec(self) -> ToolSpec:
        """What models are shown."""
        ...

    @property
    def deadline_s(self) -> float | None:
        """Seconds of one call."""
        ...

    @property
    def serial(self) -> bool:
        """Whether its calls of one message keep their order."""
        ...

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Run it. Bad arguments are answered (INVALID), and so is every failure; only EnvgymErrors are raised."""
        ...


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """deadline_s: of one call; calls: in one message; text: characters of a result that are shown."""

    deadline_s: float = 30.0
    calls: int = 32
    text: int = 20_000

    def __post_init__(self) -> None:
        checked_seconds("ToolLimits.deadline_s", self.deadline_s)
        checked_count("ToolLimits.calls", self.calls, least=1)
        checked_count("ToolLimits.text", self.text, least=64)


@dataclass(frozen=True, slots=True)
class Answer:
    """What an action's calls gave: one message for each, in their order, and what they cost together."""

    results: tuple[ToolResult, ...]
    observation: tuple[Message, ...]
    cost: Mapping[str, float]

    @property
    def faults(self) -> tuple[ToolFault, ...]:
        """What went wrong, in order."""
        return tuple(result.fault for result in self.results if result.fault is not None)


class Toolbox:
    """Tools under their names. Raises ValueError for two of one name, TypeError for what is no `Tool`."""

    def __init__(self, tools: Sequence[Tool], limits: ToolLimits | None = None) -> None:
        self.limits = limits or ToolLimits()
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if not _is_tool(tool):
                raise TypeError(f"{tool!r} is no Tool; a typed function becomes one by envgym.tool(function)")
            if tool.spec.name in self._tools:
                raise ValueError(f"two tools are named {tool.spec.name!r}; give one of them another name")
            self._tools[tool.spec.name] = tool

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What models are shown."""
        return tuple(tool.spec for tool in self._tools.values())

    async def answer(self, action: Action) -> Answer:
        """Run what an action calls, and answer it; a parse error is answered with how the tools are called."""
        if action.error is not None:
            return _together(action, (self._unreadable(action.error),), self.limits)
        return _together(action, await self.run(action.calls), self.limits)

    async def run(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """The results of calls, in their order; what waits runs in parallel. Raises EnvgymErrors of tools alone."""
        if len(calls) > self.limits.calls:
            told = f"{len(calls)} calls in one message; at most {self.limits.calls} are run"
            return tuple(ToolResult.failed(ToolFault.INVALID, told) for _ in calls)
        if len(calls) == 1:
            return (await self.call(calls[0]),)
        serial = [at for at, call in enumerate(calls) if self._serial(call)]
        running: list[ToolResult | BaseException] = await asyncio.gather(
            *(self.call(call) for at, call in enumerate(calls) if at not in serial),
            *([self._in_order([calls[at] for at in serial])] if serial else []),
            return_exceptions=True,
        )  # type: ignore[assignment]  # the last is a list of results
        for result in running:
            if isinstance(result, BaseException):
                raise result
        found: list[Any] = list(running)
        ordered = iter(found.pop() if serial else ())
        others = iter(found)
        return tuple(next(ordered) if at in serial else next(others) for at in range(len(calls)))

    async def _in_order(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        return [await self.call(call) for call in calls]

    def _serial(self, call: ToolCall) -> bool:
        tool = self._tools.get(call.name)
        return tool is not None and tool.serial

    async def call(self, call: ToolCall) -> ToolResult:
        """The result of one call within its deadline."""
        tool = self._tools.get(call.name)
        if tool is None:
            near = hint(call.name[:80], list(self._tools))
            return ToolResult.failed(ToolFault.UNKNOWN, f"there is no tool {call.name[:80]!r}; {near}")
        limit_s = self.limits.deadline_s if tool.deadline_s is None else tool.deadline_s
        began = time.perf_counter()
        result = begin(tool.call(call.arguments))
        if type(result) is Waiting:
            result = await _within(result, limit_s, tool)
        text = result.text
        if result.fault is ToolFault.INVALID:
            text = f"{text}; it is called as {signature(tool.spec)}"
        spent = {"tool_calls": 1.0, "tool_s": time.perf_counter() - began}
        return ToolResult(text, result.value, result.fault, {**spent, **result.cost})

    def _unreadable(self, error: ParseError) -> ToolResult:
        shown = "; ".join(signature(spec) for spec in self.specs[:12])
        told = f"{error.message[:500]}. The tools are: {shown or 'none'}"
        return ToolResult.failed(ToolFault.UNREADABLE, told)

    async def close(self) -> None:
        """Close what its tools hold: each that has a `close`, once."""
        for tool in self._tools.values():
            if (close := getattr(tool, "close", None)) is not None:
                await close()


async def _within(call: Waiting, limit_s: float, tool: Tool) -> ToolResult:
    """What a call that waits gives in its time; a DeadlineExceeded of its own world passes through."""
    try:
        async with asyncio.timeout(limit_s) as timer:
            return await call.finished()  # type: ignore[no-any-return]
    except TimeoutError:
        if not timer.expired():
            raise
        return ToolResult.failed(ToolFault.TIMEOUT, f"{tool.spec.name} gave no answer within {limit_s:g} s")


_TOOLS: WeakSet[type] = WeakSet()
"""Types whose members were seen to be a tool's: to look at all of them again would cost several calls."""


def _is_tool(given: object) -> bool:
    if type(given) not in _TOOLS:
        if not isinstance(given, Tool):
            return False
        _TOOLS.add(type(given))
    return True


def _together(action: Action, results: tuple[ToolResult, ...], limits: ToolLimits) -> Answer:
    ids = [call.id for call in action.calls] if action.error is None else [""]
    observation = tuple(
        Message.told(bounded_text(result.text, limits.text), name)
        for name, result in zip(ids, results, strict=True)
    )
    cost: dict[str, float] = {}
    for result in results:
        for name, value in result.cost.items():
            cost[name] = cost.get(name, 0.0) + value
    return Answer(results, observation, cost)


def bounded_text(text: str, most: int) -> str:
    """A text whose middle is cut where it is longer than `most` characters; it says how much was cut."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    tail = most - head
    return f"{text[:head]}\n... [{len(text) - most} characters cut] ...\n{text[len(text) - tail :]}"
