"""`reasoning-gym`: every generator of that library as tasks, unmodified; its own scores are the rewards.

A task names a generator, a seed and a place; the entry is made again where it is played. One turn: the answer. Five
generators accept several answers and give none (see `reasoning_expert`), and "composite" mixes others, which a task
set of several generators does here.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import reasoning_gym
from pydantic import JsonValue
from reasoning_gym.factory import DATASETS, create_curriculum

from envgym.env import Step, StopReason
from envgym.messages import Action, ToolCall
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym_environments.experts import expert_of
from envgym_environments.played import Answer, Rules, lazy_tasks, played
from envgym_environments.splits import belongs
from envgym_environments.text.answers import judged, refused
from envgym_environments.text.reasoning_expert import own_answer

__all__ = ["GENERATORS", "SPEC", "Reasoning", "expert", "found", "reasoning_tasks"]

GENERATORS: tuple[str, ...] = tuple(sorted(name for name in DATASETS if name != "composite"))

_SIZE = 1000
"""Entries of one data set: a task's place in it comes from its index, the data set's seed from the thousands.

The library draws an entry from the sum of seed and place: data sets whose seeds are nearer than this share some.
"""


@lru_cache(maxsize=64)
def _dataset(generator: str, seed: int, level: int | None) -> Any:
    if level is None:
        return reasoning_gym.create_dataset(generator, seed=seed, size=_SIZE)
    return DATASETS[generator][0](config=_configured(generator, seed, level))


def _configured(generator: str, seed: int, level: int) -> Any:
    """What the library's own curriculum makes of a level. Raises ValueError where it has none that is valid."""
    try:
        curriculum = create_curriculum(generator)
        curriculum.set_global_level(level)
        config = curriculum.generate_configuration({"seed": seed, "size": _SIZE})
        if hasattr(config, "validate"):  # one of the library's has none
            config.validate()
    except (ValueError, AssertionError) as error:
        raise ValueError(f"generator {generator!r} has no level {level} of the library's own: {error}") from error
    return config


def _has(generator: str, level: int) -> bool:
    try:
        return _configured(generator, 0, level) is not None
    except ValueError:
        return False


@lru_cache(maxsize=1024)
def _entry(generator: str, seed: int, place: int, level: int | None) -> dict[str, Any]:
    return dict(_dataset(generator, seed, level)[place])


def found(task: Task) -> tuple[Any, dict[str, Any]]:
    """A task's data set and its entry there, with the library's own answer."""
    data = task.metadata
    generator, seed, place = str(data["generator"]), int(str(data["seed"])), int(str(data["place"]))
    level = int(str(data["level"])) if "level" in data else None
    return _dataset(generator, seed, level), _entry(generator, seed, place, level)


class Reasoning(Rules[dict[str, int]]):
    """Rules of `reasoning-gym`. Reward: the generator's own score of the answer, 0 to 1."""

    state = dict[str, int]
    uses_seed = False

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
    count: int | None = 1000, *, generators: Sequence[str] | str | None = None, level: int | None = None,
    seed: int = 0,
) -> TaskSet:  # fmt: skip
    """`count` tasks (None: without end) of the named generators in turn (None: of all).

    level: of difficulty, from 0, as the library's curricula have them; above their last it is the last. None: what
    each generator does by itself. Generators without such a level are left out, and refused where they are named.
    A question's text decides its split, for small generators repeat themselves; a fifth of all texts is held out.
    Raises ValueError for them, for a generator that there is not, and for a level below 0.
    """
    chosen = (generators,) if isinstance(generators, str) else generators
    names = GENERATORS if chosen is None else tuple(chosen)
    if unknown := [name for name in names if name not in GENERATORS]:
        raise ValueError(f"generators {unknown} are unknown; there are {', '.join(GENERATORS)}")
    if not names:
        raise ValueError("generators is empty; name at least one")
    if level is not None and level < 0:
        raise ValueError(f"level is {level}; it must be at least 0, or None for the generators' own")
    if level is not None and chosen is None:
        names = tuple(name for name in names if _has(name, level))
    elif level is not None:
        for name in names:
            _configured(name, seed, level)
    graded: dict[str, JsonValue] = {} if level is None else {"level": level}
    mark = "" if level is None else f"/level-{level}"

    def make(index: int, _split: str) -> Task:
        name, number = names[index % len(names)], index // len(names)
        place = number % _SIZE
        base = 1_000_003 * seed + number - place
        question = str(_entry(name, base, place, level)["question"])
        return Task(
            id=f"reasoning-gym/{name}/{base}/{place}{mark}",
            prompt=question,
            split="heldout" if belongs(question, "heldout") else "train",
            seed=index,
            metadata={"generator": name, "seed": base, "place": place, **graded},
        )

    return lazy_tasks(make, count, obeyed=False)


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """The library's own answer, or one that is found where it has none."""
    return Action.say(own_answer(str(task.metadata["generator"]), found(task)[1]))


expert = expert_of(_decide)

SPEC = EnvSpec(
    name="reasoning-gym",
    tasks=reasoning_tasks,
    make=played(Reasoning),
    description="Every generator of the library reasoning-gym, scored by itself.",
    in_process=True,
)
