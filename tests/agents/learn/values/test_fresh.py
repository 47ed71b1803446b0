"""Turns sampled anew at replayed states: what they are forks of, what they teach, a run that learns from them."""

import asyncio

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="learned values need the extra [train]")

from envgym_agents.chat import LMAgents  # noqa: E402
from envgym_agents.learn.collect import credited  # noqa: E402
from envgym_agents.learn.config import Critic, Reinforce  # noqa: E402
from envgym_agents.learn.parts import Parts  # noqa: E402
from envgym_agents.learn.play import Arena, TaskOrder  # noqa: E402
from envgym_agents.learn.reinforce import Loop  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.update import Learner, adamw  # noqa: E402
from envgym_agents.learn.values import MSE, Archer, Body, HLGauss, Horizon, Valuation  # noqa: E402
from envgym_agents.learn.values.fresh import Resampler, is_fresh  # noqa: E402
from envgym_agents.model import new_model  # noqa: E402
from envgym_agents.policies.transformer import TransformerPolicy  # noqa: E402
from envgym_agents.template import template_for  # noqa: E402
from envgym_agents.tokenizer import train_tokenizer  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from envgym.credit import Ledger  # noqa: E402
from envgym.credit.schemes.archer import archer  # noqa: E402
from envgym.limits import Limits, Sampling  # noqa: E402
from envgym.policy import Completion, Prompt, VersionRun  # noqa: E402
from envgym.rollout import Rollout  # noqa: E402
from envgym.testing.credit_groups import random_groups  # noqa: E402


class Coin:
    """Says the last of the allowed ids with a probability, and remembers what it was shown."""

    version = 7

    def __init__(self, right: float) -> None:
        self.right = right
        self.seen: list[tuple[tuple[int, ...], Sampling]] = []

    async def sample(self, prompt: Prompt, sampling: Sampling, session: object = None) -> Completion:
        self.seen.append((tuple(prompt.ids), sampling))
        went = np.random.default_rng(sampling.seed).random() < self.right
        ids = sampling.allowed or (8, 9)
        said = (ids[-1] if went else ids[0],)
        logprob = float(np.log(self.right if went else 1 - self.right))
        return Completion(said, (logprob,), (VersionRun(0, self.version),), "stop")

    def session(self) -> None:
        raise AssertionError("contexts of many episodes are not kept")


def grown(groups, policy, most=10**6, seed=0):
    rng = np.random.default_rng(seed)
    return asyncio.run(Resampler(policy, Sampling(max_tokens=5, stop_ids=(3,))).grown(groups, most, rng=rng))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), most=st.integers(0, 6))
def test_fresh_turns_are_forks_of_what_was_and_leave_it_as_it_was(seed, most):
    groups = random_groups(np.random.default_rng(seed))
    policy = Coin(0.5)
    found = grown(groups, policy, most, seed)
    able = sum(bool(len(turn.sampled_ids)) for group in groups for one in group.scored for turn in one.turns)
    fresh = [(group, one) for group in found for one in group if is_fresh(one)]
    assert len(fresh) == len(policy.seen) == min(most, able)
    for group, before in zip(found, groups, strict=True):
        assert [one for one in group if not is_fresh(one)] == list(before)
    for group, one in fresh:
        (turn,) = one.turns
        path = group.path(one)
        parent = next(member for member in group if member.id == one.parent.episode)
        old = group.path(parent)[one.parent.turn]
        assert path[:-1] == group.path(parent)[: one.parent.turn]
        assert (turn.prompt_ids.tolist(), turn.segment, turn.position, turn.allowed) == (
            old.prompt_ids.tolist(), old.segment, old.position, old.allowed
        )  # fmt: skip
        assert turn.versions == (VersionRun(0, 7),)
    again = grown(groups, Coin(0.5), most, seed)
    assert [list(group) for group in again] == [list(group) for group in found]


def test_a_turn_is_sampled_from_what_its_actor_saw_with_what_it_was_allowed(turn, episode):
    from envgym.episode import Group

    one = episode(
        "e",
        [
            turn([1, 2], [3], position=0),
            turn([4], [5], position=3, allowed=(5, 6)),
            turn([7, 7], [8], position=0, segment=1),
        ],
    )
    policy = Coin(0.5)
    grown([Group("t", (one,))], policy)
    shown = [ids for ids, _ in policy.seen]
    assert shown == [(1, 2), (1, 2, 3, 4), (7, 7)]
    free, bound, _ = (sampling for _, sampling in policy.seen)
    assert (free.max_tokens, free.stop_ids, free.allowed) == (5, (3,), None)
    assert (bound.max_tokens, bound.stop_ids, bound.allowed) == (1, (), (5, 6))
    assert len({sampling.seed for _, sampling in policy.seen}) == 3


def test_where_there_are_fresh_turns_nothing_else_teaches_values_of_states(model_of, walks):
    """The stored turns' weights no longer matter, and what the fresh ones said does."""
    groups = walks(np.random.default_rng(3), 2)

    def after(policy: Coin, apart: float):
        twins = Archer(Body(model_of()), MSE(), Horizon(), lr=1e-2, baseline=True)
        for _ in range(3):
            ledger = Ledger.of(grown(groups, policy, 6))
            found = twins.update(ledger, np.full(int(ledger.tokens[-1]), apart))
        stored = Ledger.of(groups)
        assert found["cut_off"] == stored.truncated_G.sum()
        return twins.values(stored)

    one, other, third = after(Coin(0.9), 0.0), after(Coin(0.9), -3.0), after(Coin(0.1), 0.0)
    assert np.array_equal(one, other, equal_nan=True)
    assert not np.array_equal(one, third, equal_nan=True)


@pytest.mark.slow
def test_advantages_from_old_states_and_fresh_turns_approach_those_of_the_present_policy(model_of, walks, exact):
    """Walks that went right with 0.35, sampled anew by a policy that does with 0.6: no ratio is needed."""
    states, right = 5, 0.6
    value = np.concatenate([[0.0], exact(states, right), [1.0]])
    rng = np.random.default_rng(0)
    twins = Archer(Body(model_of()), HLGauss(-0.5, 1.5), Horizon(), lr=5e-3, tau=0.2)
    for number in range(300):
        groups = grown(walks(rng, 6, right=0.35), Coin(right), 60, seed=number)
        twins.update(Ledger.of(groups))
    ledger = Ledger.of(walks(rng, 20))
    found = twins.action_values(ledger) - twins.values(ledger)[ledger.before_N]
    at = np.array([int(step.state_key) + 1 for step in ledger.all_states()])
    wanted = value[at[ledger.before_N + 1]] - value[at[ledger.before_N]]
    assert np.sqrt(np.mean((found - wanted) ** 2)) < 0.12
    assert np.mean(np.sign(found) == np.sign(wanted)) > 0.9


def test_a_fresh_turn_s_credit_is_what_the_critic_says_of_it_and_only_fresh_turns_give_rows(model_of, walks):
    groups = grown(walks(np.random.default_rng(1), 2), Coin(0.5), 9)
    twins = Archer(Body(model_of()), MSE(), Horizon(), lr=1e-2)
    twins.update(Ledger.of(groups))
    ledger = Ledger.of(groups)
    better = twins.action_values(ledger) - twins.values(ledger)[ledger.before_N]
    expected = {ledger.parts[ledger.row_N[n]][0].id: better[n] for n in range(len(better))}
    scheme = archer(action_values=twins.action_values, values=twins.values)
    rows = [row for part in credited(groups, scheme, Reinforce(), is_fresh) for row in part]
    assert len(rows) == 9
    for row in rows:
        assert row.credit.tolist() == pytest.approx([expected[row.episode]], abs=1e-6)
        assert row.weights.sum() == pytest.approx(1.0)


ACTIONS = ["act:read", *(f"act:press-{panel}" for panel in "ab"), *(f"act:open-{digit}" for digit in "012")]


@pytest.mark.slow
def test_r_a_run_learns_from_fresh_turns_counts_their_tokens_and_is_resumed_to_the_same_weights(vault, tmp_path):
    tokenizer = train_tokenizer(
        ["you are in front of the vault", "panel a code 1"], actions=ACTIONS, vocab_size=300
    )
    critic = Critic(kind="archer", fresh=6, updates=2, groups=4, replay=1500, warmup=3)
    config = Reinforce(
        steps=4, tasks=2, group=4, lr=1e-3, checkpoint_every=2, oversample=1, credit="archer", critic=critic
    )

    async def play(folder: str, die_at: int | None = None, resample: bool = True):
        history = []

        async def on_step(progress, found, metrics):
            history.append((progress, found, metrics))
            if progress.step == die_at:
                raise KeyboardInterrupt

        model = new_model(len(tokenizer), size="tiny", seed=5, context=128)
        begun = {name: weight.clone() for name, weight in model.state_dict().items()}
        async with TransformerPolicy(model) as policy:
            sampling = Sampling(max_tokens=1)
            loop = Loop(
                Parts(
                    learner=Learner(Scorer(model), adamw(model, lr=config.lr, weight_decay=0.0)),
                    policy=policy,
                    make_agent=LMAgents(policy, template_for(tokenizer), "compact", sampling),
                    arena=Arena(env="test-vault", rollout=Rollout(limits=Limits(turns=5)), concurrency=16),
                    order=TaskOrder(vault.tasks().split("train"), 0),
                    config=config,
                    seed=0,
                    folder=tmp_path / folder,
                    on_step=on_step,
                ),
                valuation=Valuation(config.critic, model, seed=1),
                resampler=Resampler(policy, sampling) if resample else None,
            )
            await loop.run()
            return model.state_dict(), begun, history

    with pytest.raises(ValueError, match="give a resampler"):
        asyncio.run(play("without", resample=False))
    whole, begun, history = asyncio.run(play("whole"))
    assert any(not torch.equal(whole[name], begun[name]) for name in whole)
    assert [metrics["fresh_tokens"] for _, _, metrics in history] == [12.0, 18.0, 18.0, 18.0]
    played = [sum(one.sampled_tokens for one in found.episodes) for _, found, _ in history]
    assert history[-1][0].tokens == sum(played) + 66
    assert max(metrics.get("sampler_gap", 0.0) for _, _, metrics in history) < 1e-4
    assert "updates" not in history[0][2]  # the critic warms up
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(play("killed", die_at=3))
    again, _, _ = asyncio.run(play("killed"))
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_only_a_critic_of_turns_and_one_alone_samples_anew():
    Critic(kind="archer", fresh=3)
    with pytest.raises(ValueError, match="fresh 3 is of kind 'archer'"):
        Critic(kind="turn", fresh=3)
    with pytest.raises(ValueError, match="there can be no second"):
        Critic(kind="archer", fresh=3, second=Critic(kind="progress"))
