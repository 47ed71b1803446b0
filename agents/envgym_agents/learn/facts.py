"""Of a model's shape, all that a plan's memory and time depend on; no weight is read."""

from dataclasses import dataclass
from typing import Any

import torch

from envgym_agents.learn.config import TrainConfig
from envgym_agents.model import empty_model, new_model, parameters
from envgym_agents.tokenizer import load_tokenizer

__all__ = ["Facts", "facts_of"]


@dataclass(frozen=True, slots=True)
class Facts:
    """Of a model's shape, all that memory and time depend on."""

    parameters: int
    trained: int
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_width: int
    vocabulary: int


def facts_of(config: TrainConfig) -> Facts:
    """The shape of the model that a configuration begins with; no weight of a folder is read."""
    if config.model.path is None:
        taken = config.model.tokenizer
        width = config.model.vocabulary if taken is None else len(load_tokenizer(taken))
        model = new_model(width, size=config.model.size, context=config.model.context)
    else:
        model = empty_model(config.model.path)
    own, count = model.config.get_text_config(), parameters(model)
    heads = own.num_attention_heads
    kv = getattr(own, "num_key_value_heads", None) or heads
    width = getattr(own, "head_dim", None) or own.hidden_size // heads
    return Facts(
        parameters=count,
        trained=_adapted(model, config.model.lora_rank) if config.model.lora_rank else count,
        layers=own.num_hidden_layers,
        hidden=own.hidden_size,
        inner=getattr(own, "intermediate_size", None) or 4 * own.hidden_size,
        heads=heads,
        kv_width=kv * width,
        vocabulary=own.vocab_size,
    )


def _adapted(model: Any, rank: int) -> int:
    """Weights of low-rank adapters: two factors a linear layer, but the output (LoRA, Hu et al. 2021)."""
    head = model.get_output_embeddings()
    linear = [one for one in model.modules() if isinstance(one, torch.nn.Linear) and one is not head]
    return rank * sum(one.in_features + one.out_features for one in linear)
