"""Credit from rewards and expected values: temporal differences, mixed over horizons (GAE), over turns or tokens.

``advantage`` works on turns and on segments of them: where the value of a state is not known (NaN), the turns
around it form one segment that is credited as a whole. So values from a critic (known everywhere) and values
measured at a few forks go through the same recursion. ``token_advantage`` is the same over sampled tokens.
"""

import numpy as np

from envgym.arguments import checked_between
from envgym.credit.ledger import Floats, Ints, Ledger, offsets
from envgym.credit.scan import scan
from envgym.credit.sources import Truncation, check_truncation, tail
from envgym.credit.term import Level, Meaning, Term, checked_term

__all__ = ["advantage", "gae", "token_advantage"]


def gae(
    rewards_K: Floats, values_K: Floats, rows: Ints, *, gamma: float, lam: float, tail_R: Floats | float = 0.0
) -> Floats:
    """Generalised advantage estimation over ragged rows: [K], of the values' kind.

    rewards_K, values_K: what each step earned, and the value before it; rows [R + 1] offsets; tail_R: the value
    after each row's last step (0 where it ended by itself). lam=0: one-step differences; lam=1: return minus value.
    Source: GAE (Schulman et al. 2016, arXiv 1506.02438).
    """
    found = _gains(values_K, rows, gamma, tail_R)
    found += rewards_K
    return scan(found, rows, gamma * lam, out=found)


def _gains(values_K: Floats, rows: Ints, gamma: float, tail_R: Floats | float) -> Floats:
    """What each step gained in expectation [K], rewards not counted: ``gamma * V(after) - V(before)``."""
    found = np.empty_like(values_K)
    if len(found):
        np.multiply(values_K[1:], gamma, out=found[:-1])
        some = np.diff(rows) > 0
        found[rows[1:][some] - 1] = gamma * np.broadcast_to(tail_R, some.shape)[some]
        found -= values_K
    return found


def advantage(
    earned: Term, values: Term, *, gamma: float = 1.0, lam: float = 1.0, truncation: Truncation | None = None
) -> Term:
    """Credit of turns [N] from rewards of turns and values of states.

    The value after a row that ended by itself is 0, whatever `values` says. After one that a bound cut off it is
    what `values` says (that is what a value is for); `truncation` puts a number in its place, or "mask", which
    leaves what is not followed by a known value without credit. Turns before the first state of known value, too,
    have none (NaN): add another term for them.

    Within a segment rewards are discounted per turn; lam counts per segment. With every state known and lam=1 this
    is the return minus the state's value.
    Sources: GAE as `gae`; segments between measured states, SPO (Guo et al. 2025, arXiv 2505.23564);
    discounting inside them, semi-Markov options (Sutton, Precup & Singh 1999, section 3).
    """
    checked_term("advantage", "earned", earned, [(Level.TURN, Meaning.REWARD)], "rewards()")
    checked_term("advantage", "values", values, [(Level.STATE, Meaning.VALUE)], "forked()")
    checked_between("gamma", gamma, 0, 1)
    checked_between("lam", lam, 0, 1)
    if truncation is not None:
        check_truncation(truncation)

    def run(ledger: Ledger) -> Floats:
        expected = np.array(values.of(ledger), np.float64)
        ends = tail(ledger, 0.0 if truncation is None else truncation)
        own = ledger.truncated_G & ledger.alive_G if truncation is None else np.zeros(ledger.rows, np.bool_)
        expected[ledger.last_G] = np.where(own, expected[ledger.last_G], ends)
        return _over_segments(ledger, np.asarray(earned.of(ledger), np.float64), expected, gamma, lam)

    name = f"advantage({earned.name}, {values.name}, gamma={gamma:g}, lam={lam:g})"
    return Term(name, Level.TURN, Meaning.CREDIT, run)


def _over_segments(ledger: Ledger, earned_N: Floats, value_M: Floats, gamma: float, lam: float) -> Floats:
    """GAE whose steps are the stretches between states of known value; NaN for turns that lie in none."""
    known = ~np.isnan(value_M)
    starts = known[ledger.before_N]
    if starts.all() and known.all():
        ends = value_M[ledger.last_G]
        return gae(earned_N, value_M[ledger.before_N], ledger.turns, gamma=gamma, lam=lam, tail_R=ends)
    # the segment of a turn begins at the last known state at or before it and ends at the next known one after it
    places = np.arange(len(known))
    begin_M = np.maximum.accumulate(np.where(known, places, -1))
    end_M = np.minimum.accumulate(np.where(known, places, len(known))[::-1])[::-1]
    begin, end = begin_M[ledger.before_N], end_M[ledger.before_N + 1] if len(earned_N) else ledger.before_N
    first, last = (ledger.turns[:-1] + np.arange(ledger.rows))[ledger.row_N], ledger.last_G[ledger.row_N]
    whole = (begin >= first) & (end <= last)
    found = np.full(len(earned_N), np.nan)
    if not whole.any():
        return found
    heads = np.flatnonzero(whole & starts)
    number = np.searchsorted(heads, np.flatnonzero(whole), side="right") - 1
    depth = ledger.before_N[whole] - begin[whole]
    rewards = np.bincount(number, earned_N[whole] * float(gamma) ** depth)
    length = (end - begin)[heads]
    expected, after = value_M[begin[heads]], value_M[end[heads]]
    differences = rewards + float(gamma) ** length * after - expected
    rows = offsets(np.bincount(ledger.row_N[heads], minlength=ledger.rows))
    # a masked end leaves the last stretch out, so what is left of a row's segments always follow one another
    credit = scan(differences, rows, (float(gamma) ** length) * lam)
    found[whole] = credit[number]
    return found


def add_paid(into_T: Floats, ledger: Ledger, *, earned: Term | None, per_token: Term | None) -> None:
    """Add to every token what it was paid: its own reward, and its turn's if it is the last sampled by then."""
    if per_token is not None:
        into_T += per_token.of(ledger)
    if earned is not None:  # few places are paid at: no array of zeros as long as the tokens
        some = np.flatnonzero(ledger.tokens[1:] > ledger.row_tokens[ledger.row_N])
        np.add.at(into_T, ledger.tokens[1:][some] - 1, earned.of(ledger)[some])


def check_token_terms(where: str, values: Term, earned: Term | None, per_token: Term | None) -> None:
    """Raise TypeError unless they are values of tokens, rewards of turns and rewards of tokens."""
    checked_term(where, "values", values, [(Level.TOKEN, Meaning.VALUE)], "forked_tokens()")
    if per_token is not None:
        checked_term(where, "per_token", per_token, [(Level.TOKEN, Meaning.REWARD)])
    if earned is not None:
        checked_term(where, "earned", earned, [(Level.TURN, Meaning.REWARD)], "rewards()")


def token_advantage(
    values: Term,
    *,
    earned: Term | None = None,
    per_token: Term | None = None,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> Term:
    """Credit of tokens [T] from values before each token and rewards of turns, of tokens, or both.

    A turn's reward is paid at its last token. Only sampled tokens are steps: observation tokens between turns enter
    no recursion. A row that a bound cut off goes on with the value of its last token; a turn that sampled nothing
    pays at the last token before it.
    Source: PPO for language models (Ouyang et al. 2022) with GAE as `gae`.
    """
    check_token_terms("token_advantage", values, earned, per_token)
    checked_between("gamma", gamma, 0, 1)
    checked_between("lam", lam, 0, 1)

    def run(ledger: Ledger) -> Floats:
        expected = values.of(ledger)
        rows = ledger.row_tokens
        ended = np.zeros(ledger.rows, expected.dtype)
        cut = ledger.truncated_G & (np.diff(rows) > 0)
        ended[cut] = expected[rows[1:][cut] - 1]
        found = _gains(expected, rows, gamma, ended)
        add_paid(found, ledger, earned=earned, per_token=per_token)
        return scan(found, rows, gamma * lam, out=found)

    return Term(f"token_advantage({values.name}, gamma={gamma:g}, lam={lam:g})", Level.TOKEN, Meaning.CREDIT, run)
