"""Schemes that compare an episode with its group's mean, alone or with its turns compared in their states."""

from typing import Literal

from envgym.credit.bounds import bounded
from envgym.credit.compare import Scale, group_mean, leave_one_out, state_peers
from envgym.credit.schemes.claims import by_scale
from envgym.credit.schemes.counterexamples import nearly_equal, state_met_twice, unequal_lengths
from envgym.credit.sources import Truncation, outcome, returns
from envgym.credit.spec import Forks, SchemeSpec
from envgym.credit.term import Term
from envgym.credit.travel import decay, spread

__all__ = ["DR_GRPO", "GRPO", "TURN_RELATIVE", "dr_grpo", "grpo", "turn_relative"]

Baseline = Literal["mean", "leave_one_out"]


def dr_grpo(*, gamma: float = 1.0, truncation: Truncation = "mask") -> Term:
    """An episode's outcome minus its group's mean; a turn k turns before the end gets ``gamma ** k`` of it."""
    return bounded(_episodes(gamma, "mean", "none") >> spread(), truncation)


def grpo(*, gamma: float = 1.0, scale: Scale = "std", truncation: Truncation = "mask") -> Term:
    """The same, scaled within the group: divided by its deviation, or as `scale` says."""
    return bounded(_episodes(gamma, "mean", scale) >> spread(), truncation)


def _episodes(gamma: float, baseline: Baseline, scale: Scale) -> Term:
    compare = leave_one_out if baseline == "leave_one_out" else group_mean
    return outcome() >> compare(scale=scale) >> decay(gamma)


def turn_relative(
    *,
    gamma: float = 1.0,
    baseline: Baseline = "mean",
    scale: Scale = "none",
    weight: float = 1.0,
    truncation: Truncation = "mask",
) -> Term:
    """Group-relative credit plus `weight` times each turn's return-to-go compared among turns in the same state."""
    turns = returns(gamma=gamma) >> state_peers(baseline=baseline, scale=scale)
    return bounded((_episodes(gamma, baseline, scale) + weight * turns) >> spread(), truncation)


DR_GRPO = SchemeSpec(
    name="dr-grpo",
    make=dr_grpo,
    summary="outcome minus the group's mean, for every token of the episode",
    source="Dr. GRPO (Liu et al. 2025, arXiv 2503.20783): GRPO without its division",
    claims="cd",
    counterexamples={"e": unequal_lengths},
)
GRPO = SchemeSpec(
    name="grpo",
    make=grpo,
    summary="outcome minus the group's mean, over the group's deviation",
    source="GRPO (Shao et al. 2024, arXiv 2402.03300, section 4.1.2)",
    claims="d",
    claims_with=by_scale("d", default="std"),
    counterexamples={"c": nearly_equal, "e": unequal_lengths},
)
TURN_RELATIVE = SchemeSpec(
    name="turn-relative",
    make=turn_relative,
    forks=Forks(),
    summary="group-relative credit, and each turn compared with the group's turns in the same state",
    source="the composition is GiGPO's (Feng et al. 2025, arXiv 2505.10978); keys come from the environment",
    claims="c",
    claims_with=by_scale("", default="none"),
    counterexamples={"c": nearly_equal, "d": state_met_twice, "e": unequal_lengths},
)
