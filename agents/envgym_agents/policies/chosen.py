"""The policy over a model that a configuration asks for, by a few names."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from envgym_agents.eyes import eyes_of
from envgym_agents.policies.transformer import TransformerPolicy
from envgym_agents.policies.vllm.link import Opener, inside, server
from envgym_agents.policies.vllm.policy import VllmPolicy
from envgym_agents.policies.vllm.wire import EngineSettings

__all__ = ["SAMPLERS", "ModelPolicy", "SamplerOptions", "engine_settings", "opener", "policy_over"]

SAMPLERS = ("transformers", "vllm")

ModelPolicy = TransformerPolicy | VllmPolicy
"""Samples from a model of ours, and takes its weights."""


class SamplerOptions(Protocol):
    """What is asked for; `envgym_agents.learn.config_sampler.Sampler` is one, and says what each is."""

    @property
    def kind(self) -> str:
        """One of `SAMPLERS`."""
        ...

    place: Any
    python: Any
    tolerance: Any
    cache_gib: Any
    gpu_share: Any
    sequences: Any
    eager: Any
    threads: Any
    start_s: Any


def opener(options: SamplerOptions) -> Opener:
    """What makes vLLM's engine. Raises VllmMissing, a ValueError, where there is no vLLM."""
    return inside() if options.place == "process" else server(options.python, start_s=options.start_s)


def engine_settings(options: SamplerOptions, *, max_length: int = 0, dtype: str = "float32") -> EngineSettings:
    """vLLM's, without a folder."""
    return EngineSettings(
        "", max_length, dtype, cache_gib=options.cache_gib, gpu_share=options.gpu_share, eager=options.eager,
        sequences=options.sequences, threads=options.threads,
    )  # fmt: skip


def policy_over(
    model: Any, options: SamplerOptions, *, max_length: int | None = None, seed: int = 0,
    weights_of: Callable[[Any], Mapping[str, Tensor]] | None = None,
) -> ModelPolicy:  # fmt: skip
    """The policy. weights_of: the model's weights as other programs know them, where it has adapters.

    Raises ValueError for a model that sees and a sampler that gives it no images.
    """
    if options.kind == "transformers":
        return TransformerPolicy(model, max_length=max_length, seed=seed)
    if eyes_of(model) is not None:
        raise ValueError(f"sampler {options.kind!r} gives a model no images; for one that sees, use 'transformers'")
    return VllmPolicy(
        model, opener(options), settings=engine_settings(options), max_length=max_length,
        tolerance=options.tolerance, weights_of=weights_of, seed=seed,
    )  # fmt: skip
