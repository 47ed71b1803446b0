"""Worlds whose whole state is plain data: who writes the rules alone gets calls read, exact snapshots and forks.

`Rules` say how a game begins and what an action does to a state; `Played` makes an `Env` of them. The state is a
dataclass of plain values, so a snapshot is its JSON and a fork a copy: no action is played again. What every world
does alike is here: several calls in one message, mistakes answered as data, the order of calls.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np

from envgym.env import EARNED_BY, THE_AGENT, Snapshot, Step, StopReason
from envgym.frozen import quick
from envgym.messages import Action, Message, ParseError, ToolCall, ToolSpec
from envgym.task import Task, TaskSet
from envgym.tools import check_call, parse_call
from envgym.wire import step_from_json, step_to_json

__all__ = ["Answer", "Played", "Rules", "bounded", "clean", "draws", "lazy_tasks", "played"]

S = TypeVar("S")

MOST_TEXT = 20_000
"""Characters of one observation, and of what a model said that a state keeps."""

_NOTHING: Mapping[str, float] = Step().cost  # what steps without any share


@quick
@dataclass(frozen=True, slots=True)
class Answer:
    """What the world answers to one call or text.

    earned_by: the actor whose the reward is, where it is not the one who spoke.
    silent: channels that nobody graded.
    """

    text: str
    reward: float | None = None
    stop: StopReason | None = None
    channels: Mapping[str, float] = _NOTHING
    submission: str | None = None
    cost: Mapping[str, float] = _NOTHING
    earned_by: str = ""
    silent: tuple[str, ...] = ()


_NO_ANSWER = Answer("")


class Rules(Protocol[S]):
    """The rules of one task.

    state: the dataclass that a game's state is; msgspec must be able to write and read it.
    hears: whether a text that is no call is something said (then `move` gets it), not a mistake.
    uses_seed: whether `begin` draws anything from its seed; None says nothing, and `check_env` tries nothing.
    alone: tools that may only be called alone in a message, as they give the word to another actor; what that one
        says is the answer to the call.

    Rules that say so (``class Mine(Rules[MyState])``) take over what is the same for most of them.
    """

    task: Task
    tools: tuple[ToolSpec, ...] = ()
    state: type[S]
    hears: bool = False
    uses_seed: bool | None = None
    alone: frozenset[str] = frozenset()

    def begin(self, seed: int) -> tuple[S, str]:
        """A fresh state and what is shown first."""
        ...

    def move(self, state: S, said: ToolCall | str) -> Answer:
        """Change `state` by a checked call, or by a text where the world hears those or has no tools."""
        ...

    def key(self, state: S) -> str:
        """The state key; "" where states are not compared."""
        ...

    def legal(self, state: S) -> tuple[str, ...] | None:
        """The calls that are possible next, where they can be listed."""
        return None

    def speaker(self, state: S) -> str:
        """Who acts next; anyone but the agent speaks plain text."""
        return THE_AGENT

    def spent(self, state: S, amounts: Mapping[str, float]) -> Mapping[str, float]:
        """What another actor's words took (`Action.spent`), told before `move` gets them; what that costs here."""
        return {}

    def close(self) -> None:  # most hold nothing
        """Release what the rules hold; idempotent."""


class Played(Generic[S]):
    """An `Env` over `Rules`; `make` gives the rules anew, for each fork its own."""

    def __init__(self, make: Callable[[], Rules[S]]) -> None:
        self._make = make
        self._rules = make()
        self.task, self.tools = self._rules.task, self._rules.tools
        self.uses_seed = self._rules.uses_seed
        self._seed = 0
        self._state: S | None = None
        self._last: Step | None = None
        self._owed: str | None = None  # the id of the agent's call that another actor's words will answer

    @property
    def rules(self) -> Rules[S]:
        """The rules that are played."""
        return self._rules

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """A fresh game, or the one of `start`, which answers with the step it was taken at, without its reward."""
        if start is not None:
            if start.restore != "exact" or start.task_id != self.task.id:
                raise ValueError(
                    f"cannot start task {self.task.id!r} from a {start.restore!r} snapshot of task "
                    f"{start.task_id!r}; it needs an exact snapshot of the same task"
                )
            kept = msgspec.json.decode(start.state)
            self._seed, self._state = start.seed, msgspec.convert(kept["state"], self._rules.state)
            self._last = replace(step_from_json(kept["last"]), reward=None, channels={})
            self._owed = kept.get("owed")
            return self._last
        self._seed, self._owed = seed, None
        self._state, text = self._rules.begin(seed)
        shown = (Message.told(bounded(text)),)
        self._last = self._made(shown, [], _NOTHING, self._rules.speaker(self._state))
        return self._last

    async def step(self, action: Action) -> Step:
        """Do what was said, call by call, until the episode ends; a mistake is answered and changes nothing."""
        state, rules = self._going("step"), self._rules
        answers: list[Answer] = []
        messages: list[Message] = []
        costs, speaker = _NOTHING, rules.speaker(state)
        if speaker != THE_AGENT:
            costs = rules.spent(state, dict(action.spent))
        for said, call in self._read(action, speaker):
            if isinstance(said, ParseError):
                answer = Answer(f"error: {clean(said.message[:500])}")
            else:
                answer = rules.move(state, said)
            speaker = rules.speaker(state)
            answers.append(answer)
            messages.append(self._told(bounded(answer.text), None if call is None else call.id, speaker))
            if answer.stop is not None:
                break
        self._last = self._made(tuple(messages), answers, costs, speaker)
        return self._last

    def _told(self, text: str, call: str | None, speaker: str) -> Message:
        """An answer to a call or a text; one that goes to another actor leaves the agent's call open."""
        if speaker != THE_AGENT:
            self._owed = call if call is not None else self._owed
            return Message.told(text)
        if call is None:
            call, self._owed = self._owed, None
        return Message.told(text, call)

    def _read(self, action: Action, speaker: str) -> list[tuple[ToolCall | str | ParseError, ToolCall | None]]:
        if speaker != THE_AGENT:
            return [(clean(action.text), None)]
        if action.error is not None:
            return [(action.error, None)]
        tools, calls = self.tools, action.calls
        if calls:
            if not tools:
                return [(ParseError(message="there are no tools here: answer in words"), calls[0])]
            if len(calls) > 1 and (alone := self._rules.alone & {call.name for call in calls}):
                why = ParseError(message=f"{min(alone)} must be the only call of a message; nothing was done")
                return [(why, call) for call in calls]
            return [(check_call(call, tools), call) for call in calls]
        text = clean(action.text)
        if not tools:
            return [(text, None)]
        call = parse_call(text, tools)
        if not isinstance(call, ParseError):
            return [(call, call)]
        return [(text if self._rules.hears and text.strip() else call, None)]

    def _made(
        self, messages: tuple[Message, ...], answers: list[Answer], costs: Mapping[str, float], speaker: str
    ) -> Step:
        """The step of what was answered; most have one answer, which is not gathered with others."""
        assert self._state is not None
        last = answers[-1] if answers else _NO_ANSWER
        reward, channels, cost = last.reward, last.channels, last.cost
        if len(answers) > 1 or costs:
            rewards = [answer.reward for answer in answers if answer.reward is not None]
            reward = sum(rewards) if rewards else None
            channels, cost = _joined(answers, costs)
        info: Mapping[str, Any] = _NOTHING
        if last.earned_by or last.silent:
            info = {EARNED_BY: last.earned_by} if last.earned_by else {}
            info |= {"silent": list(last.silent)} if last.silent else {}
        return Step(
            messages,
            reward,
            channels,
            last.stop,
            self._rules.key(self._state),
            None if last.stop else self._rules.legal(self._state),
            last.submission,
            cost,
            info,
            speaker,
        )

    def _going(self, what: str) -> S:
        if self._state is None or self._last is None:
            raise RuntimeError(f"{what} before reset in task {self.task.id!r}: call reset(seed=...) first")
        if self._last.stop is not None:
            raise RuntimeError(
                f"{what} after the end ({self._last.stop}) in task {self.task.id!r}: call reset first"
            )
        return self._state

    async def snapshot(self) -> Snapshot:
        """The whole state as JSON."""
        if self._state is None or self._last is None:
            raise RuntimeError(f"snapshot before reset in task {self.task.id!r}: there is no state yet")
        kept = {"state": msgspec.to_builtins(self._state), "last": step_to_json(self._last), "owed": self._owed}
        state = msgspec.json.encode(kept).decode()
        return Snapshot(restore="exact", task_id=self.task.id, seed=self._seed, state=state)

    async def release(self, snapshot: Snapshot) -> None:
        """A snapshot owns nothing."""

    async def fork(self) -> "Played[S]":
        """An independent game in the same state."""
        other = Played(self._make)
        if self._state is not None:
            copied = msgspec.json.decode(msgspec.json.encode(self._state), type=self._rules.state)
            other._seed, other._state, other._last, other._owed = self._seed, copied, self._last, self._owed
        return other

    async def close(self) -> None:
        """Let go of what the rules hold."""
        self._rules.close()


def _joined(answers: list[Answer], costs: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Channels, where a later answer's stand, and costs, which add up."""
    channels: dict[str, float] = {}
    cost = dict(costs)
    for answer in answers:
        channels |= answer.channels
        for name, amount in answer.cost.items():
            cost[name] = cost.get(name, 0.0) + amount
    return channels, cost


def played(kind: Callable[..., Rules[Any]]) -> Callable[..., Played[Any]]:
    """What an `EnvSpec.make` needs, of a class of rules that is made of a task and options."""

    def make(task: Task, **options: Any) -> Played[Any]:
        return Played(lambda: kind(task, **options))

    make.__doc__ = kind.__doc__
    make.__signature__ = inspect.signature(kind)  # type: ignore[attr-defined]  # which options there are
    return make


def clean(text: str) -> str:
    """A text that JSON and databases can hold: lone surrogates and NUL replaced, its length bounded."""
    return text[:MOST_TEXT].encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def bounded(text: str, most: int = MOST_TEXT) -> str:
    """The text, or its head and tail with a mark of what is left out between."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def draws(*seeds: int) -> np.random.Generator:
    """A generator of its own for a combination of seeds."""
    return np.random.default_rng([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds])


def lazy_tasks(make: Callable[[int, str], Task], count: int | None, *, obeyed: bool = True) -> TaskSet:
    """`count` tasks (None: without end) of ``make(index, split)``, of the split it is told (every fifth "heldout").

    obeyed: False where a task's content decides its split, whatever is told: it is then known of made tasks only.
    Raises ValueError for a count below one.
    """
    if count is not None and count < 1:
        raise ValueError(f"count is {count}; it must be at least 1, or None for tasks without end")
    split_of = _split_of if obeyed else None
    return TaskSet.lazy(lambda index: make(index, _split_of(index)), length=count, split_of=split_of)


def _split_of(index: int) -> str:
    return "train" if index % 5 else "heldout"
