"""A model's weights, gradients and optimiser divided over processes (FSDP2), and whole again for a checkpoint.

Each layer is gathered when it computes and divided again; what lies outside the layers (embeddings, the last norm,
the output layer, so tied weights too) is one more unit, whole during a pass. Gradients are summed, not averaged:
the losses are shares of one minibatch. Source: Zhao et al. 2023, "PyTorch FSDP" (arXiv 2304.11277);
torch's `fully_shard` is its second form, one shard per weight.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from envgym_agents.learn.head import Asked, Scored
from envgym_agents.learn.pack import Batch
from envgym_agents.learn.score import Scorer

__all__ = ["Divided", "divided_like", "whole"]


class _Root(torch.nn.Module):
    """The unit of what lies outside the layers: whole while the work given to it runs."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


class Divided:
    """A scorer like `Scorer`, of whose model this process keeps one part of `mesh.size()`.

    The scorer that is given is used; its model's weights are replaced, so an optimiser is made afterwards.
    """

    def __init__(self, scorer: Scorer, mesh: DeviceMesh) -> None:
        self.inner, self.model = scorer, scorer.model
        self.shares_prefixes, self.blocks = scorer.shares_prefixes, scorer.blocks
        self._root = _Root(scorer.model)
        layers = [one for one in self.model.modules() if isinstance(one, GradientCheckpointingLayer)]
        for module in (*layers, self._root):
            unit: Any = fully_shard(module, mesh=mesh)
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)  # gloo knows no other, and a factor of 1 is none

    def score(self, batch: Batch, *, other: "Scorer | Divided | None" = None, asked: Asked | None = None) -> Scored:
        """As `Scorer.score`; every process scores a batch at the same time, each its own."""
        beside = None if other is None or asked is None else (_plain(other), other.states(batch))

        def work() -> tuple[Tensor, ...]:
            states = self.inner.states(batch)
            found = self.inner.choose(batch, states, other=beside, asked=asked if beside else None)
            return tuple(getattr(found, name) for name in Scored.__slots__)

        return Scored(*self._root(work))

    @torch.no_grad()
    def states(self, batch: Batch) -> Tensor:
        """As `Scorer.states`, without gradient. The output layer stays whole until `apart`."""
        found: Tensor = self._root(lambda: self.inner.states(batch))
        return found

    @contextmanager
    def apart(self) -> Iterator[Any]:
        """The model with nothing gathered: each weight is this process's part, to be saved, loaded or optimised."""
        for module in self._root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        yield self.model


def _plain(scorer: "Scorer | Divided") -> Scorer:
    return scorer.inner if isinstance(scorer, Divided) else scorer


def whole(value: Any) -> Any:
    """The value with every divided tensor in it gathered; all processes must ask at the same time."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, Mapping):
        seen: dict[int, Any] = {}  # tied weights are one tensor under two names, and stay one
        for one in value.values():
            if id(one) not in seen:
                seen[id(one)] = whole(one)
        return {name: seen[id(one)] for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(whole(one) for one in value)
    return value


def divided_like(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor divided as `like` is; itself where `like` is not. Nothing is sent: all have it whole."""
    if not isinstance(like, DTensor):
        return value
    there = value.to(like.device, like.dtype)
    return distribute_tensor(there, like.device_mesh, like.placements, src_data_rank=None)
