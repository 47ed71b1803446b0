"""Two actors of one model in one episode: what each sampled is what the learner scores, in its own context."""

import asyncio
from dataclasses import replace

import numpy as np
import torch
from envgym_agents.chat import LMAgents
from envgym_agents.learn.pack import rows_of
from envgym_agents.model import new_model
from envgym_agents.policies.transformer import TransformerPolicy
from envgym_agents.template import OwnTemplate
from envgym_agents.tokenizer import train_tokenizer

from envgym.credit.ledger import Ledger
from envgym.episode import Group
from envgym.jobs import Job, run_episode
from envgym.limits import Limits, Sampling
from envgym.rollout import Rollout
from envgym.testing.memory import MemoryEnv, memory_tasks

torch.set_num_threads(1)
TOKENIZER = train_tokenizer(["the treasure seems to be left of 3"] * 3, vocab_size=320)
MODEL = new_model(len(TOKENIZER), size="tiny", context=2048)
TASK = memory_tasks(1)[0]


class Turns(MemoryEnv):
    """The treasure game, played by two in turns."""

    asked = 0

    def _step(self, text, reward):
        self.asked += 1
        return replace(super()._step(text, reward), next_actor=("left", "right")[self.asked % 2])


def test_rows_of_several_actors_score_as_they_were_sampled() -> None:
    async def played():
        async with TransformerPolicy(MODEL) as policy:
            makers = LMAgents(policy, OwnTemplate(TOKENIZER), "text", Sampling(max_tokens=4))

            async def make():
                return Turns(TASK)

            job = Job(make, lambda env: makers.for_env(env, seed=3), TASK.id, 3, "e", Rollout(Limits(turns=5)))
            episode = await run_episode(job)
            assert policy.cached_tokens == 0
            return episode

    episode = asyncio.run(played())
    assert episode.failure is None, episode.failure
    assert len({turn.actor for turn in episode.turns}) == 2
    assert Ledger.of([Group(TASK.id, (episode,))]).rows == 2
    rows = rows_of(episode, np.zeros(episode.sampled_tokens, np.float32))
    assert len(rows) == len(episode.turns), "who speaks after another begins a segment"
    held: dict[str, list[int]] = {}
    for turn in episode.turns:
        context = turn.prompt_ids.tolist()
        assert context[: len(held.get(turn.actor, []))] == held.get(turn.actor, [])
        whole = torch.tensor([[*context, *turn.sampled_ids.tolist()]])
        with torch.no_grad():
            scores = torch.log_softmax(MODEL(whole).logits[0].float(), -1)
        at = range(len(context) - 1, whole.shape[1] - 1)
        found = [float(scores[place, whole[0, place + 1]]) for place in at]
        assert np.allclose(found, turn.logprobs, atol=1e-3)
        held[turn.actor] = whole[0].tolist()
