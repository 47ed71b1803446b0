"""`reasoning-gym`: every generator of that library as tasks, unmodified; its own scores are the rewards.

A task names a generator, a seed and a place; the entry is made again where it is played. One turn: the answer. Two
kinds of generators have no answer of their own: some accept several, and are then scored only, and "composite"
mixes others, which a task set of several generators does here.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from envgym.env import Step, StopReason
from envgym.messages import Action, ToolCall
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym_environments.experts import expert_of
from envgym_environments.played import Answer, Rules, lazy_tasks, played
from envgym_environments.text.answers import judged, refused

__all__ = ["GENERATORS", "SPEC", "Reasoning", "expert", "found", "reasoning_tasks"]

GENERATORS: tuple[str, ...] = tuple(sorted(name for name in DATASETS if name != "composite"))

_SIZE = 1000
"""Entries of one data set: a task's place in it comes from its index, the data set's seed from the thousands."""


@lru_cache(maxsize=64)
def _dataset(generator: str, seed: int) -> Any:
    return reasoning_gym.create_dataset(generator, seed=seed, size=_SIZE)


@lru_cache(maxsize=1024)
def _entry(generator: str, seed: int, place: int) -> dict[str, Any]:
    return dict(_dataset(generator, seed)[place])


def found(task: Task) -> tuple[Any, dict[str, Any]]:
    """A task's data set and its entry there, with the library's own answer."""
    data = task.metadata
    generator, seed, place = str(data["generator"]), int(str(data["seed"])), int(str(data["place"]))
    return _dataset(generator, seed), _entry(generator, seed, place)


class Reasoning(Rules[dict[str, int]]):
    """Rules of `reasoning-gym`. Reward: the generator's own score of the answer, 0 to 1."""

    state = dict[str, int]

    def __init__(self, task: Task) -> None:
        self.task = task

    def begin(self, seed: int) -> tuple[dict[str, int], str]:
        """The question."""
        return {}, self.task.prompt

    def move(self, state: dict[str, int], said: ToolCall | str) -> Answer:
        """Score the answer; one that cannot be read is worth nothing. A broken scorer is a GraderFailure."""
        dataset, entry = found(self.task)
        answer, own = str(said), str(entry["answer"] or "")
        # the library's own answer may be one that nobody else may give: an integral that sympy could not compute
        score, unread = 0.0, None if answer == own else refused(str(self.task.metadata["generator"]), answer)
        if unread is None:
            score, unread = judged(lambda text: dataset.score_answer(text, entry), answer, own)
        stop = StopReason.GOAL if score >= 1.0 else StopReason.SUBMITTED
        told = f"score {score:g}" + (f"; the answer was not read: {unread}" if unread else "")
        channels = {"reward": score, "unread": float(bool(unread))}
        return Answer(told, score, stop, channels, submission=answer)

    def key(self, state: dict[str, int]) -> str:
        """There is one state."""
        return "asked"


def reasoning_tasks(
    count: int | None = 1000, *, generators: Sequence[str] | str | None = None, seed: int = 0
) -> TaskSet:
    """`count` tasks (None: without end) of the named generators in turn (None: of all).

    Raises ValueError for a generator that there is not.

    """
    chosen = (generators,) if isinstance(generators, str) else generators
    names = GENERATORS if chosen is None else tuple(chosen)
    if unknown := [name for name in names if name not in GENERATORS]:
        raise ValueError(f"generators {unknown} are unknown; there are {', '.join(GENERATORS)}")
    if not names:
        raise ValueError("generators is empty; name at least one")

    def make(index: int, split: str) -> Task:
        name, number = names[index % len(names)], index // len(names)
        place = number % _SIZE
        base = 1_000_003 * seed + number // _SIZE
        return Task(
            id=f"reasoning-gym/{name}/{base}/{place}",
            prompt=str(_entry(name, base, place)["question"]),
            split=split,
            seed=index,
            metadata={"generator": name, "seed": base, "place": place},
        )

    return lazy_tasks(make, count)


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """The library's own answer; a generator without one gets an empty text."""
    return Action.say(str(found(task)[1]["answer"] or ""))


expert = expert_of(_decide)

SPEC = EnvSpec(
    name="reasoning-gym",
    tasks=reasoning_tasks,
    make=played(Reasoning),
    description="Every generator of the library reasoning-gym, scored by itself.",
    in_process=True,
)
