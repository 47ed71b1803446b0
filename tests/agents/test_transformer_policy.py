import asyncio

import numpy as np
import pytest
import torch
from envgym_agents.model import new_model
from envgym_agents.policies.draw import distribution, draw, draws
from envgym_agents.policies.sessions import TransformerSession
from envgym_agents.policies.transformer import TransformerPolicy
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from envgym.errors import AgentFailure
from envgym.limits import Sampling
from envgym.policy import Policy, Prompt, VersionRun

torch.set_num_threads(1)
VOCAB = 300
MODEL = new_model(VOCAB, size="tiny", context=512)


def reference(model, context, token, temperature=1.0, allowed=None):
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([context])).logits[0, -1].double() / temperature
    if allowed is not None:
        closed = torch.full_like(logits, -torch.inf)
        closed[list(allowed)] = 0
        logits = logits + closed
    return float(logits.log_softmax(-1)[token])


def gap(model, context, completion, **options):
    context, worst = list(context), 0.0
    for token, logprob in zip(completion.ids, completion.logprobs, strict=True):
        worst = max(worst, abs(reference(model, context, token, **options) - logprob))
        context.append(token)
    return worst


def random_ids(rng, count):
    return rng.integers(0, VOCAB, count).tolist()


MODELS = {
    "llama": lambda: MODEL,
    "grouped heads": lambda: Qwen2ForCausalLM(
        Qwen2Config(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)
    ),
    "sliding window": lambda: MistralForCausalLM(
        MistralConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                      num_attention_heads=2, num_key_value_heads=2, sliding_window=16, max_position_embeddings=512)
    ),
    "absolute positions": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=2, n_positions=512)
    ),
    "position biases": lambda: BloomForCausalLM(BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=2)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_logprobs_are_those_of_the_model_over_many_turns_forks_and_ragged_batches(name):
    async def play():
        model = MODELS[name]().eval()
        rng, worst = np.random.default_rng(0), 0.0
        async with TransformerPolicy(model) as policy:
            sessions = [policy.session() for _ in range(4)]
            contexts = [random_ids(rng, int(rng.integers(1, 30))) for _ in sessions]
            for turn in range(4):
                done = await asyncio.gather(
                    *(
                        policy.sample(Prompt(context), Sampling(max_tokens=1 + i, seed=turn), session)
                        for i, (context, session) in enumerate(zip(contexts, sessions, strict=True))
                    )
                )
                for context, completion in zip(contexts, done, strict=True):
                    worst = max(worst, gap(model, context, completion))
                    context += [*completion.ids, *random_ids(rng, int(rng.integers(0, 40)))]
                sessions.append(sessions[turn].fork())
                contexts.append(list(contexts[turn]))
            return worst, policy.batches

    worst, batches = asyncio.run(play())
    assert worst < 2e-5
    assert batches == (name != "position biases")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_computes_the_same_log_probabilities():
    async def play():
        model, worst = new_model(VOCAB, size="tiny", context=512).cuda(), 0.0
        rng = np.random.default_rng(0)
        async with TransformerPolicy(model) as policy:
            assert policy.batches
            sessions, contexts = [policy.session() for _ in range(3)], [random_ids(rng, n) for n in (5, 40, 9)]
            for turn in range(3):
                calls = (
                    policy.sample(Prompt(context), Sampling(max_tokens=3, seed=turn), session)
                    for context, session in zip(contexts, sessions, strict=True)
                )
                for context, completion in zip(contexts, await asyncio.gather(*calls), strict=True):
                    worst = max(worst, gap(MODEL, context, completion))
                    context += [*completion.ids, *random_ids(rng, 7)]
        return worst

    assert asyncio.run(play()) < 1e-3


def test_only_new_tokens_are_computed():
    async def play():
        async with TransformerPolicy(MODEL) as policy:
            session, context = policy.session(), list(range(100))
            first = await policy.sample(Prompt(context), Sampling(max_tokens=5, seed=0), session)
            assert policy.computed_tokens == 100 + 4  # the last sampled one is not an input yet
            context += [*first.ids, 1, 2, 3]
            await policy.sample(Prompt(context), Sampling(max_tokens=1, seed=0), session)
            assert policy.computed_tokens == 104 + 4
            other = session.fork()
            await policy.sample(Prompt([*context, 7]), Sampling(max_tokens=1, seed=0), other)
            assert policy.computed_tokens == 109
            await policy.sample(Prompt([*context[:50], 9]), Sampling(max_tokens=1, seed=0), session)
            assert policy.computed_tokens == 110

    asyncio.run(play())


def test_a_beginning_that_contexts_share_is_computed_once_and_only_with_the_same_weights():
    rng = np.random.default_rng(0)
    prompt = random_ids(rng, 150)
    contexts = [[*prompt, *random_ids(rng, count)] for count in (3, 9, 80, 1)]

    async def turn(policy, sessions):
        calls = [policy.sample(Prompt(context), Sampling(max_tokens=4, seed=number), session)
                 for number, (context, session) in enumerate(zip(contexts, sessions, strict=True))]  # fmt: skip
        return list(map(gap, [MODEL] * len(calls), contexts, await asyncio.gather(*calls)))

    async def play():
        async with TransformerPolicy(MODEL) as policy:
            found, sessions = [], [policy.session() for _ in contexts]
            for _ in range(2):  # the second time, after an update, nothing that was cached is of use
                before = policy.computed_tokens
                found += await turn(policy, sessions)
                assert policy.computed_tokens - before == 150 + 3 + 9 + 80 + 1 + 4 * 3
                assert policy.cached_tokens <= 4 * 256
                await policy.update()
            alone = policy.session()
            await policy.sample(Prompt(contexts[0]), Sampling(max_tokens=1, seed=0), alone)
            before = policy.computed_tokens  # what one has cached, a later one takes over
            await policy.sample(Prompt([*contexts[0], 5, 7]), Sampling(max_tokens=1, seed=0), policy.session())
            assert policy.computed_tokens - before == 2
            for session in [*sessions, alone]:
                session.close()
            return found

    assert max(asyncio.run(play())) < 1e-4


def test_calls_that_wait_at_the_same_time_share_a_pass():
    async def play():
        async with TransformerPolicy(MODEL) as policy:
            calls = (policy.sample(Prompt([1, 2, n]), Sampling(max_tokens=3, seed=n)) for n in range(20))
            await asyncio.gather(*calls)
            return policy.passes, policy.cached_tokens

    assert asyncio.run(play()) == (3, 0)


def test_a_draw_does_not_depend_on_what_else_is_in_the_batch():
    async def play(others):
        async with TransformerPolicy(MODEL) as policy:
            calls = [policy.sample(Prompt(list(range(20))), Sampling(max_tokens=8, seed=5))]
            calls += [policy.sample(Prompt([n] * (n + 1)), Sampling(max_tokens=4)) for n in range(others)]
            return (await asyncio.gather(*calls))[0].ids

    assert asyncio.run(play(0)) == asyncio.run(play(9))


def test_restricted_and_tempered_draws_report_the_distribution_they_were_drawn_from():
    async def play():
        async with TransformerPolicy(MODEL) as policy:
            allowed, context = (3, 50, 51, 299), [1, 2, 3]
            for seed in range(20):
                sampling = Sampling(max_tokens=1, temperature=0.5, allowed=allowed, seed=seed)
                completion = await policy.sample(Prompt(context), sampling)
                assert completion.ids[0] in allowed
                assert gap(MODEL, context, completion, temperature=0.5, allowed=allowed) < 1e-5

    asyncio.run(play())


def test_stop_ids_end_a_completion_and_belong_to_it():
    async def play():
        async with TransformerPolicy(MODEL) as policy:
            sampling = Sampling(max_tokens=50, stop_ids=tuple(range(100)), seed=1)
            return await policy.sample(Prompt([1]), sampling)

    completion = asyncio.run(play())
    assert completion.finish == "stop"
    assert completion.ids[-1] < 100
    assert all(token >= 100 for token in completion.ids[:-1])


def test_new_weights_are_used_from_the_next_token_on_and_old_caches_never():
    async def play():
        model, other = (new_model(VOCAB, size="tiny", seed=seed) for seed in (1, 2))
        async with TransformerPolicy(model) as policy:
            session, context = policy.session(), list(range(30))
            first = await policy.sample(Prompt(context), Sampling(max_tokens=2, seed=0), session)
            assert await policy.update(other.state_dict()) == 1
            context += first.ids
            second = await policy.sample(Prompt(context), Sampling(max_tokens=3, seed=0), session)
            assert second.versions == (VersionRun(0, 1),)
            assert gap(other, context, second) < 1e-5
            long = asyncio.create_task(policy.sample(Prompt(context), Sampling(max_tokens=200, seed=0), session))
            await policy.sample(Prompt([1]), Sampling(max_tokens=10))  # ten passes, shared with the long one
            await policy.update()
            assert [run.version for run in (await long).versions] == [1, 2]
            with pytest.raises(ValueError, match="size mismatch"):
                await policy.update(new_model(VOCAB + 1, size="tiny").state_dict())
            assert policy.version == 2

    asyncio.run(play())


def test_memory_stays_within_its_bound_and_evicted_sessions_go_on():
    async def play():
        async with TransformerPolicy(MODEL, max_length=128, max_cached_tokens=512) as policy:
            rng = np.random.default_rng(0)
            sessions = [policy.session() for _ in range(12)]
            contexts = [random_ids(rng, 60) for _ in sessions]
            for turn in range(3):
                done = await asyncio.gather(
                    *(
                        policy.sample(Prompt(context), Sampling(max_tokens=3, seed=turn), session)
                        for context, session in zip(contexts, sessions, strict=True)
                    )
                )
                assert policy.cached_tokens <= 512
                for context, completion in zip(contexts, done, strict=True):
                    assert gap(MODEL, context, completion) < 1e-5
                    context += completion.ids
            for session in sessions:
                session.close()
                session.close()
            return policy.cached_tokens

    assert asyncio.run(play()) == 0


def test_a_cancelled_call_frees_its_session_and_disturbs_nobody():
    async def play():
        async with TransformerPolicy(MODEL) as policy:
            session = policy.session()
            doomed = asyncio.create_task(policy.sample(Prompt([1, 2]), Sampling(max_tokens=400, seed=0), session))
            fine = asyncio.create_task(policy.sample(Prompt([1, 2]), Sampling(max_tokens=20, seed=0)))
            await policy.sample(Prompt([1]), Sampling(max_tokens=3))  # three passes, shared with both
            doomed.cancel()
            assert len((await fine).ids) == 20
            assert (await asyncio.gather(doomed, return_exceptions=True))[0] is not None
            again = await policy.sample(Prompt([1, 2]), Sampling(max_tokens=1, seed=0), session)
            assert gap(MODEL, [1, 2], again) < 1e-5

    asyncio.run(play())


def test_mistakes_of_the_caller_are_value_errors_at_once():
    async def play():
        async with (
            TransformerPolicy(MODEL, max_length=32, max_cached_tokens=64) as policy,
            TransformerPolicy(MODEL) as other,
        ):
            with pytest.raises(ValueError, match="empty"):
                await policy.sample(Prompt([]), Sampling())
            with pytest.raises(ValueError, match="context of 32"):
                await policy.sample(Prompt([1] * 30), Sampling(max_tokens=3))
            with pytest.raises(ValueError, match="vocabulary"):
                await policy.sample(Prompt([VOCAB]), Sampling(max_tokens=3))
            with pytest.raises(ValueError, match="another policy"):
                await policy.sample(Prompt([1]), Sampling(max_tokens=3), other.session())
            session = policy.session()
            session.close()
            with pytest.raises(ValueError, match="closed"):
                await policy.sample(Prompt([1]), Sampling(max_tokens=3), session)
        with pytest.raises(ValueError, match="max_cached_tokens"):
            TransformerPolicy(MODEL, max_cached_tokens=10)

    asyncio.run(play())


def test_diverged_weights_are_a_failure_of_the_agent():
    async def play():
        model = new_model(VOCAB, size="tiny")
        async with TransformerPolicy(model) as policy:
            torch.nn.init.constant_(model.lm_head.weight, float("nan"))
            with pytest.raises(AgentFailure, match="diverged"):
                await policy.sample(Prompt([1]), Sampling(max_tokens=1))
            assert isinstance(policy, Policy)

    asyncio.run(play())


class NoRoom(TransformerSession):
    """A session whose cache cannot be allocated."""

    def reserve(self, *args, **options):
        raise MemoryError("no room for a cache")


def test_a_fault_between_passes_is_told_to_every_call_and_the_policy_goes_on():
    async def play():
        async with TransformerPolicy(MODEL) as policy:
            calls = [policy.sample(Prompt([1]), Sampling(max_tokens=2), session=s) for s in
                     (policy.session(), NoRoom(policy.session().pool), policy.session())]  # fmt: skip
            for error in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(error, AgentFailure)
                assert "could not serve: MemoryError: no room for a cache" in str(error)
                assert isinstance(error.__cause__, MemoryError)
            with pytest.raises(TypeError):
                await asyncio.wait_for(policy.update(3), 60)
            return len((await policy.sample(Prompt([1]), Sampling(max_tokens=2))).ids)

    assert asyncio.run(play()) == 2


def test_a_policy_serves_one_event_loop_after_another():
    policy = TransformerPolicy(MODEL)
    first, second = (asyncio.run(policy.sample(Prompt([1, 2]), Sampling(max_tokens=4, seed=0))) for _ in range(2))
    assert first == second
    asyncio.run(policy.close())


logit_rows = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=12)


@given(logit_rows, st.floats(0.1, 3), st.floats(0.05, 1))
@settings(max_examples=100)
def test_a_distribution_sums_to_one_and_keeps_the_likeliest(logits, temperature, top_p):
    row = np.array(logits, np.float32)
    ids, logs = distribution(row, Sampling(temperature=temperature, top_p=top_p), first=True)
    assert np.exp(logs).sum() == pytest.approx(1)
    rounding = 1e-9  # of the log-probabilities: logits that differ by less are equally likely
    assert row[ids].max() >= row.max() - rounding
    dropped = np.delete(row, ids)
    assert not len(dropped) or dropped.max() <= row[ids].min() + rounding


def test_greedy_takes_the_likeliest_allowed_token_and_reports_temperature_one():
    row = np.array([5.0, 1.0, 2.0], np.float32)
    token, logprob = draw(row, Sampling(temperature=0, allowed=(1, 2)), np.random.default_rng(0), first=True)
    assert token == 2
    assert logprob == pytest.approx(-np.log1p(np.exp(-1.0)))


@given(st.integers(0, 2**32), st.lists(st.sampled_from([0, 1, 2, 3, 4]), min_size=1, max_size=9))
@settings(max_examples=50)
def test_rows_drawn_together_give_what_each_gives_alone(seed, kinds):
    samplings = (Sampling(), Sampling(temperature=0.6), Sampling(temperature=0.0), Sampling(top_p=0.9),
                 Sampling(allowed=(3, 5, 8)))  # fmt: skip
    logits = (np.random.default_rng(seed).standard_normal((len(kinds), 901)) * 4).astype(np.float32)
    first = [number % 2 == 0 for number in range(len(kinds))]
    asked = [(samplings[kind], np.random.default_rng(number), one)
             for number, (kind, one) in enumerate(zip(kinds, first, strict=True))]  # fmt: skip
    alone = [draw(row, samplings[kind], np.random.default_rng(number), first=one)
             for number, (row, kind, one) in enumerate(zip(logits, kinds, first, strict=True))]  # fmt: skip
    assert draws(logits, asked) == alone
    logits[-1, 0] = np.nan
    with pytest.raises(ValueError, match="diverged"):
        draws(logits, [(Sampling(), np.random.default_rng(0), True)] * len(kinds))


def test_draws_follow_the_distribution():
    row, rng = np.log(np.array([0.5, 0.3, 0.2], np.float32)), np.random.default_rng(0)
    counts = np.bincount([draw(row, Sampling(), rng, first=True)[0] for _ in range(20_000)])
    np.testing.assert_allclose(counts / 20_000, [0.5, 0.3, 0.2], atol=0.015)
