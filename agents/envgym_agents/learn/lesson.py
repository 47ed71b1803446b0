"""What one step of the overlapped loop learns from: a batch, groups that trained before, stored ones, the others.

Groups that have trained may train again while they are within the bound on staleness (`loop.replay`), but for those
of their members that are not. Plain values and functions; the loop owns the replay that they read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envgym.buffer import Columns, Replay, Taken, oldest_version
from envgym.episode import Episode, Group
from envgym_agents.learn.members import sampled_only

__all__ = ["Lesson", "drawn_again", "remember"]


@dataclass(frozen=True, slots=True)
class Lesson:
    """drawn: each group that trains again, with those of its members that must not. past: stored groups.

    others: what was played since the step before and teaches nothing.
    """

    step: int
    taken: Taken
    drawn: Sequence[tuple[Group, frozenset[str]]]
    past: Sequence[Group]
    others: Sequence[Group]

    @property
    def masked(self) -> frozenset[str]:
        """The ids of the members whose tokens must not train."""
        return frozenset[str]().union(*self.taken.masked, *(mask for _, mask in self.drawn))

    @property
    def again(self) -> list[Group]:
        """The groups of `drawn`."""
        return [group for group, _ in self.drawn]

    @property
    def seen(self) -> list[Group]:
        """What the policy sampled, as a baseline learns from it: over all steps each group once."""
        return [sampled_only(group) for group in (*self.taken.groups, *self.others)]


def drawn_again(
    replay: Replay, taken: Taken, *, share: float, bound: int, rng: np.random.Generator
) -> list[tuple[Group, frozenset[str]]]:
    """Groups that have trained before and still are within the bound, with those members that are not.

    share: how many, as a multiple of what was taken.
    """
    size = round(share * len(taken.groups))
    ages = replay.columns(taken.version).age
    if not size or not (ages <= bound).any():
        return []

    def fresh(columns: Columns) -> Any:
        return (columns.age <= bound).astype(np.float64)

    draw = replay.sample(size, rng, version=taken.version, rule=fresh)
    once = dict(zip(draw.numbers.tolist(), draw.groups, strict=True))
    allowed = taken.version - bound
    return [
        (group, frozenset(one.id for one in group if (oldest_version(one) or 0) < allowed))
        for group in once.values()
    ]


def remember(replay: Replay, taken: Taken) -> None:
    """What has trained may train again; its freshest member says until when."""
    for group, mask in zip(taken.groups, taken.masked, strict=True):
        kept = _standing(group, mask)
        born = [version for one in kept if (version := oldest_version(one)) is not None]
        if born:
            replay.add(Group(group.task_id, kept), version=max(born))


def _standing(group: Group, masked: frozenset[str]) -> tuple[Episode, ...]:
    """The members whose tokens may train again, and whose histories are those of such."""
    kept: dict[str, Episode] = {}
    for one in group:  # parents come before their forks
        if one.failure is None and one.id not in masked and (one.parent is None or one.parent.episode in kept):
            kept[one.id] = one
    return tuple(kept.values())
