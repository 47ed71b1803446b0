"""What an episode costs beside what it earns: penalties on length and cost, and multipliers that learn their price.

All are functions of one value per episode [G]. A penalty is taken off the credit of all the episode's tokens, after
the mean of its group was taken off the penalty, so relative credit stays relative (law d). Where a group's outcomes
are equal, it teaches only if the loop takes such groups (``reinforce.teaches = "all"``).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["constrained", "kimi_length", "overlong", "per_token", "relative", "updated"]

Floats = NDArray[np.float64]


def overlong(lengths: Floats, *, free: float, most: float) -> Floats:
    """0 up to `free` tokens, rising linearly to 1 at `most`, and 1 beyond [G].

    Degenerate: most = free is a step. Source: soft overlong punishment, DAPO (arXiv 2503.14476, eq. 13), with the
    sign of a price.
    """
    if most <= free:
        return (lengths > most).astype(np.float64)
    return np.clip((lengths - free) / (most - free), 0.0, 1.0)


def kimi_length(lengths: Floats, earned: Floats, group: Sequence[int]) -> Floats:
    """Of each group, the longer an episode the more, in [-0.5, 0.5]; who earned nothing gets no reward for brevity.

    ``(len - min) / (max - min) - 0.5``, of episodes with no positive outcome at least 0. A price, so to be taken
    off.
    Degenerate: equal lengths cost nothing. Source: Kimi k1.5 (arXiv 2501.12599, on its length penalty).
    """
    found = np.zeros(len(lengths))
    names = np.asarray(group)
    for name in np.unique(names):
        mine = names == name
        low, high = lengths[mine].min(), lengths[mine].max()
        if high > low:
            found[mine] = (lengths[mine] - low) / (high - low) - 0.5
    return np.where(earned > 0, found, np.maximum(found, 0.0))


def per_token(lengths: Floats, *, price: float) -> Floats:
    """``price * length``: every sampled token costs the same [G]."""
    return price * lengths


def relative(values: Floats, group: Sequence[int]) -> Floats:
    """Values less the mean of their group [G]. Degenerate: 0 for a group of one."""
    names = np.asarray(group)
    found = np.array(values, np.float64)
    for name in np.unique(names):
        found[names == name] -= found[names == name].mean()
    return found


def constrained(
    credit: Floats, costs: Mapping[str, Floats], multipliers: Mapping[str, float], group: Sequence[int]
) -> Floats:
    """``(A - sum_i lambda_i (C_i - mean of its group)) / (1 + sum_i lambda_i)`` [G], one value per episode.

    The division keeps the size of an update as prices rise. Degenerate: multipliers of 0 leave credit as it is.
    Sources: Safe RLHF (Dai et al. 2023, arXiv 2310.12773), whose update has this division, and PPO-Lagrangian (Ray
    et al. 2019).
    """
    found = np.array(credit, np.float64)
    for name, cost in costs.items():
        found -= multipliers.get(name, 0.0) * relative(cost, group)
    return found / (1.0 + sum(multipliers.get(name, 0.0) for name in costs))


def updated(
    multipliers: Mapping[str, float], means: Mapping[str, float], limits: Mapping[str, float], *, lr: float,
    most: float,
) -> dict[str, float]:  # fmt: skip
    """Dual ascent: ``clip(lambda + lr * (mean cost - limit), 0, most)`` for every limit.

    A price rises while its limit is passed, and falls to zero where it is kept. A cost that no episode had counts
    0.
    Source: Ray, Achiam and Amodei 2019 ("Benchmarking safe exploration"), PPO-Lagrangian; Safe RLHF.
    """
    return {
        name: float(np.clip(multipliers.get(name, 0.0) + lr * (means.get(name, 0.0) - limit), 0.0, most))
        for name, limit in limits.items()
    }
