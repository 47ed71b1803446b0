"""What becomes of a group with a member that cannot train: a declared policy, as one pure function.

A member cannot train when its world failed, or when a token of it was sampled by a version that is too old. Each
policy biases what is learned in its own way, so the choice is named and every loss is reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from envgym.episode import Episode, Group

__all__ = ["Loss", "Settled", "Spoiled", "Why", "settle"]


class Spoiled(StrEnum):
    """What is done with a group that has a failed or stale member.

    DROP_GROUP: nothing of it trains. Unbiased within groups; wasteful where failures are common: at 5 % failures
        and 8 members a third of all groups is lost.
    DROP_MEMBER: the others train, compared with each other only. Biased where failing depends on the outcome.
    MASK: the member stays what the others are compared with, and its own tokens do not train. A failed one has no
        outcome to be compared with: for it this differs from DROP_MEMBER only in that it is kept.
    REFILL: fresh episodes are asked for in its place, and the group waits for them. The dearest, the least biased.
    """

    DROP_GROUP = "drop_group"
    DROP_MEMBER = "drop_member"
    MASK = "mask"
    REFILL = "refill"


class Why(StrEnum):
    """Why a member was lost.

    FAILED: its world failed. STALE: its oldest token is too old. FORKED: it was forked from a lost member.
    PEERS: it could train, but too few of its group were left, or the policy drops whole groups.
    UNFILLED: as PEERS, after the refills that are allowed. LATE: it was to refill a group that is gone.
    """

    FAILED = "failed"
    STALE = "stale"
    FORKED = "forked"
    PEERS = "peers"
    UNFILLED = "unfilled"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Loss:
    """One member that left: its id, why, and the version behind its oldest token (None: it has none)."""

    episode: str
    why: Why
    oldest: int | None


@dataclass(frozen=True, slots=True)
class Settled:
    """What is left of a group (None: nothing), whose tokens are masked, and who left."""

    group: Group | None
    masked: frozenset[str] = frozenset()
    lost: tuple[Loss, ...] = ()


def settle(
    group: Group,
    oldest: Mapping[str, int | None],
    *,
    allowed: int,
    spoiled: Spoiled,
    least: int = 2,
) -> Settled:
    """Apply the policy to a group.

    oldest: the version behind each member's oldest token, by id. allowed: the oldest version that may train.
    least: how many members must be left for a group to be worth comparing, where members are dropped.

    With REFILL the group left is what fresh members are to be added to; it is None where no member is left. A
    member that was forked from a dropped one goes with it, because the history it stands on does.
    """
    bad = {member.id: why for member in group if (why := _fault(member, oldest[member.id], allowed)) is not None}
    if not bad:
        return Settled(group)
    if spoiled is Spoiled.DROP_GROUP:
        return Settled(None, lost=losses(group, oldest, bad))
    if spoiled is Spoiled.MASK:
        if len(bad) == len(group):
            return Settled(None, lost=losses(group, oldest, bad))
        return Settled(group, masked=frozenset(bad))
    for member in group:  # parents come before their forks
        if member.parent is not None and member.parent.episode in bad:
            bad.setdefault(member.id, Why.FORKED)
    kept = tuple(member for member in group if member.id not in bad)
    enough = 1 if spoiled is Spoiled.REFILL else least
    if len(kept) < enough:
        return Settled(None, lost=losses(group, oldest, bad))
    gone = tuple(Loss(member.id, bad[member.id], oldest[member.id]) for member in group if member.id in bad)
    return Settled(Group(group.task_id, kept), lost=gone)


def losses(
    group: Group, oldest: Mapping[str, int | None], known: Mapping[str, Why], other: Why = Why.PEERS
) -> tuple[Loss, ...]:
    """The loss of every member: for the reason known of it, else for `other`."""
    return tuple(Loss(member.id, known.get(member.id, other), oldest[member.id]) for member in group)


def _fault(member: Episode, oldest: int | None, allowed: int) -> Why | None:
    if member.failure is not None:
        return Why.FAILED
    return Why.STALE if oldest is not None and oldest < allowed else None
