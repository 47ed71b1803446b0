"""A task in a world, one step at a time: `Step`, `StopReason`, `Snapshot` and the `Env` protocol.

Two depths of implementation: an environment that can snapshot itself implements `Env` whole; one that has
only `reset`, `step` and `close` (`Playable`) is wrapped by `Replaying`, which snapshots by recording the
actions and forks by playing them again, checked step by step.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NoReturn, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict

from envgym.errors import EnvironmentFailure, ReplayDiverged
from envgym.messages import Action, Message, ToolSpec, text_of
from envgym.sandbox import SandboxSnapshot
from envgym.task import Task

__all__ = [
    "THE_AGENT",
    "Env",
    "Grade",
    "Grader",
    "Playable",
    "Replaying",
    "Snapshot",
    "Step",
    "StopReason",
    "answered",
    "as_env",
    "observation_digest",
]

THE_AGENT = "agent"
"""The actor where only one acts."""


class StopReason(StrEnum):
    """Why an episode ended. `truncated` tells running out of a bound from an end of the problem itself."""

    GOAL = "goal"
    LOST = "lost"
    SUBMITTED = "submitted"
    GAVE_UP = "gave_up"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    CONTEXT_LIMIT = "context_limit"
    TIME_LIMIT = "time_limit"

    @property
    def truncated(self) -> bool:
        """Whether a bound ended it: the return is then unknown beyond this point, not zero."""
        return self in _TRUNCATED


_TRUNCATED = frozenset(
    {StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT, StopReason.CONTEXT_LIMIT, StopReason.TIME_LIMIT}
)


class _Nothing(dict[str, Any]):
    """The empty mapping that all steps share: three dicts per step would be a tenth of an episode's memory.

    It never changes, so it has a hash, and a dataclass takes it as a default value.
    """

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]  # a dict has none
        return 0

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("a Step is frozen: give its constructor the whole mapping")

    __setitem__ = setdefault = update = __ior__ = _refuse

    def __reduce__(self) -> str:
        return "_NOTHING"


_NOTHING = _Nothing()


@dataclass(frozen=True, slots=True)
class Step:
    """What the world answers. Made by `reset` (no reward) and by every `step`.

    observation: messages shown to the next actor, in order.
    reward: of this step, None when this step says nothing about reward (not the same as 0.0).
    channels: named parts of the reward or other scores (a terminal step carries the grade's channels).
    stop: why the episode ended here, or None.
    state_key: equal keys mean "the same state for the purpose of comparing what follows"; "" when unknown.
    legal: the actions that are possible next, as compact call strings (see `envgym.tools.parse_call`), where
        the environment can enumerate them; None otherwise.
    submission: what a grader judges (a patch, an answer), where the episode ends with one.
    cost: seconds, money, test runs ... by name; outside the determinism comparison, as is `info`.
    next_actor: who acts next where several do.
    """

    observation: tuple[Message, ...] = ()
    reward: float | None = None
    channels: Mapping[str, float] = _NOTHING
    stop: StopReason | None = None
    state_key: str = ""
    legal: tuple[str, ...] | None = None
    submission: str | None = None
    cost: Mapping[str, float] = _NOTHING
    info: Mapping[str, Any] = _NOTHING
    next_actor: str = THE_AGENT

    @property
    def terminated(self) -> bool:
        """Whether the problem itself ended."""
        return self.stop is not None and not self.stop.truncated

    @property
    def truncated(self) -> bool:
        """Whether a bound ended it."""
        return self.stop is not None and self.stop.truncated

    @property
    def text(self) -> str:
        """The observation's text, messages joined by newlines."""
        return "\n".join(text_of(message) for message in self.observation)


def answered(step: Any) -> Step:
    """What `reset` or `step` answered, looked at where it is received: nothing else may be stored or learned from.

    Raises EnvironmentFailure, with the field and its value, unless it is a Step whose observation is a tuple of
    Messages, whose numbers are finite and whose stop is a StopReason or None. Every recorded step passes here.
    """
    if (
        type(step) is Step
        and ((reward := step.reward) is None or (type(reward) is float and math.isfinite(reward)))
        and (step.stop is None or type(step.stop) is StopReason)
        and step.channels is _NOTHING
        and type(step.observation) is tuple
    ):
        for message in step.observation:
            if type(message) is not Message:
                break
        else:
            return step
    return _examined(step)


def _examined(step: Any) -> Step:
    """`answered` for what is unusual, and for what is wrong."""
    if not isinstance(step, Step):
        raise _wrong("the answer", step, "a Step")
    if step.reward is not None and not _finite(step.reward):
        raise _wrong("reward", step.reward, "a finite float or None")
    if not isinstance(step.channels, (dict, Mapping)) or not all(map(_finite, step.channels.values())):
        raise _wrong("channels", step.channels, "a mapping of names to finite floats")
    if step.stop is not None and not isinstance(step.stop, StopReason):
        raise _wrong("stop", step.stop, "a StopReason or None")
    if not isinstance(step.observation, tuple) or not all(isinstance(one, Message) for one in step.observation):
        raise _wrong("observation", step.observation, "a tuple of Messages")
    return step


def _finite(value: object) -> bool:
    return isinstance(value, (float, int)) and math.isfinite(value)


def _wrong(name: str, value: object, must: str) -> EnvironmentFailure:
    return EnvironmentFailure(f"{name} is {repr(value)[:200]}; it must be {must}")


def observation_digest(step: Step) -> str:
    """A digest of what determinism promises: observation, reward, channels, stop, state key, legal actions."""
    parts = [_message_digest_part(message) for message in step.observation]
    parts += [
        repr(step.reward),
        repr(sorted(step.channels.items())),
        str(step.stop),
        step.state_key,
        repr(step.legal),
    ]
    # lone surrogates reach observations through models' JSON escapes; they must not break a digest
    return hashlib.blake2b("\x1f".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _message_digest_part(message: Message) -> str:
    if isinstance(message.content, str) and not message.tool_calls:
        return json.dumps((message.role, message.content, message.tool_call_id))
    return json.dumps(message.model_dump())


class Snapshot(BaseModel):
    """A durable handle of an environment's state; plain data.

    restore: "exact" (the sandbox's snapshot plus `state`, the environment's own state as JSON) or "replay"
        (`actions` are played again after ``reset(seed)`` and each step is checked against `digests`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    restore: Literal["exact", "replay"]
    task_id: str
    seed: int
    state: str = ""
    sandbox: SandboxSnapshot | None = None
    actions: tuple[Action, ...] = ()
    digests: tuple[str, ...] = ()


class Grade(BaseModel):
    """One verdict: which grader, which version, and its channels; `reward` is the channel "reward"."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    grader: str
    version: str
    channels: dict[str, float]

    @property
    def reward(self) -> float | None:
        """The scalar reward, if the grader gave one."""
        return self.channels.get("reward")


class Grader(Protocol):
    """Judges a submission without re-running the agent."""

    name: str
    version: str

    async def grade(self, task: Task, submission: str) -> Grade:
        """A verdict. Raises GraderFailure when none can be reached; never returns a guess."""
        ...


@runtime_checkable
class Playable(Protocol):
    """The least an environment must have."""

    task: Task

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What actions may call; empty where actions are plain text."""
        ...

    async def reset(self, *, seed: int) -> Step:
        """A fresh state and its first observation."""
        ...

    async def step(self, action: Action) -> Step:
        """Apply an action. A bad action is data: it is answered by an observation."""
        ...

    async def close(self) -> None:
        """Release everything; idempotent."""
        ...


@runtime_checkable
class Env(Protocol):
    """A task in a sandbox: the contract every environment meets, whole or through `Replaying`.

    Same task, seed and actions give the same observations, rewards, stop reasons and state keys.
    `step` after the end, or before `reset`, raises RuntimeError (the programmer's fault).
    """

    task: Task

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What actions may call; empty where actions are plain text."""
        ...

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """A fresh state, or the state of `start`; a second reset leaks nothing of the first."""
        ...

    async def step(self, action: Action) -> Step:
        """Apply an action and answer."""
        ...

    async def snapshot(self) -> Snapshot:
        """A durable handle of the present state; the environment goes on undisturbed."""
        ...

    async def release(self, snapshot: Snapshot) -> None:
        """Give a snapshot's resources back."""
        ...

    async def fork(self) -> "Env":
        """An independent environment in the same state."""
        ...

    async def close(self) -> None:
        """Release everything; idempotent."""
        ...


class Replaying:
    """An `Env` over a `Playable`: snapshots are the recorded actions, forks play them again.

    `make` builds one more independent `Playable` of the same task; `first`, when given, is played before any
    is made. A replayed step whose `observation_digest` differs from the recorded one raises ReplayDiverged (the
    environment is not deterministic).
    """

    def __init__(self, make: Callable[[], Playable], first: Playable | None = None) -> None:
        self._make = make
        self._inner = make() if first is None else first
        self.task = self._inner.task
        self._seed: int | None = None
        self._actions: list[Action] = []
        self._digests: list[str] = []
        self._undigested: list[Step] = []  # a digest costs as much as a recorded step, and few steps need theirs
        self._last: Step | None = None

    @property
    def inner(self) -> Playable:
        """The environment being recorded."""
        return self._inner

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What actions may call."""
        return self._inner.tools

    @property
    def grader(self) -> Any:
        """The environment's own grader, or None."""
        return getattr(self._inner, "grader", None)

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """A fresh state, or the state of `start` reached by replay. Raises ReplayDiverged."""
        if start is not None:
            if start.restore != "replay" or start.task_id != self.task.id:
                raise ValueError(
                    f"cannot start task {self.task.id!r} from a {start.restore!r} snapshot of task "
                    f"{start.task_id!r}; this environment needs a replay snapshot of the same task"
                )
            return await self._replay(start)
        self._seed, self._actions, self._digests = seed, [], []
        self._last = await self._inner.reset(seed=seed)
        self._undigested = [self._last]
        return self._last

    async def step(self, action: Action) -> Step:
        """Apply and record an action."""
        if self._last is None:
            raise RuntimeError(f"step before reset in task {self.task.id!r}: call reset(seed=...) first")
        if self._last.stop is not None:
            raise RuntimeError(f"step after the end ({self._last.stop}) in task {self.task.id!r}: call reset first")
        self._last = await self._inner.step(action)
        self._actions.append(action)
        self._undigested.append(self._last)
        return self._last

    async def snapshot(self) -> Snapshot:
        """The seed and the actions so far, with a digest of every step."""
        if self._seed is None:
            raise RuntimeError(f"snapshot before reset in task {self.task.id!r}: there is no state yet")
        return Snapshot(
            restore="replay",
            task_id=self.task.id,
            seed=self._seed,
            actions=tuple(self._actions),
            digests=tuple(self._known_digests()),
        )

    async def release(self, snapshot: Snapshot) -> None:
        """A replay snapshot owns nothing."""

    async def fork(self) -> "Replaying":
        """A new environment, brought to the same state by replay."""
        other = Replaying(self._make)
        try:
            await other._replay(await self.snapshot())
        except BaseException:
            await other.close()
            raise
        return other

    async def close(self) -> None:
        """Close the inner environment."""
        await self._inner.close()

    async def _replay(self, start: Snapshot) -> Step:
        step = answered(await self.reset(seed=start.seed))
        self._check(start, 0)
        for index, action in enumerate(start.actions):
            step = answered(await self.step(action))
            self._check(start, index + 1)
        return step

    def _known_digests(self) -> list[str]:
        self._digests += map(observation_digest, self._undigested)
        self._undigested.clear()
        return self._digests

    def _check(self, start: Snapshot, index: int) -> None:
        found = self._known_digests()[index]
        if found != start.digests[index]:
            raise ReplayDiverged(
                f"replay of task {self.task.id!r} diverged at step {index} of {len(start.actions)} "
                f"(digest {found} instead of {start.digests[index]}): the environment does not "
                "honour its seed or observes something that the world cannot repeat"
            )


def as_env(made: Env | Playable, again: Callable[[], Any]) -> Env:
    """`made` itself if it is an `Env`; a `Playable` in a `Replaying`, which gets more of its kind from `again`."""
    return made if isinstance(made, Env) else Replaying(again, first=made)
