"""Rates, intervals and paired differences, by hand and against simulation."""

import numpy as np
import pytest

pytest.importorskip("torch")
from envgym_agents.learn.evaluate import (
    Evaluation,
    Outcome,
    difference,
    difference_over_runs,
    evaluation,
    merged,
    succeeded,
    wilson,
)  # fmt: skip

from envgym.env import Step, StopReason
from envgym.errors import Boundary, Failure


def outcomes(*values: float, clusters: str | None = None) -> tuple[Outcome, ...]:
    names = clusters or "x" * len(values)
    return tuple(Outcome(f"t{i}", c, v, 1, 3.0) for i, (v, c) in enumerate(zip(values, names, strict=True)))


def test_wilson_is_the_textbook_interval():
    # 8 of 10: (0.8 + 1.92/10 +- 1.96 sqrt(0.8*0.2/10 + 3.84/400)) / (1 + 3.84/10)
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="11 successes in 10 trials"):
        wilson(11, 10)


def test_wilson_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    for rate in (0.1, 0.5, 0.9):
        hits = [low <= rate <= high for low, high in (wilson(int(k), 60) for k in rng.binomial(60, rate, 2000))]
        assert 0.92 <= np.mean(hits) <= 0.98


def test_a_paired_difference_sees_what_two_intervals_cannot():
    rng = np.random.default_rng(1)
    before = (rng.random(200) < 0.5).astype(float)
    after = np.maximum(before, rng.random(200) < 0.1)  # every change is an improvement
    change = difference(Evaluation("b", outcomes(*after)), Evaluation("a", outcomes(*before)))
    assert change.mean == pytest.approx(float((after - before).mean()))
    assert 0 < change.low < change.mean < change.high
    assert change.units == 200


def test_resampling_clusters_is_stricter_when_tasks_of_a_cluster_move_together():
    before = outcomes(*[0.0] * 40, clusters="abcd" * 10)
    after = outcomes(*([1.0, 1.0, 0.0, 0.0] * 10), clusters="abcd" * 10)
    by_task = difference(Evaluation("b", after), Evaluation("a", before))
    by_cluster = difference(Evaluation("b", after), Evaluation("a", before), by_cluster=True)
    assert by_cluster.units == 4
    assert by_cluster.high - by_cluster.low > by_task.high - by_task.low
    assert by_cluster.mean == by_task.mean == 0.5


def test_only_tasks_that_both_saw_are_compared():
    change = difference(Evaluation("b", outcomes(1, 1, 1)), Evaluation("a", outcomes(0, 1)))
    assert (change.mean, change.units) == (0.5, 2)
    with pytest.raises(ValueError, match="no task in common"):
        difference(Evaluation("b", outcomes(1)), Evaluation("a", ()))


def test_an_interval_over_runs_is_wider_when_the_runs_disagree():
    start = Evaluation("a", outcomes(*[0.0] * 40))
    ends = [Evaluation("b", outcomes(*[1.0] * won, *[0.0] * (40 - won))) for won in (5, 20, 35)]
    apart = difference_over_runs([(end, start) for end in ends])
    alike = difference_over_runs([(ends[1], start)] * 3)
    assert apart.mean == alike.mean == 0.5
    assert apart.high - apart.low > 1.5 * (alike.high - alike.low)
    assert alike.units == 40
    with pytest.raises(ValueError, match="no task in common"):
        difference_over_runs([(ends[0], start), (ends[0], Evaluation("a", ()))])


def test_an_interval_over_runs_covers_the_truth_for_new_runs_and_new_tasks():
    rng, hits = np.random.default_rng(3), 0
    for trial in range(200):
        of_run, of_task = rng.normal(0, 0.1, (3, 1)), rng.normal(0, 0.3, 40)
        gains = 0.2 + of_run + of_task + rng.normal(0, 0.1, (3, 40))
        start = Evaluation("a", outcomes(*[0.0] * 40))
        runs = [(Evaluation("b", outcomes(*row)), start) for row in gains]
        found = difference_over_runs(runs, seed=trial, draws=400)
        hits += found.low <= 0.2 <= found.high
    assert hits >= 170  # three runs say little of their spread: 95 % in name


def test_merged_evaluations_weigh_every_attempt_alike():
    one = Evaluation("x", (Outcome("t", "p", 1.0, 1, 2.0, {"tests": 4.0}),), failures=1)
    other = Evaluation("x", (Outcome("t", "p", 0.0, 3, 6.0), Outcome("u", "q", 1.0, 1, 1.0)), failures=2)
    both = merged("x", [one, other])
    assert both.failures == 3
    first, second = both.outcomes
    assert (first.success, first.attempts, first.turns, first.cost) == (0.25, 4, 5.0, {"tests": 1.0})
    assert second == other.outcomes[1]


def test_the_worlds_faults_are_counted_and_never_scored(turn, episode):
    won = turn([1], [2], position=0, reward=1.0, stop=StopReason.GOAL)
    failure = Failure(boundary=Boundary.ENVIRONMENT, kind="X", message="", where="step", turn=0)
    episodes = [
        episode("a", [won], task="one"),
        episode("b", [won], task="one", stop=StopReason.LOST),
        episode("c", [won], task="two", stop=None, failure=failure),
    ]
    found = evaluation("x", episodes, cluster=lambda task: "p")
    assert found.failures == 1
    assert [(o.task, o.success, o.attempts) for o in found.outcomes] == [("one", 0.5, 2)]
    assert found.by_cluster() == {"p": (0.5, 1)}
    assert found.rate == 0.5
    assert found.mean_cost() == {"turns": 1.0}


def test_the_success_channel_overrules_the_stop_reason(turn, episode):
    last = turn([1], [2], position=0)
    object.__setattr__(last, "step", Step(channels={"success": 0.0}, stop=StopReason.GOAL))
    assert not succeeded(episode("a", [last]))
    assert succeeded(episode("b", [turn([1], [2], position=0, stop=StopReason.GOAL)]))


def test_a_summary_resamples_as_often_and_from_the_seed_that_it_is_asked():
    tasks = tuple(Outcome(f"t{i}", "p", i * i % 31 / 31, 2, 1.0) for i in range(31))
    found = Evaluation("a", tasks)
    for seed, draws in ((0, 10_000), (5, 300)):
        summary = found.summary(seed=seed, draws=draws)
        assert (summary["low"], summary["high"]) == found.interval(seed=seed, draws=draws)
    assert found.interval(seed=5, draws=300) != found.interval()
