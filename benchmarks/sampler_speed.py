"""Tokens a second that our samplers give in episodes of several turns, beside what each engine gives by itself.

The same model, with random weights in float32, plays the same episodes: an observation, an answer, the next
observation. In-process policy: beside transformers' own `generate`, a static batch for every turn, which computes
each context anew. vLLM as a policy: beside vLLM's own `LLM.generate` in its own interpreter, all episodes of a turn
at once, with the same settings and prefix caching. Answers are of equal length (a static batch at its best) or
ragged, as answers are, and only wanted tokens count. Nobody waits for a world here.
"""

import asyncio
import json
import subprocess
import time

import numpy as np
import torch
from _harness import Row, finish, medians_of, options, scratch_folder
from envgym_agents.model import new_model, parameters
from envgym_agents.policies.transformer import TransformerPolicy
from envgym_agents.policies.vllm.link import VllmMissing, find_python, server
from envgym_agents.policies.vllm.policy import VllmPolicy
from envgym_agents.policies.vllm.weights import write_folder
from envgym_agents.policies.vllm.wire import EngineSettings

from envgym.limits import Sampling
from envgym.policy import Prompt

VOCABULARY, CONTEXT = 2000, 2048

OWN = """
import json, os, sys, time
given = json.load(open(sys.argv[1]))
os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": str(given["threads"])})
from vllm import LLM, SamplingParams
llm = LLM(model=given["folder"], skip_tokenizer_init=True, dtype="float32", enforce_eager=True,
    max_model_len=given["context"], max_num_seqs=128, block_size=32, enable_prefix_caching=True, seed=0,
    logprobs_mode="processed_logprobs", generation_config="vllm", enable_chunked_prefill=False,
    max_num_batched_tokens=max(given["context"], 4096))  # as the policy: with seeds it breaks on a CPU else
for played in given["plays"]:
    walls = []
    for again in range(given["repeats"] + 1):
        llm.reset_prefix_cache()
        contexts = [[] for _ in played["observations"]]
        began = time.perf_counter()
        for turn in range(len(played["observations"][0])):
            for context, seen in zip(contexts, played["observations"]):
                context += seen[turn]
            params = [SamplingParams(temperature=1.0, max_tokens=one[turn], seed=turn, ignore_eos=True, logprobs=0,
                                     detokenize=False) for one in played["answers"]]
            found = llm.generate([{"prompt_token_ids": list(one)} for one in contexts], params, use_tqdm=False)
            for context, one in zip(contexts, found):
                context += one.outputs[0].token_ids
        walls.append(time.perf_counter() - began)
    print("WALL", sorted(walls[1:])[len(walls[1:]) // 2], flush=True)
"""


def plays(episodes, turns, longest):
    """Of equal and of ragged answers: what is seen and how much is answered, by episode and turn."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(5, 60, (episodes, turns))
    sizes[:, 0] = rng.integers(100, 200, episodes)
    seen = [[rng.integers(0, VOCABULARY, size).tolist() for size in row] for row in sizes]
    lengths = {
        "equal answers": np.full((episodes, turns), longest // 2),
        "ragged answers": rng.integers(1, longest, (episodes, turns)),
    }
    return {name: {"observations": seen, "answers": one.tolist()} for name, one in lengths.items()}


def wanted(played):
    return sum(map(sum, played["answers"]))


async def sampled_s(policy, played):
    """Seconds in which a policy plays, each episode going on as soon as it can."""

    async def episode(number, seen, lengths):
        session, context = policy.session(), []
        for turn, (new, length) in enumerate(zip(seen, lengths, strict=True)):
            context += new
            sampling = Sampling(max_tokens=length, seed=number * 1000 + turn)
            context += (await policy.sample(Prompt(context), sampling, session)).ids
        session.close()

    began = time.perf_counter()
    each = zip(played["observations"], played["answers"], strict=True)
    await asyncio.gather(*(episode(number, seen, lengths) for number, (seen, lengths) in enumerate(each)))
    return time.perf_counter() - began


@torch.inference_mode()
def static_s(model, played):
    """Seconds of `generate`, turn after turn: padded on the left, until the longest answer is there."""
    contexts = [[] for _ in played["observations"]]
    began = time.perf_counter()
    for turn in range(len(played["observations"][0])):
        for context, seen in zip(contexts, played["observations"], strict=True):
            context += seen[turn]
        width = max(map(len, contexts))
        ids = torch.tensor([[0] * (width - len(one)) + one for one in contexts])
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in contexts])
        most = max(one[turn] for one in played["answers"])
        found = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=most, do_sample=True, pad_token_id=0
        )
        for context, new, lengths in zip(contexts, found[:, width:].tolist(), played["answers"], strict=True):
            context += new[: lengths[turn]]
    return time.perf_counter() - began


def in_process(model, all_plays, repeats):
    with asyncio.Runner() as runner:
        policy = TransformerPolicy(model)
        for name, played in all_plays.items():
            walls = medians_of(
                repeats, lambda p=played: runner.run(sampled_s(policy, p)), lambda p=played: static_s(model, p)
            )
            ours, own = (wanted(played) / wall for wall in walls)
            yield Row(f"transformers, {name}", ours, own, "generate, static batch", "tokens/s")
        runner.run(policy.close())


def by_vllm(model, all_plays, repeats, scratch):
    """vLLM as a policy, then vLLM by itself: one after the other, for each wants all cores."""
    python, threads = find_python(), torch.get_num_threads()
    ours = []
    with asyncio.Runner() as runner:
        policy = VllmPolicy(model, server(python), settings=EngineSettings("", 0, threads=threads))
        for played in all_plays.values():
            ours += medians_of(repeats, lambda p=played: runner.run(sampled_s(policy, p)))
        runner.run(policy.close())
    write_folder(scratch, model, model.state_dict())
    given = {"folder": str(scratch), "threads": threads, "context": CONTEXT, "repeats": repeats,
             "plays": list(all_plays.values())}  # fmt: skip
    (scratch / "given.json").write_text(json.dumps(given))
    done = subprocess.run(
        [python, "-I", "-c", OWN, str(scratch / "given.json")], capture_output=True, text=True, check=False
    )
    own = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("WALL ")]
    if len(own) != len(all_plays):
        raise SystemExit(f"sampler_speed: vLLM by itself failed: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    for (name, played), mine, theirs in zip(all_plays.items(), ours, own, strict=True):
        yield Row(f"vLLM, {name}", wanted(played) / mine, wanted(played) / theirs, "LLM.generate", "tokens/s")


def main():
    given = options(__doc__)
    size, repeats = ("1M", 1) if given.quick else ("4M", 5)
    all_plays = plays(4, 2, 8) if given.quick else plays(32, 4, 64)
    model = new_model(VOCABULARY, size=size, context=CONTEXT)
    rows, notes = list(in_process(model, all_plays, repeats)), {"parameters": parameters(model)}
    try:
        with scratch_folder() as scratch:
            rows += by_vllm(model, all_plays, repeats, scratch)
    except VllmMissing as error:
        print(f"without vLLM: {error}")
        notes["vllm"] = str(error)
    tokens = {name: wanted(played) for name, played in all_plays.items()}
    finish("sampler_speed", rows, given, threads=torch.get_num_threads(), sampled_tokens=tokens, **notes)


if __name__ == "__main__":
    main()
