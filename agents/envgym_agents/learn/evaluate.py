"""Counting successes honestly: rates, intervals and paired differences over tasks.

An episode whose world failed is left out and counted, never scored. Tasks are the unit of resampling, and
clusters of tasks (one package's tasks share code) the stricter one. Nothing is played here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np

from envgym.env import StopReason
from envgym.episode import Episode

__all__ = ["SUCCESS", "Difference", "Evaluation", "Outcome", "difference", "evaluation", "succeeded", "wilson"]

SUCCESS = ("success", "resolved")
"""The channels of a last step by which an environment says that its goal was reached (1) or not (0)."""

_Z95 = 1.959963984540054


def succeeded(episode: Episode) -> bool:
    """Whether it reached its goal: a channel of `SUCCESS` in its last step, else StopReason.GOAL."""
    last = episode.turns[-1].step if episode.turns else episode.root
    for name in SUCCESS:
        if name in last.channels:
            return last.channels[name] > 0
    return episode.stop is StopReason.GOAL


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened on one task: mean success over its scored attempts, mean turns, mean of each named cost."""

    task: str
    cluster: str
    success: float
    attempts: int
    turns: float
    cost: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One agent on a set of tasks. `failures` counts episodes whose world failed; they are in no rate."""

    name: str
    outcomes: tuple[Outcome, ...]
    failures: int = 0

    @property
    def rate(self) -> float:
        """Mean success over tasks; NaN without any."""
        return float(np.mean([outcome.success for outcome in self.outcomes])) if self.outcomes else float("nan")

    def interval(self, *, seed: int = 0, draws: int = 10_000) -> tuple[float, float]:
        """The 95 % interval of the rate: Wilson's with one attempt per task, else a bootstrap over tasks."""
        if all(outcome.attempts == 1 for outcome in self.outcomes):
            return wilson(sum(outcome.success for outcome in self.outcomes), len(self.outcomes))
        values = np.array([outcome.success for outcome in self.outcomes])
        return _percentiles(_resampled_means(values, np.arange(len(values)), seed, draws))

    def by_cluster(self) -> dict[str, tuple[float, int]]:
        """Rate and number of tasks of every cluster, sorted by name."""
        found: dict[str, list[float]] = {}
        for outcome in sorted(self.outcomes, key=lambda outcome: outcome.cluster):
            found.setdefault(outcome.cluster, []).append(outcome.success)
        return {name: (float(np.mean(values)), len(values)) for name, values in found.items()}

    def mean_cost(self) -> dict[str, float]:
        """Mean over tasks of every named cost, and of the turns."""
        names = sorted({name for outcome in self.outcomes for name in outcome.cost})
        costs = {name: float(np.mean([o.cost.get(name, 0.0) for o in self.outcomes])) for name in names}
        turns = float(np.mean([o.turns for o in self.outcomes])) if self.outcomes else float("nan")
        return {"turns": turns, **costs}

    def summary(self) -> dict[str, Any]:
        """Plain data for the report."""
        low, high = self.interval()
        return {
            "name": self.name,
            "success": self.rate,
            "low": low,
            "high": high,
            "tasks": len(self.outcomes),
            "attempts": sum(outcome.attempts for outcome in self.outcomes),
            "failures": self.failures,
            "cost": self.mean_cost(),
            "clusters": {name: list(value) for name, value in self.by_cluster().items()},
        }


def evaluation(
    name: str, episodes: Iterable[Episode], *, cluster: Callable[[str], str] = lambda task_id: task_id
) -> Evaluation:
    """Gather episodes by task. `cluster` maps a task id to what it shares with others (its package)."""
    scored: dict[str, list[Episode]] = {}
    failures = 0
    for episode in episodes:
        if episode.failure is not None:
            failures += 1
        else:
            scored.setdefault(episode.task_id, []).append(episode)
    outcomes = tuple(_outcome(task, cluster(task), members) for task, members in sorted(scored.items()))
    return Evaluation(name, outcomes, failures)


def _outcome(task: str, cluster: str, members: Sequence[Episode]) -> Outcome:
    cost: dict[str, float] = {}
    for episode in members:
        for turn in episode.turns:
            for name, value in turn.step.cost.items():
                cost[name] = cost.get(name, 0.0) + value / len(members)
    return Outcome(
        task=task,
        cluster=cluster,
        success=float(np.mean([succeeded(episode) for episode in members])),
        attempts=len(members),
        turns=float(np.mean([len(episode.turns) for episode in members])),
        cost=cost,
    )


def wilson(successes: float, trials: int, *, z: float = _Z95) -> tuple[float, float]:
    """Wilson's score interval of a proportion; (0, 1) without trials.

    Source: Wilson (1927), "Probable inference, the law of succession, and statistical inference".
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials; successes must be between 0 and the trials")
    if trials == 0:
        return 0.0, 1.0
    rate, spread = successes / trials, z * z / trials
    middle = (rate + spread / 2) / (1 + spread)
    half = z * sqrt(rate * (1 - rate) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of (after - before) over the tasks both saw, with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float
    units: int


def difference(
    after: Evaluation, before: Evaluation, *, seed: int = 0, draws: int = 10_000, by_cluster: bool = False
) -> Difference:
    """The paired difference of two evaluations, resampling tasks, or whole clusters of tasks.

    Only tasks that both have are compared. Raises ValueError when there are none.
    Source: percentile bootstrap, Efron & Tibshirani (1993), ch. 13; clusters resampled whole.
    """
    earlier = {outcome.task: outcome for outcome in before.outcomes}
    pairs = [(outcome, earlier[outcome.task]) for outcome in after.outcomes if outcome.task in earlier]
    if not pairs:
        raise ValueError(f"evaluations {after.name!r} and {before.name!r} have no task in common")
    values = np.array([late.success - early.success for late, early in pairs])
    names = [late.cluster if by_cluster else late.task for late, _ in pairs]
    owner = np.unique(names, return_inverse=True)[1]
    low, high = _percentiles(_resampled_means(values, owner, seed, draws))
    return Difference(float(values.mean()), low, high, int(owner.max()) + 1)


def _resampled_means(
    values: np.ndarray[Any, Any], owner: np.ndarray[Any, Any], seed: int, draws: int
) -> np.ndarray[Any, Any]:
    """Means [draws] of resamples that draw whole units (`owner` names each value's unit) with replacement."""
    units = int(owner.max()) + 1 if len(owner) else 0
    totals, counts = np.bincount(owner, values, units), np.bincount(owner, minlength=units)
    times = np.random.default_rng([seed, 1927]).multinomial(units, np.full(units, 1 / max(units, 1)), size=draws)
    return (times @ totals) / (times @ counts)


def _percentiles(means: np.ndarray[Any, Any]) -> tuple[float, float]:
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
