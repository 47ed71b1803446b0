"""Critics: where they read, what they are trained towards, and that they find the values of a chain."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="learned values need the extra [train]")

from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.values import (  # noqa: E402
    MSE,
    Body,
    HLGauss,
    Horizon,
    TokenCritic,
    TurnCritic,
)
from envgym_agents.learn.values.likelihood import Likelihood, log_ratios, turn_ratios  # noqa: E402
from envgym_agents.learn.values.places import places, sampled  # noqa: E402
from envgym_agents.learn.values.targets import bootstrapped  # noqa: E402

from envgym.credit import Ledger, Level, Meaning, advantage, estimated, rewards, spread, token_advantage  # noqa: E402
from envgym.testing import credit_laws as laws  # noqa: E402
from envgym.testing.credit_groups import random_groups  # noqa: E402

VOCABULARY = 160  # ids of the made-up groups are below this


@pytest.fixture(scope="module")
def body(model_of):
    return Body(model_of(vocabulary=VOCABULARY, seed=3), max_tokens=64)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_states_are_read_where_the_policy_stood_whatever_the_batches(body, seed):
    """Against the naive reading: every context alone through the model, cut off where the turn begins."""
    ledger = Ledger.of(random_groups(np.random.default_rng(seed)))
    there = places(ledger, tokens=True)
    states = body.read(there.rows)
    assert len(states) == there.count == sum(len(row.at) for row in there.rows)
    number = -1
    for row, (episode, own) in enumerate(ledger.parts):
        path = ledger.groups[ledger.group_G[row]].path(episode)
        for turn in own or range(len(episode.turns)):
            number += 1
            whole = len(path) - len(episode.turns) + turn
            before = [one for one in path[:whole] if one.segment == path[whole].segment]
            context = [i for one in before for i in (*one.prompt_ids, *one.sampled_ids)]
            context += list(path[whole].prompt_ids)
            after = context + list(path[whole].sampled_ids)
            if not ledger.alive_G[row]:
                assert there.state_N[number] == there.after_N[number] == -1
                continue
            tokens = there.token_T[ledger.tokens[number] : ledger.tokens[number + 1]]
            alone = naive(body, after)
            for place, at in (
                (there.state_N[number], len(context) - 1),
                (there.after_N[number], len(after) - 1 if len(path[whole].sampled_ids) else -1),
                *((place, len(context) - 1 + k) for k, place in enumerate(tokens)),
            ):
                assert (place >= 0) == (at >= 0)
                if at >= 0:
                    assert torch.allclose(states[place], alone[at], atol=2e-4)


@torch.no_grad()
def naive(body, ids):
    return body.scorer.model.base_model(input_ids=torch.tensor([[int(i) for i in ids]])).last_hidden_state[0]


def test_a_body_that_trains_has_the_gradient_of_the_whole_loss_in_passes_of_any_size(model_of):
    ledger = Ledger.of(random_groups(np.random.default_rng(1)))
    rows = places(ledger, tokens=True).rows
    gradients = []
    for bound in (32, 100_000):
        body = Body(model_of(vocabulary=VOCABULARY), trains=True, max_tokens=bound)
        states = body.read(rows).requires_grad_()
        (states.sum(1) ** 2).mean().backward()
        body.backward(rows, states.grad)
        gradients.append([weight.grad.clone() for weight in body.scorer.model.base_model.parameters()])
    assert all(torch.allclose(one, two, atol=1e-4, rtol=1e-3) for one, two in zip(*gradients, strict=True))
    assert any(bool(one.any()) for one in gradients[0])


def test_targets_by_hand():
    """Two rows: rewards 0, 1 and 2; values 0.5, 0.25 and 1; the second row goes on with 4."""
    args = (np.array([0.0, 1.0, 2.0]), np.array([0.5, 0.25, 1.0]), np.array([0, 2, 3]))
    tail = np.array([0.0, 4.0])
    one = bootstrapped(*args, Horizon(0.5, 0.0), tail_R=tail)
    assert one.tolist() == [0.125, 1.0, 4.0]
    whole = bootstrapped(*args, Horizon(0.5, 1.0), tail_R=tail)
    assert whole.tolist() == [0.5, 1.0, 4.0]
    # V-trace: v_0 = 0.5 + 1 * (0.125 - 0.5) + 0.5 * 1 * (0.5 * (1 - 0.25)), the ratio 2 being cut off at 1
    trace = bootstrapped(*args, Horizon(0.5, 1.0, 1.0), tail_R=tail, ratio_K=np.array([2.0, 0.5, 0.0]))
    assert trace.tolist() == [0.125 + 0.5 * 0.375, 0.25 + 0.375, 1.0]


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.floats(0, 1), st.floats(0, 1))
def test_ratios_of_one_change_no_target(seed, gamma, lam):
    rng = np.random.default_rng(seed)
    rows = np.concatenate([[0], np.cumsum(rng.integers(0, 5, 4))])
    reward, value = rng.normal(size=rows[-1]), rng.normal(size=rows[-1])
    tail, horizon = rng.normal(size=4), Horizon(gamma, lam)
    plain = bootstrapped(reward, value, rows, horizon, tail_R=tail)
    assert np.allclose(plain, bootstrapped(reward, value, rows, horizon, tail_R=tail, ratio_K=np.ones(rows[-1])))


def test_ratios_are_of_the_present_policy_to_the_one_that_acted(model_of, walks):
    groups = walks(np.random.default_rng(0), 2)
    ledger = Ledger.of(groups)
    now = Likelihood(Scorer(model_of()), max_tokens=64)
    apart = log_ratios(now, ledger)
    with torch.no_grad():
        for number, turn in enumerate(ledger.all_turns()):
            logits = now.scorer.model(input_ids=torch.tensor([turn.prompt_ids.tolist()])).logits[0, -1, [1, 2]]
            wanted = float(logits.log_softmax(-1)[int(turn.sampled_ids[0]) - 1]) - float(turn.logprobs[0])
            assert apart[number] == pytest.approx(wanted, abs=1e-4)
            assert turn_ratios(apart, ledger)[number] == pytest.approx(math.exp(wanted), rel=1e-4)
    assert sorted(sampled(ledger).number.tolist()) == list(range(len(apart)))


@pytest.mark.parametrize("critic", [TurnCritic, TokenCritic])
def test_credit_from_a_critic_keeps_the_laws_that_do_not_change_what_it_reads(body, critic):
    """Laws a and b change the contexts themselves: what a critic reads there are other states."""
    made = critic(body, HLGauss(-2.0, 2.0, 21), Horizon(), lr=1e-2)
    rng = np.random.default_rng(5)
    for _ in range(3):
        made.update(Ledger.of(random_groups(rng)))
    if critic is TurnCritic:
        values = estimated(made, Level.STATE, Meaning.VALUE)
        scheme = advantage(rewards(), values, lam=0.9) >> spread()
    else:
        scheme = token_advantage(estimated(made, Level.TOKEN, Meaning.VALUE), earned=rewards())
    for _ in range(4):
        groups = random_groups(rng)
        laws.law_g(scheme, groups)
        laws.law_i(scheme, groups)
        laws.law_f(scheme, groups, rng)
    assert scheme([]) == []


@pytest.mark.parametrize("critic", [TurnCritic, TokenCritic])
def test_an_update_of_anything_is_finite_and_of_nothing_is_harmless(body, critic):
    made = critic(body, MSE(), Horizon(), lr=1e-2)
    rng = np.random.default_rng(8)
    for groups in [[], *(random_groups(rng) for _ in range(10))]:
        ledger = Ledger.of(groups)
        found = made.update(ledger, np.zeros(int(ledger.tokens[-1])))
        assert np.isfinite(list(found.values())).all()
        assert found["skipped"] == 0.0


@pytest.mark.parametrize("critic", [TurnCritic, TokenCritic])
def test_values_are_not_known_before_the_warm_up_is_over(body, critic, walks):
    groups = walks(np.random.default_rng(0), 1)
    ledger = Ledger.of(groups)
    made = critic(body, MSE(), Horizon(warmup=2), lr=1e-2)
    level = Level.STATE if critic is TurnCritic else Level.TOKEN
    assert not made.warm
    assert np.isnan(made(ledger)).all()
    values = estimated(made, level, Meaning.VALUE)
    scheme = advantage(rewards(), values) >> spread() if critic is TurnCritic else token_advantage(values)
    assert not any(credit.any() for credit in scheme(groups))
    made.update(ledger)
    made.update(ledger)
    assert made.warm
    known = made(ledger)
    assert not np.isnan(known).any()


@pytest.mark.parametrize("trains", [False, True])
def test_a_critic_goes_on_from_its_state_to_the_last_bit(model_of, walks, trains):
    rng = np.random.default_rng(0)
    batches = [Ledger.of(walks(rng, 2)) for _ in range(6)]

    def make():
        return TurnCritic(Body(model_of(), trains=trains), HLGauss(-0.5, 1.5), Horizon(), lr=1e-2, tau=0.3)

    whole, first, second = make(), make(), make()
    for ledger in batches:
        whole.update(ledger)
    for ledger in batches[:3]:
        first.update(ledger)
    second.update(batches[5])
    second.load(torch_copy(first.state()))
    for ledger in batches[3:]:
        second.update(ledger)
    assert np.array_equal(whole(batches[0]), second(batches[0]))
    with pytest.raises(ValueError, match="another value network"):
        TurnCritic(Body(model_of()), MSE(), Horizon(), lr=1e-2).load(whole.state())


def torch_copy(state):
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_the_slow_copy_goes_a_part_of_the_way(body, walks):
    ledger = Ledger.of(walks(np.random.default_rng(0), 2))
    made = TurnCritic(body, MSE(), Horizon(), lr=1e-2, tau=0.25)
    before = [weight.clone() for weight in made.network.slow_head.parameters()]
    made.update(ledger)
    for old, slow, fast in zip(
        before, made.network.slow_head.parameters(), made.network.head.parameters(), strict=True
    ):
        assert torch.allclose(slow, old + 0.25 * (fast - old), atol=1e-7)
    with pytest.raises(ValueError, match="tau is 0"):
        TurnCritic(body, MSE(), Horizon(), lr=1e-2, tau=0)


def test_a_critic_s_gradient_is_cut_to_its_bound_or_with_none_not_at_all(body, walks):
    ledger, found = Ledger.of(walks(np.random.default_rng(0), 2)), {}
    for most in (0.0, 1e9, 1e-6):
        made = TurnCritic(body, MSE(), Horizon(), lr=1e-2, max_grad_norm=most)
        assert made.update(ledger)["grad_norm"] > 1e-3
        found[most] = torch.cat([weight.grad.flatten() for weight in made.network.head.parameters()])
    assert torch.equal(found[0.0], found[1e9])
    assert float(found[1e-6].norm()) == pytest.approx(1e-6, rel=0.01)


def test_a_policy_s_body_gets_no_gradient(model_of, walks):
    model = model_of()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    TurnCritic(Body(model), MSE(), Horizon(), lr=1e-2).update(Ledger.of(walks(np.random.default_rng(0), 2)))
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def error_of(critic, groups, keys, exact, states: int) -> float:
    """Root of the mean squared error of the values of the states of a chain."""
    found, names = critic(Ledger.of(groups)), keys(groups)
    wanted = {str(state): value for state, value in enumerate(exact)}
    pairs = [(value, wanted[name]) for value, name in zip(found, names, strict=True) if name in wanted]
    seen = {name: value for value, name in zip(found, names, strict=True)}
    assert {str(state) for state in range(states)} <= seen.keys()
    return float(np.sqrt(np.mean([(value - true) ** 2 for value, true in pairs])))


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("loss", [HLGauss(-0.5, 1.5, 51), MSE()])
@pytest.mark.parametrize("trains", [False, True])
def test_a_critic_s_values_approach_the_exact_ones_on_a_random_walk(model_of, walks, exact, keys, loss, trains):
    """Five states, exact values 1/6 to 5/6, two seeds; on features of a fresh transformer, or training it."""
    errors = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        body = Body(model_of(seed=seed), trains=trains)
        critic = TurnCritic(body, loss, Horizon(lam=0.5), seed=seed, lr=3e-3, tau=0.2)
        for _ in range(120):
            critic.update(Ledger.of(walks(rng, 6)))
        errors.append(error_of(critic, walks(rng, 30), keys, exact(5), 5))
    assert np.mean(errors) < 0.08, errors


@pytest.mark.slow
def test_off_policy_values_are_those_of_the_wanted_policy_and_others_are_not(model_of, walks, exact, keys):
    """Walks that go right with 0.35 teach the values of a policy that does with 0.65, by V-trace."""
    corrected, plain = [], []
    for seed in range(2):
        for found, with_ratios in ((corrected, True), (plain, False)):
            rng = np.random.default_rng(seed)
            horizon = Horizon(lam=0.5, most=2.0)
            body = Body(model_of(seed=seed))
            critic = TurnCritic(body, HLGauss(-0.5, 1.5), horizon, seed=seed, lr=3e-3, tau=0.2)
            for _ in range(200):
                ledger = Ledger.of(walks(rng, 8, right=0.35))
                right = ledger.id_T == 2
                apart = np.where(right, np.log(0.65 / 0.35), np.log(0.35 / 0.65))
                critic.update(ledger, apart if with_ratios else None)
            found.append(error_of(critic, walks(rng, 40, right=0.5), keys, exact(5, 0.65), 5))
    assert np.mean(corrected) < 0.15, corrected  # the noise of the last update with ratios up to 1.9 is in it
    assert np.mean(corrected) < np.mean(plain) / 3, (corrected, plain)


@pytest.mark.slow
def test_values_bootstrapped_from_old_episodes_converge_where_returns_are_sparse(model_of, walks, exact, keys):
    """Short pieces of walks, each cut off after 3 turns: few reach an end, so returns of single pieces say almost
    nothing of the inner states; values bootstrapped from piece to piece find them all.
    """
    errors = {0.0: [], 1.0: []}
    for seed in range(3):
        rng = np.random.default_rng(seed)
        pieces = [group for start in range(7) for group in walks(rng, 6, states=7, most=3, start=start)]
        for lam, found in errors.items():
            body = Body(model_of(seed=seed))
            critic = TurnCritic(body, HLGauss(-0.5, 1.5), Horizon(lam=lam), seed=seed, lr=3e-3, tau=0.2)
            draw = np.random.default_rng(seed)
            for _ in range(250):
                chosen = [pieces[k] for k in draw.choice(len(pieces), 10, replace=False)]
                ledger = Ledger.of(chosen)
                if lam == 1.0:  # returns alone: what a cut off piece did not see counts 0
                    ledger.truncated_G[:] = False
                critic.update(ledger)
            found.append(error_of(critic, pieces, keys, exact(7), 7))
    assert np.mean(errors[0.0]) < 0.12, errors
    assert np.mean(errors[0.0]) < np.mean(errors[1.0]) / 2, errors
