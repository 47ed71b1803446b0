"""Schemes that ask a critic: differences of expected values over turns or tokens."""

import numpy as np

from envgym.credit.advantage import advantage, token_advantage
from envgym.credit.bounds import bounded
from envgym.credit.checks import checked_above
from envgym.credit.ledger import Floats
from envgym.credit.schemes.claims import one_step
from envgym.credit.schemes.counterexamples import alone, unequal_lengths
from envgym.credit.schemes.stand_ins import state_values, token_values
from envgym.credit.sources import Estimate, Truncation, estimated, rewards
from envgym.credit.spec import SchemeSpec
from envgym.credit.term import Level, Meaning, Term
from envgym.credit.travel import spread

__all__ = [
    "DIRECT_ADVANTAGE", "TOKEN_GAE", "TURN_GAE", "direct_advantage", "quadratic_loss", "token_gae", "turn_gae",
]  # fmt: skip


def turn_gae(
    *, values: Estimate, gamma: float = 1.0, lam: float = 0.95, truncation: Truncation | None = None
) -> Term:
    """GAE whose steps are turns; values: of states [M]. None: after a bound, the last state's value goes on."""
    critic = estimated(values, Level.STATE, Meaning.VALUE, name="values")
    credit = advantage(rewards(), critic, gamma=gamma, lam=lam) >> spread()
    return credit if truncation is None else bounded(credit, truncation)


def token_gae(*, values: Estimate, gamma: float = 1.0, lam: float = 0.95) -> Term:
    """GAE whose steps are sampled tokens; values: before each token [T]. After a bound the last value goes on."""
    critic = estimated(values, Level.TOKEN, Meaning.VALUE, name="values")
    return token_advantage(critic, earned=rewards(), gamma=gamma, lam=lam)


def direct_advantage(*, values: Estimate, truncation: Truncation | None = None) -> Term:
    """One-step differences of a frozen critic: r + V(next state) - V(state) of turns; values: of states [M]."""
    critic = estimated(values, Level.STATE, Meaning.VALUE, name="values")
    credit = advantage(rewards(), critic, lam=0.0) >> spread()
    return credit if truncation is None else bounded(credit, truncation)


def quadratic_loss(log_ratio_N: Floats, advantage_N: Floats, *, beta: float) -> Floats:
    """What direct advantage optimisation descends, for each turn [N]: ``(log ratio - advantage / beta) ** 2 / 2``.

    log_ratio_N: log of the policy's probability of all the turn's tokens over the reference's. Zero where the
    ratio is what the advantage asks for. Raises ValueError unless beta is above 0.
    Source: Direct Advantage Policy Optimization (Liu et al. 2024, arXiv 2412.18279), the squared match of the log
    ratio with the advantage over beta.
    """
    checked_above("beta", beta)
    return 0.5 * (np.asarray(log_ratio_N, np.float64) - np.asarray(advantage_N, np.float64) / beta) ** 2


def state_values_example() -> dict[str, Estimate]:
    return {"values": state_values}


def token_values_example() -> dict[str, Estimate]:
    return {"values": token_values}


TURN_GAE = SchemeSpec(
    name="turn-gae",
    make=turn_gae,
    summary="generalised advantage estimation over turns, with a critic of states",
    source="GAE (Schulman et al. 2016, arXiv 1506.02438), with turns as steps",
    claims="c",
    claims_with=one_step("c"),
    counterexamples={"d": alone, "e": unequal_lengths},
    needs={"values": Level.STATE},
    example=state_values_example,
)
TOKEN_GAE = SchemeSpec(
    name="token-gae",
    make=token_gae,
    summary="generalised advantage estimation over sampled tokens, with a critic of tokens",
    source="GAE (Schulman et al. 2016, arXiv 1506.02438); Ouyang et al. 2022 for language models",
    claims="c",
    truncation="estimate",
    counterexamples={"d": alone, "e": unequal_lengths},
    needs={"values": Level.TOKEN},
    example=token_values_example,
)
DIRECT_ADVANTAGE = SchemeSpec(
    name="direct-advantage",
    make=direct_advantage,
    summary="one-step differences of a frozen critic of states",
    source="Direct Advantage Policy Optimization (Liu et al. 2024, arXiv 2412.18279)",
    claims="ce",
    counterexamples={"d": alone},
    needs={"values": Level.STATE},
    example=state_values_example,
)
