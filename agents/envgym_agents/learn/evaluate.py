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

__all__ = [
    "SUCCESS",
    "Difference",
    "Evaluation",
    "Outcome",
    "difference",
    "difference_over_runs",
    "evaluation",
    "merged",
    "succeeded",
    "wilson",
]

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
        times = _times(np.random.default_rng([seed, 1927]), draws, len(values))
        return _percentiles(times @ values / len(values))

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

    def summary(self, *, seed: int = 0, draws: int = 10_000) -> dict[str, Any]:
        """Plain data for the report; the interval is `interval`'s, with its options."""
        low, high = self.interval(seed=seed, draws=draws)
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


def merged(name: str, evaluations: Sequence[Evaluation]) -> Evaluation:
    """Several evaluations as one: a task's values are the means over all of its scored attempts."""
    found: dict[str, list[Outcome]] = {}
    for one in evaluations:
        for outcome in one.outcomes:
            found.setdefault(outcome.task, []).append(outcome)
    outcomes = tuple(_merged(members) for _, members in sorted(found.items()))
    return Evaluation(name, outcomes, sum(one.failures for one in evaluations))


def _merged(members: Sequence[Outcome]) -> Outcome:
    attempts = [outcome.attempts for outcome in members]

    def mean(values: Iterable[float]) -> float:
        return float(np.average(list(values), weights=attempts))

    costs = sorted({name for outcome in members for name in outcome.cost})
    return Outcome(
        task=members[0].task,
        cluster=members[0].cluster,
        success=mean(outcome.success for outcome in members),
        attempts=sum(attempts),
        turns=mean(outcome.turns for outcome in members),
        cost={name: mean(outcome.cost.get(name, 0.0) for outcome in members) for name in costs},
    )


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
    """Mean of (after - before) over the tasks both saw, its 95 % bootstrap interval, and the units resampled."""

    mean: float
    low: float
    high: float
    units: int


def difference(
    after: Evaluation, before: Evaluation, *, seed: int = 0, draws: int = 10_000, by_cluster: bool = False
) -> Difference:
    """The paired difference of two evaluations: `difference_over_runs` of one run, with its options and errors."""
    return difference_over_runs([(after, before)], seed=seed, draws=draws, by_cluster=by_cluster)


def difference_over_runs(
    runs: Sequence[tuple[Evaluation, Evaluation]], *, seed: int = 0, draws: int = 10_000, by_cluster: bool = False
) -> Difference:
    """The paired difference of (after, before) in one or more runs of an experiment.

    Resampled are tasks, or whole clusters of them, and across them the runs: the interval holds for new tasks and
    for new seeds. Only tasks that both evaluations of a run have are compared. Raises ValueError when a run has
    none. Source: percentile bootstrap, Efron & Tibshirani (1993), ch. 13; both factors of the crossed design drawn
    independently, Owen (2007), "The pigeonhole bootstrap", which errs to the wide side.
    """
    gained: dict[tuple[int, str], list[float]] = {}
    for run, (after, before) in enumerate(runs):
        earlier = {outcome.task: outcome for outcome in before.outcomes}
        pairs = [(outcome, earlier[outcome.task]) for outcome in after.outcomes if outcome.task in earlier]
        if not pairs:
            raise ValueError(f"evaluations {after.name!r} and {before.name!r} have no task in common")
        for late, early in pairs:
            unit = late.cluster if by_cluster else late.task
            gained.setdefault((run, unit), []).append(late.success - early.success)
    units = sorted({unit for _, unit in gained})
    totals = np.array([[sum(gained.get((run, unit), ())) for unit in units] for run in range(len(runs))])
    counts = np.array([[len(gained.get((run, unit), ())) for unit in units] for run in range(len(runs))])
    random = np.random.default_rng([seed, 1927])
    unit_times, run_times = (_times(random, draws, size) for size in (len(units), len(runs)))
    sums, sizes = (np.einsum("dr,ru,du->d", run_times, table, unit_times) for table in (totals, counts))
    low, high = _percentiles(sums[sizes > 0] / sizes[sizes > 0])
    return Difference(float(totals.sum() / counts.sum()), low, high, len(units))


def _times(random: np.random.Generator, draws: int, size: int) -> np.ndarray[Any, Any]:
    """How often each of `size` things is drawn in each of `draws` resamples with replacement: [draws, size]."""
    return random.multinomial(size, np.full(size, 1 / max(size, 1)), size=draws)


def _percentiles(means: np.ndarray[Any, Any]) -> tuple[float, float]:
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
