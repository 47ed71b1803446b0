"""The forward passes behind `TransformerPolicy`: which positions of which sessions, and their last logits.

Two engines with one method. `PackedEngine` computes the new tokens of many sessions in one pass. `SingleEngine`
computes one session at a time through the model's own cache, for architectures that packing would get wrong.
`engine_for` compares the first with the plain model on random tokens, and takes the second where they differ.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from envgym_agents.policies.kv import Piece, Storage, packed

__all__ = ["Engine", "PackedEngine", "Part", "SingleEngine", "engine_for"]


@dataclass(slots=True)
class Part:
    """One session's share of a pass: compute `ids` from position `past` on, into `storage`."""

    ids: Sequence[int]
    past: int
    storage: Storage


class Engine(Protocol):
    """Computes; holds no state of its own."""

    packs: bool

    def logits(self, parts: Sequence[Part]) -> NDArray[np.float32]:
        """The next-token logits [B, V] after each part's last id; the storages then hold its ids."""
        ...


class _Evaluating:
    """Runs a model in evaluation mode and gives it back in the mode it was in (a learner may share it)."""

    def __init__(self, model: Any) -> None:
        self._model, self._training = model, model.training

    def __enter__(self) -> None:
        if self._training:
            self._model.eval()

    def __exit__(self, *_: object) -> None:
        if self._training:
            self._model.train()


class PackedEngine:
    """All parts side by side in one row; no padding is computed."""

    packs = True

    def __init__(self, model: Any) -> None:
        self._model = model
        self._device = model.device

    @torch.inference_mode()
    def logits(self, parts: Sequence[Part]) -> NDArray[np.float32]:
        """The next-token logits [B, V] after each part's last id."""
        ids: list[int] = []
        positions: list[int] = []
        pieces: list[Piece] = []
        for part in parts:
            start, count = len(ids), len(part.ids)
            ids += part.ids
            positions += range(part.past, part.past + count)
            pieces.append(Piece(start, start + count, part.past, part.storage))
        last = torch.tensor([piece.stop - 1 for piece in pieces], device=self._device)
        with _Evaluating(self._model), packed(self._model, pieces):
            out = self._model(
                input_ids=torch.tensor([ids], device=self._device),
                position_ids=torch.tensor([positions], device=self._device),
                logits_to_keep=last,
                use_cache=False,
            )
        return _numpy(out.logits[0])


class SingleEngine:
    """One part after the other through the model's own cache; slower, and right for every causal LM."""

    packs = False

    def __init__(self, model: Any) -> None:
        self._model = model
        self._device = model.device
        # transformers 5.24 renamed argument and result; a model of one's own may have either name
        named = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in named else "past_key_values"

    @torch.inference_mode()
    def logits(self, parts: Sequence[Part]) -> NDArray[np.float32]:
        """The next-token logits [B, V] after each part's last id."""
        with _Evaluating(self._model):
            return np.concatenate([self._one(part) for part in parts])

    def _one(self, part: Part) -> NDArray[np.float32]:
        cache = part.storage.cache
        if part.past == 0 or cache is None:
            cache = DynamicCache(config=self._model.config)
        ids = torch.tensor([list(part.ids)], device=self._device)
        out = self._model(input_ids=ids, use_cache=True, **{self._cache_name: cache})
        part.storage.cache = getattr(out, self._cache_name)
        return _numpy(out.logits[:, -1])


def _numpy(logits: Tensor) -> NDArray[np.float32]:
    return logits.float().cpu().numpy()


def engine_for(model: Any) -> "PackedEngine | SingleEngine":
    """The fastest engine that computes what the model itself computes, tested on random tokens."""
    engine = PackedEngine(model)
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, min(256, model.config.vocab_size), count).tolist() for count in (9, 5)]
    halves = [(row, Storage(len(row))) for row in rows]
    tolerance = 1e-3 if model.dtype == torch.float32 else 5e-2
    with torch.inference_mode(), _Evaluating(model):
        wanted = [_numpy(model(input_ids=torch.tensor([row], device=model.device)).logits[0, -1]) for row in rows]
    try:
        engine.logits([Part(row[:3], 0, storage) for row, storage in halves])
        found = engine.logits([Part(row[3:], 3, storage) for row, storage in halves])
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, KeyError):
        return SingleEngine(model)
    scale = max(float(np.abs(wanted).max()), 1.0)
    return engine if np.allclose(found, wanted, atol=tolerance * scale) else SingleEngine(model)
