"""Schemes that listen to what a judge said (`said`): its lines as the spans, the subgoals or the goals they need.

Who of a ledger was told nothing gets nothing of it: 0 on its tokens and turns, no goal for its task. Spans of
episodes that are not in the ledger wait for the ledger that holds them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from envgym.credit import Ledger, SpanReward, Stage, TimedGoal
from envgym.credit.ledger import Floats
from envgym.credit.sources import Estimate
from envgym.data.said import Goal, SaidGoal, SaidSpans, SaidSubgoals, Timed
from envgym.env import Step

__all__ = ["NEEDS", "goals_of", "judge_of", "listening", "spans_of"]

NEEDS: Mapping[str, str] = {"spans": "spans", "judge": "subgoals", "goal": "goals"}
"""For the option that a scheme needs: the kind of feedback that it is made of."""

Said = SaidSpans | SaidSubgoals | SaidGoal


def listening(needs: Iterable[str], said: Sequence[Said]) -> dict[str, Any]:
    """The options that feedback gives a scheme. needs: the names of what the scheme needs (`SchemeSpec.needs`).

    Raises ValueError where the scheme needs no feedback, or feedback of another kind than was said.
    """
    wanted = [need for need in needs if need in NEEDS]
    if not wanted:
        raise ValueError(f"the scheme listens to no feedback: it needs none of {', '.join(NEEDS)}")
    made: Mapping[str, Callable[[Sequence[Said]], object]] = {
        "spans": spans_of, "judge": judge_of, "goal": goals_of,
    }  # fmt: skip
    kinds = {line.kind for line in said}
    for need in wanted:
        if NEEDS[need] not in kinds:
            there = f"there is only {', '.join(sorted(kinds))}" if kinds else "nothing was said"
            raise ValueError(f"the scheme needs feedback of kind {NEEDS[need]!r}, and {there}")
    return {need: made[need](said) for need in wanted}


def spans_of(said: Sequence[Said]) -> Callable[[Ledger], list[SpanReward]]:
    """Rewards of spans, of all who were judged; an episode that was judged twice is rewarded by both."""
    spans: dict[str, list[SpanReward]] = {}
    for line in said:
        if isinstance(line, SaidSpans):
            spans.setdefault(line.episode, []).extend(
                SpanReward(line.episode, one.turn, one.begin, one.end, one.reward, one.why) for one in line.spans
            )

    def given(ledger: Ledger) -> list[SpanReward]:
        here = dict.fromkeys(episode.id for episode, _ in ledger.parts)
        return [span for name in here for span in spans.get(name, ())]

    return given


def judge_of(said: Sequence[Said]) -> Estimate:
    """For every turn the number of the subgoal that it reached, the lowest where several were; 0 for none."""
    reached: dict[tuple[str, int], int] = {}
    for line in said:
        if isinstance(line, SaidSubgoals):
            for one in line.reached:
                place = line.episode, one.turn
                reached[place] = min(one.subgoal, reached.get(place, one.subgoal))

    def judge(ledger: Ledger) -> Floats:
        found = np.zeros(len(ledger.reward_N))
        for row, (episode, numbers) in enumerate(ledger.parts):
            first = int(ledger.turns[row])
            for place, number in enumerate(numbers or range(len(episode.turns))):
                found[first + place] = reached.get((episode.id, number), 0)
        return found

    return judge


def goals_of(said: Sequence[Said]) -> Callable[[str], TimedGoal | None]:
    """The goal of a task, by its id: the last that was said; None where none was."""
    goals = {line.task: _timed(line.goal) for line in said if isinstance(line, SaidGoal) and line.goal is not None}
    return goals.get


def _timed(goal: Goal) -> TimedGoal:
    never = goal.never
    return TimedGoal(tuple(map(_stage, goal.stages)), (lambda step: never in step.text) if never else None)


def _stage(one: Timed) -> Stage:
    def holds(step: Step) -> bool:
        return one.text in step.text

    return Stage(one.name, holds, within=one.within, reward=one.reward)
