"""Credit beside its papers' formulas, written as loops over episodes that know nothing of ledgers.

verl's, TRL's and torchrl's own functions are compared in ``benchmarks/credit_peers.py``: CI has all but torchrl.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.credit import Scheme
from envgym.credit.reference import GREEDY
from envgym.credit.schemes.baselines import remax, rloo
from envgym.credit.schemes.batch import reinforce_plus_plus
from envgym.credit.schemes.relative import dr_grpo, grpo
from envgym.credit.schemes.values import token_gae, turn_gae
from envgym.episode import Group
from envgym.testing.credit_groups import made_episode, made_turn


def _groups(seed: int) -> list[Group]:
    """Three groups of four episodes that end by themselves, of one to five turns with observations between."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(3):
        members = []
        for member in range(4):
            turns = [
                made_turn(float(np.round(rng.normal(), 2)), sampled=int(rng.integers(1, 6)))
                for _ in range(int(rng.integers(1, 6)))
            ]
            marked = (GREEDY,) if member == 0 else ()
            episode = made_episode(f"g{number}-{member}", turns, task=f"t{number}")
            members.append(replace(episode, provenance=marked))
        made.append(Group(f"t{number}", tuple(members)))
    return made


def _outcomes(group: Group) -> np.ndarray:
    return np.array([sum(turn.step.reward or 0.0 for turn in episode.turns) for episode in group])


def _grpo(outcomes: np.ndarray) -> list[float]:
    return [(one - outcomes.mean()) / (outcomes.std() + 1e-6) for one in outcomes]


def _rloo(outcomes: np.ndarray) -> list[float]:
    return [one - np.delete(outcomes, k).mean() for k, one in enumerate(outcomes)]


BY_EPISODE: dict[str, tuple[Scheme, Callable[[np.ndarray], list[float]]]] = {
    "dr-grpo": (dr_grpo(), lambda outcomes: [one - outcomes.mean() for one in outcomes]),
    "grpo": (grpo(), _grpo),
    "rloo": (rloo(), _rloo),
    "remax": (remax(), lambda outcomes: [one - outcomes[0] for one in outcomes]),
}


@pytest.mark.parametrize("name", BY_EPISODE)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**31))
def test_every_token_has_what_the_formula_gives_its_episode(name: str, seed: int):
    scheme, formula = BY_EPISODE[name]
    groups = _groups(seed)
    expected = [value for group in groups for value in formula(_outcomes(group))]
    for value, credit in zip(expected, scheme(groups), strict=True):
        np.testing.assert_allclose(credit, value, atol=1e-4)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**31))
def test_reinforce_plus_plus_is_normalised_over_all_sampled_tokens(seed: int):
    groups = _groups(seed)
    flat = [
        outcome
        for group in groups
        for outcome, episode in zip(_outcomes(group), group, strict=True)
        for _ in range(episode.sampled_tokens)
    ]
    expected = (np.array(flat) - np.mean(flat)) / np.std(flat)
    np.testing.assert_allclose(np.concatenate(reinforce_plus_plus()(groups)), expected, atol=1e-4)


def _gae(paid: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """The recursion of Schulman et al. 2016, equations 11 and 16, backwards through one episode that ended."""
    found, after, advantage = [], 0.0, 0.0
    for earned, value in zip(reversed(paid), reversed(values), strict=True):
        advantage = earned + gamma * after - value + gamma * lam * advantage
        after = value
        found.append(advantage)
    return found[::-1]


@settings(max_examples=15)
@given(seed=st.integers(0, 2**31), gamma=st.sampled_from([1.0, 0.9]), lam=st.sampled_from([0.0, 0.5, 1.0]))
def test_gae_over_tokens_and_turns_is_the_recursion_episode_by_episode(seed: int, gamma: float, lam: float):
    groups = _groups(seed)
    rng = np.random.default_rng(seed)
    episodes = [episode for group in groups for episode in group]
    by_token = [rng.normal(size=episode.sampled_tokens).tolist() for episode in episodes]
    by_state = [[*rng.normal(size=len(episode.turns)), 0.0] for episode in episodes]
    tokens = token_gae(values=lambda _: np.concatenate(by_token), gamma=gamma, lam=lam)(groups)
    turns = turn_gae(values=lambda _: np.concatenate(by_state), gamma=gamma, lam=lam)(groups)
    for k, episode in enumerate(episodes):
        paid = [
            (turn.step.reward or 0.0) if place == len(turn.sampled_ids) - 1 else 0.0
            for turn in episode.turns
            for place in range(len(turn.sampled_ids))
        ]
        np.testing.assert_allclose(tokens[k], _gae(paid, by_token[k], gamma, lam), atol=1e-4)
        earned = [turn.step.reward or 0.0 for turn in episode.turns]
        each = _gae(earned, by_state[k][:-1], gamma, lam)
        counts = [len(turn.sampled_ids) for turn in episode.turns]
        np.testing.assert_allclose(turns[k], np.repeat(each, counts), atol=1e-4)
