"""From trails to tasks: a state worth asking for, the shortest known way to it, and proof that it can be reached.

As CuES does (task generation for environments without tasks): explore, abstract what happened to schemas, keep what
is executable and new, and remember it. Here executable means: the way, played again twice in fresh worlds, ends in
that state both times; doing nothing does not; and without any one of its actions it is not reached. New means: no
task asks for that state, and none has the same way to the same sight; under another seed it is no other task. A
single step is one if the trail up to it came out again.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from envgym.env import Env, Step
from envgym.messages import Action
from envgym.synthesis.explore import Explorer, Trail, explore, state_of
from envgym.synthesis.found import Found, Single, schema_of, singles
from envgym.synthesis.memory import Tried
from envgym.synthesis.told import Told
from envgym.task import Task
from envgym.tools import compact
from envgym.wire import action_to_json, dumps

__all__ = ["Synthesis", "synthesize"]


@dataclass(frozen=True, slots=True)
class Synthesis:
    """tasks: new ones. refused: how many candidates failed, by reason. steps: tasks of single steps, if wanted."""

    tasks: tuple[Task, ...]
    refused: dict[str, int]
    steps: tuple[Task, ...] = ()


async def walked(make: Callable[[], Env], seed: int, way: Sequence[Action]) -> list[Step] | None:
    """The first step of a fresh world, and that after each action of a way; None where it ends before."""
    env = make()
    try:
        steps = [await env.reset(seed=seed)]
        for action in way:
            if steps[-1].stop is not None:
                return None
            steps.append(await env.step(action))
        return steps
    finally:
        await env.close()


async def reach(make: Callable[[], Env], seed: int, way: Sequence[Action]) -> Step | None:
    """The step at the end of a way, in a fresh world; None where it ends before."""
    steps = await walked(make, seed, way)
    return None if steps is None else steps[-1]


async def shortened(make: Callable[[], Env], seed: int, way: Sequence[Action], goal: str) -> tuple[Action, ...]:
    """A way without the actions that do not matter for its end."""
    kept = list(way)
    for at in reversed(range(len(kept))):
        shorter = kept[:at] + kept[at + 1 :]
        end = await reach(make, seed, shorter)
        if end is not None and state_of(end) == goal:
            kept = shorter
    return tuple(kept)


async def synthesize(  # noqa: PLR0913  # what is explored, by whom, how much of it
    name: str, base: Task, make: Callable[[], Env], explorer: Callable[[int], Explorer], *, count: int,
    trails: int = 50, turns: int = 8, seed: int = 0, tried: Tried | None = None, per_schema: int = 5,
    told: Told | None = None,
) -> Synthesis:  # fmt: skip
    """Up to `count` tasks over an environment.

    Args:
        name: of the environment.
        base: the task that its worlds are made from.
        make: gives a fresh environment of `base`.
        explorer: ``explorer(seed)``, one for each trail, which is closed after it.
        count: of tasks that are wanted; fewer where all trails show no more.
        trails: how many explorations there are at most.
        turns: how many actions one has at most.
        seed: of everything that is drawn.
        tried: what earlier calls remember; it is added to.
        per_schema: how many tasks may share a schema, earlier calls' included.
        told: who writes prompts and instructions and rates trails; scripts by default.

    Raises ValueError for a rating that is not in (0, 1].
    """
    made = _Making(name, base, make, Tried() if tried is None else tried, per_schema, told or Told())
    tasks: list[Task] = []
    steps: list[Task] = []
    for number in range(trails):
        if len(tasks) >= count:
            break
        own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        trail = await made.trail(explorer, own, turns)
        instructions = await made.steps(trail, steps)
        for at in range(len(trail.actions)):
            if len(tasks) < count and (found := await made.candidate(trail, at)) is not None:
                found = replace(found, told=_told(instructions, trail, found))
                tasks += await made.task(found, len(tasks))
    return Synthesis(tuple(tasks), dict(made.refused), tuple(steps))


def _told(instructions: dict[int, str], trail: Trail, found: Found) -> tuple[str, ...]:
    """The instructions of a way's actions; none where one of them has none."""
    places = [at for at, action in enumerate(trail.actions) if any(action is one for one in found.way)]
    return tuple(instructions[at] for at in places) if instructions.keys() >= set(places) else ()


class _Making:
    """What all trails of one call have in common."""

    def __init__(
        self, name: str, base: Task, make: Callable[[], Env], tried: Tried, per_schema: int, told: Told
    ) -> None:
        self._name, self._base, self._make = name, base, make
        self._tried, self._per_schema, self._told = tried, per_schema, told
        self.refused = Counter[str]()
        self._tools: tuple[Any, ...] = ()

    async def trail(self, explorer: Callable[[int], Explorer], seed: int, turns: int) -> Trail:
        """One exploration in a world of its own; whoever explores is closed with it."""
        env = self._make()
        try:
            explores = explorer(seed)
            try:
                found = await explore(env, explores, self._tried, seed=seed, turns=turns)
                self._tools = tuple(env.tools)
                return found
            finally:
                await explores.close()
        finally:
            await env.close()

    async def steps(self, trail: Trail, into: list[Task]) -> dict[int, str]:
        """Adds the tasks of a trail's single steps that are new; the instructions of all, by their place."""
        if self._told.steps is None:
            return {}
        again = await _repeated(self._make, trail)
        instructions: dict[int, str] = {}
        for single in singles(trail):
            at = len(single.lead)
            if at >= again:
                self.refused["step not repeated"] += 1
                continue
            instructions[at] = await self._told.steps(single)
            if single.key not in self._tried.goals:
                self._tried.goals.add(single.key)
                into.append(self._single(trail, single, instructions[at], len(into)))
        return instructions

    async def candidate(self, trail: Trail, at: int) -> Found | None:
        """What the state after an action is worth: a find, or None and the reason is counted."""
        found = await _candidate(self._make, trail, at, self._tried, self._per_schema)
        if isinstance(found, str):
            self.refused[found] += 1
            return None
        return found

    async def task(self, found: Found, number: int) -> list[Task]:
        """The task of a find; none where its trail is rated too low."""
        self._tried.goals |= {found.goal, _deed(found.way, found.last)}
        score = await self._told.rating(found)
        if not 0.0 < score <= 1.0:
            raise ValueError(f"a rating is {score}; it must be above 0 and at most 1")
        if score < self._told.least:
            self.refused["rated too low"] += 1
            return []
        self._tried.schemas[found.schema] += 1
        prompt = await self._told.words(found, self._tools)
        made = self._made(found.seed, found.goal, found.schema, found.way) | {"score": score}
        if found.told:
            made["instructions"] = list(found.told)
        return [_task(f"{self._name}/synthesized-{found.seed}-{number}", prompt, number, made)]

    def _single(self, trail: Trail, single: Single, instruction: str, number: int) -> Task:
        schema = schema_of(trail, (single.action,))
        made = self._made(single.seed, state_of(single.after), schema, (single.action,))
        made |= {"lead": _written(single.lead), "score": 1.0}
        return _task(f"{self._name}/step-{single.seed}-{number}", instruction, number, made)

    def _made(self, seed: int, goal: str, schema: str, way: Sequence[Action]) -> dict[str, Any]:
        return {
            "env": self._name, "base": self._base.model_dump(mode="json"), "seed": seed, "goal": goal,
            "schema": schema, "reference": _written(way),
        }  # fmt: skip


def _written(way: Sequence[Action]) -> list[Any]:
    return [json.loads(dumps(action_to_json(action))) for action in way]


def _task(name: str, prompt: str, number: int, made: dict[str, Any]) -> Task:
    split = "train" if number % 5 else "heldout"
    return Task(id=name, prompt=prompt, split=split, metadata={"synthesized": made})


async def _repeated(make: Callable[[], Env], trail: Trail) -> int:
    """How many steps of a trail come out again in a fresh world."""
    env = make()
    try:
        step = await env.reset(seed=trail.seed)
        if state_of(step) != state_of(trail.first):
            return 0
        for at, (action, seen) in enumerate(zip(trail.actions, trail.steps, strict=True)):
            if step.stop is not None:
                return at
            step = await env.step(action)
            if state_of(step) != state_of(seen):
                return at
        return len(trail.actions)
    finally:
        await env.close()


async def _candidate(make: Callable[[], Env], trail: Trail, at: int, tried: Tried, per_schema: int) -> Found | str:
    """What the state after an action is worth: a find, or the reason why it is none."""
    goal, begin = state_of(trail.steps[at]), state_of(trail.first)
    before = {begin, *(state_of(step) for step in trail.steps[:at])}
    if goal in before:
        return "nothing changed"
    if goal in tried.goals:
        return "asked for before"
    way = await shortened(make, trail.seed, trail.actions[: at + 1], goal)
    schema = schema_of(trail, way)
    if not way or not schema:
        return "nothing was called"
    if tried.schemas[schema] >= per_schema:
        return "schema used up"
    played = [await walked(make, trail.seed, way) for _ in range(2)]
    if any(steps is None or state_of(steps[-1]) != goal for steps in played):
        return "not executable"
    steps = played[0]
    assert steps is not None
    if _deed(way, steps[-1]) in tried.goals:
        return "asked for before"
    heard = [one for step, action in zip(steps, way, strict=False) for one in (*step.observation, action.message)]
    return Found(trail.seed, goal, way, schema, steps[-1], at + 1, heard=tuple(heard))


def _deed(way: Sequence[Action], last: Step) -> str:
    """A digest of what is done and what is then seen: the same under two seeds is one task, whatever the states."""
    done = "\n".join([*(compact(call) for action in way for call in action.calls), last.text])
    return f"deed {hashlib.blake2b(done.encode('utf-8', 'replace'), digest_size=12).hexdigest()}"
