"""Rows of TRL's GRPO and RLOO beside ours, by episode and in float64 (`_trl_formulas`)."""

from dataclasses import replace

import numpy as np
from _harness import Row
from _trl_formulas import Formula, trl_formula

from envgym.credit import Ledger, Term, group_mean, leave_one_out, outcome
from envgym.env import StopReason
from envgym.episode import Group
from envgym.errors import Boundary, Failure

__all__ = ["with_trl"]

EXACT = 1e-12
BROKEN = Failure(boundary=Boundary.ENVIRONMENT, kind="SandboxGone", message="it is gone", where="step", turn=1)


def apart(one, two) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(two)).max())


def with_trl(found: list[Group]) -> list[Row]:
    """TRL's GRPO and RLOO by episode, in float64: agreement, what is a convention, and law h."""
    grpo, rloo = trl_formula("grpo"), trl_formula("rloo")
    ledger = Ledger.of(found)
    won, size = ledger.outcome_G, len(found[0].episodes)
    plain, loo = outcome() >> group_mean(), outcome() >> leave_one_out()
    divided = (outcome() >> group_mean(scale="std")).of(ledger)
    # conventions: the deviation divides by n - 1 where the paper's divides by n, and 1e-4 is added to it
    spread_G = np.repeat(won.reshape(-1, size).std(axis=1, ddof=1), size)
    theirs = grpo(won, group=size, scale_rewards="group") * (1 + 1e-4 / spread_G) * np.sqrt(size / (size - 1))
    gone = np.where(np.arange(len(won)) % size == 1, np.nan, won)
    failed = Ledger.of([_second(group, stop=None, failure=BROKEN) for group in found])
    alone = np.where(np.arange(len(won)) % size == 0, won, np.nan)
    return [
        Row("TRL GRPO without division, float64", apart(plain.of(ledger), grpo(won, group=size)), EXACT, "agree",
            "abs", bar=1.0),
        Row("TRL GRPO with division, conventions undone, float64", apart(divided, theirs), EXACT, "agree", "abs",
            bar=1.0),
        Row("TRL RLOO, float64", apart(loo.of(ledger), rloo(won, group=size)), EXACT, "agree", "abs", bar=1.0),
        Row("law i: TRL GRPO, a member without a verdict", apart(_known(plain, failed), grpo(gone, group=size)),
            EXACT, "agree", "abs", bar=1.0),
        Row("law i: TRL RLOO, a member without a verdict", apart(_known(loo, failed), rloo(gone, group=size)),
            EXACT, "agree", "abs", bar=1.0),
        Row("law d: TRL GRPO and RLOO, one member with a verdict",
            max(float(np.abs(one(alone, group=size)).max()) for one in (grpo, rloo)), EXACT, "agree", "abs",
            bar=1.0),
        _bound_law(found, plain, grpo),
    ]  # fmt: skip


def _bound_law(found: list[Group], plain: Term, grpo: Formula) -> Row:
    """Law h: a second member that a bound cut off, as a failure and as a success, for the credit of its peers.

    With ``mask_truncated_completions`` TRL takes such a completion's tokens out of the loss (so truncation is
    masked, as declared), but its reward stays in the group's mean: these statements know nothing of the bound.
    """
    others = np.arange(sum(map(len, found))) % len(found[0].episodes) != 1
    ours, theirs = [], []
    for reward in (0.0, 1.0):
        cut = Ledger.of([_second(group, stop=StopReason.TOKEN_LIMIT, reward=reward) for group in found])
        ours.append(_known(plain, cut)[others])
        won = np.where(others, Ledger.of(found).outcome_G, reward)
        theirs.append(grpo(won, group=len(found[0].episodes))[others])
    name = "law h: what a masked member earned changes its peers' GRPO by"
    return Row(name, apart(*ours), apart(*theirs), "TRL", "abs")


def _second(group: Group, *, reward: float | None = None, **ended) -> Group:
    """The group whose second member ended otherwise, with another reward where one is said."""
    first, second, *rest = group.episodes
    if reward is not None:
        last = second.turns[-1]
        second = replace(second, turns=(*second.turns[:-1], replace(last, step=replace(last.step, reward=reward))))
    return Group(group.task_id, (first, replace(second, **ended), *rest))


def _known(term: Term, ledger: Ledger) -> np.ndarray:
    """Credit of episodes, of which what is not known is 0."""
    return np.nan_to_num(term.of(ledger), nan=0.0)
