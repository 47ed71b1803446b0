"""Schemes by turn, tree and token: each by hand, and through the laws that bind it and those it claims."""

import numpy as np
import pytest
from hypothesis import given as given_drawn
from hypothesis import settings
from hypothesis import strategies as st

from envgym.credit import (
    Level,
    Meaning,
    SchemeSpec,
    Term,
    advantage,
    along_prefixes,
    at_starts,
    bounded,
    differences,
    estimated,
    executed,
    first_known,
    forked,
    forked_tokens,
    forward,
    goal_rewards,
    group_mean,
    improbable,
    leave_one_out,
    macro_advantage,
    option_to_go,
    outcome,
    peer_value,
    redistributed,
    rewards,
    segment_advantage,
    spread,
    subgoals,
    to_go,
    tree_value,
)
from envgym.credit.macros import ngrams, perplexity_rises, whole_turns
from envgym.credit.schemes import goals, hierarchical, prefixes, process, progress, segments, values
from envgym.credit.schemes.archer import archer
from envgym.credit.schemes.stand_ins import state_values, token_values
from envgym.credit.schemes.values import direct_advantage, quadratic_loss, token_gae, turn_gae
from envgym.episode import Group
from envgym.testing import check_credit
from envgym.testing import credit_laws as laws
from envgym.testing.credit_groups import Make, made_episode, made_turn, random_groups

MODULES = (values, prefixes, segments, process, progress, goals, hierarchical)
SPECS = [one for module in MODULES for one in vars(module).values() if isinstance(one, SchemeSpec)]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_each_keeps_its_laws(spec: SchemeSpec) -> None:
    check_credit(spec, examples=10)


def group(*members):
    return Group("t", tuple(members))


def near(found, wanted):
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def given(*numbers):
    return lambda ledger: np.array(numbers, np.float64)


TWO = made_episode("a", [made_turn(1.0, sampled=1), made_turn(2.0, sampled=1)])


def test_values_of_a_critic_by_hand() -> None:
    """Rewards 1 and 2, values 1/2, 1 (and 9 after the end, which nobody asks): differences 3/2 and 1."""
    near(turn_gae(values=given(0.5, 1.0, 9.0), lam=0.5)([group(TWO)])[0], [2.0, 1.0])
    near(direct_advantage(values=given(0.5, 1.0, 9.0))([group(TWO)])[0], [1.5, 1.0])
    near(token_gae(values=given(0.5, 1.0), lam=0.5)([group(TWO)])[0], [2.0, 1.0])
    near(token_gae(values=given(0.5, 1.0), gamma=0.5, lam=1.0)([group(TWO)])[0], [1.5, 1.0])


def test_the_quadratic_loss_is_zero_where_the_ratio_is_what_the_advantage_asks_for() -> None:
    near(quadratic_loss(np.array([2.0, 0.0]), np.array([1.0, 1.0]), beta=0.5), [0.0, 2.0])
    with pytest.raises(ValueError, match="beta is 0; it must be a finite number above 0"):
        quadratic_loss(np.zeros(1), np.zeros(1), beta=0)


JUDGE = goals.SUBGOAL_OPTIONS.example()["judge"]
CRITIC = estimated(state_values, Level.STATE, Meaning.VALUE, name="critic")
TOKENS = estimated(token_values, Level.TOKEN, Meaning.VALUE, name="token critic")
PAID = estimated(token_values, Level.TOKEN, Meaning.REWARD, name="token rewards")
GUESS = estimated(lambda ledger: state_values(ledger)[ledger.before_N], Level.TURN, Meaning.REWARD)


@st.composite
def turn_terms(draw) -> Term:
    """Credit of turns, of any of the parts that these schemes brought."""
    gamma, truncation = draw(st.sampled_from([1.0, 0.9, 0.0])), draw(st.sampled_from([0.0, 0.5, "mask"]))
    baseline, lam = draw(st.sampled_from(["leave_one_out", "none"])), draw(st.sampled_from([0.0, 0.5, 1.0]))
    measured = draw(
        st.sampled_from(
            [
                tree_value(gamma=gamma, truncation=truncation),
                tree_value(by="ids", truncation=truncation, least=1),
                peer_value(gamma=gamma, truncation=truncation, least=1),
                peer_value(prior=CRITIC, truncation=truncation),
                first_known(forked(), peer_value(), CRITIC),
            ]
        )
    )
    earned = draw(
        st.sampled_from(
            [
                rewards(),
                redistributed(GUESS, truncation=truncation) + 0.5 * executed(),
                differences(measured),
                subgoals(JUDGE),
                goal_rewards(goals.TIMED_SUBGOALS.example()["goal"]),
            ]
        )
    )
    made = [
        advantage(earned, measured, gamma=gamma, lam=lam, truncation=truncation),
        earned >> to_go(gamma=gamma, baseline=baseline),
        earned >> option_to_go(JUDGE, gamma=gamma, baseline=baseline),
        advantage(rewards(), measured, lam=0.0) >> forward(gamma=gamma, window=2, least=0.1, penalty=0.2),
    ]
    return draw(st.sampled_from(made))


@st.composite
def token_terms(draw) -> Term:
    """Credit of tokens, of any of the parts that these schemes brought."""
    cut = draw(st.sampled_from([ngrams(2), whole_turns(), perplexity_rises()]))
    measured = first_known(forked_tokens(), at_starts(TOKENS, cut))
    made = [
        draw(turn_terms()) >> spread(),
        PAID >> to_go(gamma=draw(st.sampled_from([1.0, 0.5]))),
        macro_advantage(TOKENS, cut, earned=rewards(), per_token=PAID),
        segment_advantage(draw(st.sampled_from([measured, forked_tokens()])), rewards(), truncation="mask"),
        outcome() >> leave_one_out() >> along_prefixes(),
        outcome(truncation="mask") >> group_mean(scale="std") >> along_prefixes(),
    ]
    return draw(st.sampled_from(made))


@pytest.mark.slow
@settings(max_examples=60)
@given_drawn(
    st.lists(token_terms(), min_size=1, max_size=3), st.booleans(), st.floats(-1, 1), st.integers(0, 2**32)
)
def test_random_compositions_of_these_parts_keep_the_laws_that_bind_all(
    terms, masked: bool, counts: float, seed: int
) -> None:
    scheme = terms[0]
    for other in terms[1:]:
        scheme = scheme + 0.5 * other
    if masked:
        scheme = first_known(scheme, outcome() >> group_mean() >> spread()).when(improbable(below=0.6))
    for truncation in (counts, "mask"):
        check_credit(bounded(scheme, truncation), truncation=truncation, examples=1, seed=seed)


@settings(max_examples=40)
@given_drawn(
    st.sampled_from(
        [
            (turn_gae, {"values": state_values}),
            (progress.progress_bonus, {"values": state_values}),
            (progress.stepwise_effect, {"values": state_values}),
            (hierarchical.hierarchical, {"values": state_values, "lam": 0.5, "branching": 1.0}),
            (segments.spo_chain, {"values": token_values}),
            (process.progress_attribution, {"contributions": GUESS.run, "values": state_values}),
        ]
    ),
    st.sampled_from([0.5, -1.0]),
    st.integers(0, 2**32),
)
def test_truncation_counts_as_declared_with_a_critic_too(scheme, worth: float, seed: int) -> None:
    make, options = scheme
    groups = random_groups(np.random.default_rng(seed), Make(tokens=1))
    laws.law_h(make(**options, truncation=worth), groups, worth)
    laws.law_h(make(**options, truncation="mask"), groups, "mask")


def test_archer_is_q_less_v_of_the_state_before_the_turn_and_less_a_tokens_baseline():
    episode = made_episode("e", [made_turn(0.0, sampled=2), made_turn(1.0, sampled=1)], task="t")
    critic = {
        "action_values": lambda _: np.array([0.75, 1.0]),
        "values": lambda _: np.array([0.5, 0.25, 9.0]),  # the last state is after the end: no turn begins there
    }
    (found,) = archer(**critic)([Group("t", (episode,))])
    np.testing.assert_array_equal(found, [0.25, 0.25, 0.75])
    tokens = lambda _: np.array([0.5, 0.0, -1.0])  # noqa: E731
    (found,) = archer(token_baseline=tokens, **critic)([Group("t", (episode,))])
    np.testing.assert_array_equal(found, [-0.25, 0.25, 1.75])
