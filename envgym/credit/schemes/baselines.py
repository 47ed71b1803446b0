"""Schemes that subtract something other than the group's mean: a running mean, the others, the greedy member."""

from collections.abc import Callable

from envgym.arguments import checked_number
from envgym.credit.bounds import bounded
from envgym.credit.checks import checked_finite, shown
from envgym.credit.compare import against, group_mean, leave_one_out
from envgym.credit.keyed import Running, constant
from envgym.credit.reference import Missing, greedy_member, is_greedy, log_mean_exp, shifted
from envgym.credit.schemes.counterexamples import alone, unequal_lengths
from envgym.credit.sources import Truncation, outcome
from envgym.credit.spec import SchemeSpec
from envgym.credit.term import Term
from envgym.credit.travel import decay, spread
from envgym.episode import Episode

__all__ = [
    "ASYMRE", "OPMD", "RAE", "REINFORCE", "REMAX", "RLOO", "asymre", "opmd", "rae", "reinforce", "remax", "rloo",
]  # fmt: skip


def reinforce(*, baseline: float | Running = 0.0, gamma: float = 1.0, truncation: Truncation = "mask") -> Term:
    """An episode's outcome minus a number, or minus a running mean that whoever trains keeps (`Running`)."""
    if not isinstance(baseline, Running):
        checked_finite("baseline", checked_number("baseline", baseline, "a number or a Running"))
    expected = baseline.expected() if isinstance(baseline, Running) else constant(baseline)
    return bounded(outcome() >> against(expected) >> decay(gamma) >> spread(), truncation)


def rae(*, baseline: Running, gamma: float = 1.0, truncation: Truncation = "mask") -> Term:
    """An episode's outcome minus the running mean of its role: a `Running` whose keys name the actor."""
    if not isinstance(baseline, Running) or "actor" not in baseline.by:
        raise ValueError(f"baseline is {shown(baseline)}; it must be Running(by=('actor',)) or more")
    return reinforce(baseline=baseline, gamma=gamma, truncation=truncation)


def rloo(*, gamma: float = 1.0, truncation: Truncation = "mask") -> Term:
    """An episode's outcome minus the mean of the others' in its group."""
    return bounded(outcome() >> leave_one_out() >> decay(gamma) >> spread(), truncation)


def remax(
    *,
    greedy: Callable[[Episode], bool] = is_greedy,
    missing: Missing = "raise",
    gamma: float = 1.0,
    truncation: Truncation = "mask",
) -> Term:
    """An episode's outcome minus that of the member its group played greedily, which itself gets nothing."""
    compared = outcome() >> greedy_member(greedy=greedy, missing=missing)
    return bounded(compared >> decay(gamma) >> spread(), truncation)


def opmd(*, tau: float = 1.0, gamma: float = 1.0, truncation: Truncation = "mask") -> Term:
    """An episode's outcome minus the log-mean-exp of its group's at temperature `tau` (`dr-grpo` has the mean)."""
    return bounded(outcome() >> log_mean_exp(tau) >> decay(gamma) >> spread(), truncation)


def asymre(*, shift: float = -0.1, gamma: float = 1.0, truncation: Truncation = "mask") -> Term:
    """An episode's outcome minus its group's mean plus `shift`: below 0, successes count for more than failures."""
    checked_finite("shift", shift)
    return bounded(outcome() >> group_mean() >> shifted(-shift) >> decay(gamma) >> spread(), truncation)


def _running() -> dict[str, Running]:
    return {"baseline": Running(by=("actor",), means={("agent",): (0.25, 3), ("other",): (-0.5, 1)})}


def _second() -> dict[str, object]:
    return {"greedy": lambda episode: episode.id.endswith("e1"), "missing": "leave_one_out"}


REINFORCE = SchemeSpec(
    name="reinforce",
    make=reinforce,
    summary="the outcome itself, minus a number or a running mean",
    source="REINFORCE (Williams 1992, with a constant or a running reinforcement baseline)",
    claims="c",
    counterexamples={"d": alone, "e": unequal_lengths},
    running="baseline",
)
RAE = SchemeSpec(
    name="rae",
    make=rae,
    summary="outcome minus the running mean of whoever plays the same role",
    source="role-conditioned advantage estimation, SPIRAL (Liu et al. 2025, arXiv 2506.24119)",
    claims="c",
    counterexamples={"d": alone, "e": unequal_lengths},
    needs={"baseline": None},
    example=_running,
    running="baseline",
)
RLOO = SchemeSpec(
    name="rloo",
    make=rloo,
    summary="outcome minus the mean of the group's others: unbiased",
    source="RLOO (Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740)",
    claims="cd",
    counterexamples={"e": unequal_lengths},
)
REMAX = SchemeSpec(
    name="remax",
    make=remax,
    summary="outcome minus that of the group's greedy member",
    source="ReMax (Li et al. 2024, arXiv 2310.10505)",
    claims="cd",
    counterexamples={"e": unequal_lengths},
    example=_second,
    greedy=True,
)
OPMD = SchemeSpec(
    name="opmd",
    make=opmd,
    summary="outcome minus tau * log(mean(exp(outcome / tau))) of the group",
    source="OPMD in Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm (2025, arXiv 2509.24203)",
    claims="cd",
    counterexamples={"e": unequal_lengths},
)
ASYMRE = SchemeSpec(
    name="asymre",
    make=asymre,
    summary="outcome minus a shifted group mean, for data of older policies",
    source="AsymRE (Arnal et al. 2025, arXiv 2506.20520: baseline mean + delta)",
    claims="c",
    counterexamples={"d": alone, "e": unequal_lengths},
)
