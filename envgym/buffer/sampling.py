"""How likely each stored thing is drawn: pure functions over columns, and the importance of what was drawn.

A `Rule` turns columns into weights that need not sum to anything; rules multiply (`combined`). A `Schedule` turns
the learner's version into a number. Everything random comes from a numpy Generator that is passed in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Columns",
    "Rule",
    "Schedule",
    "combined",
    "constant",
    "dealt",
    "drawn",
    "failures_first",
    "importance",
    "linear",
    "probabilities",
    "recent",
    "uniform",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Columns:
    """What rules read of K stored things, one entry each.

    success [K] float64: share of attempts that succeeded, NaN where unknown. age [K] int64: versions since it came
    in. tokens [K] int64: its size.
    """

    success: Floats
    age: NDArray[np.int64]
    tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.success)


Rule = Callable[[Columns], Floats]
Schedule = Callable[[int], float]


def uniform(columns: Columns) -> Floats:
    """Everything alike: weights [K] of 1."""
    return np.ones(len(columns))


def failures_first(*, floor: float = 0.0) -> Rule:
    """Weights [K] of 1 - success: what always fails is drawn most, what never fails only by `floor`.

    What has no known success counts as never solved. Raises ValueError unless 0 <= floor <= 1.
    Source: prioritised sampling, Kimi k1.5 (Kimi Team 2025, arXiv 2501.12599): proportional to 1 - s_i, for
    problems there. There floor is 0.
    """
    if not 0 <= floor <= 1:
        raise ValueError(f"failures_first: floor is {floor}; it must be in [0, 1]")

    def rule(columns: Columns) -> Floats:
        return np.maximum(1.0 - np.nan_to_num(columns.success, nan=0.0), floor)

    return rule


def recent(*, half_life: float) -> Rule:
    """Weights [K] of 2 ** -(age / half_life): half the weight for every `half_life` versions of age.

    Ages are taken relative to the youngest, so nothing underflows to zero where everything is old.
    Raises ValueError unless half_life > 0.
    """
    if not half_life > 0:
        raise ValueError(f"recent: half_life is {half_life} versions; it must be greater than 0")

    def rule(columns: Columns) -> Floats:
        if not len(columns):
            return np.zeros(0)
        return np.asarray(np.exp2(-(columns.age - columns.age.min()) / half_life), np.float64)

    return rule


def combined(*rules: Rule) -> Rule:
    """The product of rules: what one of them never draws is never drawn."""

    def rule(columns: Columns) -> Floats:
        weights = np.ones(len(columns))
        for one in rules:
            weights = weights * one(columns)
        return weights

    return rule


def constant(value: float) -> Schedule:
    """The same number for every version."""
    return lambda version: value


def linear(first: float, last: float, *, over: int) -> Schedule:
    """From `first` at version 0 to `last` at version `over`, and `last` from then on.

    Raises ValueError unless over >= 1.
    """
    if over < 1:
        raise ValueError(f"linear: over is {over} versions; it must be at least 1")
    return lambda version: first + (last - first) * min(max(version, 0), over) / over


def probabilities(weights: Floats) -> Floats:
    """Weights [K] divided by their sum; all alike where every weight is 0 (nothing is preferred then).

    What is less likely than the finest step of a random draw (2 ** -53) cannot be drawn and gets 0.
    Raises ValueError for weights that are negative or not finite, naming the first.
    """
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise ValueError(f"weight {wrong[0]} of {len(weights)} is {weights[wrong[0]]}; weights are finite and >= 0")
    if not weights.any():
        return np.full(len(weights), 1 / max(len(weights), 1))
    scaled = weights / weights.max()  # sums of huge weights would overflow, quotients of tiny ones would not
    chances = np.asarray(scaled / scaled.sum(), np.float64)
    chances[chances < 2.0**-53] = 0.0
    return chances


def drawn(chances: Floats, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Indices [size] drawn with replacement; `chances` [K] sum to 1. O(K + size log K). Chance 0 is never drawn."""
    ladder = np.cumsum(chances)
    places = np.searchsorted(ladder, rng.random(size) * ladder[-1], side="right")
    return np.asarray(np.minimum(places, np.flatnonzero(chances)[-1]), np.intp)


def dealt(
    size: int, shares: Mapping[str, float], there: Mapping[str, int], rng: np.random.Generator
) -> dict[str, int]:
    """How many of `size` draws fall to each source, by its share; what cannot be split evenly is dealt by chance.

    there: how many things each source has. The share of a source that has none goes to the others, in proportion.
    The expected number of a source's draws is its share of `size`, and no count is off by 1 or more: half and half
    of 64 is 32 and 32 every time.

    Raises ValueError for shares that are negative or all 0, and when none of the sources has anything.
    Source: batches of one half each, "symmetric sampling" of RLPD (Ball et al. 2023), as in SERL.
    """
    if any(not 0 <= share < np.inf for share in shares.values()) or not sum(shares.values()) > 0:
        raise ValueError(f"shares are {dict(shares)}; they must be >= 0 and not all 0")
    names = [name for name, share in shares.items() if share > 0 and there.get(name, 0) > 0]
    if not names:
        raise ValueError(f"nothing to draw from: shares are {dict(shares)}, stored are {dict(there)}")
    ends = np.cumsum([shares[name] for name in names])
    ends = ends / ends[-1] * size
    ends[-1] = size
    marks = np.floor(ends + rng.random()).astype(int)
    marks[-1] = size  # the last end is whole: its mark is never a matter of chance
    return dict(zip(names, np.diff(marks, prepend=0).tolist(), strict=True))


def importance(chances: Floats, *, beta: float = 1.0) -> Floats:
    """Weights [K] of (1 / (K * chance)) ** beta: with beta 1, weighted means of draws are means over all K.

    What has chance 0 is never drawn: it gets 0, and a mean over draws is blind to it.
    Raises ValueError unless 0 <= beta <= 1.
    Source: Schaul et al. 2016, Prioritized Experience Replay, section 3.4 (there also divided by the largest of a
    batch, which is left to the learner).
    """
    if not 0 <= beta <= 1:
        raise ValueError(f"importance: beta is {beta}; it must be in [0, 1]")
    found = np.zeros(len(chances))
    there = chances > 0
    found[there] = (1.0 / (len(chances) * chances[there])) ** beta
    return found
