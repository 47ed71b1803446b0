"""Goals on the way: subgoals that a judge saw reached, and timed ones that a monitor of steps watches.

Both pay rewards of turns. What a fork's path reached before the fork is reached, and pays nothing again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from envgym.arguments import checked_between, checked_count, instance
from envgym.credit.checks import checked_finite, checked_function, checked_label, shown
from envgym.credit.ledger import Floats, Ints, Ledger
from envgym.credit.redistribute import Baseline, check_baseline, relative_to_go
from envgym.credit.sources import Estimate
from envgym.credit.term import Level, Meaning, Part, Term
from envgym.env import Step

__all__ = ["Goals", "Stage", "TimedGoal", "goal_costs", "goal_rewards", "option_to_go", "subgoals"]


def _reached(ledger: Ledger, judge: Estimate) -> Ints:
    """The number of the subgoal that each turn reached first on its path [N]; 0 for none, or one reached before."""
    said = np.nan_to_num(np.asarray(judge(ledger), np.float64), nan=0.0)
    if said.shape != (size := (len(ledger.reward_N),)):
        raise ValueError(f"a judge of subgoals gave shape {said.shape}; turns are {size} here")
    if (said < 0).any() or (said != np.floor(said)).any():
        raise ValueError("a judge of subgoals gives 0 or NaN for none, else the subgoal's number, from 1")
    found = np.zeros(len(said), np.intp)
    had: list[frozenset[int]] = []
    for row in range(ledger.rows):
        first = int(ledger.turns[row])
        mine: set[int] = set()
        if (state := int(ledger.fork_G[row])) >= 0:
            parent = int(ledger.row_M[state])
            shared = said[int(ledger.turns[parent]) : state - parent]
            mine = {*had[parent], *shared.astype(np.intp).tolist()}
        had.append(frozenset(mine))
        for place in first + np.flatnonzero(said[first : int(ledger.turns[row + 1])]):
            if (number := int(said[place])) not in mine:
                mine.add(number)
                found[place] = number
    return found


def subgoals(judge: Estimate, *, bonus: float = 1.0) -> Term:
    """Rewards of turns [N]: `bonus` for each that reached a subgoal for the first time on its path.

    judge: for each turn 0 or NaN, or the number of a subgoal (from 1) that the judge says it reached.
    Source: CALM (Pignatelli et al. 2024, arXiv 2409.12798): an option that ends in a subgoal pays.
    """
    checked_function("judge", judge, "a function of a Ledger")
    checked_finite("bonus", bonus)

    def run(ledger: Ledger) -> Floats:
        return np.where(ledger.alive_G[ledger.row_N], bonus * (_reached(ledger, judge) > 0), np.nan)

    return Term("subgoals()", Level.TURN, Meaning.REWARD, run)


def option_to_go(judge: Estimate, *, gamma: float = 1.0, baseline: Baseline = "leave_one_out") -> Part:
    """Credit of turns: what their option earned, and what options after it did, gamma for each option between.

    An option is a stretch of turns up to the one that reached a subgoal; the last may end in none. All its turns
    get the same. Baseline as in `relative_to_go`, with options as steps.
    """
    checked_function("judge", judge, "a function of a Ledger")
    checked_between("gamma", gamma, 0, 1)
    check_baseline(baseline)

    def run(ledger: Ledger, values: Floats, level: Level) -> Floats:
        if not len(values):
            return values
        begins = np.zeros(len(values), np.bool_)
        begins[1:] = _reached(ledger, judge)[:-1] > 0
        begins[ledger.turns[:-1][np.diff(ledger.turns) > 0]] = True
        heads = np.flatnonzero(begins)
        rows = np.searchsorted(heads, ledger.turns)
        credit = relative_to_go(
            np.add.reduceat(values, heads), rows, ledger.role_G, ledger.alive_G, gamma=gamma, baseline=baseline
        )
        return np.repeat(credit, np.diff(np.append(heads, len(values))))

    return Part(
        f"option_to_go(gamma={gamma:g})",
        {(Level.TURN, Meaning.REWARD): (Level.TURN, Meaning.CREDIT)},
        run,
        "options are made of turns",
    )


@dataclass(frozen=True, slots=True)
class Stage:
    """Something that must hold at a later step than the stage before it.

    holds: of a step. within: at most so many turns after the stage before it (or the start); None: whenever.
    reward: what reaching it pays.
    """

    name: str
    holds: Callable[[Step], bool]
    within: int | None = None
    reward: float = 1.0

    def __post_init__(self) -> None:
        checked_label("name of a stage", self.name, "the name of a stage")
        checked_function(f"holds of stage {self.name!r}", self.holds, "a function of a Step")
        if self.within is not None:
            checked_count(f"within of stage {self.name!r}", self.within, least=1)
        checked_between(f"reward of stage {self.name!r}", self.reward, -np.inf, np.inf)


@dataclass(frozen=True, slots=True)
class TimedGoal:
    """As "eventually A, then B within n turns, never C": stages in their order, and what costs at every step.

    A stage that is not reached in time ends the goal: later ones pay nothing. `never` costs 1 at every step at
    which it holds, before and after that.
    """

    stages: tuple[Stage, ...]
    never: Callable[[Step], bool] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.stages, Sequence):
            raise TypeError(f"stages is {shown(self.stages)}; it must be a tuple of stages: (stage,)")
        for place, stage in enumerate(self.stages):
            instance(f"stages[{place}]", stage, Stage)
        if self.never is not None:
            checked_function("never", self.never, "a function of a Step, or None")
        elif not self.stages:
            raise ValueError("stages is empty and never is None; a goal pays or costs something: give one of them")

    def watch(self, steps: Sequence[Step]) -> tuple[Floats, Floats]:
        """Rewards and costs of turns from a path's steps, the one that `reset` gave first: ([steps - 1]) each.

        The first step can hold neither a stage nor a cost: nobody has acted. One step reaches one stage at most.
        """
        earned, cost = np.zeros(max(len(steps) - 1, 0)), np.zeros(max(len(steps) - 1, 0))
        at, since = 0, 0
        for number, step in enumerate(steps[1:], 1):
            if self.never is not None and self.never(step):
                cost[number - 1] = 1.0
            if at == len(self.stages):
                continue
            stage = self.stages[at]
            if stage.within is not None and number - since > stage.within:
                at = len(self.stages)
            elif stage.holds(step):
                earned[number - 1] = stage.reward
                at, since = at + 1, number
        return earned, cost


Goals = TimedGoal | Callable[[str], TimedGoal | None]
"""One goal for all tasks, or a function of a task's id; None for a task that has none, which pays and costs 0."""


def goal_rewards(goal: Goals) -> Term:
    """What a goal's stages pay the turns that reach them [N]; along whole paths, what a fork shares included.

    Source: timed subgoals with stage rewards, TGPO (Meng et al. 2025, arXiv 2510.00225); for stored episodes, so
    times are bounds. A judge may propose them (`envgym.data.feedback`).
    """
    return _watched(goal, 0, "goal_rewards()")


def goal_costs(goal: Goals) -> Term:
    """1 for turns [N] whose step is one that must never be; 0 for others."""
    return _watched(goal, 1, "goal_costs()")


def _watched(goal: Goals, which: int, name: str) -> Term:
    if not callable(goal):
        instance("goal", goal, TimedGoal)

    def run(ledger: Ledger) -> Floats:
        found = np.zeros(len(ledger.reward_N))
        paths: dict[tuple[int, str], tuple[Step, ...]] = {}
        for row, (episode, numbers) in enumerate(ledger.parts):
            group = int(ledger.group_G[row])
            if episode.parent is None:
                before: tuple[Step, ...] = (episode.root,)
            else:
                before = paths[group, episode.parent.episode][: episode.parent.turn + 1]
            path = paths[group, episode.id] = (*before, *(turn.step for turn in episode.turns))
            if (mine := goal(ledger.groups[group].task_id) if callable(goal) else goal) is None:
                continue
            own = instance("goal", mine, TimedGoal).watch(path)[which][len(before) - 1 :]
            found[int(ledger.turns[row]) : int(ledger.turns[row + 1])] = own[list(numbers)] if numbers else own
        return np.where(ledger.alive_G[ledger.row_N], found, np.nan)

    return Term(name, Level.TURN, Meaning.REWARD, run)
