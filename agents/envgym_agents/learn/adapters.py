"""Training few weights instead of all: low-rank adapters inside a model (LoRA, through PEFT).

The model stays the object that it was, so that sampling and scoring know nothing of it; what is saved is the
model with its adapters added to its weights, a folder like any other.
Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", eq. 3.
"""

from typing import Any

import torch
from torch import Tensor

__all__ = ["adapt", "adapted", "merged_weights"]

_PARTS = (".lora_A.", ".lora_B.", ".lora_embedding_A.", ".lora_embedding_B.", ".lora_magnitude_vector.")


def adapt(model: Any, *, rank: int, alpha: float, seed: int) -> Any:
    """The model itself, with adapters of `rank` in all linear layers but the output; only these train.

    It computes what it computed before, exactly: one factor begins as zeros. The other is a function of `seed`, and
    no global generator is left changed. alpha: the product of the factors counts ``alpha / rank`` times. Raises
    ValueError when PEFT is not installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ValueError("model.lora_rank: adapters need PEFT; pip install 'envgym[lora]'") from error
    linear = any(isinstance(module, torch.nn.Linear) for _, module in _hidden(model))
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", fan_in_fan_out=not linear)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return inject_adapter_in_model(config, model)


def _hidden(model: Any) -> list[tuple[str, torch.nn.Module]]:
    head = model.get_output_embeddings()
    return [(name, module) for name, module in model.named_modules() if module is not head]


def adapted(model: Any) -> bool:
    """Whether a model has adapters."""
    return any(".lora_A." in name for name, _ in model.named_parameters())


@torch.no_grad()
def merged_weights(model: Any) -> dict[str, Tensor]:
    """The weights of the model without adapters that computes the same, under the names that it has without them.

    The model itself is not changed.
    """
    weights = {
        name.replace(".base_layer.", "."): weight
        for name, weight in model.state_dict().items()
        if not any(part in name for part in _PARTS)
    }
    for name, module in model.named_modules():
        if hasattr(module, "get_delta_weight"):
            key = f"{name}.weight"
            for adapter in module.active_adapters:
                weights[key] = weights[key] + module.get_delta_weight(adapter).to(weights[key].dtype)
    return weights
