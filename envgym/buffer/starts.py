"""Start states out of trajectories: which are kept, what they are worth, and how long to play from them.

An episode need not begin at the beginning: it may begin where a teacher, or the learner itself, once stood. What a
state is worth to the learner is measured by what became of the episodes that began there. All here is pure; the
references on the snapshots are `envgym.buffer.archive`'s.
Source: SnapshotRL with its baseline S3RL ("Snapshot Reinforcement Learning: Leveraging Prior Trajectories for
Efficiency"): starts from a teacher's states, drawn across classes of states, and shortened student episodes. There
the classes are clusters of state vectors; here they are names (a state key, a task), and the status is measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from envgym.env import Snapshot
from envgym.episode import Episode

__all__ = [
    "Standing",
    "Start",
    "StartRule",
    "Status",
    "across",
    "classify",
    "edge",
    "kept_turns",
    "starts_of",
    "turn_bound",
]

S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Start(Generic[S]):
    """A state that episodes may begin in.

    key: names it, such as "episode@turn". turn: how many turns lie before it. left: how many turns the trajectory
    that it comes from still took (0: unknown). origin: whose trajectory ("teacher", "own", ...). cluster: what it
    counts as one kind with (see `across`). size: bytes that its snapshot takes, as far as known.
    """

    key: str
    snapshot: S
    task_id: str
    turn: int = 0
    left: int = 0
    origin: str = "own"
    cluster: str = ""
    size: int = 0


class Status(StrEnum):
    """What is known of a state. UNKNOWN: too few episodes began there. SOLVED: nearly all of them succeed.

    DEAD_END: nearly none does. PROMISING: some do and some do not, which is where there is most to learn.
    """

    UNKNOWN = "unknown"
    SOLVED = "solved"
    PROMISING = "promising"
    DEAD_END = "dead_end"


@dataclass(frozen=True, slots=True)
class Standing:
    """What rules read of K states: how many episodes began there [K] and succeeded [K], and their clusters."""

    tries: NDArray[np.int64]
    wins: NDArray[np.int64]
    clusters: Sequence[str]


StartRule = Callable[[Standing], NDArray[np.float64]]


def classify(tries: int, wins: int, *, least: int = 4, solved: float = 0.8, dead: float = 0.1) -> Status:
    """The status of a state after `tries` episodes of which `wins` succeeded.

    SOLVED from a share of `solved` up, DEAD_END from `dead` down; UNKNOWN with fewer than `least` tries. Raises
    ValueError unless 0 <= wins <= tries and 0 <= dead < solved <= 1.
    """
    if not 0 <= wins <= tries:
        raise ValueError(f"classify: {wins} of {tries} episodes succeeded; wins is between 0 and tries")
    if not 0 <= dead < solved <= 1:
        raise ValueError(f"classify: dead is {dead} and solved {solved}; it must be 0 <= dead < solved <= 1")
    if tries < max(least, 1):
        return Status.UNKNOWN
    share = wins / tries
    return Status.SOLVED if share >= solved else Status.DEAD_END if share <= dead else Status.PROMISING


def edge(standing: Standing) -> NDArray[np.float64]:
    """Weights [K] in (0, 1], highest at the edge of competence: 4 p (1 - p).

    p = (wins + 1) / (tries + 2), so that an untried state counts as even (weight 1) and no state is given up for
    good: a policy that improves turns dead ends into promising ones. p (1 - p) is the variance of the outcome,
    which scales what a policy gradient can learn from it.
    """
    share = (standing.wins + 1.0) / (standing.tries + 2.0)
    return np.asarray(4.0 * share * (1.0 - share), np.float64)


def across(rule: StartRule) -> StartRule:
    """The same rule with every cluster drawn equally often, however many states it has.

    A cluster whose states all weigh 0 stays at 0.
    """

    def balanced(standing: Standing) -> NDArray[np.float64]:
        weights = rule(standing)
        if not len(weights):
            return weights
        _names, codes = np.unique(np.array(standing.clusters, dtype=object).astype(str), return_inverse=True)
        totals = np.bincount(codes, weights=weights)[codes]
        return np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)

    return balanced


def kept_turns(turns: int, keep: int) -> tuple[int, ...]:
    """Which `keep` states of a trajectory of `turns` turns to keep, named by the turn they lie before, ascending.

    Evenly spaced from the last backwards: success is near the end first, and moves back as the learner gets better.
    Raises ValueError unless turns >= 0 and keep >= 0.
    """
    if turns < 0 or keep < 0:
        raise ValueError(f"kept_turns: turns is {turns}, keep is {keep}; both must be at least 0")
    if keep >= turns:
        return tuple(range(turns))
    return tuple(sorted(turns - 1 - (index * turns) // keep for index in range(keep)))


def turn_bound(left: int, *, slack: float = 2.0, least: int = 2, most: int = 50) -> int:
    """How many turns an episode from a state may have where the trajectory it comes from still took `left`.

    ``ceil(slack * left)``, at least `least` and at most `most`; `most` where `left` is unknown (0). Pass it as
    `Limits.turns`: a student that is lost wastes few turns. Raises ValueError for left < 0 and slack <= 0.
    """
    if left < 0 or not slack > 0:
        raise ValueError(f"turn_bound: left is {left}, slack is {slack}; left is at least 0, slack greater than 0")
    return most if left == 0 else min(most, max(least, ceil(slack * left)))


def starts_of(
    episode: Episode, *, origin: str = "own", keep: int = 8, size: int = 0
) -> tuple[tuple[Start[Snapshot], ...], tuple[Snapshot, ...]]:
    """The start states of an episode that has snapshots at its turns, and the snapshots that are not kept.

    `keep` of the turns with a snapshot are taken (`kept_turns`), each with the state key of the step before it as
    its cluster (the task's id where there is none). The caller owns all snapshots, and releases the second part.
    """
    at = [index for index, turn in enumerate(episode.turns) if turn.snapshot is not None]
    chosen = {at[index] for index in kept_turns(len(at), keep)}
    before = episode.parent.turn if episode.parent is not None else 0
    starts, rest = [], []
    for index in at:
        snapshot = episode.turns[index].snapshot
        assert snapshot is not None
        if index not in chosen:
            rest.append(snapshot)
            continue
        key = (episode.root if index == 0 else episode.turns[index - 1].step).state_key
        starts.append(
            Start(
                key=f"{episode.id}@{before + index}",
                snapshot=snapshot,
                task_id=episode.task_id,
                turn=before + index,
                left=len(episode.turns) - index,
                origin=origin,
                cluster=key or episode.task_id,
                size=size,
            )
        )
    return tuple(starts), tuple(rest)
