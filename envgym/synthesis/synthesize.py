"""From trails to tasks: a state worth asking for, the shortest known way to it, and proof that it can be reached.

As CuES does (task generation for environments without tasks): explore, abstract what happened to schemas, keep what
is executable and new, and remember it. Here executable means: the way, played again twice in fresh worlds, ends in
that state both times; doing nothing does not; and without any one of its actions it is not reached. New means: no
task asks for that state, and none has the same way to the same sight; under another seed it is no other task.
"""

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from envgym.env import Env, Step
from envgym.messages import Action, ToolSpec, text_of
from envgym.synthesis.explore import Explorer, Trail, explore, seen_before, state_of
from envgym.synthesis.memory import Tried
from envgym.task import Task
from envgym.tools import compact
from envgym.wire import action_to_json, dumps

__all__ = ["Found", "Synthesis", "describe", "rate", "synthesize"]

Rate = Callable[["Found"], Awaitable[float]]
"""How good a trail was as a whole, in (0, 1]: how often its task is to be drawn (`rate`)."""
Describe = Callable[["Found", Sequence[ToolSpec]], Awaitable[str]]
"""The words of a task, for what was found; a model may write them (`describe`)."""


class Asks(Protocol):
    """As `envgym.rewards.Asker`."""

    async def ask(self, question: str, *, seed: int) -> str:
        """The answer."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """A state, the way to it, and its abstraction. last: what was then seen. walked: how many actions led there."""

    seed: int
    goal: str
    way: tuple[Action, ...]
    schema: str
    last: Step
    walked: int = 1


@dataclass(frozen=True, slots=True)
class Synthesis:
    """tasks: new ones. refused: how many candidates failed, by reason."""

    tasks: tuple[Task, ...]
    refused: dict[str, int]


def schema_of(trail: Trail, way: Sequence[Action]) -> str:
    """A way without its particulars: tools in order, arguments `seen` where found out, else `given`."""
    texts = [trail.first.text]
    parts = []
    for at, action in enumerate(trail.actions):
        if any(action is one for one in way):
            for call in action.calls:
                slots = [f"{k}={'seen' if seen_before(v, texts) else 'given'}" for k, v in call.arguments.items()]
                parts.append(f"{call.name}({', '.join(slots)})")
        texts.append(trail.steps[at].text)
    return " > ".join(parts)


async def reach(make: Callable[[], Env], seed: int, way: Sequence[Action]) -> Step | None:
    """The step at the end of a way, in a fresh world; None where it ends before."""
    env = make()
    try:
        step = await env.reset(seed=seed)
        for action in way:
            if step.stop is not None:
                return None
            step = await env.step(action)
        return step
    finally:
        await env.close()


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
    words: Describe | None = None, rating: Rate | None = None,
) -> Synthesis:  # fmt: skip
    """Up to `count` tasks over an environment.

    Args:
        name: of the environment.
        base: the task that its worlds are made from.
        make: gives a fresh environment of `base`.
        explorer: ``explorer(seed)``, one for each trail.
        count: of tasks that are wanted; fewer where all trails show no more.
        trails: how many explorations there are at most.
        turns: how many actions one has at most.
        seed: of everything that is drawn.
        tried: what earlier calls remember; it is added to.
        per_schema: how many tasks may share a schema, earlier calls' included.
        words: writes the prompts; by default they say what is to be seen at the end.
        rating: rates the trails; by default by the share of their actions that mattered.
    """
    tried = Tried() if tried is None else tried
    tasks: list[Task] = []
    refused: dict[str, int] = {}
    for number in range(trails):
        if len(tasks) >= count:
            break
        own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        env = make()
        try:
            trail = await explore(env, explorer(own), tried, seed=own, turns=turns)
            tools = env.tools
        finally:
            await env.close()
        for at in range(len(trail.actions)):
            found = await _candidate(make, trail, at, tried, per_schema)
            if isinstance(found, str):
                refused[found] = refused.get(found, 0) + 1
            elif len(tasks) < count:
                tried.goals |= {found.goal, _deed(found.way, found.last)}
                tried.schemas[found.schema] += 1
                prompt = await (words or _plain)(found, tools)
                score = await (rating or _straight)(found)
                if not 0.0 < score <= 1.0:
                    raise ValueError(f"a rating is {score}; it must be above 0 and at most 1")
                tasks.append(_task(name, base, found, prompt, len(tasks), score))
    return Synthesis(tuple(tasks), refused)


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
    ends = [await reach(make, trail.seed, way) for _ in range(2)]
    if any(end is None or state_of(end) != goal for end in ends):
        return "not executable"
    last = ends[0]
    assert last is not None
    if _deed(way, last) in tried.goals:
        return "asked for before"
    return Found(trail.seed, goal, way, schema, last, at + 1)


def _deed(way: Sequence[Action], last: Step) -> str:
    """A digest of what is done and what is then seen: the same under two seeds is one task, whatever the states."""
    done = "\n".join([*(compact(call) for action in way for call in action.calls), last.text])
    return f"deed {hashlib.blake2b(done.encode('utf-8', 'replace'), digest_size=12).hexdigest()}"


async def _straight(found: Found) -> float:
    return len(found.way) / found.walked


async def _plain(found: Found, tools: Sequence[ToolSpec]) -> str:
    seen = " ".join(text_of(message) for message in found.last.observation)[:400]
    return f"Bring it about that the world says: {seen}"


def describe(asker: Asks, *, guide: str = "") -> Describe:
    """Prompts that a model writes: of a schema and its end, never of the way itself. guide: what is wanted."""

    async def words(found: Found, tools: Sequence[ToolSpec]) -> str:
        listed = "\n".join(f"- {tool.name}: {tool.description[:200]}" for tool in tools)
        question = (
            f"Somebody has these tools:\n{listed}\nThe task is done in steps like these: {found.schema}\n"
            f"At its end this is seen: {found.last.text[:400]}\n{guide}\n"
            "Write the task as one request, without naming tools or steps. Answer with the request alone."
        )
        answer = (await asker.ask(question, seed=found.seed)).strip()
        return answer or await _plain(found, tools)

    return words


def rate(asker: Asks, *, least: float = 0.2) -> Rate:
    """Ratings that a model gives: 1 to 5 for how complete and coherent a way is, as a fifth each.

    As OS-Genesis weighs trails by a graded trajectory reward in the place of keeping or throwing them away. What is
    no number from 1 to 5 counts as `least`.
    """

    async def rating(found: Found) -> float:
        question = (
            f"Somebody did this, step by step: {found.schema}\nAt the end this was seen: {found.last.text[:400]}\n"
            "How complete and coherent is that as the way to do one task? Answer with one number, 1 (aimless) to 5."
        )
        told = re.search(r"[1-5](?!\d)", await asker.ask(question, seed=found.seed))
        return int(told[0]) / 5 if told else least

    return rating


def _task(name: str, base: Task, found: Found, prompt: str, number: int, score: float) -> Task:
    reference = [json.loads(dumps(action_to_json(action))) for action in found.way]
    made = {
        "env": name, "base": base.model_dump(mode="json"), "seed": found.seed, "goal": found.goal,
        "schema": found.schema, "reference": reference, "score": score,
    }  # fmt: skip
    return Task(
        id=f"{name}/synthesized-{found.seed}-{number}",
        prompt=prompt,
        split="train" if number % 5 else "heldout",
        metadata={"synthesized": made},  # type: ignore[dict-item]
    )
