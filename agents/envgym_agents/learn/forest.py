"""Rows of tokens as a forest: what several have in common from their start is one path of nodes, held once.

Nodes stand in the order in which a walk meets them (a node, then all below it), so the nodes below node n are those
from n + 1 up to ``ends[n]``, and one number per node says who sees whom: i sees j where ``j <= i < ends[j]``. For
attention that computes only what is seen, the same is also cut into segments. Nothing here knows models.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Forest", "Segment", "cost", "grown", "side_by_side"]

Ids = NDArray[np.int32]
Nodes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Segment:
    """Nodes [start, stop), each the child of the one before it. above: the ranges of nodes over it, root first."""

    start: int
    stop: int
    above: tuple[tuple[int, int], ...]

    @property
    def depth(self) -> int:
        """How many nodes are over its first one."""
        return sum(stop - start for start, stop in self.above)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Forest:
    """ids [N], depth [N] (the position of each node in its row), ends [N]; segments; and of each row its nodes."""

    ids: Nodes
    depth: Nodes
    ends: Nodes
    segments: tuple[Segment, ...]
    paths: tuple[Nodes, ...]

    def sees(self) -> Tensor:
        """Which node sees which [N, N], bool. As large as it says: for small forests and models that need it."""
        number = torch.arange(len(self.ids))
        ends = torch.from_numpy(self.ends)
        return (number[None] <= number[:, None]) & (number[:, None] < ends[None])


def grown(rows: Sequence[Ids]) -> Forest:
    """The forest of some rows.

    Sorted rows share their longest prefix with a neighbour, so one pass builds it, and its order is the walk's.
    """
    paths: list[Nodes] = [np.zeros(0, np.int64)] * len(rows)
    ids: list[Ids] = []
    depth: list[Nodes] = []
    ends = np.zeros(sum(map(len, rows)), np.int64)
    segments: list[Segment] = []
    size = 0
    before, before_path = np.zeros(0, np.int32), np.zeros(0, np.int64)
    for index in sorted(range(len(rows)), key=lambda index: rows[index].tobytes()):
        row = rows[index]
        common = _common(before, row)
        new = len(row) - common
        ends[before_path[common:]] = size  # what is not above this row has nothing more below it
        path = np.concatenate([before_path[:common], np.arange(size, size + new)])
        if new:
            ids.append(row[common:])
            depth.append(np.arange(common, len(row)))
            segments.append(Segment(size, size + new, _ranges(path[:common])))
        size += new
        paths[index] = path
        before, before_path = row, path
    ends[before_path] = size
    empty = np.zeros(0, np.int64)
    return Forest(
        np.concatenate([empty, *ids]).astype(np.int64), np.concatenate([empty, *depth]), ends[:size],
        tuple(segments), tuple(paths),
    )  # fmt: skip


def _common(a: Ids, b: Ids) -> int:
    shortest = min(len(a), len(b))
    different = np.flatnonzero(a[:shortest] != b[:shortest])
    return int(different[0]) if len(different) else shortest


def _ranges(nodes: Nodes) -> tuple[tuple[int, int], ...]:
    """Increasing numbers as ranges of consecutive ones."""
    if not len(nodes):
        return ()
    breaks = np.flatnonzero(np.diff(nodes) != 1) + 1
    return tuple((int(part[0]), int(part[-1]) + 1) for part in np.split(nodes, breaks))


_QUADRATIC = 1500.0
"""A node's own cost equals that of attending to about this many others (two to three small layers on a CPU)."""
_SEGMENT = 12.0
"""What one more segment costs, in nodes: a few calls in every layer."""


def cost(forest: Forest, *, blocks: bool) -> float:
    """About what a forest costs, in nodes. blocks: whether attention computes only what is seen, or all N x N."""
    size = len(forest.ids)
    if not blocks:
        return size * (1 + size / _QUADRATIC)
    seen = sum((one.stop - one.start) * (one.depth + (one.stop - one.start) / 2) for one in forest.segments)
    return size + seen / _QUADRATIC + _SEGMENT * len(forest.segments)


def side_by_side(lengths: Sequence[int]) -> float:
    """About what rows of these lengths cost when each is filled up to the longest, in the same unit."""
    longest = max(lengths)
    return len(lengths) * longest * (1 + longest / 2 / _QUADRATIC)
