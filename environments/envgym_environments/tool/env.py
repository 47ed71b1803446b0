"""Tasks over any tools: an agent calls, a toolbox answers, and a last sentence without a call is the answer.

A `ToolWorld` is tools with a state. One that can dump and load that state has exact snapshots and forks; one that
cannot (a server, a service) is played again. What an episode was worth is told at its end, in named channels.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

from pydantic import JsonValue

from envgym.env import Snapshot, Step, StopReason
from envgym.messages import Action, Message, ToolCall, ToolSpec
from envgym.rewards import Channel, Mixture, Score, ToolMatch, match_calls
from envgym.task import Task
from envgym.toolbox import Tool, Toolbox, ToolLimits
from envgym.tools import parse_call

__all__ = ["Stateful", "ToolEnv", "ToolPlay", "ToolWorld", "answers", "exact_env"]

Making = Callable[[Task, int], Any]
"""``make(task, seed)`` gives a `ToolWorld`, or an awaitable of one."""

MIXTURE = Mixture((Channel("state"), Channel("answer"), Channel("calls")), rule="mean")


class ToolWorld(Protocol):
    """Tools, for one episode. A method ``goal(task)``, where it has one, gives the part of a state that is wanted.

    It is asked when the world is fresh.
    """

    def tools(self) -> Sequence[Tool]:
        """The tools of this world, on its state."""
        ...

    async def close(self) -> None:
        """Release everything; idempotent."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """A world whose whole state is JSON."""

    def dump(self) -> JsonValue:
        """The state."""
        ...

    def load(self, state: JsonValue) -> None:
        """Take on a state."""
        ...


class ToolPlay:
    """Implements `envgym.env.Playable` over a world.

    The end is graded by what the task knows (`Task.metadata`), each a channel in [0, 1], their mean the reward:
    "state": the part of the final state that `goal` names; "answer": the last text, or what stands behind its last
    "Final Answer:", is ``metadata["answer"]`` (see `answers`); "calls": ToolRL's share of ``metadata["calls"]``,
    with its parts beside it (`ToolMatch.channels`). A task that knows nothing of these has no reward: None, not 0.
    """

    def __init__(
        self, task: Task, make: Making, specs: Sequence[ToolSpec], limits: ToolLimits | None = None
    ) -> None:
        self.task, self._make, self._limits = task, make, limits
        self._specs = tuple(specs)
        self._world: Any = None
        self._box = Toolbox((), limits)
        self._goal: JsonValue = None
        self._made: list[ToolCall] = []
        self._last = Step()

    @property
    def uses_seed(self) -> bool | None:
        """Whether an episode's seed decides anything, where whoever makes the world says so."""
        return getattr(self._make, "uses_seed", None)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What actions may call: known before there is a world, so that an agent can be told."""
        return self._specs

    async def reset(self, *, seed: int) -> Step:
        """A fresh world."""
        await self.close()
        made = self._make(self.task, seed)
        self._world = await made if hasattr(made, "__await__") else made
        self._box = Toolbox(self._world.tools(), self._limits)
        goal = getattr(self._world, "goal", None)
        self._goal = self.task.metadata.get("goal") if goal is None else goal(self.task)
        self._made = []
        self._last = self._step((Message(role="user", content=self.task.prompt),))
        return self._last

    async def step(self, action: Action) -> Step:
        """Run the calls; a text without one is the answer and ends the episode."""
        if self._world is None or self._last.stop is not None:
            raise RuntimeError(f"step in task {self.task.id!r} before reset or after the end: call reset first")
        action = self._read(action)
        if action.error is None and not action.calls:
            if action.text.strip():
                self._last = self._ended(action.text)
            else:
                told = Message(role="user", content="nothing was said; call a tool, or answer in a sentence")
                self._last = self._step((told,))
            return self._last
        answer = await self._box.answer(action)
        self._made += action.calls
        self._last = self._step(answer.observation, cost=dict(answer.cost), faults=len(answer.faults))
        return self._last

    def _read(self, action: Action) -> Action:
        """A compact call in the text is a call."""
        first = action.text.strip().split(maxsplit=1)[:1]
        if action.calls or action.error or not any(spec.name in first for spec in self.tools):
            return action
        found = parse_call(action.text, self.tools)
        if isinstance(found, ToolCall):
            return Action(message=action.message.model_copy(update={"tool_calls": (found,)}))
        return action.model_copy(update={"error": found})

    def _step(self, observation: tuple[Message, ...], *, faults: int = 0, **more: Any) -> Step:
        channels = {"tool_faults": float(faults)} if faults else {}
        return Step(observation, channels=channels, state_key=self._key(), **more)

    def _key(self) -> str:
        """Of all that what follows depends on: the world, what is wanted, and the calls where those are graded."""
        if not isinstance(self._world, Stateful):
            return ""
        graded = isinstance(self.task.metadata.get("calls"), list)
        made = [[call.name, call.arguments] for call in self._made] if graded else []
        whole = json.dumps([self._world.dump(), self._goal, made], sort_keys=True)
        return hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()

    def _ended(self, text: str) -> Step:
        gold = self.task.metadata.get("calls")
        match = (
            match_calls(self._made, [ToolCall.model_validate(call) for call in gold])
            if isinstance(gold, list)
            else None
        )
        told = MIXTURE.total(self._scores(text, match)).step
        told["channels"] |= match.channels if match else {}
        seen = (Message(role="user", content="the end"),)
        return Step(seen, stop=StopReason.SUBMITTED, submission=text, state_key=self._key(), **told)

    def _scores(self, text: str, match: ToolMatch | None) -> dict[str, Score]:
        known = self.task.metadata
        scores: dict[str, Score] = {"state": None, "answer": None, "calls": match.share if match else None}
        if self._goal is not None and isinstance(self._world, Stateful):
            scores["state"] = float(_within(self._goal, self._world.dump()))
        if isinstance(answer := known.get("answer"), str):
            scores["answer"] = float(answers(text.rpartition("Final Answer:")[2], answer))
        return scores

    def dump(self) -> str:
        """All that an exact snapshot needs, as JSON."""
        made = [call.model_dump() for call in self._made]
        return json.dumps([self._world.dump(), made, self._goal, self._last.stop])

    async def load(self, state: str, seed: int) -> Step:
        """A fresh world in a state that `dump` gave."""
        await self.reset(seed=seed)
        world, made, self._goal, stop = json.loads(state)
        self._world.load(world)
        self._made = [ToolCall.model_validate(call) for call in made]
        self._last = self._step((Message(role="user", content="(as it was)"),))
        if stop is not None:
            self._last = Step(self._last.observation, stop=StopReason(stop))
        return self._last

    @property
    def begun(self) -> bool:
        """Whether there is a world."""
        return self._world is not None

    async def close(self) -> None:
        """Close tools and world."""
        box, world = self._box, self._world
        self._box, self._world = Toolbox((), self._limits), None
        await box.close()
        if world is not None:
            await world.close()


def answers(said: str, wanted: str) -> bool:
    """Whether a text is an answer, and no more: one that only holds it may say the opposite, or another number.

    Case, spaces, quotes around it and a stop behind it do not count; numbers are compared by their exact value.
    """
    one, two = _bare(said), _bare(wanted)
    return one == two or (_number(one) is not None and _number(one) == _number(two))


def _bare(text: str) -> str:
    return " ".join(text.casefold().split()).strip("\"'`*").rstrip(".!").strip("\"'`* ")


_NUMBER = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d{1,400})(\.\d{1,400})?", re.ASCII)


def _number(text: str) -> Fraction | None:
    return Fraction(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def _within(goal: JsonValue, state: JsonValue) -> bool:
    """Whether a state has all that a goal names; lists are compared whole."""
    if isinstance(goal, dict):
        return isinstance(state, dict) and all(k in state and _within(v, state[k]) for k, v in goal.items())
    return goal == state


class ToolEnv:
    """Implements `envgym.env.Env` over a `Stateful` world: its snapshots are exact."""

    def __init__(self, play: ToolPlay, again: Callable[[], ToolPlay], seed: int = 0) -> None:
        self._play, self._again, self._seed = play, again, seed
        self.task = play.task

    @property
    def uses_seed(self) -> bool | None:
        """See `ToolPlay.uses_seed`."""
        return self._play.uses_seed

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What actions may call."""
        return self._play.tools

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """A fresh state, or the state of `start`."""
        if start is None:
            self._seed = seed
            return await self._play.reset(seed=seed)
        if start.restore != "exact" or start.task_id != self.task.id:
            raise ValueError(
                f"this snapshot is {start.restore!r} of task {start.task_id!r}, not of {self.task.id!r}"
            )
        self._seed = start.seed
        return await self._play.load(start.state, start.seed)

    async def step(self, action: Action) -> Step:
        """Act."""
        return await self._play.step(action)

    async def snapshot(self) -> Snapshot:
        """The world's state, as JSON."""
        if not self._play.begun:
            raise RuntimeError(f"snapshot before reset in task {self.task.id!r}: there is no state yet")
        return Snapshot(restore="exact", task_id=self.task.id, seed=self._seed, state=self._play.dump())

    async def release(self, snapshot: Snapshot) -> None:
        """It owns nothing."""

    async def fork(self) -> "ToolEnv":
        """Another world in the same state."""
        other = ToolEnv(self._again(), self._again, self._seed)
        if self._play.begun:
            await other._play.load(self._play.dump(), self._seed)
        return other

    async def close(self) -> None:
        """Close the world."""
        await self._play.close()


def exact_env(task: Task, make: Making, limits: Mapping[str, Any] | None = None) -> ToolEnv:
    """An environment over a `Stateful` world. limits: as `ToolLimits`."""
    specs = [tool.spec for tool in make(task, 0).tools()]

    def again() -> ToolPlay:
        return ToolPlay(task, make, specs, ToolLimits(**limits) if limits else None)

    return ToolEnv(again(), again)
