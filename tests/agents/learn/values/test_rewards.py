"""Learned rewards: contributions that add up, log-ratios that tell good from bad, reward models that disagree."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="learned values need the extra [train]")

from envgym_agents.learn.config import Critic  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.values import (  # noqa: E402
    Body,
    ImplicitReward,
    Progress,
    RewardModel,
    pairs_of,
    uncertainty_weighted,
    worst_case,
)
from envgym_agents.learn.values.likelihood import Likelihood  # noqa: E402

from envgym.credit import (  # noqa: E402
    Ledger,
    Level,
    Meaning,
    estimated,
    group_mean,
    outcome,
    returns,
    spread,
    state_peers,
)
from envgym.episode import Group  # noqa: E402
from envgym.testing import credit_laws as laws  # noqa: E402
from envgym.testing.credit_groups import made_episode, made_turn, random_groups  # noqa: E402


def pressed(rng: np.random.Generator, name: str, *, turns: int = 4, task: str = "t"):
    """An episode in which every "win" counts: its one reward, at the end, is the share of turns that said it."""
    said = rng.random(turns) < 0.5
    made = [
        made_turn(
            float(said.mean()) if number == turns - 1 else None,
            said="win" if one else "lag", sampled=3, prompt=2, key=f"{name}{number}",
        )
        for number, one in enumerate(said)
    ]  # fmt: skip
    return made_episode(name, made, task=task)


def batch(rng: np.random.Generator, groups: int, members: int = 4) -> list[Group]:
    return [
        Group(f"t{k}", tuple(pressed(rng, f"{k}-{m}", task=f"t{k}") for m in range(members))) for k in range(groups)
    ]


def wins(ledger: Ledger) -> np.ndarray:
    return np.array([turn.sampled_ids[0] == ord("w") + 10 for turn in ledger.all_turns()])


def likelihood(model_of, **options) -> Likelihood:
    return Likelihood(Scorer(model_of(vocabulary=160)), **options)


@pytest.mark.parametrize("kind", [Progress, RewardModel])
def test_updates_of_anything_are_finite_and_rewards_are_told_of_worlds_that_held(model_of, kind):
    rng = np.random.default_rng(2)
    made = kind(Body(model_of(vocabulary=160)), lr=1e-2)
    for groups in [[], *(random_groups(rng) for _ in range(8))]:
        ledger = Ledger.of(groups)
        found = made.update(ledger)
        assert np.isfinite(list(found.values())).all()
        assert np.array_equal(np.isnan(made(ledger)), ~ledger.alive_G[ledger.row_N])
    rewards = estimated(made, Level.TURN, Meaning.REWARD)
    scheme = returns(of=rewards) >> state_peers() >> spread()
    for _ in range(4):
        groups = random_groups(rng)
        laws.law_g(scheme, groups)
        laws.law_i(scheme, groups)
        laws.law_f(scheme, groups, rng)


@pytest.mark.parametrize("kind", [Progress, RewardModel])
def test_learned_rewards_go_on_from_their_state_and_wait_for_their_warm_up(model_of, kind):
    rng = np.random.default_rng(2)
    ledgers = [Ledger.of(batch(rng, 2)) for _ in range(4)]

    def make():
        return kind(Body(model_of(vocabulary=160)), lr=1e-2, warmup=3)

    whole, part, again = make(), make(), make()
    for ledger in ledgers:
        assert whole.warm == (whole.network.updates >= 3)
        assert np.isnan(whole(ledger)).all() == (not whole.warm)
        whole.update(ledger)
    part.update(ledgers[0])
    again.load(part.state())
    for ledger in ledgers[1:]:
        again.update(ledger)
    assert np.array_equal(whole(ledgers[0]), again(ledgers[0]))


def test_the_gradient_of_progress_is_that_of_the_squared_difference_of_sums(model_of):
    ledger = Ledger.of(batch(np.random.default_rng(0), 1))
    made = Progress(Body(model_of(vocabulary=160)), lr=1e-9)
    found = made.update(ledger)
    sums = np.bincount(ledger.row_N, made(ledger))
    assert found["loss"] == pytest.approx(float(np.mean((sums - ledger.outcome_G) ** 2)), abs=1e-5)


@pytest.mark.slow
def test_progress_finds_which_turns_earned_what_came_only_at_the_end(model_of):
    """The end's reward is the share of turns that pressed: each that did is worth 1/4 more than another."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        made = Progress(Body(model_of(vocabulary=160, seed=seed)), seed=seed, lr=3e-3)
        for _ in range(250):
            made.update(Ledger.of(batch(rng, 4)))
        ledger = Ledger.of(batch(rng, 20))
        sums = np.bincount(ledger.row_N, made(ledger))
        assert np.mean((sums - ledger.outcome_G) ** 2) < 0.1 * ledger.outcome_G.var()
        apart = made(ledger)[wins(ledger)].mean() - made(ledger)[~wins(ledger)].mean()
        assert apart == pytest.approx(0.25, abs=0.08)


def test_a_fresh_implicit_reward_is_zero_and_its_first_losses_are_known(model_of):
    ledger = Ledger.of(batch(np.random.default_rng(1), 2))
    made = ImplicitReward(likelihood(model_of), beta=0.5, lr=1e-4)
    assert not made(ledger).any()
    assert made.update(ledger)["loss"] == pytest.approx(math.log(2), abs=1e-5)
    made = ImplicitReward(likelihood(model_of), beta=0.5, lr=1e-4)
    pairs = pairs_of(ledger)
    assert pairs
    assert made.prefer(ledger, pairs)["loss"] == pytest.approx(math.log(2), abs=1e-5)


def test_an_implicit_reward_s_gradient_is_cut_to_its_bound_or_with_none_not_at_all(model_of):
    ledger, found = Ledger.of(batch(np.random.default_rng(1), 2)), {}
    for most in (0.0, 1e9, 1e-6):
        chosen = Critic(kind="implicit", max_grad_norm=most)
        made = ImplicitReward(likelihood(model_of), beta=0.5, lr=1e-4, max_grad_norm=chosen.max_grad_norm)
        assert made.update(ledger)["grad_norm"] > 1e-3
        found[most] = torch.cat([weight.grad.flatten() for weight in made._now.scorer.model.parameters()])
    assert torch.equal(found[0.0], found[1e9])
    assert float(found[1e-6].norm()) == pytest.approx(1e-6, rel=0.01)


@pytest.mark.parametrize("how", ["update", "prefer"])
def test_the_gradient_in_passes_is_that_of_the_whole_loss(model_of, how):
    """Against one graph over all tokens: the weights after one step of plain descent are the same."""
    ledger = Ledger.of(batch(np.random.default_rng(1), 2))
    pairs = pairs_of(ledger)
    gradients = []
    for bound in (16, 10_000):
        made = ImplicitReward(likelihood(model_of, max_tokens=bound), beta=0.5, lr=1e-4, max_grad_norm=1e9)
        made.update(ledger) if how == "update" else made.prefer(ledger, pairs)
        gradients.append([weight.grad for weight in made._now.scorer.model.parameters()])
    assert all(torch.allclose(one, two, atol=1e-5) for one, two in zip(*gradients, strict=True))
    model = model_of(vocabulary=160)
    sums = []
    for episode in (one for group in ledger.groups for one in group):
        ids = [int(i) for turn in episode.turns for i in (*turn.prompt_ids, *turn.sampled_ids)]
        logs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        at = [k for n in range(4) for k in range(5 * n + 2, 5 * n + 5)]
        sums.append(sum(logs[k - 1, ids[k]] for k in at))
    score = 0.5 * (torch.stack(sums) - torch.stack(sums).detach())
    if how == "update":
        label = torch.from_numpy(ledger.outcome_G > 0).float()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(score, label)
    else:
        loss = -torch.nn.functional.logsigmoid(torch.stack([score[b] - score[w] for b, w in pairs])).mean()
    loss.backward()
    assert all(
        torch.allclose(one, weight.grad, atol=1e-4)
        for one, weight in zip(gradients[0], model.parameters(), strict=True)
    )


def test_an_implicit_reward_bears_anything_and_goes_on_from_its_state(model_of):
    rng = np.random.default_rng(4)
    ledgers = [Ledger.of(groups) for groups in ([], *(random_groups(rng) for _ in range(6)))]

    def make():
        return ImplicitReward(likelihood(model_of), beta=0.5, lr=1e-3)

    whole, part, again = make(), make(), make()
    for ledger in ledgers:
        assert np.isfinite(list(whole.update(ledger).values())).all()
        assert np.isfinite(list(whole.prefer(ledger, pairs_of(ledger)).values())).all()
    for made, chosen in ((part, ledgers[:4]), (again, ledgers[4:])):
        if made is again:
            again.load(part.state())
        for ledger in chosen:
            made.update(ledger)
            made.prefer(ledger, pairs_of(ledger))
    assert np.array_equal(whole(ledgers[-1]), again(ledgers[-1]), equal_nan=True)
    assert np.allclose(whole.rewards(ledgers[-1]), 0.5 * whole(ledgers[-1]), equal_nan=True)
    with pytest.raises(ValueError, match="pair"):
        whole.prefer(ledgers[0], [(0, 1)])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["update", "prefer"])
def test_log_ratios_learned_from_outcomes_alone_single_out_the_tokens_that_earned_them(model_of, how):
    rng = np.random.default_rng(0)
    made = ImplicitReward(likelihood(model_of), beta=0.5, lr=1e-3, above=0.4)
    for _ in range(60):
        ledger = Ledger.of(batch(rng, 4))
        found = made.update(ledger) if how == "update" else made.prefer(ledger, pairs_of(ledger))
    assert found["accuracy"] > 0.75
    ledger = Ledger.of(batch(rng, 20))
    first = ledger.tokens[:-1]
    rewards = made.rewards(ledger)[first]
    assert rewards[wins(ledger)].mean() > rewards[~wins(ledger)].mean() + 0.2


def test_pairs_are_of_rows_that_earned_differently_and_do_not_depend_on_the_members_order():
    group = Group("t", tuple(made_episode(f"e{k}", [made_turn(r)]) for k, r in enumerate((0.0, 1.0, 0.5, 1.0))))
    assert pairs_of(Ledger.of([group])) == [(1, 0), (1, 2), (2, 0), (3, 0), (3, 2)]
    assert pairs_of(Ledger.of([group]), most=1) == [(1, 0), (2, 0), (3, 0)]
    assert pairs_of(Ledger.of([])) == []


scores = st.lists(st.lists(st.floats(-10, 10), min_size=3, max_size=3), min_size=1, max_size=5).map(np.array)


@given(scores, st.floats(0, 5), st.floats(-3, 3))
def test_careful_scores_are_at_most_the_mean_and_move_with_all_scores(scores_KE, weight, shift):
    for aggregate in (worst_case, partial(uncertainty_weighted, weight=weight)):
        found = aggregate(scores_KE)
        assert (found <= scores_KE.mean(1) + 1e-9).all()
        assert np.allclose(aggregate(scores_KE + shift), found + shift, atol=1e-6)
        assert np.allclose(aggregate(np.repeat(scores_KE[:, :1], 4, 1)), scores_KE[:, 0], atol=1e-6)


def test_aggregates_by_hand():
    assert worst_case(np.array([[1.0, 3.0]])).tolist() == [1.0]
    assert uncertainty_weighted(np.array([[1.0, 3.0]]), weight=0.5).tolist() == [1.5]  # 2 - 0.5 * 1


@pytest.mark.slow
@pytest.mark.parametrize("learn", ["pairs", "outcomes"])
def test_a_reward_model_ranks_episodes_that_it_has_not_seen(model_of, learn):
    rng = np.random.default_rng(0)
    made = RewardModel(Body(model_of(vocabulary=160)), learn=learn, aggregate=worst_case, lr=3e-3)
    for _ in range(120):
        made.update(Ledger.of(batch(rng, 4)))
    ledger = Ledger.of(batch(rng, 30))
    found = np.bincount(ledger.row_N, made(ledger))
    if learn == "pairs":
        assert np.corrcoef(found, ledger.outcome_G)[0, 1] > 0.7
    else:  # only whether anything was earned was told
        assert found[ledger.outcome_G > 0].mean() > found[ledger.outcome_G == 0].mean()


@pytest.mark.slow
def test_models_disagree_more_about_what_is_far_from_anything_they_saw(model_of):
    rng = np.random.default_rng(0)
    made = RewardModel(Body(model_of(vocabulary=160)), count=5, lr=3e-3)
    for _ in range(120):
        made.update(Ledger.of(batch(rng, 4)))
    seen = Ledger.of(batch(rng, 10))
    odd = [made_turn(0.0, said="zq#", sampled=3, prompt=9, key="?") for _ in range(4)]
    strange = Ledger.of([Group("t", (made_episode("odd", odd),))])

    def apart(ledger):  # of scores, each model's measured from its mean over what was seen
        return (made.scores(ledger) - made.scores(seen).mean(0)).std(1).mean()

    assert apart(strange) > apart(seen)


def test_outcomes_stay_a_baseline_beside_learned_rewards(model_of):
    """Learned rewards compose like any others: here with the group's outcome."""
    groups = batch(np.random.default_rng(0), 2)
    made = Progress(Body(model_of(vocabulary=160)), lr=1e-3)
    learned = returns(of=estimated(made, Level.TURN, Meaning.REWARD)) >> state_peers() >> spread()
    mixed = (outcome() >> group_mean() >> spread()) + 0.5 * learned
    assert [len(one) for one in mixed(groups)] == [12] * 8
