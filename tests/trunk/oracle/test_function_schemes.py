"""A scheme that is a plain function of groups has the row that the same composition of terms has."""

import numpy as np

from envgym.credit import Ledger, SchemeSpec
from envgym.credit.schemes.relative import grpo
from envgym.episode import Group
from envgym.oracle import softened
from envgym.oracle.bench import Setting, bench
from envgym.oracle.candidates import BASIS, candidate_of
from envgym.oracle.worlds import WORLDS
from envgym.testing.credit_groups import made_episode, made_turn


def plain():
    """The members' outcomes less their mean, by hand."""

    def scheme(groups):
        found = []
        for group in groups:
            mean = np.mean([episode.reward or 0.0 for episode in group])
            for episode in group:
                found.append(np.full(episode.sampled_tokens, (episode.reward or 0.0) - mean, np.float32))
        return found

    return scheme


def test_a_function_is_measured_as_the_composition_that_says_the_same():
    spec = SchemeSpec("plain", plain, "a function", "own")
    policy = softened(WORLDS["vault"](), 1.0)
    outcome = next(one for one in BASIS if one.name == "group-outcome")
    one, other = bench(policy, [candidate_of(spec, {}), outcome], Setting(runs=2, groups=1, group=4, budget=2.0))
    np.testing.assert_allclose(one.mse_R, other.mse_R, rtol=1e-5)
    np.testing.assert_allclose(one.cosine_R, other.cosine_R, rtol=1e-5)


def test_each_actor_of_an_episode_has_its_own_tokens_of_what_a_function_gave():
    turns = [made_turn(float(k), sampled=k + 1, actor="ab"[k % 2]) for k in range(4)]
    groups = [Group("t", tuple(made_episode(f"e{k}", turns[: k + 3], task="t") for k in range(2)))]
    numbers = lambda given: [  # noqa: E731
        np.arange(one.sampled_tokens, dtype=np.float32) for group in given for one in group
    ]
    term = candidate_of(SchemeSpec("numbers", lambda: numbers, "a count", "own"), {}).term
    ledger = Ledger.of(groups)
    back = ledger.per_episode(term.credit(ledger))
    for one, other in zip(back, numbers(groups), strict=True):
        np.testing.assert_array_equal(one, other)
    assert grpo()(groups)[0].shape == back[0].shape
