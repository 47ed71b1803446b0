"""Our losses and their gradients are those of verl's own functions, in float64, where both define the same.

verl holds a log-ratio within 20 nats (we within 30) and adds 1e-8 to the number of a sequence's tokens;
docs/training.md has a table of what else is defined otherwise.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the learner needs the extra [train]")
from envgym_agents.learn.config import Reinforce  # noqa: E402
from envgym_agents.learn.head import in_chunks  # noqa: E402
from envgym_agents.learn.losses import correction, divergence, policy  # noqa: E402
from envgym_agents.learn.losses.objective import Objective  # noqa: E402
from envgym_agents.learn.values.losses import MSE, clipped_square  # noqa: E402

pytestmark = pytest.mark.slow


def drawn(test):
    """A test of minibatches, each made of a seed."""
    return settings(max_examples=6)(given(seed=st.integers(0, 2**32 - 1))(test))


SHARES = {"token-mean": "token", "seq-mean-token-mean": "episode"}
ALMOST = 1e-7
"""What 1e-8 added to a count of one may do."""


def descended(verl, batch, name, mode, *, weights=None, **settings):
    """verl's policy loss [] by its registered name, and its metrics."""
    options = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, **settings}
    config = verl.actor(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **options)
    made = verl.algos.compute_policy_loss_reinforce if name == "reinforce" else verl.algos.get_policy_loss_fn(name)
    before = batch.sampled if name == "reinforce" else batch.old
    credit = batch.credit[:, None].expand_as(batch.mask)
    told = {"loss_agg_mode": mode, "config": config, "rollout_is_weights": weights}
    return made(before, batch.logprobs, credit, batch.mask, **told)


CASES = {
    "vanilla": ({"dual_clip": 3.0}, {"clip_ratio_c": 3.0}),
    "gspo": ({"ratio": "sequence"}, {}),
    "cispo": ({"kind": "cispo"}, {}),
    "gpg": ({"kind": "reinforce"}, {}),
    "reinforce": ({"kind": "reinforce"}, {}),
}


@drawn
@pytest.mark.parametrize("mode", SHARES)
@pytest.mark.parametrize("name", CASES)
def test_policy_losses_are_verls(verl, minibatch, same, name, mode, seed):
    ours, theirs = CASES[name]
    batch = minibatch(seed, empty=True, far=9.0)  # GSPO's mean log-ratio is held below 10
    loss, _ = descended(verl, batch, name, mode, **theirs)
    same(batch.ours(share=SHARES[mode], **ours), loss, batch.logprobs, within=ALMOST)


@drawn
def test_without_a_bound_for_bad_tokens_it_is_ppos_clip(verl, minibatch, same, seed):
    """verl's is always dual: with a bound beyond every ratio it is the plain clip."""
    batch = minibatch(seed, empty=True)
    loss, found = descended(verl, batch, "vanilla", "token-mean", clip_ratio_c=1e6)
    same(batch.ours(share="token"), loss, batch.logprobs)
    clipped = Objective(Reinforce())(batch.tokens("token"))[1]["clip_share"]
    assert 0 < float(clipped) == pytest.approx(found["actor/pg_clipfrac"], rel=1e-6)


@drawn
def test_other_denominators_are_a_constant_of_the_minibatch(verl, minibatch, same, seed):
    batch = minibatch(seed, empty=True)
    count, length = batch.mask.sum(), batch.mask.shape[1]
    factors = {"token-sum": count, "seq-mean-token-sum": count / 5, "seq-mean-token-sum-norm": count / 5 / length}
    for mode, factor in factors.items():
        loss, _ = descended(verl, batch, "vanilla", mode, clip_ratio_c=1e6)
        same(batch.ours(share="token") * factor, loss, batch.logprobs)


@drawn
def test_a_quadratic_penalty_on_one_token_is_kimis_on_a_sequence_of_one(verl, minibatch, same, seed):
    batch = minibatch(seed, empty=True)
    loss, _ = descended(verl, batch, "dro", "token-mean", policy_loss=verl.policy(dro_beta=0.4))
    own = batch.tokens("token")
    each = policy.kimi_opmd(own.logprobs, own.old, credit=own.credit, unit=torch.arange(len(own.old)), tau=0.4)
    same((own.weights * each).sum(), loss, batch.logprobs)


@drawn
@pytest.mark.parametrize("scope", ["token", "sequence"])
def test_truncated_weights_are_verls_and_multiply_its_loss(verl, minibatch, same, scope, seed):
    batch = minibatch(seed, empty=True)
    apart, chosen = batch.old - batch.sampled, {"weight": scope, "most": 1.3}
    weights, _ = verl.correction.compute_rollout_correction_weights(
        apart, batch.mask, rollout_is=scope, rollout_is_threshold=1.3
    )
    own = batch.tokens("token")
    unit = None if scope == "token" else own.episode
    mine = correction.truncated(own.old, own.sampled, unit=unit, most=1.3)
    assert torch.allclose(mine, weights[batch.mask.bool()], rtol=1e-12, atol=0)
    loss, _ = descended(verl, batch, "vanilla", "token-mean", weights=weights, clip_ratio_c=1e6)
    same(batch.ours(share="token", old="recomputed", correction=chosen), loss, batch.logprobs)


@drawn
@pytest.mark.parametrize("scope", ["token", "sequence"])
def test_what_is_too_far_off_is_left_out_by_both(verl, minibatch, same, scope, seed):
    """verl bounds the sampler's probability over the learner's, we the learner's over the sampler's.

    verl's mean is over what is left; ours leaves a hole, so that the others weigh what they weighed.
    """
    batch = minibatch(seed, empty=True)
    by = {"token": "token_k1", "sequence": "seq_mean_k1"}[scope]
    kept, _ = verl.correction.compute_rollout_rejection_mask(
        batch.old - batch.sampled, batch.mask, by, f"{1 / 1.5}_{1 / 0.7}"
    )
    own = batch.tokens("token")
    unit = None if scope == "token" else own.episode
    mine = correction.kept(own.old, own.sampled, unit=unit, low=0.7, high=1.5)
    assert torch.equal(mine, kept[batch.mask.bool()].bool())
    chosen = {"reject": scope, "low": 0.7, "high": 1.5}
    left, _ = descended(verl, replace(batch, mask=kept), "vanilla", "token-mean", clip_ratio_c=1e6)
    ours = batch.ours(share="token", old="recomputed", correction=chosen)
    same(ours, left * (kept.sum() / batch.mask.sum()) if kept.any() else ours * 0, batch.logprobs)


@drawn
def test_how_far_sampler_and_learner_are_apart_is_what_verl_says(verl, minibatch, seed):
    batch = minibatch(seed)
    own = batch.tokens("token")
    mine = correction.diagnose(own.old, own.sampled, weights=own.weights, episode=own.episode)
    theirs = verl.correction.compute_offpolicy_metrics(batch.old, batch.sampled, batch.mask)
    assert mine["mismatch_kl"] == pytest.approx(theirs["k3_kl"], rel=ALMOST)
    _, metrics = verl.correction.compute_rollout_correction_weights(
        batch.old - batch.sampled, batch.mask, rollout_is="token", rollout_is_threshold=1e6
    )
    assert mine["ess_token"] == pytest.approx(metrics["rollout_is_eff_sample_size"], rel=ALMOST)


@drawn
def test_estimated_divergences_are_verls_with_their_gradients(verl, minibatch, same, seed):
    batch = minibatch(seed, far=1.0)
    now, other = batch.logprobs, batch.reference
    ours = {
        "k1": divergence.k1(now, other), "k3": divergence.estimate(now, other),
        "k3+": divergence.descended(now, other),  # k3's value with the gradient of k2
    }  # fmt: skip
    weights = torch.arange(now.numel(), dtype=torch.float64).reshape(now.shape)
    weights[ours["k3"].detach() >= 10] = 0  # there verl holds k3's value
    for name, mine in ours.items():
        same((weights * mine).sum(), (weights * verl.algos.kl_penalty(now, other, name)).sum(), now)
    squared = torch.autograd.grad((weights * verl.algos.kl_penalty(now, other, "k2")).sum(), now)[0]
    mine = torch.autograd.grad((weights * divergence.descended(now, other)).sum(), now)[0]
    assert torch.allclose(mine, squared, rtol=1e-12)


@drawn
@pytest.mark.parametrize("mode", SHARES)
def test_a_whole_loss_with_divergence_and_entropy_is_the_sum_of_verls(verl, minibatch, same, mode, seed):
    batch = minibatch(seed, empty=True)
    apart = verl.algos.kl_penalty(batch.logprobs, batch.reference, "k3")
    batch.mask[apart.detach() >= 10] = 0  # there verl holds k3's value and cuts its gradient off
    loss, _ = descended(verl, batch, "vanilla", mode, clip_ratio_c=3.0)
    held, spread = (verl.algos.agg_loss(each, batch.mask, mode) for each in (apart, batch.entropy))
    mine = batch.ours(share=SHARES[mode], dual_clip=3.0, kl=0.2, divergence={"estimate": "k3"}, entropy=0.05)
    same(mine, loss + 0.2 * held - 0.05 * spread, batch.logprobs, batch.entropy, within=ALMOST)


@drawn
@pytest.mark.parametrize("mode", SHARES)
def test_squared_errors_of_values_are_verls_clipped_or_not(verl, minibatch, same, mode, seed):
    batch = minibatch(seed, empty=True)
    values, returns = batch.logprobs, batch.reference
    own = batch.tokens(SHARES[mode])
    for most in (math.inf, 0.3):
        theirs, _ = verl.algos.compute_value_loss(
            values, returns, batch.old, batch.mask, cliprange_value=most, loss_agg_mode=mode
        )
        ours = clipped_square(own.logprobs, own.reference, own.weights, old=own.old, most=most)
        same(ours, theirs, values, within=ALMOST)
    plain = MSE().loss(own.logprobs[:, None], own.reference, own.weights)
    free = clipped_square(own.logprobs, own.reference, own.weights, old=own.old, most=math.inf)
    assert torch.equal(plain, free)


@drawn
def test_what_is_read_of_logits_is_what_verl_reads(verl, same, seed):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(0, 4, (7, 11))).requires_grad_()
    targets = torch.from_numpy(rng.integers(0, 11, 7))
    found = in_chunks(logits, targets, lambda states: states, chunk=3)
    same(found.logprobs.sum(), verl.functional.logprobs_from_logits_naive(logits, targets).sum(), logits)
    same((found.entropy * targets).sum(), (verl.functional.entropy_from_logits(logits) * targets).sum(), logits)


def test_beyond_20_nats_verl_holds_the_ratio_and_we_beyond_30(verl, minibatch):
    batch = minibatch(0)
    for apart, mine, theirs in ((25.0, 25.0, 20.0), (40.0, 30.0, 20.0)):
        with torch.no_grad():
            batch.logprobs.copy_(batch.old + apart)
        batch.credit[:] = -1.0
        loss, _ = descended(verl, batch, "vanilla", "token-mean", clip_ratio_c=1e30)
        assert float(loss.detach()) == pytest.approx(math.exp(theirs))
        assert float(batch.ours(share="token").detach()) == pytest.approx(math.exp(mine))
