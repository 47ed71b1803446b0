"""Whoever is asked by a judge: a policy behind a template answers by its seed, and too long a question is told."""

import asyncio

import pytest
import torch
from envgym_agents.judge import PolicyAsker
from envgym_agents.model import new_model
from envgym_agents.policies.transformer import TransformerPolicy
from envgym_agents.template import OwnTemplate
from envgym_agents.tokenizer import train_tokenizer

from envgym import ContextFull, Sampling
from envgym.rewards import Criterion, judge_rubric

torch.set_num_threads(1)


def test_a_policy_is_a_judge():
    tokenizer = train_tokenizer(["is it right? yes or no"] * 3, vocab_size=300)
    model = new_model(len(tokenizer), size="tiny", context=2048)

    async def main() -> None:
        async with TransformerPolicy(model) as policy:
            asker = PolicyAsker(policy, OwnTemplate(tokenizer), Sampling(max_tokens=8), context=2048)
            one, same, other = [await asker.ask("right?", seed=seed) for seed in (1, 1, 2)]
            assert one == same != other
            found = await judge_rubric(asker, "add", "4", [Criterion("right", "It is right.")], seed=0)
            assert found.score is None, "a model that was never taught says nothing that can be read"
            assert policy.cached_tokens == 0
            with pytest.raises(ContextFull, match="the question does not fit"):
                await asker.ask("right? " * 5000, seed=0)

    asyncio.run(main())
