"""An environment in a process of its own: `Isolated`, an `Env` whose blocking or crashing code can be killed.

A deadline that cancels a call kills the process group; a death is a typed failure. The environment's process is
not trusted: what comes back is bounded JSON frames (`envgym.wire`), never pickle. It isolates failures, not
intent: the process runs as this user, with this user's files and network. Use a sandbox against malice.
"""

import asyncio
import pickle
from base64 import b64decode
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Self

from envgym.env import Env, Playable, Snapshot, Step
from envgym.errors import EnvgymError, EnvironmentFailure, SandboxDied
from envgym.isolate_child import error_from_json
from envgym.isolate_process import Process
from envgym.messages import Action, ToolSpec
from envgym.replay import forked
from envgym.task import Task
from envgym.wire import action_to_json, snapshot_from_json, snapshot_to_json, step_from_json

__all__ = ["Isolated"]

START_S = 60.0
"""How long a process may take to import its code and make the environment."""

CLOSE_S = 10.0
"""How long it may take to close before it is killed."""


class Isolated:
    """An `Env` whose environment lives in a process group of its own.

    Args:
        make: makes the environment there; picklable (a module-level function, a class, or a partial of one). If
            it takes ``stack``, an AsyncExitStack that is closed after the environment (for a backend).
        task: the task it will have.
        memory_bytes: bound of the process's private memory (RLIMIT_DATA), None for no bound.

    Nothing is started before the first use. `start` does it without blocking the event loop; reading `tools`
    first blocks until the process has said what they are. The process ends when this one does, kill -9
    included: a small guardian in its group waits for that. Snapshots are the environment's own; where they are no
    data that another process can use (those of a sandbox are not), ``Replaying(partial(Isolated, make, task))``
    plays the actions again instead.
    """

    def __init__(
        self,
        make: Callable[..., Env | Playable | Awaitable[Env | Playable]],
        task: Task,
        *,
        memory_bytes: int | None = None,
    ) -> None:
        try:
            self._pickled = pickle.dumps(make)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                f"isolate needs a picklable make (a module-level function or class, or a functools.partial of "
                f"one), not {make!r}: {error}"
            ) from error
        self.task = task
        self._make, self._memory_bytes = make, memory_bytes
        self._process: Process | None = None
        self._hello: dict[str, Any] | None = None
        self._closed = False
        self._calling = asyncio.Lock()  # forks that start together ask the same process for its snapshot

    @cached_property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What the environment's tools are; blocks while its process is starting (see `start`)."""
        if self._hello is None:
            self._read_hello(self._spawned().receive_blocking(START_S))
        assert self._hello is not None
        return tuple(ToolSpec.model_validate(raw) for raw in self._hello["tools"])

    @property
    def grader(self) -> Any:
        """Name and version of the environment's own grader, or None."""
        return (
            None
            if self._hello is None or self._hello["grader"] is None
            else SimpleNamespace(**self._hello["grader"])
        )

    @property
    def pid(self) -> int | None:
        """Process id, which is also the process group's, while there is one."""
        return None if self._process is None else self._process.popen.pid

    async def start(self) -> Self:
        """Start the process and wait until the environment is made. Raises what making it raised."""
        if self._hello is None:
            process = self._spawned()
            try:
                async with asyncio.timeout(START_S):
                    self._read_hello(await process.receive())
            except BaseException as error:
                process.kill()
                if isinstance(error, TimeoutError):
                    raise EnvironmentFailure(
                        f"the process of {self.task.id!r} did not start in {START_S:g} s"
                    ) from error
                raise
        return self

    def _spawned(self) -> Process:
        if self._closed:
            raise RuntimeError(f"the environment of task {self.task.id!r} is closed")
        if self._process is None:
            self._process = Process(self._pickled, self.task.id, self._memory_bytes)
        return self._process

    def _read_hello(self, reply: dict[str, Any]) -> None:
        hello = _value_of(reply)
        found = hello.get("task_id") if isinstance(hello, dict) else None
        if found != self.task.id:
            raise EnvironmentFailure(f"the isolated environment has task {found!r}, not {self.task.id!r}")
        self._hello = hello

    async def _call(self, name: str, **arguments: Any) -> Any:
        async with self._calling:
            return await self._alone(name, **arguments)

    async def _alone(self, name: str, **arguments: Any) -> Any:
        await self.start()
        process = self._spawned()
        try:
            await process.send({"call": name, **arguments})
            return _value_of(await process.receive())
        except (RuntimeError, ValueError, TypeError):
            raise  # the environment's answer: it can go on
        except EnvgymError as error:
            if isinstance(error, SandboxDied):
                process.kill()
            raise
        except BaseException:  # cancelled in the middle of a call: nothing more can be asked of it
            process.kill()
            raise

    async def _step_of(self, name: str, **arguments: Any) -> Step:
        raw = await self._call(name, **arguments)
        try:
            images = {name: b64decode(content) for name, content in raw.pop("images", {}).items()}
            step = step_from_json(raw)
            return replace(step, images=images) if images else step
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise EnvironmentFailure(f"the isolated environment answered {name} with no step: {error}") from error

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """A fresh state, or the state of `start`."""
        return await self._step_of("reset", seed=seed, start=snapshot_to_json(start))

    async def step(self, action: Action) -> Step:
        """Apply an action."""
        return await self._step_of("step", action=action_to_json(action))

    async def snapshot(self) -> Snapshot:
        """The environment's own."""
        found = snapshot_from_json(await self._call("snapshot"))
        assert found is not None
        return found

    async def release(self, snapshot: Snapshot) -> None:
        """Give a snapshot back; what a process that ended held is gone with it."""
        if self._process is not None and self._process.alive:
            await self._call("release", snapshot=snapshot_to_json(snapshot))

    async def fork(self) -> "Isolated":
        """An environment in one more process, brought to the same state."""
        return await forked(self, Isolated(self._make, self.task, memory_bytes=self._memory_bytes))

    async def close(self) -> None:
        """Ask the environment to close, then end its process group; idempotent."""
        self._closed = True
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if process.alive and self._hello is not None:
                async with asyncio.timeout(CLOSE_S):
                    await process.send({"call": "close"})
                    _value_of(await process.receive())
        except (TimeoutError, SandboxDied):
            pass  # what follows ends it in any case
        finally:
            await process.reap()


def _value_of(reply: dict[str, Any]) -> Any:
    if "error" in reply:
        raise error_from_json(reply["error"])
    if "value" not in reply:
        raise EnvironmentFailure("the isolated environment broke the protocol: neither value nor error")
    return reply["value"]
