"""Values that the episodes' own tree measures, without a critic: of a state that was forked, or met more than once.

A value is the mean of what was earned from a state on by those who passed it. Where nobody can say, it is NaN, and
`advantage` credits the turns around it as one segment.
"""

import numpy as np

from envgym.arguments import checked_between, checked_count
from envgym.credit.checks import checked_flag
from envgym.credit.ledger import Floats, Ints, Ledger
from envgym.credit.sources import Truncation, check_truncation, returns, tail
from envgym.credit.term import Level, Meaning, Term

__all__ = ["check_measured", "forked", "mean_at", "nodes", "returns_at_states", "state_value"]


def check_measured(gamma: float, truncation: Truncation, least: int) -> None:
    """Raise ValueError, TypeError unless values can be measured so: gamma in [0, 1], at least one sample."""
    checked_between("gamma", gamma, 0, 1)
    check_truncation(truncation)
    checked_count("least", least, least=1)


def nodes(ledger: Ledger) -> Ints:
    """The node [M] of every state: states that are one world (a fork's first, and where it left) share a number."""
    found = np.arange(len(ledger.state_M))
    for row in np.flatnonzero(ledger.fork_G >= 0):  # parents stand before their forks
        found[ledger.turns[row] + row] = found[ledger.fork_G[row]]
    return found


def returns_at_states(ledger: Ledger, *, gamma: float, truncation: Truncation) -> Floats:
    """What each row earned from each of its states on [M]; after the last turn, what it ended with."""
    found = np.zeros(len(ledger.state_M))
    found[ledger.before_N] = returns(gamma=gamma, truncation=truncation).of(ledger)
    found[ledger.last_G] = tail(ledger, truncation)
    return found


def mean_at(values: Floats, places: Ints, size: int, *, least: int = 1) -> Floats:
    """The mean of the known values at each of `size` places; NaN where there are fewer than `least`."""
    known = ~np.isnan(values)
    counts = np.bincount(places[known], minlength=size)
    sums = np.bincount(places[known], values[known], minlength=size)
    return np.where(counts >= least, sums / np.maximum(counts, 1), np.nan)


def forked(*, gamma: float = 1.0, truncation: Truncation = "mask", own: bool = False, least: int = 1) -> Term:
    """Monte-Carlo values of states [M]: the mean return of the continuations that were forked from each.

    own: count also the path that was forked. It is one more sample, but the action that is credited is in it, which
    shrinks its credit; without it the value does not depend on that action. A state is measured only where the
    return of some fork is known; least: fewer continuations (`own` included) say nothing.
    What was forked in the middle of a turn measures tokens, not states (see `forked_tokens`).
    Sources: VinePPO (Kazemnejad et al. 2024); SPO (Guo et al. 2025, arXiv 2505.23564).
    """
    check_measured(gamma, truncation, least)
    checked_flag("own", own)

    def run(ledger: Ledger) -> Floats:
        found = returns_at_states(ledger, gamma=gamma, truncation=truncation)
        at = nodes(ledger)
        begins = ledger.turns[:-1] + np.arange(ledger.rows)
        # a fork whose return is not known measured nothing: else `own` would take its place for a measured one
        forks = np.flatnonzero((ledger.fork_G >= 0) & (ledger.left_G == 0) & ~np.isnan(found[begins]))
        places, values = at[begins[forks]], found[begins[forks]]
        if own:
            passed = np.isin(at, places) & (at == np.arange(len(at)))
            places = np.concatenate([places, at[passed]])
            values = np.concatenate([values, found[passed]])
        return mean_at(values, places, len(at), least=least)[at]

    return Term(f"forked(own={own})", Level.STATE, Meaning.VALUE, run)


def state_value(*, gamma: float = 1.0, truncation: Truncation = "mask", least: int = 2) -> Term:
    """Values of states [M]: the mean return of all the group's turns of one actor in a state with the same key.

    Keys that were met fewer than `least` times say nothing. Source: the counting behind step-level groups (GiGPO,
    Feng et al. 2025, arXiv 2505.10978), used as values.
    """
    check_measured(gamma, truncation, least)

    def run(ledger: Ledger) -> Floats:
        found = returns_at_states(ledger, gamma=gamma, truncation=truncation)
        keyed = ledger.state_M >= 0
        width = int(ledger.state_M.max(initial=0)) + 1
        key = ledger.role_G[ledger.row_M] * width + ledger.state_M
        values = np.full(len(found), np.nan)
        if keyed.any():
            _, place = np.unique(key[keyed], return_inverse=True)
            values[keyed] = mean_at(found[keyed], place, int(place.max()) + 1, least=least)[place]
        return values

    return Term("state_value()", Level.STATE, Meaning.VALUE, run)
