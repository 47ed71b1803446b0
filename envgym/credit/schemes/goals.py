"""Schemes that pay for goals on the way: a judge's subgoals as options, and timed goals that a monitor watches."""

import numpy as np

from envgym.credit.bounds import bounded
from envgym.credit.compare import group_mean
from envgym.credit.goals import Goals, Stage, TimedGoal, goal_costs, goal_rewards, option_to_go, subgoals
from envgym.credit.ledger import Floats, Ledger
from envgym.credit.redistribute import to_go
from envgym.credit.schemes.counterexamples import unequal_lengths
from envgym.credit.sources import Estimate, Truncation, outcome
from envgym.credit.spec import SchemeSpec
from envgym.credit.term import Level, Term
from envgym.credit.travel import decay, spread

__all__ = ["SUBGOAL_OPTIONS", "TIMED_SUBGOALS", "subgoal_options", "timed_subgoals"]


def subgoal_options(
    *,
    judge: Estimate,
    bonus: float = 1.0,
    weight: float = 1.0,
    gamma: float = 0.9,
    truncation: Truncation = "mask",
) -> Term:
    """Group-relative credit, and `weight` times what each option earned of the judge's bonus, by options to go.

    judge: for every turn the number of the subgoal it reached, 0 or NaN for none.
    """
    episodes = outcome() >> group_mean() >> decay(1)
    options = subgoals(judge, bonus=bonus) >> option_to_go(judge, gamma=gamma)
    return bounded((episodes + weight * options) >> spread(), truncation)


def timed_subgoals(
    *, goal: Goals, weight: float = 1.0, cost: float = 1.0, gamma: float = 1.0, truncation: Truncation = "mask"
) -> Term:
    """Group-relative credit, and `weight` times a goal's stage rewards less `cost` times its violations, to go.

    goal: one for all tasks, or a function of a task's id (`envgym.data.listening`); None is no goal.
    """
    episodes = outcome() >> group_mean() >> decay(1)
    stages = goal_rewards(goal) + (-cost) * goal_costs(goal)
    return bounded((episodes + weight * (stages >> to_go(gamma=gamma))) >> spread(), truncation)


def _judge(ledger: Ledger) -> Floats:
    """States "a" and "b" are subgoals 1 and 2."""
    return np.array([{"a": 1, "b": 2}.get(turn.step.state_key, 0) for turn in ledger.all_turns()], np.float64)


def _goal() -> TimedGoal:
    a = Stage("a", lambda step: step.state_key == "a")
    b = Stage("b", lambda step: step.state_key == "b", within=2)
    return TimedGoal((a, b), never=lambda step: step.state_key == "c")


SUBGOAL_OPTIONS = SchemeSpec(
    name="subgoal-options",
    make=subgoal_options,
    summary="group-relative credit, and a bonus for each option that ends in a subgoal the judge saw",
    source="CALM (Pignatelli et al. 2024, arXiv 2409.12798); the comparison of options is our own",
    claims="cd",
    counterexamples={"e": unequal_lengths},
    needs={"judge": Level.TURN},
    example=lambda: {"judge": _judge},
)
TIMED_SUBGOALS = SchemeSpec(
    name="timed-subgoals",
    make=timed_subgoals,
    summary='group-relative credit, and stage rewards of "A, then B within n turns, never C"',
    source="TGPO (Meng et al. 2025, arXiv 2510.00225), for stored episodes",
    claims="cd",
    counterexamples={"e": unequal_lengths},
    needs={"goal": None},
    example=lambda: {"goal": _goal()},
)
