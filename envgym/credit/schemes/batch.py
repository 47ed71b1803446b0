"""Schemes that scale or compare over the whole batch: by its deviation, its roles, its groups, a fitted Beta."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Literal

from envgym.credit.batch import beta_normalised, group_in_batch, role_mean
from envgym.credit.bounds import bounded
from envgym.credit.checks import checked_choice, checked_labels
from envgym.credit.compare import against, group_mean, whiten
from envgym.credit.keyed import constant
from envgym.credit.schemes.counterexamples import equal_means, nearly_equal, unequal_lengths
from envgym.credit.sources import Truncation, outcome
from envgym.credit.spec import SchemeSpec
from envgym.credit.term import Term
from envgym.credit.travel import decay, spread
from envgym.credit.weighing import disagreement, rest
from envgym.episode import Episode

__all__ = [
    "BNPO", "COPO", "REINFORCE_PLUS_PLUS", "REINFORCE_PLUS_PLUS_BASELINE", "TRR_PLUS_PLUS", "bnpo", "copo",
    "reinforce_plus_plus", "reinforce_plus_plus_baseline", "trr_plus_plus",
]  # fmt: skip

Over = Literal["episode", "token"]


def _normalised(compared: Term, over: Over, gamma: float) -> Term:
    checked_choice("over", over, ("episode", "token"))
    if over == "token":
        return compared >> decay(gamma) >> spread() >> whiten()
    return compared >> whiten() >> decay(gamma) >> spread()  # before decay: every episode counts once, not per turn


def reinforce_plus_plus(*, over: Over = "token", gamma: float = 1.0, truncation: Truncation = "mask") -> Term:
    """Outcomes normalised over the whole batch, per actor; over tokens, long episodes count for more."""
    return bounded(_normalised(outcome() >> against(constant(0.0)), over, gamma), truncation)


def reinforce_plus_plus_baseline(
    *, over: Over = "token", gamma: float = 1.0, truncation: Truncation = "mask"
) -> Term:
    """Group-relative credit, normalised over the whole batch instead of each group."""
    return bounded(_normalised(outcome() >> group_mean(), over, gamma), truncation)


def trr_plus_plus(
    *, by: Sequence[str] = ("actor", "environment"), gamma: float = 1.0, truncation: Truncation = "mask"
) -> Term:
    """Outcomes normalised among all in the batch that play one role at one kind of task."""
    return bounded(outcome() >> role_mean(by=by) >> decay(gamma) >> spread(), truncation)


def bnpo(
    *,
    low: float = 0.0,
    high: float = 1.0,
    channels: Sequence[str] = (),
    most: float = 1e6,
    gamma: float = 1.0,
    truncation: Truncation = "mask",
) -> Term:
    """Group-relative credit over a Beta's density; of each channel by itself and added up, where some are named.

    Truncation as a number counts in each channel that is named.
    """
    names = checked_labels("channels", channels, "the name of a reward channel")
    parts = [outcome(name, truncation=truncation) for name in names]
    scaled = [one >> beta_normalised(low=low, high=high, most=most) for one in parts or [outcome()]]
    credit = reduce(add, scaled) >> decay(gamma) >> spread()
    return credit if names and truncation != "mask" else bounded(credit, truncation)


def copo(
    *,
    steepness: float = 20.0,
    middle: float = 0.35,
    answer: Callable[[Episode], str] | None = None,
    gamma: float = 1.0,
    truncation: Truncation = "mask",
) -> Term:
    """GRPO where a group disagrees; where it agrees, how the group stands among the batch's groups."""
    earned = outcome()
    local = disagreement(earned, steepness=steepness, middle=middle, answer=answer)
    blend = (earned >> group_mean(scale="std")).when(local) + (earned >> group_in_batch()).when(rest(local))
    return bounded(blend >> decay(gamma) >> spread(), truncation)


def _wide() -> dict[str, float]:
    return {"low": -40.0, "high": 40.0}


REINFORCE_PLUS_PLUS = SchemeSpec(
    name="reinforce-plus-plus",
    make=reinforce_plus_plus,
    summary="the outcome, normalised over the whole batch",
    source="REINFORCE++ (Hu 2025, arXiv 2501.03262, without its penalty in the reward)",
    counterexamples={"c": nearly_equal, "d": unequal_lengths, "e": unequal_lengths},
)
REINFORCE_PLUS_PLUS_BASELINE = SchemeSpec(
    name="reinforce-plus-plus-baseline",
    make=reinforce_plus_plus_baseline,
    summary="outcome minus the group's mean, normalised over the whole batch",
    source="REINFORCE++-baseline (Hu 2025, arXiv 2501.03262, the variant with a group's mean)",
    claims="d",
    counterexamples={"c": nearly_equal, "e": unequal_lengths},
)
TRR_PLUS_PLUS = SchemeSpec(
    name="trr-plus-plus",
    make=trr_plus_plus,
    summary="the outcome, normalised over all that play one role at one kind of task",
    source="task-relative REINFORCE++, Absolute Zero (Zhao et al. 2025, arXiv 2505.03335)",
    counterexamples={"c": nearly_equal, "d": unequal_lengths, "e": unequal_lengths},
)
BNPO = SchemeSpec(
    name="bnpo",
    make=bnpo,
    summary="group-relative credit over the density of a Beta fitted to the batch's group means",
    source="BNPO (Xiao et al. 2025, arXiv 2506.02864, with its advantage decomposition)",
    claims="d",
    counterexamples={"c": equal_means, "e": unequal_lengths},
    example=_wide,
)
COPO = SchemeSpec(
    name="copo",
    make=copo,
    summary="GRPO, blended by the group's entropy with how its group stands in the batch",
    source="COPO (Han et al. 2025, arXiv 2508.04138: global advantage, w = sigmoid(g (H - r)))",
    counterexamples={"c": nearly_equal, "d": unequal_lengths, "e": unequal_lengths},
)
