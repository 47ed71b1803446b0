"""The forward passes behind `TransformerPolicy`: which positions of which sessions, and their last logits.

Engines with one method. `PackedEngine` computes the new tokens of many sessions in one pass. `SingleEngine`
computes one session at a time through the model's own cache, for architectures that packing would get wrong, and
`SeeingEngine` so for models that see, with the pixels behind a context's images. `engine_for` compares the first
with the plain model on random tokens, and takes the second where they differ.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from envgym_agents.eyes import Eyes, eyes_of
from envgym_agents.policies.kv import Piece, Storage, packed
from envgym_agents.refusals import says_cannot

__all__ = ["Engine", "PackedEngine", "Part", "SeeingEngine", "SingleEngine", "engine_for"]


@dataclass(slots=True)
class Part:
    """One session's share of a pass: compute `ids` from position `past` on, into `storage`.

    context: all ids, those before `past` included; images: the bytes of its images. Only who sees looks at these.
    """

    ids: Sequence[int]
    past: int
    storage: Storage
    context: Sequence[int] = ()
    images: Sequence[bytes] = ()


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
        self.device = model.device
        # transformers 5.24 renamed argument and result; a model of one's own may have either name
        named = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in named else "past_key_values"

    def logits(self, parts: Sequence[Part]) -> NDArray[np.float32]:
        """The next-token logits [B, V] after each part's last id."""
        return self.each(parts, lambda part: {})

    @torch.inference_mode()
    def each(
        self, parts: Sequence[Part], given: Callable[[Part], dict[str, Any]], *, closed: Sequence[int] = ()
    ) -> NDArray[np.float32]:
        """As `logits`; given: what else the model takes for a part. closed: ids that get no mass."""
        with _Evaluating(self._model):
            found = np.concatenate([self._one(part, **given(part)) for part in parts])
        found[:, list(closed)] = -np.inf
        return found

    def _one(self, part: Part, **given: Any) -> NDArray[np.float32]:
        cache = part.storage.cache
        if part.past == 0 or cache is None:
            cache = DynamicCache(config=self._model.config)
        ids = torch.tensor([list(part.ids)], device=self.device)
        out = self._model(input_ids=ids, use_cache=True, **given, **{self._cache_name: cache})
        part.storage.cache = getattr(out, self._cache_name)
        return _numpy(out.logits[:, -1])


class SeeingEngine:
    """As `SingleEngine`, with the pixels of the images whose places are new; ids that stand for images get no mass.

    Positions are given, never left to the model, which would remember those of the session before.
    """

    packs = False

    def __init__(self, model: Any, eyes: Eyes) -> None:
        self._single, self._eyes = SingleEngine(model), eyes

    def logits(self, parts: Sequence[Part]) -> NDArray[np.float32]:
        """The next-token logits [B, V] after each part's last id."""
        return self._single.each(parts, self._given, closed=self._eyes.unsayable)

    def _given(self, part: Part) -> dict[str, Any]:
        offset, unsayable = part.storage.offset, self._eyes.unsayable
        if part.past and offset is not None and not any(one in unsayable for one in part.ids):
            counted = torch.arange(part.past, part.past + len(part.ids)) + offset
            return {"position_ids": counted.expand(3, 1, -1).to(self._single.device)}
        places = self._eyes.places(part.context, part.images)
        new = [image for image, place in zip(part.images, places, strict=True) if place[1] > part.past]
        given: dict[str, Any] = self._eyes.inputs(new)
        positions = self._eyes.positions(part.context, part.images)
        if positions is not None:
            given["position_ids"] = positions[:, None, part.past :]
            part.storage.offset = int(positions.max()) + 1 - len(part.context)
        return given


def _numpy(logits: Tensor) -> NDArray[np.float32]:
    return logits.float().cpu().numpy()


def engine_for(model: Any) -> Engine:
    """The fastest engine that computes what the model itself computes, tested on random tokens.

    Raises whatever is no refusal of the model's (`refusals.says_cannot`).
    """
    if (eyes := eyes_of(model)) is not None:
        return SeeingEngine(model, eyes)
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
    except Exception as error:
        if not (says_cannot(error) or isinstance(error, AttributeError | KeyError)):  # parts by other names
            raise
        return SingleEngine(model)
    scale = max(float(np.abs(wanted).max()), 1.0)
    return engine if np.allclose(found, wanted, atol=tolerance * scale) else SingleEngine(model)
