"""The values of an `OnPolicyQueue`: tickets, what was taken, what was swept, the counters, its state, its places.

What the queue gives out is frozen; a `Place` is its own, and only the queue changes one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envgym.buffer.spoiled import Loss, Why
from envgym.buffer.versions import oldest_version
from envgym.episode import Episode, Group

__all__ = ["Counts", "Place", "QueueState", "Swept", "Taken", "Ticket"]


@dataclass(frozen=True, slots=True)
class Ticket:
    """Leave to play one group, or (missing > 0) that many fresh members of a group that waits for them.

    number: its place in the queue, which counts groups from 0: what to play can be a function of it.
    version: the learner's when it was given. task_id, group: of a refill, what its members are compared with
    (`Episode.task_id` and `Episode.group`).
    """

    number: int
    version: int
    missing: int = 0
    task_id: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep took out of one group. whole: the group is gone, else its other members wait on."""

    number: int
    task_id: str
    lost: tuple[Loss, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """Groups for one update of the weights, in the order of their numbers.

    version: the learner's. masked: per group the ids of members whose tokens must not train (see `Spoiled.MASK`).
    swept: what was swept since the batch before.
    """

    version: int
    groups: tuple[Group, ...]
    masked: tuple[frozenset[str], ...]
    numbers: tuple[int, ...]
    swept: tuple[Swept, ...] = ()


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of everything, since the beginning.

    Groups: ``accepted == trained + swept + waiting``.
    Members: ``members_accepted == members_trained + members_swept + members_waiting``.
    Tickets for groups: ``started + unticketed == accepted + abandoned + running``.

    waiting: with those that are out with the learner (`out`) and those that wait for fresh members (`mending`).
    refilled: members that came on refill tickets. masked: trained members whose tokens did not train.
    lost: members swept, by reason.
    """

    accepted: int = 0
    trained: int = 0
    swept: int = 0
    waiting: int = 0
    out: int = 0
    mending: int = 0
    started: int = 0
    unticketed: int = 0
    abandoned: int = 0
    running: int = 0
    refilled: int = 0
    masked: int = 0
    members_accepted: int = 0
    members_trained: int = 0
    members_swept: int = 0
    members_waiting: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as a checkpoint holds it: plain JSON values, and the episodes they count through, in order."""

    facts: dict[str, Any]
    episodes: tuple[Episode, ...]


@dataclass(slots=True)
class Place:
    """One waiting group. size: how many members it should have; refills: how often fresh ones came.

    asked: a ticket for fresh members is out. oldest: the version behind each member's oldest token, known once.
    """

    number: int
    group: Group
    size: int
    masked: frozenset[str] = frozenset()
    refills: int = 0
    asked: bool = False
    oldest: dict[str, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.oldest = {member.id: oldest_version(member) for member in self.group}

    @property
    def missing(self) -> int:
        """How many fresh members it waits for."""
        return self.size - len(self.group)

    @property
    def eldest(self) -> int | None:
        """The version behind the oldest token that would train."""
        return min(self._ages, default=None)

    @property
    def newest(self) -> int | None:
        """The version behind the oldest token of the member that stays fresh longest."""
        return max(self._ages, default=None)

    @property
    def _ages(self) -> list[int]:
        return [one for name, one in self.oldest.items() if one is not None and name not in self.masked]

    def all_lost(self, why: Why) -> tuple[Loss, ...]:
        """Every member as a loss."""
        return tuple(Loss(member.id, why, self.oldest[member.id]) for member in self.group)
