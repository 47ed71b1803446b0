"""Our losses and their gradients are those that TRL's trainers compute, in float64, where both define the same.

The trainers' methods are called unbound, on a stand-in that has the settings they read: a trainer itself wants a
model, a data set and a device. docs/training.md has a table of what is defined otherwise.
"""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the learner needs the extra [train]")
from envgym_agents.learn.head import in_chunks  # noqa: E402
from envgym_agents.learn.losses.divergence import between  # noqa: E402
from envgym_agents.learn.losses.preference import dpo, totals  # noqa: E402

pytestmark = pytest.mark.slow


def drawn(test):
    """A test of minibatches, each made of a seed."""
    return settings(max_examples=6)(given(seed=st.integers(0, 2**32 - 1))(test))


ONE_PROCESS = SimpleNamespace(
    num_processes=1, gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x,
    pad_across_processes=lambda x, dim, pad_index: x, device="cpu", parallelism_config=None,
)  # fmt: skip
TESTED = SimpleNamespace(training=False)


def grpo(trl, batch, *, loss_type, correction=None, **settings):
    """TRL's GRPO loss [] of a minibatch. settings: what `GRPOConfig` calls them."""
    arguments = SimpleNamespace(
        delta=settings.pop("delta", None), use_bias_correction_kl=False, steps_per_generation=1
    )
    given = {
        "epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.0, "importance_sampling_level": "token",
        "top_entropy_quantile": 1.0, "entropy_coef": 0.0, **settings,
    }  # fmt: skip
    trainer = SimpleNamespace(
        **given, loss_type=loss_type, args=arguments, aux_loss_enabled=False, off_policy_mask_threshold=None,
        use_vllm=correction is not None, vllm_importance_sampling_correction=True, model=TESTED,
        accelerator=ONE_PROCESS, use_adaptive_entropy=False, _entropy_bonus_enabled=bool(given["entropy_coef"]),
        max_completion_length=batch.mask.shape[1], current_gradient_accumulation_steps=1,
        _metrics={"eval": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (batch.logprobs, batch.entropy, None),
    )  # fmt: skip
    trainer.get_high_entropy_mask = lambda *told: trl.grpo.get_high_entropy_mask(trainer, *told)
    ids = torch.zeros(batch.mask.shape, dtype=torch.int64)
    inputs = {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1] + 1, "completion_ids": ids, "completion_mask": ids + 1,
        "tool_mask": batch.mask, "advantages": batch.credit, "old_per_token_logps": batch.old,
        "ref_per_token_logps": batch.reference, "importance_sampling_ratio": correction,
        "num_items_in_batch": batch.mask.sum(),
    }  # fmt: skip
    return trl.grpo._compute_loss(trainer, None, inputs), trainer._metrics["eval"]


CASES = {
    "clipped": ({}, {}),
    "one bound": ({"clip_high": 0.2}, {"epsilon_high": 0.2}),
    "two-sided": ({"dual_clip": 4.0}, {"delta": 4.0}),
    "by sequence": ({"ratio": "sequence"}, {"importance_sampling_level": "sequence"}),
    "with a divergence": ({"kl": 0.1, "divergence": {"estimate": "k3"}}, {"beta": 0.1}),
}
TYPES = {"grpo": "episode", "bnpo": "token", "dapo": "token"}


@drawn
@pytest.mark.parametrize("loss_type", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_clipped_losses_are_grpos(trl, minibatch, same, case, loss_type, seed):
    ours, theirs = CASES[case]
    batch = minibatch(seed, empty=loss_type != "grpo")
    loss, metrics = grpo(trl, batch, loss_type=loss_type, **theirs)
    same(batch.ours(share=TYPES[loss_type], **ours), loss, batch.logprobs)
    assert np.isfinite(metrics["entropy"][0])


@drawn
def test_where_a_sequence_sampled_nothing_grpo_counts_it_and_we_do_not(trl, minibatch, same, seed):
    batch = minibatch(seed, empty=True)
    loss, _ = grpo(trl, batch, loss_type="grpo")
    same(batch.ours() * (5 / 6), loss, batch.logprobs)


@drawn
def test_other_denominators_are_a_constant_of_the_minibatch(trl, minibatch, same, seed):
    """Dr. GRPO divides by places, LUSPO by sequences, where we divide by tokens: one factor for every token."""
    batch = minibatch(seed, empty=True)
    size, length = batch.mask.shape
    for loss_type, divided in (("dr_grpo", size * length), ("luspo", size)):
        loss, _ = grpo(trl, batch, loss_type=loss_type)
        same(batch.ours(share="token") * (batch.mask.sum() / divided), loss, batch.logprobs)


@drawn
def test_cispo_with_no_lower_bound_is_trls_whose_bound_is_the_weight_itself(trl, minibatch, same, seed):
    batch = minibatch(seed, empty=True)
    loss, _ = grpo(trl, batch, loss_type="cispo", epsilon_high=1.28)
    same(batch.ours(share="token", kind="cispo", clip_low=1.0), loss, batch.logprobs)


@drawn
def test_an_entropy_bonus_per_token_and_corrected_weights_are_trls(trl, minibatch, same, seed):
    batch = minibatch(seed, empty=True)
    loss, _ = grpo(trl, batch, loss_type="bnpo", entropy_coef=0.05)
    same(batch.ours(share="token", entropy=0.05), loss, batch.logprobs, batch.entropy)
    weights = (batch.old - batch.sampled).exp().clamp(max=1.2)
    loss, _ = grpo(trl, batch, loss_type="bnpo", correction=weights)
    chosen = {"weight": "token", "most": 1.2}
    same(batch.ours(share="token", old="recomputed", correction=chosen), loss, batch.logprobs)


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_the_tokens_of_high_entropy_are_trls_where_both_count_as_many(trl, minibatch, same, share):
    """TRL keeps what is above a quantile between two tokens, floor(share (K - 1)) + 1; we keep round(share K)."""
    compared = 0
    for seed in range(12):
        batch = minibatch(seed, empty=True)
        count = int(batch.mask.sum())
        if int(share * (count - 1)) + 1 == round(share * count):
            loss, _ = grpo(trl, batch, loss_type="bnpo", top_entropy_quantile=share)
            same(batch.ours(share="token", entropy_share=share), loss, batch.logprobs)
            compared += 1
    assert compared > 3


def test_the_share_of_clipped_tokens_is_trls(trl, minibatch):
    from envgym_agents.learn.config import Reinforce
    from envgym_agents.learn.losses.objective import Objective

    batch = minibatch(0, empty=True)
    _, theirs = grpo(trl, batch, loss_type="bnpo")
    _, ours = Objective(Reinforce())(batch.tokens("token"))
    assert 0 < float(ours["clip_share"]) == pytest.approx(theirs["clip_ratio/region_mean"][0], rel=1e-6)


def preference(trl, logprobs, reference, mask, *, loss_type, smoothing=0.0):
    """TRL's DPO loss [] of log-probabilities [2 P, L]: the better ones of each pair, then the worse ones."""
    first = torch.zeros_like(mask[:, :1])
    said = {
        "entropy": torch.zeros_like(mask), "mean_logits": torch.zeros_like(mask), "is_top1": mask.bool(),
        "log_probs": logprobs * mask,
    }  # fmt: skip
    trainer = SimpleNamespace(
        model=TESTED, accelerator=ONE_PROCESS, aux_loss_enabled=False, ld_alpha=None, precompute_ref_logps=True,
        f_divergence_type="reverse_kl", loss_types=[loss_type], loss_weights=[1.0], beta=0.3, use_weighting=False,
        label_smoothing=smoothing, _metrics={"eval": defaultdict(list)}, _total_train_tokens=0,
    )  # fmt: skip
    chosen, rejected = (reference * mask).sum(1).chunk(2)
    inputs = {
        "input_ids": torch.zeros(len(mask), mask.shape[1] + 1, dtype=torch.int64),
        "completion_mask": torch.cat([first, mask], 1), "ref_chosen_logps": chosen, "ref_rejected_logps": rejected,
    }  # fmt: skip
    return trl.dpo._compute_loss(trainer, lambda **_: SimpleNamespace(**said), inputs, False)


@drawn
@pytest.mark.parametrize("loss_type", ["sigmoid", "sigmoid_norm"])
def test_preferences_are_dpos_and_per_token_its_normalised_form(trl, minibatch, same, loss_type, seed):
    batch = minibatch(seed)
    inside = batch.mask.bool()
    row = torch.arange(6)[:, None].expand_as(inside)[inside]
    apart = (batch.logprobs - batch.reference)[inside]
    margins = totals(apart, row, units=6, mean=loss_type == "sigmoid_norm")
    ours = dpo(margins, [(0, 3), (1, 4), (2, 5)], beta=0.3).mean()
    theirs = preference(trl, batch.logprobs, batch.reference, batch.mask, loss_type=loss_type)
    same(ours, theirs, batch.logprobs)


@drawn
def test_a_smoothed_preference_is_that_of_aot_with_one_pair(trl, minibatch, same, seed):
    """TRL's DPO has no smoothing; sorted over a batch of one pair, AOT's loss is the same formula."""
    batch = minibatch(seed)
    pair = [0, 3]
    sums = ((batch.logprobs - batch.reference) * batch.mask).sum(1)[pair]
    ours = dpo(sums, [(0, 1)], beta=0.3, smoothing=0.1).mean()
    given = (batch.logprobs[pair], batch.reference[pair], batch.mask[pair])
    same(ours, preference(trl, *given, loss_type="aot", smoothing=0.1), batch.logprobs)


@drawn
def test_an_objective_of_pairs_is_dpo_over_the_group(trl, minibatch, same, seed):
    """From the configuration: three groups of two, so three pairs, by credit."""
    batch = minibatch(seed)
    order = [2 * group + int((batch.credit[2 * group] > batch.credit[2 * group + 1]) == worse)
             for worse in (False, True) for group in range(3)]  # fmt: skip
    ours = batch.ours(kind="dpo", preference={"against": "reference", "beta": 0.3})
    given = (batch.logprobs[order], batch.reference[order], batch.mask[order])
    same(ours, preference(trl, *given, loss_type="sigmoid"), batch.logprobs)


@drawn
def test_imitation_is_trls_mean_over_tokens(trl, minibatch, same, seed):
    batch = minibatch(seed, empty=True)
    said = SimpleNamespace(
        log_probs=batch.logprobs * batch.mask, label_mask=batch.mask.bool(), entropy=batch.entropy.detach(),
        is_top1=batch.mask.bool(),
    )  # fmt: skip
    trainer = SimpleNamespace(
        model=TESTED, accelerator=ONE_PROCESS, aux_loss_enabled=False, compute_loss_func=None, label_smoother=None,
        args=SimpleNamespace(loss_type="nll", average_tokens_across_devices=False), _total_train_tokens=0,
        _metrics={"eval": defaultdict(list)},
    )  # fmt: skip
    theirs = trl.sft.compute_loss(trainer, lambda **_: said, {"labels": None})
    same(batch.ours(share="token", kind="sft"), theirs, batch.logprobs)


@drawn
def test_what_is_read_of_logits_is_what_trl_reads(trl, same, seed):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(0, 4, (7, 11))).requires_grad_()
    other = torch.from_numpy(rng.normal(0, 4, (7, 11)))
    targets = torch.from_numpy(rng.integers(0, 11, 7))
    found = in_chunks(logits, targets, lambda states: states, chunk=3)
    same(found.logprobs.sum(), trl.utils.selective_log_softmax(logits, targets).sum(), logits)
    same((found.entropy * targets).sum(), (trl.utils.entropy_from_logits(logits) * targets).sum(), logits)
    for kind, beta in (("forward", 0.0), ("reverse", 1.0), ("js", 0.5)):
        ours = between(logits.log_softmax(-1), other.log_softmax(-1), kind=kind).sum()
        same(ours, trl.gkd.generalized_jsd_loss(logits, other, beta=beta, reduction="sum"), logits)
