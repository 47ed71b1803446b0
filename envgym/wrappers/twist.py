"""One environment around another: a `Twist` changes what is done and seen, and `Wrapped` keeps the laws for it.

A twist is pure: its state is JSON that it gets and gives back, and its draws come from a generator that `Wrapped`
makes of the seed and the turn. So a snapshot of the whole is the inner one with that state beside it, and a
fork is a copy. Twists go around each other, and around whatever is an `Env`.
"""

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from pydantic import JsonValue

from envgym.env import Durable, Env, Snapshot, Step
from envgym.messages import Action, Message, TextPart, ToolSpec
from envgym.task import Task
from envgym.tools import compact
from envgym.wire import step_from_json, step_to_json

__all__ = ["Seen", "State", "Twist", "Wrapped", "added", "refused", "retold", "said"]

State = dict[str, JsonValue]
"""What a twist remembers between turns, as JSON."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Where a twist is: the task, the step that the agent answers, this turn's generator, the world's tools."""

    task: Task
    last: Step
    rng: np.random.Generator
    tools: tuple[ToolSpec, ...] = ()


class Twist(Protocol):
    """A change between an agent and a world. It has no state of its own.

    One with an attribute ``seed`` that is not None fixes the world's seed, whatever the episode's is. One that
    never draws says so by an attribute ``draws`` that is False: what the world says of the seed then holds around
    it, too.
    """

    @property
    def name(self) -> str:
        """What it is called: its snapshots and its draws are its own by this."""
        ...

    def begin(self, seen: Seen) -> tuple[State, Step]:
        """The first state, and what is shown of `seen.last`, the first step."""
        ...

    def act(self, state: State, action: Action, seen: Seen) -> tuple[State, Action | Step]:
        """What the world is given; or the step that answers instead, and the world hears of nothing."""
        ...

    def see(self, state: State, action: Action, step: Step, seen: Seen) -> tuple[State, Step]:
        """What is shown of the world's answer."""
        ...


class Wrapped:
    """An `Env` around an `Env`, changed by a twist."""

    def __init__(self, inner: Env, twist: Twist) -> None:
        self._inner, self._twist = inner, twist
        self.task: Task = getattr(twist, "task", None) or inner.task  # a twist may ask for another task
        self._salt = int.from_bytes(hashlib.blake2b(twist.name.encode(), digest_size=4).digest(), "big")
        self._seed = self._turn = 0
        self._state: State = {}
        self._last: Step | None = None

    @property
    def inner(self) -> Env:
        """The environment inside."""
        return self._inner

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What actions may call."""
        return self._inner.tools

    @property
    def uses_seed(self) -> bool | None:
        """What the inner one says, unless the twist draws or fixes the world's seed; None where nothing is said."""
        if getattr(self._twist, "draws", True) or getattr(self._twist, "seed", None) is not None:
            return None
        return getattr(self._inner, "uses_seed", None)

    @property
    def grader(self) -> Any:
        """The inner environment's own grader, or None."""
        return getattr(self._inner, "grader", None)

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """A fresh state, or that of `start`, a snapshot of the same wrapping. Raises ValueError for another's."""
        if start is not None:
            kept = self._own(start)
            await self._inner.reset(seed=seed, start=start.inside())
            self._seed, self._turn, self._state = start.seed, kept["turn"], kept["twist"]
            self._last = step_from_json(kept["last"])
            self._checked(start)
            return self._last
        pinned = getattr(self._twist, "seed", None)
        first = await self._inner.reset(seed=seed if pinned is None else pinned)
        self._seed, self._turn = seed, 0
        self._state, self._last = self._twist.begin(self._seen(first))
        return self._last

    def _checked(self, start: Snapshot) -> None:
        """Refuse a state that the twist could not go on from, as one of an earlier version may be."""
        assert self._last is not None
        if lacking := self._twist.begin(self._seen(self._last))[0].keys() - self._state.keys():
            raise ValueError(
                f"this snapshot of task {start.task_id!r} is of another version of {self._twist.name!r}: its state "
                f"lacks {', '.join(map(repr, sorted(lacking)))}; begin the episode anew"
            )

    async def step(self, action: Action) -> Step:
        """Act through the twist."""
        if self._last is None or self._last.stop is not None:
            when = "before reset" if self._last is None else f"after the end ({self._last.stop})"
            raise RuntimeError(f"step {when} in task {self.task.id!r}: call reset first")
        self._turn += 1
        seen = self._seen(self._last)
        self._state, given = self._twist.act(self._state, action, seen)
        if isinstance(given, Step):
            self._last = given
        else:
            answer = await self._inner.step(given)
            self._state, self._last = self._twist.see(self._state, action, answer, seen)
        return self._last

    def _seen(self, last: Step) -> Seen:
        rng = np.random.default_rng([abs(self._seed), self._salt, self._turn])
        return Seen(self.task, last, rng, tuple(self._inner.tools))

    async def snapshot(self) -> Snapshot:
        """The inner one, with the twist's state in it."""
        self._begun("snapshot")
        return self._kept(await self._inner.snapshot())

    async def durable_snapshot(self) -> Snapshot:
        """As `snapshot`, of the inner one's durable state where it has such."""
        self._begun("snapshot")
        inner = self._inner
        return self._kept(await (inner.durable_snapshot() if isinstance(inner, Durable) else inner.snapshot()))

    def _begun(self, what: str) -> None:
        if self._last is None:
            raise RuntimeError(f"{what} before reset in task {self.task.id!r}: there is no state yet")

    def _kept(self, inner: Snapshot) -> Snapshot:
        assert self._last is not None
        kept = {
            "wrapper": self._twist.name, "turn": self._turn, "twist": self._state,
            "last": step_to_json(replace(self._last, info={}, cost={})),
        }  # fmt: skip
        return inner.around(kept, task_id=self.task.id, seed=self._seed)

    def _own(self, snapshot: Snapshot) -> dict[str, Any]:
        try:
            kept = json.loads(snapshot.state)
            name = kept["wrapper"]
        except (ValueError, TypeError, KeyError):
            name, kept = None, {}
        if name != self._twist.name:
            raise ValueError(
                f"this snapshot of task {snapshot.task_id!r} is of {name!r}, not of an environment wrapped in "
                f"{self._twist.name!r}; restore it in an environment made with the same wrap"
            )
        return kept  # type: ignore[no-any-return]

    async def release(self, snapshot: Snapshot) -> None:
        """Give the inner snapshot's resources back."""
        self._own(snapshot)
        await self._inner.release(snapshot.inside())

    async def fork(self) -> "Wrapped":
        """A fork of the inner one, with a copy of the twist's state."""
        other = Wrapped(await self._inner.fork(), self._twist)
        other._seed, other._turn, other._last = self._seed, self._turn, self._last
        other._state = copy.deepcopy(self._state)
        return other

    async def close(self) -> None:
        """Close the inner one."""
        await self._inner.close()


def said(action: Action) -> str:
    """All that an action says, calls in the compact notation: what a rule is matched against."""
    return "\n".join([*(compact(call) for call in action.calls), action.text])


def refused(last: Step, text: str, **changes: Any) -> Step:
    """The answer to an action that the world never heard of: its state is what it was."""
    told = Message(role="user", content=text)
    return replace(last, observation=(told,), reward=None, channels={}, cost={}, info={}, **changes)


def retold(message: Message, rewrite: Callable[[str], str]) -> Message:
    """A message in other words; of one with pictures each piece of text, and the pictures stay."""
    if isinstance(message.content, str):
        return message.model_copy(update={"content": rewrite(message.content)})
    parts = [
        part.model_copy(update={"text": rewrite(part.text)}) if isinstance(part, TextPart) else part
        for part in message.content
    ]
    return message.model_copy(update={"content": tuple(parts)})


def added(message: Message, text: str) -> Message:
    """A message with a line below it, whatever it is made of."""
    if isinstance(message.content, str):
        return message.model_copy(update={"content": f"{message.content}\n{text}"})
    return message.model_copy(update={"content": (*message.content, TextPart(text=f"\n{text}"))})
