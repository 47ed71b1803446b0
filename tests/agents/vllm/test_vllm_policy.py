"""The vLLM policy with an engine that is not vLLM: the whole contract, inside and in a process of its own."""

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from envgym_agents.learn.adapters import adapt, merged_weights
from envgym_agents.model import new_model, save_model
from envgym_agents.policies.vllm.link import inside
from envgym_agents.policies.vllm.policy import VllmPolicy
from envgym_agents.policies.vllm.weights import SamplerDiffers, gap
from transformers import Qwen2Config, Qwen2ForCausalLM

from envgym.limits import Sampling
from envgym.policy import Policy, Prompt, VersionRun
from envgym.testing import check_policy

VOCAB = 64
TOY = Path(__file__).with_name("toy.py")
CHECKS = [
    "sampling", "allowed", "stop_ids", "together", "sessions", "forks", "abort", "seeds", "logprobs", "syncs",
    "in_flight",
]  # fmt: skip


def model_of(seed=1):
    return new_model(VOCAB, size="tiny", seed=seed, context=256)


def policy_of(toy, model=None, engine="ToyEngine", **options):
    made = []

    def make(settings):
        made.append(getattr(toy, engine)(settings))
        return made[-1]

    return VllmPolicy(model or model_of(), inside(make), **options), made


async def stopped(policy, made, ask):
    """What `ask` gives, asked while the gated engine stands still in the middle of a completion."""
    while not made:  # noqa: ASYNC110  # what is waited for happens in another thread
        await asyncio.sleep(0.001)
    assert await asyncio.to_thread(made[0].reached.wait, 100)
    asked = asyncio.ensure_future(ask())
    while not policy._link._inbox.qsize():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    made[0].gate.set()
    return await asked


def leftovers():
    return set(Path("/dev/shm").glob(f"envgym-vllm-{os.getpid()}-*"))


def test_it_keeps_the_whole_contract_with_an_engine_inside(toy, case_of):
    async def run():
        policy, _ = policy_of(toy)
        async with policy:
            assert isinstance(policy, Policy)
            return await check_policy(case_of(policy, model_of())), policy.counts

    before = leftovers()
    checks, counts = asyncio.run(run())
    assert checks == CHECKS
    assert len(counts.gaps) == counts.updates + 1  # at the start and after every update
    assert max(counts.gaps) < 1e-4
    assert leftovers() <= before


def test_an_update_goes_through_the_middle_of_completions_which_say_so_and_stay_exact(toy):
    """Each part of the completion has the log-probabilities of its own weights, computed anew from the ids."""

    async def run():
        first, second = model_of(1), model_of(2)
        policy, made = policy_of(toy, model_of(1), engine="GatedEngine")
        async with policy:
            context, sampling = [1, 2, 3], Sampling(max_tokens=200, seed=5)
            call = asyncio.ensure_future(policy.sample(Prompt(context), sampling))
            update = asyncio.ensure_future(stopped(policy, made, lambda: policy.update(second.state_dict())))
            assert await update == 1
            found = await call
            assert [run.version for run in found.versions] == [0, 1]
            assert found.versions[0] == VersionRun(0, 0)
            cut = found.versions[1].start
            assert 20 <= cut < 200
            assert gap(first, context, found.ids[:cut], found.logprobs[:cut], sampling) < 1e-5
            rest = [*context, *found.ids[:cut]]
            assert gap(second, rest, found.ids[cut:], found.logprobs[cut:], sampling) < 1e-5
            assert len(set(made[0].salts)) == 2  # no cached prefix of older weights is read

    asyncio.run(run())


def test_a_version_that_is_loaded_twice_has_two_salts(toy):
    async def run():
        policy, made = policy_of(toy)
        async with policy:
            for _ in range(2):
                await policy.sample(Prompt([1]), Sampling(max_tokens=1))
                await policy.update(model_of(3).state_dict(), version=0)
        return made[0].salts

    assert len(set(asyncio.run(run()))) == 3


def test_a_completion_is_aborted_with_what_there_is_and_resumed_to_the_same_context(toy):
    async def run():
        policy, made = policy_of(toy, engine="GatedEngine")
        async with policy:
            session = policy.session()
            call = asyncio.ensure_future(policy.sample(Prompt([1, 2]), Sampling(max_tokens=200, seed=1), session))

            async def abort():
                with pytest.raises(ValueError, match="can be forked only while"):
                    session.fork()
                session.abort()

            await stopped(policy, made, abort)
            part = await call
            assert part.finish == "abort"
            assert 20 <= len(part.ids) == len(part.logprobs) < 200
            session.abort()  # nobody uses it: nothing
            rest = await policy.sample(Prompt([1, 2, *part.ids]), Sampling(max_tokens=5, seed=2), session)
            assert len(rest.ids) == 5
            assert gap(policy.model, [1, 2, *part.ids], rest.ids, rest.logprobs, Sampling(max_tokens=5)) < 1e-5

    asyncio.run(run())


def test_an_engine_that_did_not_take_the_weights_is_refused_until_it_has(toy):
    async def run():
        policy, _ = policy_of(toy, engine="StaleEngine")
        async with policy:
            await policy.sample(Prompt([1]), Sampling(max_tokens=1))
            with pytest.raises(SamplerDiffers, match=r"after update 1 .* toy 1 differ by .* sampler.kind"):
                await policy.update(model_of(2).state_dict())
            with pytest.raises(SamplerDiffers):
                await policy.sample(Prompt([1]), Sampling(max_tokens=1))
            await policy.update(model_of(1).state_dict())  # those that it has kept
            await policy.sample(Prompt([1]), Sampling(max_tokens=1))
            return policy.counts.gaps

    gaps = asyncio.run(run())
    assert [one < 1e-4 for one in gaps] == [True, False, True]


def test_tied_embeddings_are_given_as_two_weights_and_the_model_stays_tied(toy):
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True,
    )  # fmt: skip

    async def run():
        model, other = Qwen2ForCausalLM(config).eval(), Qwen2ForCausalLM(config).eval()
        policy, made = policy_of(toy, model)
        async with policy:
            await policy.sample(Prompt([1]), Sampling(max_tokens=1))
            assert not made[0].model.config.tie_word_embeddings
            await policy.update(other.state_dict())
            assert model.config.tie_word_embeddings
            assert model.lm_head.weight is model.model.embed_tokens.weight
            return policy.counts.gaps

    assert max(asyncio.run(run())) < 1e-4


def test_weights_come_from_a_folder_and_what_does_not_fit_is_refused(toy, tmp_path):
    class Nothing:
        def save_pretrained(self, folder):
            pass

    save_model(tmp_path / "other", model_of(2), Nothing())

    async def run():
        policy, _ = policy_of(toy)
        async with policy:
            await policy.sample(Prompt([1]), Sampling(max_tokens=1))
            assert await policy.update_from(tmp_path / "other") == 1
            with pytest.raises(ValueError, match="no folder with safetensors"):
                await policy.update_from(tmp_path)
            with pytest.raises(ValueError, match="size mismatch"):
                await policy.update(new_model(VOCAB + 1, size="tiny").state_dict())
            assert policy.version == 1
            found = await policy.sample(Prompt([1, 2]), Sampling(max_tokens=3, seed=1))
            assert gap(model_of(2), [1, 2], found.ids, found.logprobs, Sampling(max_tokens=3)) < 1e-5

    asyncio.run(run())


def test_adapters_are_added_to_the_weights_on_the_way(toy):
    async def run():
        model = adapt(model_of(), rank=2, alpha=4.0, seed=0)
        policy, _ = policy_of(toy, model, weights_of=merged_weights)
        async with policy:
            await policy.sample(Prompt([1]), Sampling(max_tokens=1))
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    if ".lora_" in name:
                        weight.add_(0.3)
            await policy.update()
            return policy.counts.gaps

    gaps = asyncio.run(run())
    assert len(gaps) == 2
    assert max(gaps) < 1e-4


def test_what_makes_no_sense_is_refused_before_an_engine_is_started():
    def opened(settings, version, heard):
        raise AssertionError("nothing is started")

    policy = VllmPolicy(model_of(), opened)
    one = Sampling(max_tokens=1)
    for prompt, sampling, said in (
        (Prompt([]), one, "is empty"),
        (Prompt([VOCAB]), one, "vocabulary of 64"),
        (Prompt([1]), Sampling(max_tokens=256), "more than the context of 256"),
        (Prompt([1], (b"image",)), one, "text only"),
        (Prompt([1]), Sampling(max_tokens=1, temperature=0.001), "at least 0.01"),
    ):
        with pytest.raises(ValueError, match=said):
            asyncio.run(policy.sample(prompt, sampling))
    with pytest.raises(ValueError, match="another policy"):
        asyncio.run(policy.sample(Prompt([1]), one, VllmPolicy(model_of(), opened).session()))
    closed = policy.session()
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        asyncio.run(policy.sample(Prompt([1]), one, closed))
    with pytest.raises(ValueError, match="max_length is 1000"):
        VllmPolicy(model_of(), opened, max_length=1000)
    assert np.isfinite(policy.tolerance)
