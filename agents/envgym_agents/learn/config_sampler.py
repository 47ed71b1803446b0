"""The settings of what samples: the learner's own model, or vLLM.

A part of `envgym_agents.learn.config`, which reads and checks it.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from envgym_agents.learn.config_loss import Frozen, refuse_unused

__all__ = ["Sampler"]


class Sampler(Frozen):
    """What samples tokens: the model itself in this process, or vLLM, which gets its weights after every update."""

    kind: Literal["transformers", "vllm"] = "transformers"
    """vllm: see docs/training.md for how to get it"""
    place: Literal["server", "process"] = "server"
    """of vLLM: a process of another Python, or this one, which then needs to have it"""
    python: str | None = None
    """the Python that has vLLM; none: ENVGYM_VLLM_PYTHON, else .vllm-venv, else this one"""
    tolerance: float | None = Field(default=None, gt=0)
    """most nats between its log-probabilities and the model's; none: 1e-4 in float32, 0.05 below"""
    cache_gib: int = Field(default=1, ge=1)
    """of keys and values, on a CPU"""
    gpu_share: float = Field(default=0.5, gt=0, lt=1)
    """of a GPU's memory, weights included"""
    sequences: int = Field(default=128, ge=1)
    """most that are computed at once"""
    eager: bool = True
    """without compilation and CUDA graphs; false takes longer to start and samples faster on a GPU"""
    threads: int = Field(default=0, ge=0, le=1024)
    """of its computation on a CPU; 0: as many as it finds"""
    start_s: float = Field(default=600.0, gt=0)
    """seconds in which it must be there"""

    @model_validator(mode="after")
    def _only_with_vllm(self) -> Self:
        if self.kind != "vllm":
            names = [name for name in type(self).model_fields if name != "kind"]
            refuse_unused(self, tuple(names), "sampler.kind is 'transformers'")
        elif self.place == "process":
            refuse_unused(self, ("python", "start_s"), "vLLM runs in this process")
        return self
