"""A checkpoint is a folder that vLLM and transformers load unchanged, to the same numbers, with adapters too."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from envgym_agents.learn.adapters import adapt, merged_weights
from envgym_agents.learn.checkpoint import latest
from envgym_agents.learn.config import Reinforce
from envgym_agents.learn.pack import Row
from envgym_agents.learn.score import Scorer
from envgym_agents.learn.update import Learner, adamw
from envgym_agents.policies.vllm.link import VllmMissing, find_python
from envgym_agents.tokenizer import train_tokenizer
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
VOCAB = 300
PROGRAM = """
import json, sys
from vllm import LLM, SamplingParams

asked, found = json.loads(sys.argv[1]), {}
for folder in sys.argv[2:]:
    model = LLM(model=folder, dtype="float32", enforce_eager=True, max_model_len=64)  # its own tokenizer, too
    said = model.generate(
        [{"prompt_token_ids": ids} for ids in asked],
        SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False,
    )
    found[folder] = [
        [at[token].logprob for at, token in zip(one.prompt_logprobs[1:], one.prompt_token_ids[1:])] for one in said
    ]
    del model
print("FOUND " + json.dumps(found))
"""
"""vLLM by its own front door: nothing of envgym is imported."""


def model_of(seed):
    """Tied embeddings, of which vLLM and a checkpoint could each keep the wrong copy."""
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config).eval()


def trained(model, folder: Path) -> Path:
    """The checkpoint that a learner leaves after two updates that changed what the model says."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(4):
        ids, at = rng.integers(0, VOCAB, 20).astype(np.int32), np.arange(5, 20, dtype=np.int32)
        credit = np.full(15, 1.0 - number % 2 * 2, np.float32)
        said, weights = np.full(15, -5.7, np.float32), np.full(15, 1 / 15, np.float32)
        rows.append(Row(f"e{number}", "t", ids, at, said, credit, weights, (None,) * 15))
    learner = Learner(
        Scorer(model), adamw(model, lr=1e-2, weight_decay=0.0),
        tokenizer=train_tokenizer(["read press open"], actions=["act:read"], vocab_size=VOCAB),
    )  # fmt: skip
    for number in range(2):
        learner.update([rows], Reinforce(epochs=1, minibatches=1), np.random.default_rng(number), lr=1e-2)
    learner.save(folder, 2, {"step": 2})
    return latest(folder)


@torch.inference_mode()
def said_by(model, asked):
    found = []
    for ids in asked:
        logs = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
        found.append([float(logs[place, token]) for place, token in enumerate(ids[1:])])
    return found


def test_checkpoints_of_all_weights_and_of_adapters_are_loaded_unchanged_by_vllm_and_transformers(tmp_path):
    pytest.importorskip("peft")
    try:
        python = find_python()
    except VllmMissing as error:
        pytest.skip(str(error))
    asked = [np.random.default_rng(number).integers(0, VOCAB, 12 + number).tolist() for number in range(3)]
    begun = said_by(model_of(1), asked)
    models = {"all": model_of(1), "adapters": adapt(model_of(1), rank=4, alpha=8.0, seed=0)}
    folders = {name: trained(model, tmp_path / name) for name, model in models.items()}
    assert merged_weights(models["adapters"]).keys() == models["all"].state_dict().keys()
    named = [str(folder) for folder in folders.values()]
    env = os.environ | {
        "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip
    done = subprocess.run(
        [python, "-c", PROGRAM, json.dumps(asked), *named], capture_output=True, text=True, env=env, check=False,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (one for one in done.stdout.splitlines() if one.startswith("FOUND "))
    told = json.loads(line.removeprefix("FOUND "))
    for name, folder in folders.items():
        own = said_by(models[name], asked)
        library = said_by(AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval(), asked)
        for place in range(len(asked)):
            assert told[str(folder)][place] == pytest.approx(own[place], abs=1e-4)
            assert library[place] == pytest.approx(own[place], abs=1e-5)
        assert (
            max(abs(a - b) for one, other in zip(own, begun, strict=True) for a, b in zip(one, other, strict=True))
            > 0.01
        )
