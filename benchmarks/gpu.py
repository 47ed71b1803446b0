"""Learner and sampler on this machine's GPU: tokens a second, FLOP utilisation, shared prefixes, overlap.

First the device's facts and its own ceilings (a large matrix product, a large copy), then random-weight models of
0.5 and 3 billion parameters over 8k to 64k packed tokens (in sequences of 8,192, and the longest as one sequence
too); then eight rollouts with 75 % common tokens, shared and not; then the smallest model as a sampler, beside
`generate` with a static batch, and sampling and learning at once beside the longer of both alone.

What learns is what `envgym train` makes of `learner.precision = "bfloat16"` with `learner.checkpoint`: weights
and AdamW in float32, products in bfloat16, logits in chunks. What is timed is one whole update: packing, forward,
backward, the optimiser's step. Who samples has float32 weights, as in `envgym train`. What does not fit is told.

Utilisation counts 6 operations a parameter and token and the causal attention, not what checkpointing computes
again nor the optimiser. It is told as a share of the measured product's rate; published model FLOP utilisation is
one of the data sheet's peak, which `--peak-tflops` gives (dense, of bfloat16): only that share stands beside
prime-rl's. Without a GPU the same runs at tiny sizes on the CPU, to
see that it works.
"""

import argparse
import asyncio
import statistics
import time
from copy import deepcopy

import numpy as np
import torch
from _harness import Row, finish, options
from envgym_agents.learn.config import load
from envgym_agents.learn.forest import grown
from envgym_agents.learn.pack import Row as Sampled
from envgym_agents.learn.scoring import scorer_of
from envgym_agents.learn.update import Learner, adamw
from envgym_agents.policies.transformer import TransformerPolicy
from transformers import Qwen2Config, Qwen2ForCausalLM

from envgym.limits import Sampling
from envgym.policy import Prompt

SIZES = {"0.5B": (896, 4864, 24, 14, 2, 151_936), "3B": (2048, 11_008, 36, 16, 2, 151_936)}
TINY = {"tiny": (32, 64, 2, 2, 1, 512)}
TOKENS = (8192, 16_384, 32_768, 65_536)
LONGEST = 8192
"""Tokens of one packed sequence; the last of TOKENS is tried as one sequence, too."""


def made(shape, device):
    width, inner, layers, heads, groups, vocabulary = shape
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=groups, max_position_embeddings=131_072,
        tie_word_embeddings=True, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    return model.eval()


def update_of(model, tokens, device):
    """From rows to one update of `envgym train`'s learner, whose passes have at most `tokens` positions.

    Ends with what to do where attention cannot be computed in blocks.
    """
    sizes = {"chunk": 2048, "logits_mib": 1280} if device == "cuda" else {"chunk": 16}
    config = load(
        base={
            "device": device, "max_tokens": tokens,
            "learner": {"precision": "bfloat16", "checkpoint": True, **sizes},
            "reinforce": {"epochs": 1, "minibatches": 1, "loss": {"kind": "reinforce"}},
        }
    )  # fmt: skip
    scorer = scorer_of(config, model)
    if not scorer.blocks:
        raise SystemExit(f"gpu: no attention in blocks on {device}; does torch.compile work there?")
    learner = Learner(
        scorer, adamw(model, lr=1e-6, weight_decay=0.0), max_tokens=config.max_tokens, device=config.device
    )
    return lambda rows: learner.update([rows], config.reinforce, np.random.default_rng(0), lr=1e-6)


def packings(device):
    """(tokens in all, tokens of one sequence)."""
    if device != "cuda":
        return [(128, 64), (128, 128)]
    return [*((tokens, min(tokens, LONGEST)) for tokens in TOKENS), (TOKENS[-1], TOKENS[-1])]


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(work, device, repeats=3):
    work()
    found = []
    for _ in range(repeats):
        wait(device)
        started = time.perf_counter()
        work()
        wait(device)
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def ceilings(device):
    """Operations and bytes a second of the plainest work: a square matrix product, a copy."""
    side = 8192 if device == "cuda" else 256
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    product = seconds(lambda: left @ right, device, 10)
    source = torch.empty(2**30 if device == "cuda" else 2**20, dtype=torch.uint8, device=device)
    copy = seconds(source.clone, device, 10)
    return 2 * side**3 / product, 2 * source.numel() / copy


def row(number, ids, at):
    zeros, ones = np.zeros(len(at), np.float32), np.ones(len(at), np.float32)
    return Sampled(
        f"e{number}", "t", ids.astype(np.int32), at.astype(np.int32), zeros, ones * (1 - number % 2 * 2),
        ones / len(at), (None,) * len(at),
    )  # fmt: skip


def rows_of_length(vocabulary, total, length):
    rng = np.random.default_rng(0)
    return [row(k, np.concatenate([[k], rng.integers(0, vocabulary, length - 1)]), np.arange(1, length))
            for k in range(total // length)]  # fmt: skip


def rollouts(vocabulary, length, *, common):
    """Eight rows; with `common`, three quarters of each are the same, and only the rest was sampled."""
    rng = np.random.default_rng(0)
    start, tail = rng.integers(0, vocabulary, length * 3 // 4), length // 4
    found = []
    for number in range(8):
        ids = np.concatenate([start, rng.integers(0, vocabulary, tail)])
        if not common:
            ids[0] = number
        found.append(row(number, ids, np.arange(len(ids) - tail, len(ids))))
    return found


def step_seconds(model, rows, device):
    """Of an update whose rows are one pass."""
    update = update_of(model, sum(len(one.ids) for one in rows), device)
    return seconds(lambda: update(rows), device)


def each_seconds(model, batches, device):
    """`step_seconds` of each batch."""
    return [step_seconds(model, rows, device) for rows in batches]


def fitting(what, work, *given):
    """What `work` makes of what is given; None, and told, where it does not fit."""
    try:
        return work(*given)
    except torch.OutOfMemoryError as error:
        print(f"{what}: does not fit ({str(error).splitlines()[0]})")
    return None


def peak_gib(device):
    """The most that was held since the last call; 0 on a CPU, which does not count."""
    if device != "cuda":
        return 0.0
    found = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return found


def operations(shape, rows):
    """Of forward and backward, by the rule above: matrices and causal attention."""
    width, inner, layers, heads, groups, vocabulary = shape
    matrices = layers * (2 * width**2 + 2 * width**2 * groups // heads + 3 * width * inner) + width * vocabulary
    tokens = sum(len(one.ids) - 1 for one in rows)
    attention = sum(layers * 2 * 2 * width * (len(one.ids) - 1) ** 2 / 2 for one in rows)
    return 6 * matrices * tokens + 3 * attention


def prompts(vocabulary, count, length):
    return np.random.default_rng(1).integers(0, vocabulary, (count, length)).tolist()


async def sampled(policy, asked, most):
    """All prompts answered at once with `most` ids each."""
    await asyncio.gather(
        *(policy.sample(Prompt(one), Sampling(max_tokens=most, seed=number)) for number, one in enumerate(asked))
    )


@torch.inference_mode()
def generated(model, asked, most, device):
    model.generate(torch.tensor(asked, device=device), max_new_tokens=most, min_new_tokens=most, do_sample=True)


def played(name, shape, device):
    """The model as a sampler, and beside a learner of its own that works at the same time."""
    count, length, most = (64, 512, 128) if device == "cuda" else (4, 16, 8)
    model, asked = made(shape, device), prompts(shape[-1], count, length)
    total = 16_384 if device == "cuda" else 128
    update, learned = update_of(deepcopy(model), total, device), rows_of_length(shape[-1], total, length)

    def learn():
        update(learned)
        wait(device)

    async def both(policy):
        await asyncio.gather(sampled(policy, asked, most), asyncio.to_thread(learn))

    with asyncio.Runner() as runner:
        policy = TransformerPolicy(model)
        ours = seconds(lambda: runner.run(sampled(policy, asked, most)), device)
        alone = max(ours, seconds(learn, device))
        together = seconds(lambda: runner.run(both(policy)), device)
        runner.run(policy.close())
    plain = seconds(lambda: generated(model, asked, most, device), device)
    tokens = count * most
    print(f"{name}: {tokens / ours:,.0f} sampled tokens/s, generate {tokens / plain:,.0f}")
    return [
        Row(f"{name}: sampled", tokens / ours, tokens / plain, "generate, static batch", "tokens/s"),
        Row(f"{name}: sampling and learning at once", together, alone, "the longer of both alone", "s"),
    ]


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peak-tflops", type=float, help="the data sheet's dense bfloat16 peak, for utilisation")


def utilised(what, rate, product, peak):
    """The rows of an update's operations a second: beside the product's, and, where one is given, of the peak."""
    rows = [Row(f"{what}: of the product's rate", rate / product, 1.0, "the product itself", "share")]
    return [*rows, *([Row(f"{what}: MFU", rate / peak, 0.36, "prime-rl at 65k", "share")] if peak else [])]


def main():
    given = options(__doc__, more=more)
    peak = given.peak_tflops and given.peak_tflops * 1e12
    device = "cuda" if torch.cuda.is_available() and not given.quick else "cpu"
    facts = {"device": torch.cuda.get_device_name() if device == "cuda" else "no GPU: tiny sizes on the CPU"}
    rate, bandwidth = ceilings(device)
    print(f"{facts['device']}; product {rate / 1e12:.4g} TFLOP/s, copy {bandwidth / 1e9:.4g} GB/s")
    results = []
    rows = []
    for name, shape in (SIZES if device == "cuda" else TINY).items():
        model = made(shape, device)
        for tokens, length in packings(device):
            packed = rows_of_length(shape[-1], tokens, length)
            what, facts_here = f"{name}, {tokens} tokens in {tokens // length}", {"model": name, "tokens": tokens}
            peak_gib(device)  # what was tried before is not of this
            took = fitting(what, step_seconds, model, packed, device)
            if took is None:
                results.append({**facts_here, "length": length, "fits": False})
                model.zero_grad(set_to_none=True)
                continue
            reached = operations(shape, packed) / took
            results.append(
                {
                    **facts_here, "length": length, "fits": True, "tokens_per_s": tokens / took,
                    "of_product": reached / rate, "mfu": reached / peak if peak else None,
                    "peak_gib": peak_gib(device),
                }
            )  # fmt: skip
            print(f"{what}: {tokens / took:,.0f} tokens/s, {reached / rate:.1%} of the product's rate")
            rows += utilised(what, reached, rate, peak)
        length = LONGEST if device == "cuda" else 64
        together = rollouts(shape[-1], length, common=True)
        limit = sum(len(one.ids) - 1 for one in together) / len(grown([one.ids[:-1] for one in together]).ids)
        apart = rollouts(shape[-1], length, common=False)
        what = f"{name}, eight rollouts of {length}"
        both = fitting(what, each_seconds, model, (apart, together), device)
        if both is None:
            results.append({"model": name, "tokens": 8 * length, "length": length, "fits": False})
            model.zero_grad(set_to_none=True)
            continue
        rows.append(Row(f"{name}: limit over the gain of sharing", limit, both[0] / both[1], "gain", "times",
                        limit / 2.5 if device == "cuda" else None))  # fmt: skip
    name, shape = next(iter((SIZES if device == "cuda" else TINY).items()))
    rows += fitting(f"{name}, sampled", played, name, shape, device) or []
    facts |= {"product_flops": rate, "peak_flops": peak, "copy_bytes_s": bandwidth}
    finish("gpu", rows, given, **facts, results=results)


if __name__ == "__main__":
    main()
