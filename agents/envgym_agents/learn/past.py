"""Groups of episodes that earlier runs stored, as something to learn from: before playing, or beside it.

Which groups a step has is a function of (seed, step). Their tokens were sampled by other policies, and keep the
log-probabilities that those had: a loss weighs them by these, within its bounds, or does not read them at all.
They are in no queue, so no bound on staleness is theirs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from envgym.env import Env
from envgym.episode import Episode, Group
from envgym.store import StoreReader
from envgym.task import Task
from envgym_agents.learn.collect import teaches
from envgym_agents.learn.config import Reinforce
from envgym_agents.learn.folder import TRAJECTORIES
from envgym_agents.learn.student import Student

__all__ = ["PastGroups", "past_groups", "store_at", "whole_episodes"]


@dataclass(frozen=True, slots=True)
class PastGroups:
    """The groups, pass after pass in a seeded order. count: of one step. steps: how many have some; 0: all."""

    groups: Sequence[Group]
    seed: int
    count: int
    steps: int = 0

    def of_step(self, step: int) -> list[Group]:
        """What that step learns from, no group twice."""
        if self.steps and step >= self.steps:
            return []
        size, count = len(self.groups), min(self.count, len(self.groups))
        found = {}
        for place in range(step * count, (step + 1) * count):
            lap, index = divmod(place, size)
            number = int(np.random.default_rng([self.seed, 12, lap]).permutation(size)[index])
            found[number] = self.groups[number]
        return list(found.values())


def store_at(path: str | Path) -> Path:
    """The store of a run folder, or the path itself. Raises ValueError where there is none, with the field."""
    place = Path(path) / TRAJECTORIES if (Path(path) / TRAJECTORIES).is_dir() else Path(path)
    try:
        StoreReader(place)
    except ValueError as error:
        raise ValueError(f"reinforce.loop.past.path = {str(path)!r}: {error}") from error
    return place


def whole_episodes(path: str | Path) -> list[Episode]:
    """The episodes of a store that are whole paths: of a fork only its own turns are stored with it."""
    with StoreReader(path) as reader:
        return [episode for one in sorted(reader.ids) if (episode := reader[one]).parent is None]


async def past_groups(
    config: Reinforce, student: Student, example: Env, tasks: Iterable[Task], *, seed: int
) -> PastGroups | None:
    """The groups of `past.path` that teach, of the tasks that train; None where the configuration asks for none.

    Forks and what failed are left out.
    Episodes of one group stay together, and those that were played in none are one group for each task. One whose
    tokens are not the student's is told in the student's (`Student.retrace`); nobody knows how likely the student's
    tokens were to whoever played, so it is left out where the loss asks for that. Raises ValueError when nothing is
    left, and says how much of it was left out for what.
    """
    if config.loop.past.kind == "none":
        return None
    known, unread, strange = {task.id for task in tasks}, 0, 0
    found: dict[tuple[str, str], list[Episode]] = {}
    with StoreReader(store_at(config.loop.past.path)) as reader:
        for name in sorted(reader.ids):
            episode = reader[name]
            if episode.task_id not in known or episode.failure is not None or episode.parent is not None:
                unread += 1
                continue
            if not await _speaks(student, episode, example):
                if config.loss.reads_sampled:
                    strange += 1
                    continue
                episode = await student.retrace(episode, example)
            found.setdefault((episode.task_id, episode.group), []).append(episode)
    groups = [Group(task, tuple(members)) for (task, _), members in sorted(found.items())]
    kept = [group for group in groups if teaches(group, config)]
    if not kept:
        raise ValueError(
            f"reinforce.loop.past.path = {config.loop.past.path!r}: none of its {len(groups)} groups teaches "
            f"(reinforce.teaches {config.teaches!r}); {unread} episodes failed, are forks or of other tasks, and "
            f"{strange} have no log-probabilities in the student's tokens, which loss.kind {config.loss.kind!r} "
            "asks for"
        )
    alone = config.loop.past.kind == "alone"
    return PastGroups(kept, seed, config.tasks if alone else config.loop.past.groups, config.loop.past.steps)


async def _speaks(student: Student, episode: Episode, example: Env) -> bool:
    """Whether the episode's tokens are the student's: its first observation is the same ids."""
    if not episode.sampled_tokens:
        return False
    try:
        said = await student.retrace(replace(episode, turns=episode.turns[:1]), example)
    except ValueError:  # an action that the student has no token for
        return False
    return bool(said.turns[0].prompt_ids.tolist() == episode.turns[0].prompt_ids.tolist())
