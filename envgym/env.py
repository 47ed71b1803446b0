"""A task in a world, one step at a time: `Step`, `StopReason`, `Snapshot` and the `Env` protocol.

Two depths of implementation: an environment that can snapshot itself implements `Env` whole; one that has
only `reset`, `step` and `close` is a `Playable`, which `envgym.replay` makes an `Env` of.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any, Literal, NoReturn, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, FiniteFloat

from envgym.errors import EnvironmentFailure
from envgym.frozen import quick
from envgym.messages import Action, Message, ToolSpec, text_of
from envgym.sandbox import SandboxSnapshot
from envgym.task import Task

__all__ = [
    "EARNED_BY",
    "THE_AGENT",
    "Copyable",
    "Durable",
    "Env",
    "Grade",
    "Grader",
    "Playable",
    "Snapshot",
    "Step",
    "StopReason",
    "answered",
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


EARNED_BY = "envgym.earned_by"
"""In `Step.info`: the actor whose reward it is, where it is not the one who acted (see `envgym.credit.Ledger`)."""


class _Nothing(dict[str, Any]):
    """The empty mapping that all steps share: three dicts per step would be a tenth of an episode's memory.

    It never changes, so it has a hash, and a dataclass takes it as a default value.
    """

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]  # a dict has none
        return 0

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("a Step or an Answer is frozen: give its constructor the whole mapping")

    __setitem__ = setdefault = update = __ior__ = _refuse

    def __reduce__(self) -> str:
        return "_NOTHING"


_NOTHING = _Nothing()


@quick
@dataclass(frozen=True, slots=True)
class Step:
    """What the world answers. Made by `reset` (no reward) and by every `step`.

    observation: messages shown to the next actor, in order.
    reward: of this step, None when this step says nothing about reward (not the same as 0.0). It is that of who
        acted, or of the actor that ``info[EARNED_BY]`` names.
    channels: named parts of the reward or other scores (a terminal step carries the grade's channels).
    stop: why the episode ended here, or None.
    state_key: equal keys mean "the same state for the purpose of comparing what follows"; "" when unknown.
    legal: the actions that are possible next, as compact call strings (see `envgym.tools.parse_call`), where
        the environment can enumerate them; None otherwise.
    submission: what a grader judges (a patch, an answer), where the episode ends with one.
    cost: seconds, money, test runs ... by name; outside the determinism comparison, as is `info`. In a turn, what
        its actor reported (`Reply.cost`) is added to what the world reported.
    next_actor: who acts next where several do.
    images: the bytes behind the `ImagePart`s of the observation, by their sha256. The messages say which image is
        meant, so this is outside every comparison; a store keeps the bytes in files, once each.
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
    images: Mapping[str, bytes] = field(default=_NOTHING, compare=False, repr=False)

    def __post_init__(self) -> None:
        reward = self.reward
        if type(reward) is float and not isfinite(reward):
            raise ValueError(f"reward is {reward}; it must be a finite float or None, where a Step is made")
        if self.channels is not _NOTHING and isinstance(self.channels, Mapping):
            for name, value in self.channels.items():
                if isinstance(value, float) and not isfinite(value):
                    raise ValueError(
                        f"channel {name!r} is {value}; it must be a finite float, where a Step is made"
                    )

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
        and ((reward := step.reward) is None or (type(reward) is float and isfinite(reward)))
        and (step.stop is None or type(step.stop) is StopReason)
        and step.channels is _NOTHING
        and step.images is _NOTHING
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
    if not isinstance(step.images, (dict, Mapping)):
        raise _wrong("images", step.images, "a mapping of sha256 names to bytes")
    for name, content in step.images.items():
        if not isinstance(content, bytes) or hashlib.sha256(content).hexdigest() != name:
            raise _wrong(f"image {name!r}", content, "bytes whose sha256 is that name")
    return step


def _finite(value: object) -> bool:
    return isinstance(value, (float, int)) and isfinite(value)


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

    def around(self, kept: Mapping[str, Any], *, task_id: str, seed: int) -> "Snapshot":
        """That of an environment around this one's: its own task and seed, and what it keeps beside this one's.

        kept: as JSON, without the keys "inner", "task" and "seed". The seeds differ where the world's is pinned.
        """
        own = {**kept, "inner": self.state, "task": self.task_id, "seed": self.seed}
        return self.model_copy(update={"state": json.dumps(own), "task_id": task_id, "seed": seed})

    def inside(self) -> "Snapshot":
        """The one that `around` was called on. What an earlier version left out is taken from the outer one."""
        kept = json.loads(self.state)
        task_id, seed = kept.get("task", self.task_id), kept.get("seed", self.seed)
        return self.model_copy(update={"state": kept["inner"], "task_id": task_id, "seed": seed})


class Grade(BaseModel):
    """One verdict: which grader, which version, and its channels; `reward` is the channel "reward".

    Raises ValueError for a channel that is not finite: a grader that cannot say raises GraderFailure.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    grader: str
    version: str
    channels: dict[str, FiniteFloat]

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
class Copyable(Protocol):
    """A `Playable` whose state is all in this process, and can be copied: forks of it play nothing again."""

    def copied(self) -> Playable:
        """Another one in the same state, which shares nothing with this one that either can change."""
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


@runtime_checkable
class Durable(Protocol):
    """An environment in a sandbox that can take snapshots which outlive its process, however that ends.

    One whose whole state is in `Snapshot.state` needs no more than `Env.snapshot`.
    """

    async def durable_snapshot(self) -> Snapshot:
        """As `Env.snapshot`, with nothing in it that only this process could restore."""
        ...
