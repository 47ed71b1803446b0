"""The learner's peak memory over sampled positions and vocabulary: flat beyond the chunk in which logits exist.

Forward and backward from hidden states through the output layer, chunked and whole, each in a process of its own.
The curve is the growth of the peak. A chunk is bounded in positions and in MiB, so it has fewer positions where the
vocabulary is large. What is left to grow with the length are the hidden states and a few numbers a position; with
the vocabulary, the output layer's gradient: that of one chunk, and the sum of all, as large as the weights each.
That part is arithmetic (2 x vocabulary x width x 4 bytes) and is taken off where vocabularies are compared; both
numbers are in the results. A last row has whole models with and without checkpointed layers.
"""

import ctypes
import multiprocessing
import resource

import numpy as np
import torch
from _harness import Row, finish, options
from envgym_agents.learn.head import in_chunks, positions_at_once
from envgym_agents.learn.pack import Row as Sampled
from envgym_agents.learn.pack import padded
from envgym_agents.learn.score import Scorer
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, VOCABULARY, CHUNK = 64, 32_000, 256
VOCABULARIES = (8_000, 32_000, 128_000, 152_000)
LOGITS_MIB = {True: 8, False: 32}
"""Most MiB of logits at once where vocabularies are compared, by --quick: what every one of them fills."""


def grown(work):
    """MiB by which `work` raises the peak; freed blocks go back at once, else the heap's holes are counted."""
    ctypes.CDLL(None).mallopt(-3, 2**20)  # M_MMAP_THRESHOLD, of glibc
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def head(length, chunk, vocabulary=VOCABULARY):
    states = torch.randn(length, WIDTH, requires_grad=True)
    weight = torch.randn(vocabulary, WIDTH, requires_grad=True)
    targets = torch.randint(0, vocabulary, (length,))

    def work():
        found = in_chunks(states, targets, lambda x: x @ weight.T, chunk=chunk)
        (found.logprobs.sum() + found.entropy.sum()).backward()

    return grown(work)


def layers(length, checkpointed):
    config = LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=384, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=4, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    scorer = Scorer(LlamaForCausalLM(config).eval(), checkpointed=checkpointed, chunk=CHUNK)
    ids, at = np.arange(length, dtype=np.int32) % 512, np.arange(length // 2, length, dtype=np.int32)
    zeros = np.zeros(len(at), np.float32)
    batch = padded([Sampled("e", "t", ids, at, zeros, zeros, zeros, (None,) * len(at))])
    return grown(lambda: scorer.score(batch).logprobs.sum().backward())


def peak(work, *arguments):
    """What `work` returns in a forked process: its peak is its own. Before this process has computed anything."""
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        return pool.apply(work, arguments)


def by_vocabulary(vocabularies, lengths, most_mib):
    """By vocabulary, in MiB: the growth by length, the output layer's gradient, all logits if they were there."""
    found = {}
    for vocabulary in vocabularies:
        chunk = positions_at_once(lengths[0], most_mib, vocabulary)
        grew = {length: peak(head, length, chunk, vocabulary) for length in lengths}
        whole = 4 * lengths[-1] * vocabulary / 2**20
        found[vocabulary] = {"chunk": chunk, "grew": grew, "logits": whole,
                             "gradient": 2 * 4 * WIDTH * vocabulary / 2**20}  # fmt: skip
    return found


def beside_the_gradient(one):
    """MiB of the longest, without what belongs to the weights."""
    return list(one["grew"].values())[-1] - one["gradient"]


def main():
    given = options(__doc__)
    lengths = (512, 1024) if given.quick else (512, 1024, 2048, 4096, 8192)
    chunked = {length: peak(head, length, CHUNK) for length in lengths}
    whole = {length: peak(head, length, length) for length in lengths[-1 if given.quick else 0 :] if length <= 4096}
    longest = 1024 if given.quick else 4096
    depth = 1024 if given.quick else 2048
    wide = by_vocabulary(
        VOCABULARIES[:2] if given.quick else VOCABULARIES, (longest // 2, longest), LOGITS_MIB[given.quick]
    )
    rows = [
        Row(f"logits of {lengths[-1]} positions, in chunks of {CHUNK}", chunked[lengths[-1]],
            chunked[lengths[0]], f"of {lengths[0]}", "MiB", 1.25),
        Row(f"logits of {longest} positions, in chunks", chunked[longest], whole[longest], "all at once", "MiB",
            1.0),
        Row(f"8 layers, {depth} positions, checkpointed", peak(layers, depth, True),
            peak(layers, depth, False), "everything kept", "MiB", 1.0),
    ]  # fmt: skip
    least = beside_the_gradient(wide[VOCABULARIES[0]])
    for vocabulary, one in wide.items():
        name, (short, long) = f"{longest} positions of {vocabulary:,} ids", one["grew"].values()
        rows.append(Row(name, long, short, f"of {longest // 2}", "MiB", 1.25))
        if vocabulary != VOCABULARIES[0]:
            apart = beside_the_gradient(one)
            rows.append(Row(f"{name}, without the gradient", apart, least, f"{VOCABULARIES[0]:,} ids", "MiB", 1.25))
        rows.append(Row(name, long, one["logits"], "their logits alone", "MiB"))
    finish("learner_memory", rows, given, chunked_mib=chunked, whole_mib=whole, by_vocabulary_mib=wide)


if __name__ == "__main__":
    main()
