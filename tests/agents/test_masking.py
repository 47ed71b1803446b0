import asyncio

import numpy as np
import pytest
import torch
from envgym_agents.learn.losses.masks import nucleus, within
from envgym_agents.model import new_model
from envgym_agents.policies.transformer import TransformerPolicy
from transformers import BloomConfig, BloomForCausalLM

from envgym.limits import Sampling
from envgym.policy import Prompt

torch.set_num_threads(1)
VOCAB = 300
MODEL = new_model(VOCAB, size="tiny", context=512)


def sharper(seed):
    """A model that prefers something: a fresh one's nucleus is nearly everything."""
    model = new_model(VOCAB, size="tiny", seed=seed, context=512)
    with torch.no_grad():
        model.lm_head.weight.mul_(20.0)
    return model


def bloom():
    torch.manual_seed(3)
    return BloomForCausalLM(BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=2)).eval()


@torch.inference_mode()
def told(model, masking, context, token, sampling, *, first):
    """By the learner's functions and whole passes: log-probability under the mask, whether it is open."""
    temperature = sampling.temperature or 1.0
    logits, theirs = (
        one(input_ids=torch.tensor([context])).logits[0, -1].double() / temperature for one in (model, masking)
    )
    if first and sampling.allowed is not None:
        closed = torch.ones(VOCAB, dtype=torch.bool)
        closed[list(sampling.allowed)] = False
        logits, theirs = logits.masked_fill(closed, -torch.inf), theirs.masked_fill(closed, -torch.inf)
    mask = nucleus(theirs[None], top_p=0.6)
    return float(within(logits[None], mask).log_softmax(-1)[0, token]), bool(mask[0, token])


def check(model, masking, context, completion, sampling):
    context, worst = list(context), 0.0
    for place, (token, logprob) in enumerate(zip(completion.ids, completion.logprobs, strict=True)):
        wanted, inside = told(model, masking, context, token, sampling, first=place == 0)
        assert inside
        worst = max(worst, abs(wanted - logprob))
        context.append(token)
    return worst


@pytest.mark.parametrize("masking", [lambda: sharper(5), bloom], ids=["packed", "one by one"])
def test_every_draw_is_in_the_learners_nucleus_of_the_mask_over_turns_forks_and_ragged_batches(masking):
    rng = np.random.default_rng(0)
    kinds = [Sampling(max_tokens=7), Sampling(max_tokens=3, temperature=0.5), 
             Sampling(max_tokens=5, temperature=0.0), Sampling(max_tokens=2, allowed=(3, 50, 7, 120))]  # fmt: skip

    async def play():
        mask = masking()
        async with TransformerPolicy(MODEL) as policy:
            policy.mask(mask, top_p=0.6)
            shared = rng.integers(0, VOCAB, 90).tolist()
            contexts = [[*shared, *rng.integers(0, VOCAB, count).tolist()] for count in (1, 9, 30, 4)]
            sessions, worst = [policy.session() for _ in contexts], []
            for turn in range(3):
                asked = [kinds[(turn + number) % 4] for number in range(4)]
                found = await asyncio.gather(*(
                    policy.sample(Prompt(context), sampling, session)
                    for context, sampling, session in zip(contexts, asked, sessions, strict=True)
                ))  # fmt: skip
                for number, completion in enumerate(found):
                    worst.append(check(MODEL, mask, contexts[number], completion, asked[number]))
                    contexts[number] += [*completion.ids, *rng.integers(0, VOCAB, turn).tolist()]
                contexts[3], fork = list(contexts[0]), sessions[0].fork()
                sessions[3].close()
                sessions[3] = fork
            return max(worst)

    assert asyncio.run(play()) < 1e-4


@pytest.mark.slow
def test_a_renewed_mask_holds_from_the_same_pass_on_as_the_weights_and_none_opens_everything():
    first, second = sharper(5), sharper(6)
    wanted = {name: weight.clone() for name, weight in second.state_dict().items()}
    context, sampling = list(range(40)), Sampling(max_tokens=40, seed=1)

    async def play():
        async with TransformerPolicy(MODEL) as policy:
            policy.mask(first, top_p=0.6)
            session = policy.session()
            before = await policy.sample(Prompt(context), sampling, session)
            assert check(MODEL, sharper(5), context, before, sampling) < 1e-4
            assert await policy.update(masks=wanted) == 1
            after = await policy.sample(Prompt(context), sampling, session)
            assert check(MODEL, second, context, after, sampling) < 1e-4
            assert before.ids != after.ids
            policy.mask(None)
            free = await policy.sample(Prompt(context), sampling, session)
            inside = [told(MODEL, second, [*context, *free.ids[:n]], token, sampling, first=n == 0)[1]
                      for n, token in enumerate(free.ids)]  # fmt: skip
            assert not all(inside)

    asyncio.run(play())


def test_caches_of_the_mask_go_with_their_sessions_and_mistakes_are_told_at_once():
    async def play():
        async with TransformerPolicy(MODEL) as policy:
            with pytest.raises(ValueError, match="no masking policy is there to be renewed"):
                await policy.update(masks=MODEL.state_dict())
            with pytest.raises(ValueError, match="a masking model of 310 ids cannot mask one of 300"):
                policy.mask(new_model(310, size="tiny", context=512), top_p=0.6)
            policy.mask(sharper(5), top_p=0.6)
            session = policy.session()
            call = asyncio.create_task(policy.sample(Prompt([1, 2]), Sampling(max_tokens=30), session))
            await asyncio.sleep(0)
            with pytest.raises(ValueError, match="the policy is sampling"):
                policy.mask(None)
            await call
            beside = session.beside
            assert beside.pool.used > 0
            session.close()
            assert beside.pool.used == 0

    asyncio.run(play())
