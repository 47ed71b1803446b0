"""Who of several processes computes which part of a minibatch, and how what they found comes together.

A minibatch is cut into parts as for one process, and each process computes every `size`-th of them. All make the
same number of passes: a sharded model's passes are made together. Sums are of all processes, so what is computed
from them is the same everywhere, and what one process alone would compute but for the order of additions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor

__all__ = ["Ranks"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's number among `size` of one process group; alone by default."""

    rank: int = 0
    size: int = 1

    def own(self, parts: Sequence[T]) -> list[tuple[T, bool]]:
        """This process's parts, and whether each counts.

        Who has fewer than the others computes one again that does not count.
        """
        if self.size == 1:
            return [(part, True) for part in parts]
        mine = [(part, True) for part in parts[self.rank :: self.size]]
        most = -(-len(parts) // self.size)
        return mine + [(parts[0], False)] * (most - len(mine))

    def bound(self, lengths: Sequence[int], most: int) -> int:
        """At most `most` positions a pass, and no more than make work for everybody."""
        return most if self.size == 1 else min(most, max(max(lengths), -(-sum(lengths) // self.size)))

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes, on every one of them, where `values` lies."""
        if self.size == 1:
            return values
        found = values.detach().clone()
        if dist.get_backend() == "nccl":
            found = found.cuda()
        dist.all_reduce(found)
        return found.to(values.device)
