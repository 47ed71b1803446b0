"""ArCHer's credit: what a turn is worth minus what its state is, both said by a critic that learns off-policy."""

from typing import Any

import numpy as np

from envgym.credit.compare import against
from envgym.credit.ledger import Floats, Ledger
from envgym.credit.schemes.counterexamples import alone, unequal_lengths
from envgym.credit.sources import Estimate, estimated
from envgym.credit.spec import SchemeSpec
from envgym.credit.term import Level, Meaning, Term
from envgym.credit.travel import spread

__all__ = ["ARCHER", "archer"]


def archer(*, action_values: Estimate, values: Estimate, token_baseline: Estimate | None = None) -> Term:
    """Q(s, a) - V(s) for every token of the turn, minus a baseline of the token if there is one.

    action_values: of turns [N]; values: of states [M]; token_baseline: of tokens [T]. Rewards enter through them.
    """
    worth = estimated(action_values, Level.TURN, Meaning.VALUE, name="action_values")
    turns = worth >> against(estimated(values, Level.STATE, Meaning.VALUE, name="values")) >> spread()
    if token_baseline is None:
        return turns
    return turns + -1.0 * estimated(token_baseline, Level.TOKEN, Meaning.CREDIT, name="token_baseline")


def _stand_in() -> dict[str, Any]:
    def of_state(ledger: Ledger) -> Floats:
        return np.array([float(len(step.text) + len(step.state_key)) / 10 for step in ledger.all_states()])

    def of_turn(ledger: Ledger) -> Floats:
        return np.array([float(turn.sampled_ids.sum() % 7) / 7 for turn in ledger.all_turns()])

    return {"action_values": of_turn, "values": of_state}


ARCHER = SchemeSpec(
    name="archer",
    make=archer,
    summary="a turn's value minus its state's, from a critic with twin Q and V learned off-policy",
    source="ArCHer (Zhou et al. 2024, arXiv 2402.19446); the critic: envgym_agents.learn.values.archer",
    claims="c",
    truncation="estimate",
    counterexamples={"d": alone, "e": unequal_lengths},
    needs={"action_values": Level.TURN, "values": Level.STATE},
    example=_stand_in,
)
