"""The keys and values of growing contexts, and attention over many of them in one packed pass.

Each session owns a `Storage` that grows with its context; forks share one until they differ. New tokens of all
sessions are laid side by side in one row without padding: the dense layers see one matrix, and `packed_attention`,
which Hugging Face models call in place of their own, lets each piece attend to its own session only.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

__all__ = ["IMPLEMENTATION", "Piece", "Storage", "packed", "packed_attention"]

IMPLEMENTATION = "envgym_packed"


class Storage:
    """Room for the keys and values of `capacity` positions, in every layer.

    filled: positions written or promised so far. users: how many sessions refer to it. A session may append in
    place when its own length equals `filled`: nobody else reads beyond what they know. cache: the model's own
    cache object instead, where packing is not possible; it is never shared. offset: from a position's number to the
    model's position there, after images, which take fewer of these than they have ids; None where nobody counted.
    """

    __slots__ = ("cache", "capacity", "filled", "layers", "offset", "users")

    def __init__(self, capacity: int) -> None:
        self.capacity, self.filled, self.users = capacity, 0, 1
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.cache: Any = None
        self.offset: int | None = None

    def moved(self, capacity: int) -> "Storage":
        """A storage of another capacity that takes over the model's own cache object."""
        other = Storage(capacity)
        other.cache, other.filled, other.offset = self.cache, self.filled, self.offset
        return other

    def twin(self) -> "Storage":
        """A storage with its own copy of the model's own cache object."""
        other = Storage(self.capacity)
        other.cache, other.filled, other.offset = copy.deepcopy(self.cache), self.filled, self.offset
        return other

    @torch.inference_mode()
    def copy(self, length: int, capacity: int) -> "Storage":
        """A new storage of `capacity` that holds the first `length` positions of this one."""
        other = Storage(capacity)
        for layer, (keys, values) in self.layers.items():
            other.layers[layer] = (_resized(keys, length, capacity), _resized(values, length, capacity))
        other.filled = length
        return other

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put keys, values [1, H, N, D] at `start` and return everything up to there, [1, H, start+N, D] each."""
        if layer not in self.layers:
            heads = keys.shape[1]
            self.layers[layer] = (
                keys.new_empty(1, heads, self.capacity, keys.shape[-1]),
                values.new_empty(1, heads, self.capacity, values.shape[-1]),
            )
        count = keys.shape[2]
        all_keys, all_values = self.layers[layer]
        # `narrow`, not brackets: this runs for every layer of every token
        all_keys.narrow(2, start, count).copy_(keys)
        all_values.narrow(2, start, count).copy_(values)
        return all_keys.narrow(2, 0, start + count), all_values.narrow(2, 0, start + count)


def _resized(tensor: Tensor, length: int, capacity: int) -> Tensor:
    larger = tensor.new_empty(1, tensor.shape[1], capacity, tensor.shape[3])
    larger[:, :, :length] = tensor[:, :, :length]
    return larger


@dataclass(slots=True)
class Piece:
    """Columns `start` to `stop` of the packed row continue `storage` from position `past` on."""

    start: int
    stop: int
    past: int
    storage: Storage
    _masks: dict[int | None, Tensor | None] = field(default_factory=dict)

    def mask(self, window: int | None, like: Tensor) -> Tensor | None:
        """Additive [N, past+N]: causal, within `window` positions where given; None when everything is seen."""
        if window not in self._masks:
            rows, columns = self.stop - self.start, self.past + self.stop - self.start
            if rows == 1 and (window is None or columns <= window):
                self._masks[window] = None
            else:
                at = torch.arange(self.past, columns, device=like.device)[:, None]
                seen = torch.arange(columns, device=like.device)[None, :]
                hidden = seen > at
                if window is not None:
                    hidden |= seen <= at - window
                empty = torch.zeros(rows, columns, device=like.device, dtype=like.dtype)
                self._masks[window] = empty.masked_fill_(hidden, -torch.inf)
        return self._masks[window]


_pieces: ContextVar[Sequence[Piece]] = ContextVar("envgym_pieces")


@contextmanager
def packed(model: Any, pieces: Sequence[Piece]) -> Iterator[None]:
    """Within the block, this thread's forward passes of `model` attend by `pieces` and fill their storages."""
    before, token = model.config._attn_implementation, _pieces.set(pieces)
    model.config._attn_implementation = IMPLEMENTATION
    try:
        yield
    finally:
        model.config._attn_implementation = before
        _pieces.reset(token)


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
) -> tuple[Tensor, None]:
    """Attention of a packed row: query [1, Hq, N, D], key and value [1, H, N, D] -> [1, N, Hq, D].

    Raises TypeError for settings it would get wrong (soft caps, sinks): the caller then does without packing.
    """
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if settings.get(name) is not None]
    if unknown or attention_mask is not None:
        raise TypeError(f"packed attention knows no {', '.join(unknown) or 'external mask'}")
    grouped = query.shape[1] != key.shape[1]
    window, scale = settings.get("sliding_window"), settings.get("scaling")
    pieces = _pieces.get()
    sizes = [piece.stop - piece.start for piece in pieces]
    found = []
    queries, keys, values = (torch.split(one, sizes, 2) for one in (query, key, value))
    for piece, count, asked, new, told in zip(pieces, sizes, queries, keys, values, strict=True):
        seen, known = piece.storage.write(module.layer_idx, piece.past, new, told)
        fresh = piece.past == 0 and count > 1 and window is None
        mask = None if fresh else piece.mask(window, query)
        found.append(
            scaled_dot_product_attention(
                asked, seen, known, attn_mask=mask, is_causal=fresh, scale=scale, enable_gqa=grouped
            )
        )
    return torch.cat(found, 2).transpose(1, 2), None


AttentionInterface.register(IMPLEMENTATION, packed_attention)
