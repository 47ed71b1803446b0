"""What keeping the KV cache across an episode's turns is worth: 64 episodes of 14 turns at the same time.

The same contexts are sampled twice by one policy: with a session per episode, and with every turn prefilled from
its start (what a stateless server without a prefix cache does). Both give the same log-probabilities; checked.
Observations come in ragged sizes as in code repair: one long first, then 5 to 130 tokens; one token is sampled.
"""

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from _harness import facts
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


def measure(repeats, size):
    model = new_model(VOCABULARY, size=size)
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
    context = kept[0][1]
    return {
        "model_parameters": parameters(model),
        "episodes": EPISODES,
        "turns": TURNS,
        "context_tokens": context,
        "repeats": repeats,
        "kept": {"wall_s": round(walls[0], 3), "computed_tokens": kept[0][2]},
        "anew": {"wall_s": round(walls[1], 3), "computed_tokens": anew[0][2]},
        "context_tokens_per_s_kept": round(context / walls[0]),
        "context_tokens_per_s_anew": round(context / walls[1]),
        "turns_per_s_kept": round(EPISODES * TURNS / walls[0]),
        "speedup": round(statistics.median(b[0] / a[0] for a, b in zip(kept, anew, strict=True)), 2),
        "largest_logprob_gap": gap,
        "machine": facts() | {"threads": torch.get_num_threads()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one repeat")
    parser.add_argument("--size", default="1M", help="model size, see envgym_agents.model.SIZES")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    result = measure(1 if options.quick else 5, options.size)
    for name in ("kept", "anew"):
        print(f"{name:5} {result[name]['wall_s']:8.3f} s, {result[name]['computed_tokens']:8d} positions computed")
    print(f"keeping the cache is {result['speedup']} times as fast; log-probabilities differ by at most "
          f"{result['largest_logprob_gap']:.1e}")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
