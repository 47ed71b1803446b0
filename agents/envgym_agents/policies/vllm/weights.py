"""A Hugging Face model as vLLM is given it, and the proof that vLLM computes what it computes.

Tied embeddings are untied on the way: vLLM packs the output layer once more on a CPU, and a tied one stays as it
was when new weights come. The model itself is not changed.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from envgym.errors import InfrastructureFailure
from envgym.limits import Sampling
from envgym_agents.policies.draw import distribution

__all__ = [
    "SamplerDiffers",
    "Weights",
    "gap",
    "logprobs_of",
    "probes",
    "tolerance_of",
    "write_folder",
    "write_weights",
]

Weights = Mapping[str, Tensor]


class SamplerDiffers(InfrastructureFailure):
    """vLLM's log-probabilities are not the model's: what it samples would train something else."""


def write_folder(folder: Path, model: Any, weights: Weights) -> None:
    """A model folder with these weights and no tokenizer."""
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = False
    config.architectures = [type(model).__name__]
    config.save_pretrained(str(folder))
    write_weights(folder / "model.safetensors", model, weights)


def write_weights(file: Path, model: Any, weights: Weights) -> None:
    """Weights under their names in `model`, each with memory of its own, the output layer's among them."""
    found: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, weight in {**weights, **_head(model, weights)}.items():
        whole = weight.detach().to("cpu").contiguous()
        if whole.data_ptr() in places:
            whole = whole.clone()
        places.add(whole.data_ptr())
        found[name] = whole
    save_file(found, str(file), metadata={"format": "pt"})


def _head(model: Any, weights: Weights) -> dict[str, Tensor]:
    """The output layer of a model whose weights do not name it, because it is the embedding."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    names = {id(module): name for name, module in model.named_modules()}
    if head is None or head.weight is not embedding.weight or f"{names[id(head)]}.weight" in weights:
        return {}
    return {f"{names[id(head)]}.weight": weights[f"{names[id(embedding)]}.weight"]}


def tolerance_of(model: Any) -> float:
    """How far two exact computations of a model's log-probabilities may differ, in nats, by its number type."""
    return 1e-4 if model.dtype == torch.float32 else 5e-2  # of bfloat16's 8 bits


def probes(vocabulary: int, max_length: int, version: int) -> list[tuple[list[int], Sampling]]:
    """Contexts and how to sample after them, to compare on: others for every version."""
    rng = np.random.default_rng([11, version])
    found = []
    for length, count in ((3, 4), (37, 6)):
        length = max(1, min(length, max_length - count))
        sampling = Sampling(max_tokens=min(count, max_length - length), seed=int(rng.integers(1 << 32)))
        found.append((rng.integers(0, vocabulary, length).tolist(), sampling))
    return found


@torch.inference_mode()
def logprobs_of(model: Any, context: Sequence[int], ids: Sequence[int], sampling: Sampling) -> NDArray[np.float64]:
    """Of ids after a context, as the model itself gives them; -inf where they could not have been sampled."""
    training = model.training
    model.eval()
    try:
        row = torch.tensor([[*context, *ids]], device=model.device)
        logits = model(input_ids=row, use_cache=False).logits[0].float().cpu().numpy()
    finally:
        model.train(training)
    found = np.full(len(ids), -np.inf)
    for place, token in enumerate(ids):
        known, logs = distribution(logits[len(context) + place - 1], sampling, first=place == 0)
        at = np.flatnonzero(known == token)
        if len(at):
            found[place] = logs[at[0]]
    return found


def gap(
    model: Any, context: Sequence[int], ids: Sequence[int], logprobs: Sequence[float], sampling: Sampling
) -> float:
    """The largest difference between log-probabilities as sampled and as the model gives them, in nats."""
    differs = np.abs(logprobs_of(model, context, ids, sampling) - np.asarray(logprobs))
    return float(np.max(np.where(np.isnan(differs), np.inf, differs), initial=0.0))
