"""What keeping the KV cache across an episode's turns is worth: 64 episodes of 14 turns at the same time.

The same contexts are sampled twice by one policy: with a session per episode, and with every turn prefilled from
its start (what a stateless server without a prefix cache does). Both give the same log-probabilities; checked.
Observations come in ragged sizes as in code repair: one long first, then 5 to 130 tokens; one token is sampled.
"""

import asyncio
import statistics
import time

import numpy as np
import torch
from _harness import Row, finish, options
from envgym_agents.model import new_model, parameters
from envgym_agents.policies.transformer import TransformerPolicy

from envgym.limits import Sampling
from envgym.policy import Prompt

EPISODES, TURNS, VOCABULARY = 64, 14, 2000
ALLOWED = tuple(range(6, 30))


def observations(rng):
    """Per episode and turn, the ids that are added; first 60 to 160, then 5 to 130, mostly short."""
    sizes = np.minimum(5 + rng.exponential(35, (EPISODES, TURNS)).astype(int), 130)
    sizes[:, 0] = rng.integers(60, 160, EPISODES)
    return [[rng.integers(30, VOCABULARY, size).tolist() for size in row] for row in sizes]


async def episode(policy, added, *, keep, seed):
    session = policy.session() if keep else None
    context, logprobs = [], []
    for turn, ids in enumerate(added):
        context += ids
        sampling = Sampling(max_tokens=1, allowed=ALLOWED, seed=seed * 1000 + turn)
        completion = await policy.sample(Prompt(context), sampling, session)
        context += completion.ids
        logprobs += completion.logprobs
    if session is not None:
        session.close()
    return len(context), logprobs


async def play(policy, added, *, keep):
    """Wall seconds, context tokens at the end, computed positions, all log-probabilities."""
    before, started = policy.computed_tokens, time.perf_counter()
    done = await asyncio.gather(*(episode(policy, one, keep=keep, seed=number) for number, one in enumerate(added)))
    wall = time.perf_counter() - started
    logprobs = np.array([value for _, found in done for value in found])
    return wall, sum(length for length, _ in done), policy.computed_tokens - before, logprobs


def measure(repeats):
    model = new_model(VOCABULARY, size="1M")
    added = observations(np.random.default_rng(0))

    async def run():
        kept, anew, gap = [], [], 0.0
        async with TransformerPolicy(model) as policy:
            for _ in range(repeats):
                kept.append(await play(policy, added, keep=True))
                anew.append(await play(policy, added, keep=False))
                gap = max(gap, float(np.abs(kept[-1][3] - anew[-1][3]).max()))
        return kept, anew, gap

    kept, anew, gap = asyncio.run(run())
    assert gap < 1e-3, f"log-probabilities differ by {gap}"
    walls = [statistics.median(found[0] for found in way) for way in (kept, anew)]
    notes = {
        "model_parameters": parameters(model),
        "episodes": EPISODES,
        "turns": TURNS,
        "context_tokens": kept[0][1],
        "computed_tokens": {"kept": kept[0][2], "anew": anew[0][2]},
        "largest_logprob_gap": gap,
        "threads": torch.get_num_threads(),
    }
    return [Row("cache kept over turns", walls[0], walls[1], "prefilled anew each turn", "s")], notes


def main():
    given = options(__doc__)
    rows, notes = measure(1 if given.quick else 5)
    finish("kv_reuse", rows, given, **notes)


if __name__ == "__main__":
    main()
