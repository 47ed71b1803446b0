"""Attention over a forest of tokens that computes only what is seen, beneath any model of the transformers library.

Its name is registered with that library once; a model that is given it attends as before (`sdpa`) until a forest
comes with a call. Then, on a CPU, each segment attends to the path above it in blocks of rows, and no mask of all
pairs exists; on a GPU the same rule is a `flex_attention` block mask. Features that change who sees whom or how
much (windows, soft caps, sinks) are refused by name, and `Scorer` then does without.
"""

from functools import cache
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from envgym_agents.learn.forest import Forest

__all__ = ["IMPLEMENTATION", "KEYWORD", "block_mask", "flexible", "forest_attention", "in_blocks"]

IMPLEMENTATION = "envgym_forest"
"""Its name in the transformers library."""
KEYWORD = "envgym_forest"
"""The argument of a model's call that brings the forest."""
_ROWS = 512
"""Queries of one block: bounds the mask, and how much of the upper triangle is computed in vain."""
_BLOCK = 128
"""Queries, and keys, of one block of `flex_attention`: its own default."""
_UNKNOWN = ("sliding_window", "softcap", "s_aux", "position_bias")


def forest_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **given: Any
) -> tuple[Tensor, Tensor | None]:
    """What the library calls in every layer; [1, heads, N, D] in, [1, N, heads, D] out.

    Raises ValueError for a forest with a feature that it does not know.
    """
    forest: Forest | None = given.pop(KEYWORD, None)
    if forest is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **given)  # type: ignore[no-any-return]
    if unknown := [name for name in _UNKNOWN if given.get(name) is not None]:
        raise ValueError(f"attention over a forest knows no {', '.join(unknown)}")
    if given.get("dropout"):
        raise ValueError(f"attention over a forest has no dropout, and it is {given['dropout']}")
    if torch.is_autocast_enabled(query.device.type):  # rotated in float32, while values come from a matrix product
        query, key = query.to(value.dtype), key.to(value.dtype)
    groups = query.shape[1] // key.shape[1]
    scale = given.get("scaling")
    if query.is_cuda:
        found = flexible(query, key, value, forest, scale=scale, run=_compiled())
    else:
        if groups > 1:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        found = in_blocks(query, key, value, forest, scale=scale)
    return found.transpose(1, 2).contiguous(), None


def in_blocks(query: Tensor, key: Tensor, value: Tensor, forest: Forest, *, scale: float | None) -> Tensor:
    """Segment by segment: every block of a segment's queries with the keys above it and its own, [1, H, N, D]."""
    ends = {0, query.shape[2]}
    for segment in forest.segments:
        ends |= {segment.start, segment.stop, *(end for part in segment.above for end in part)}
    cuts = sorted(ends)
    at = {cut: number for number, cut in enumerate(cuts)}
    sizes = [stop - start for start, stop in pairwise(cuts)]
    keys, values = torch.split(key, sizes, 2), torch.split(value, sizes, 2)
    pieces = []
    for segment in forest.segments:
        parts = [number for start, stop in (*segment.above, (segment.start, segment.stop))
                 for number in range(at[start], at[stop])]  # fmt: skip
        own_keys = keys[parts[0]] if len(parts) == 1 else torch.cat([keys[number] for number in parts], 2)
        own_values = values[parts[0]] if len(parts) == 1 else torch.cat([values[number] for number in parts], 2)
        depth = segment.depth
        for start in range(segment.start, segment.stop, _ROWS):
            stop = min(start + _ROWS, segment.stop)
            seen = depth + stop - segment.start
            pieces.append(
                _block(query[:, :, start:stop], own_keys[:, :, :seen], own_values[:, :, :seen], scale=scale)
            )
    return torch.cat(pieces, 2)


def _block(query: Tensor, key: Tensor, value: Tensor, *, scale: float | None) -> Tensor:
    """Queries that are the last of the keys: causal, aligned at the end."""
    rows, before = query.shape[2], key.shape[2] - query.shape[2]
    if rows == 1:
        return scaled_dot_product_attention(query, key, value, scale=scale)
    if not before:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    mask = torch.ones(rows, rows + before, dtype=torch.bool, device=query.device).tril_(before)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


def flexible(
    query: Tensor, key: Tensor, value: Tensor, forest: Forest, *, scale: float | None, run: Any = flex_attention
) -> Tensor:
    """The same by `flex_attention`: blocks of pairs that nobody sees are skipped. run: it, compiled or not."""
    grouped = query.shape[1] != key.shape[1]
    mask = block_mask(forest, str(query.device))
    return run(query, key, value, block_mask=mask, scale=scale, enable_gqa=grouped)  # type: ignore[no-any-return]


_MASKS: "WeakKeyDictionary[Forest, BlockMask]" = WeakKeyDictionary()
"""Made once for a forest, used in every layer, gone with it."""


def block_mask(forest: Forest, device: str) -> BlockMask:
    """Which blocks of queries see which blocks of keys, and the rule inside those that are seen in part.

    Read off `ends`, block by block: made from the rule alone, it would first be a mask of all pairs, 4 GiB for
    65,536 nodes.
    """
    if forest not in _MASKS:
        ends, size = torch.from_numpy(forest.ends).to(device), len(forest.ends)

        def sees(_batch: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (j <= i) & (i < ends[j])

        part, whole = _seen(forest.ends)
        (some, which), (all_some, all_which) = _listed(part, device), _listed(whole, device)
        _MASKS[forest] = BlockMask.from_kv_blocks(
            some, which, all_some, all_which, BLOCK_SIZE=_BLOCK, mask_mod=sees, seq_lengths=(size, size)
        )
    return _MASKS[forest]


def _seen(ends: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """[Q, K] bool: blocks of which some pairs are seen, and blocks of which all are.

    Nodes i of a block of queries and j of an earlier block of keys: some i is below some j where the largest
    ``ends[j]`` is beyond the first i; every i is below every j where the smallest is not before the last.
    """
    first = np.arange(0, len(ends), _BLOCK)
    last = np.minimum(first + _BLOCK, len(ends))
    earlier = first[None] < first[:, None]
    some = earlier & (np.maximum.reduceat(ends, first)[None] > first[:, None])
    every = earlier & (np.minimum.reduceat(ends, first)[None] >= last[:, None])
    return (some & ~every) | np.eye(len(first), dtype=bool), every


def _listed(seen: NDArray[np.bool_], device: str) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each block of queries has, and which, those first: [1, 1, Q], [1, 1, Q, K] int32."""
    order = np.argsort(~seen, axis=1, kind="stable").astype(np.int32)
    count = seen.sum(1).astype(np.int32)
    return torch.from_numpy(count)[None, None].to(device), torch.from_numpy(order)[None, None].to(device)


@cache
def _compiled() -> Any:
    """Once for all lengths: the second length that it meets makes it one for any (tested with a counter)."""
    return torch.compile(flex_attention)


AttentionInterface.register(IMPLEMENTATION, forest_attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
