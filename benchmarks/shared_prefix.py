"""What computing common prefixes once is worth to the learner: a group of rollouts, and a tree of forks.

Eight rollouts share 75 % of their tokens; or four forks leave a trunk at different turns and each forks again.
Forward and backward of the same rows: packed one behind the other without padding, each seeing itself alone; as a
forest; and as a forest with the dense mask of all pairs. Tokens a second count the rows' tokens, however few were
computed. The limit is what the counts say: 8 rows of length 1 against 0.75 + 8 / 4. Memory is the growth of the
process's peak.
"""

import multiprocessing
import resource
import statistics
import time

import numpy as np
import torch
from _harness import Row, finish, options
from envgym_agents.learn.forest import grown
from envgym_agents.learn.pack import Row as Sampled
from envgym_agents.learn.pack import shared
from envgym_agents.learn.score import Scorer
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 2000


def made_model(quick):
    width, layers = (64, 2) if quick else (512, 3)  # the gain is one layer's, however many there are
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=width // 32, num_key_value_heads=width // 64, max_position_embeddings=4096,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def row(number, ids, sampled):
    at = np.arange(len(ids) - sampled, len(ids), dtype=np.int32)
    zeros = np.zeros(sampled, np.float32)
    return Sampled(f"e{number}", "t", ids.astype(np.int32), at, zeros, zeros, zeros + 1, (None,) * sampled)


def group(rng, length):
    """Eight rows, three quarters of each the same; half of the rest was sampled."""
    start, tail = rng.integers(0, VOCABULARY, length * 3 // 4), length // 4
    return [row(k, np.concatenate([start, rng.integers(0, VOCABULARY, tail)]), tail // 2) for k in range(8)]


def forks(rng, length):
    """Eight leaves: four leave the trunk at its second, third and fourth quarters' ends, each twice."""
    trunk = rng.integers(0, VOCABULARY, length)
    found = []
    for number, part in enumerate((2, 3, 3, 3)):
        stem = np.concatenate([trunk[: length * part // 4], rng.integers(0, VOCABULARY, length // 8)])
        for _ in range(2):
            left = length - len(stem)
            found.append(
                row(2 * number + _, np.concatenate([stem, rng.integers(0, VOCABULARY, left)]), length // 8)
            )
    return found


def alone(rows):
    """The same rows packed one behind the other: a first id of its own keeps each from sharing anything."""
    return [
        Sampled(f"{k}", "t", np.concatenate([[k], one.ids[1:]]).astype(np.int32), one.at, one.logprobs, one.credit,
                one.weights, one.allowed)
        for k, one in enumerate(rows)
    ]  # fmt: skip


def timed(scorer, batch):
    started = time.perf_counter()
    scorer.score(batch).logprobs.sum().backward()
    scorer.model.zero_grad()
    return time.perf_counter() - started


def peak(work, *arguments):
    """What `work` returns in a forked process: its peak is its own. Before this process has computed anything."""
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        return pool.apply(work, arguments)


def measured_peak(kind, quick):
    model = made_model(quick)
    scorer = Scorer(model)
    rows = group(np.random.default_rng(0), 128 if quick else 1024)
    batch = shared(rows if kind == "shared" else alone(rows))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    timed(scorer, batch)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def compare(name, rows, model, repeats, quick):
    blocks, dense = Scorer(model), Scorer(model)
    assert blocks.blocks, "attention over forests works for this model"
    dense.blocks = False
    apart, together = shared(alone(rows)), shared(rows)
    ways = [(blocks, apart), (blocks, together), (dense, together)]
    for scorer, _ in ways:  # warm, on short rows: a whole pass takes seconds
        timed(scorer, shared(group(np.random.default_rng(1), 128)))
    rounds = [[timed(*way) for way in ways] for _ in range(repeats)]
    gain, mask_gain = (statistics.median(one[0] / one[k] for one in rounds) for k in (1, 2))
    limit = sum(len(one.ids) - 1 for one in rows) / len(grown([one.ids[:-1] for one in rows]).ids)
    tokens = sum(len(one.ids) for one in rows)
    notes = {f"{name}: tokens/s {way}": tokens / statistics.median(one[k] for one in rounds)
             for k, way in enumerate(("apart", "shared", "shared, dense mask"))}  # fmt: skip
    # the bar, at least 2.5 times as fast, as a bound from above: limit / gain
    bar = None if quick else limit / 2.5
    return [
        Row(f"{name}: limit of {limit:.2f} over the gain", limit, gain, "gain", "times", bar),
        Row(f"{name}: time, against a dense mask", mask_gain, gain, "blocks", "gain"),
    ], notes


def main():
    given = options(__doc__)
    memory = [peak(measured_peak, kind, given.quick) for kind in ("shared", "alone")]
    model, rng = made_model(given.quick), np.random.default_rng(0)
    length, repeats = (128, 2) if given.quick else (1024, 3)
    rows, notes = [], {"threads": torch.get_num_threads()}
    for name, make in (("group", group), ("forks", forks)):
        found, more = compare(name, make(rng, length), model, repeats, given.quick)
        rows += found
        notes |= more
    bar = None if given.quick else 1.0
    rows.append(Row("group: peak memory of a pass", *memory, "packed, not shared", "MiB", bar))
    finish("shared_prefix", rows, given, **notes)


if __name__ == "__main__":
    main()
