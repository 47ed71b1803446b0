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

__all__ = ["Divided", "divided_like", "take", "whole"]


class _Root(torch.nn.Module):
    """The unit of what lies outside the layers: whole while the work given to it runs."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


class Divided:
    """A scorer like `Scorer`, of whose model this process keeps one part of `mesh.size()`.

    scorer: makes one of a model. The model's weights are replaced, so an optimiser is made afterwards. fill: gives
    one that has none yet (`weights.fillable`) this process's part of them; what the scorer tries on the model it
    then tries on the divided one, all processes at the same time.
    """

    def __init__(
        self, model: Any, mesh: DeviceMesh, scorer: Callable[[Any], Scorer],
        fill: Callable[[Any], None] | None = None,
    ) -> None:  # fmt: skip
        self.model = model
        if fill is None:
            self.inner = scorer(model)
        self._root = _Root(model)
        layers = [one for one in self.model.modules() if isinstance(one, GradientCheckpointingLayer)]
        for module in (*layers, self._root):
            unit: Any = fully_shard(module, mesh=mesh)
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)  # gloo knows no other, and a factor of 1 is none
        if fill is not None:
            fill(model)
            with torch.no_grad():
                self.inner = self._root(lambda: scorer(model))
            self._divide()
        self.shares_prefixes, self.blocks = self.inner.shares_prefixes, self.inner.blocks

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
        self._divide()
        yield self.model

    def _divide(self) -> None:
        for module in self._root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def _plain(scorer: "Scorer | Divided") -> Scorer:
    return scorer.inner if isinstance(scorer, Divided) else scorer


def whole(value: Any, *, keep: bool = True) -> Any:
    """The value with every divided tensor in it gathered, in this host's memory; all ask at the same time.

    One tensor after the other, so a device holds one of them whole. keep: False takes part, and keeps nothing of
    them: an empty tensor stands in the place of each.
    """
    if isinstance(value, DTensor):
        found = value.full_tensor()
        return found.cpu() if keep else found.new_empty(0)
    if isinstance(value, Mapping):
        seen: dict[int, Any] = {}  # tied weights are one tensor under two names, and stay one
        for one in value.values():
            if id(one) not in seen:
                seen[id(one)] = whole(one, keep=keep)
        return {name: seen[id(one)] for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(whole(one, keep=keep) for one in value)
    return value


@torch.no_grad()
def take(weight: Tensor, read: Callable[[int, int], Tensor]) -> None:
    """Fill a weight, or this process's part of a divided one, with its own rows and no others.

    read: rows [start, stop) of it. torch divides the first dimension into as equal parts as `torch.chunk` does.
    """
    if not isinstance(weight, DTensor):
        weight.copy_(read(0, weight.shape[0]))
        return
    count, mesh, own = weight.shape[0], weight.device_mesh, weight.to_local()
    each = -(-count // mesh.size())
    start = min(mesh.get_local_rank() * each, count)
    own.copy_(read(start, start + own.shape[0]))


def divided_like(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor divided as `like` is; itself where `like` is not. Nothing is sent: all have it whole."""
    if not isinstance(like, DTensor):
        return value
    there = value.to(like.device, like.dtype)
    return distribute_tensor(there, like.device_mesh, like.placements, src_data_rank=None)
