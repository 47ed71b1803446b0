"""A typed function is a tool: its schema from signature and docstring, its calls validated before they run.

Asynchronous functions may wait, and then run beside others; a plain one runs at once, and one that blocks (a
library that waits without asyncio) runs in a thread of its own, so that one that hangs is in nobody's way. No
thread can be stopped: what must be killed at its deadline belongs in a sandbox, or in an environment with
``isolate="process"``.
"""

import asyncio
import contextvars
import inspect
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Any

from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError

from envgym.arguments import checked_seconds
from envgym.errors import EnvgymError
from envgym.messages import ToolSpec
from envgym.toolbox import ToolFault, ToolResult
from envgym.tools import arguments_model, tool_spec

__all__ = ["MOST_THREADS", "FunctionTool", "ToolRefused", "tool"]

MOST_THREADS = 256
"""Blocking calls that run at once in a process; further ones wait for one of them, within their own deadlines."""

_IDLE_S = 5.0

_ANY: TypeAdapter[Any] = TypeAdapter(Any)


class ToolRefused(Exception):
    """What a tool raises to say, in its own words and nothing else, that it will not do what it was asked."""


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function as a `Tool`; made by `tool`."""

    spec: ToolSpec
    function: Callable[..., Any]
    arguments: type[BaseModel]
    deadline_s: float | None = None
    serial: bool = False
    blocking: bool = False
    cost: Mapping[str, float] = field(default_factory=dict)

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Validate, run, and say what came of it; an EnvgymError of the function passes through."""
        try:
            checked = self.arguments.model_validate(dict(arguments))
        except (ValidationError, RecursionError) as error:
            return ToolResult.failed(ToolFault.INVALID, f"{self.spec.name}: {_wrong(error)}")
        given = {name: getattr(checked, name) for name in self.arguments.model_fields}
        try:
            if self.blocking:
                value = await _in_thread(self.function, given)
            else:
                value = self.function(**given)
            if inspect.isawaitable(value):
                value = await value
        except EnvgymError:
            raise
        except ToolRefused as refused:
            return ToolResult(f"error ({ToolFault.REFUSED}): {refused}", fault=ToolFault.REFUSED, cost=self.cost)
        except (Exception, SystemExit) as error:  # the contract of tools: whatever one raises is an observation
            told = ToolResult.failed(ToolFault.RAISED, f"{self.spec.name}: {type(error).__name__}: {error}")
            return ToolResult(told.text, fault=told.fault, cost=self.cost)
        return self._result(value)

    def _result(self, value: Any) -> ToolResult:
        if isinstance(value, ToolResult):
            return ToolResult(value.text, value.value, value.fault, {**self.cost, **value.cost})
        if isinstance(value, str):
            return ToolResult(value, value, cost=self.cost)
        if value is None:
            return ToolResult("done", cost=self.cost)
        try:
            plain = _ANY.dump_python(value, mode="json")
            return ToolResult(json.dumps(plain, ensure_ascii=False), plain, cost=self.cost)
        except ValueError:  # PydanticSerializationError is one: no plain data
            return ToolResult(repr(value), cost=self.cost)


class _Blocked:
    """A blocking call: what it does, and where its value or error is waited for."""

    __slots__ = ("answer", "context", "function", "given", "loop", "told")

    def __init__(self, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
        self.function, self.given = function, given
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[tuple[Any, BaseException | None]] = self.loop.create_future()
        self.context = contextvars.copy_context()
        self.told: tuple[Any, BaseException | None] | None = None

    def work(self) -> None:
        """Do it, unless nobody waits for it any more."""
        if self.answer.cancelled():
            return
        try:
            self.told = self.context.run(self.function, **self.given), None
        except BaseException as error:  # raised where it is waited for
            self.told = None, error

    def tell(self) -> None:
        """Say what came of it."""
        if self.told is None:
            return
        try:
            self.loop.call_soon_threadsafe(self._tell, self.told)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            return

    def _tell(self, told: tuple[Any, BaseException | None]) -> None:
        if not self.answer.done():
            self.answer.set_result(told)


class _Threads:
    """Daemon threads, one a call, so that one that hangs holds up neither another's pool nor the process's end.

    One that is done waits a while for the next call: to start one, the loop waits until the system has let it run.
    """

    def __init__(self) -> None:
        self.lock, self.alive = threading.Lock(), 0
        self.idle: list[SimpleQueue[_Blocked]] = []
        self.waiting: deque[_Blocked] = deque()

    def take(self, call: _Blocked) -> None:
        """Give it to a thread that is idle, begin one, or let it wait for the first that is done."""
        with self.lock:
            if self.idle:
                self.idle.pop().put(call)
                return
            if self.alive >= MOST_THREADS:
                self.waiting.append(call)
                return
            self.alive += 1
        inbox: SimpleQueue[_Blocked] = SimpleQueue()
        inbox.put(call)
        try:
            threading.Thread(target=self._work, args=(inbox,), name="envgym-tool", daemon=True).start()
        except BaseException:
            with self.lock:
                self.alive -= 1
            raise

    def _work(self, inbox: "SimpleQueue[_Blocked]") -> None:
        call: _Blocked | None = inbox.get()  # not an argument, which the thread would keep as long as it lives
        while call is not None:
            done = call
            done.work()
            with self.lock:
                call = self.waiting.popleft() if self.waiting else None
                if call is None:
                    self.idle.append(inbox)
            done.tell()  # whoever hears it finds this thread idle
            del done
            if call is None:
                call = self._next(inbox)

    def _next(self, inbox: "SimpleQueue[_Blocked]") -> _Blocked | None:
        """The call that an idle thread is given; None where none came for a while, and it is nobody's any more."""
        try:
            return inbox.get(timeout=_IDLE_S)
        except Empty:
            with self.lock:
                if inbox in self.idle:
                    self.idle.remove(inbox)
                    self.alive -= 1
                    return None
            return inbox.get()  # it was given one at that moment


_threads = _Threads()


def _afresh() -> None:
    """After a fork of the process none of its threads are there."""
    global _threads
    _threads = _Threads()


os.register_at_fork(after_in_child=_afresh)


async def _in_thread(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """What a function gives that waits without asyncio."""
    call = _Blocked(function, given)
    _threads.take(call)
    value, error = await call.answer
    if error is not None:
        raise error
    return value


def _wrong(error: ValidationError | RecursionError) -> str:
    """Each mistake in a few words: where, what must be, what was given."""
    if isinstance(error, RecursionError):
        return "the arguments are nested too deep"
    told = []
    for found in error.errors(include_url=False)[:4]:
        where = ".".join(map(str, found["loc"])) or "arguments"
        given = "" if found["type"] in ("missing", "extra_forbidden") else f", not {repr(found['input'])[:80]}"
        told.append(f"{where}: {found['msg']}{given}")
    return "; ".join(told)


def tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    deadline_s: float | None = None,
    serial: bool = False,
    blocking: bool = False,
    cost: Mapping[str, float] | None = None,
) -> FunctionTool:
    """A typed function, plain or asynchronous, as a tool.

    What it returns is shown: a text as it is, plain data as JSON, a `ToolResult` as it says. What it raises is
    shown as a failure (`ToolRefused` in its own words). Argument types are pydantic's, `Annotated` bounds included.

    Args:
        function: with annotations; a bound method too. Its docstring is the description.
        name: of the tool, by default the function's.
        deadline_s: of one call, by default the toolbox's.
        serial: see `envgym.toolbox.Tool`.
        blocking: it waits without asyncio: run it in a thread of its own, of `MOST_THREADS` at once.
        cost: what each call costs, by name, such as ``{"usd": 0.002}``.

    Raises TypeError as `tool_spec` does, and for a function both asynchronous and blocking.
    """
    if blocking and inspect.iscoroutinefunction(function):
        raise TypeError(f"tool {function.__name__}: it is asynchronous, and blocking is True; leave one of them")
    if deadline_s is not None:
        checked_seconds("deadline_s", deadline_s)
    spec, arguments = _shape(getattr(function, "__func__", function), name)
    return FunctionTool(spec, function, arguments, deadline_s, serial, blocking, dict(cost or {}))


@lru_cache(maxsize=1024)
def _shape(function: Callable[..., Any], name: str | None) -> tuple[ToolSpec, type[BaseModel]]:
    """Spec and model, made once: every episode makes its tools anew, and a model takes milliseconds."""
    return tool_spec(function, name=name), arguments_model(function)
