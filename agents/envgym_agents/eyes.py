"""How a vision-language model sees: its own processor's pixels and placeholders for each image, and its positions.

An image is processed once, by itself, by the processor that came with the model; nothing here resizes or recodes.
What stands for it in a context is what the processor writes there. `Eyes` tests on the processor itself that images
can be taken one by one, and refuses one that says something else then. Nothing is sampled or laid out here.
"""

import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from threading import Lock
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

__all__ = ["Eyes", "Seen", "eyes_of", "give_eyes"]

_KEPT_BYTES = 256 << 20
"""Processed images that are kept, by the size of their tensors."""
_TRIED = ((60, 90), (120, 60), (40, 160))
"""Heights and widths that a processor is tried on: one that cuts images in pieces has different numbers of them."""
_TEXT = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
"""What a processor gives for the text; everything else is for the image."""


Join = Callable[[Sequence[Tensor]], Tensor]
"""What a processor would give for several images, of what it gave for each."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """One image as its model takes it: the ids that stand for it in a context, and the tensors behind them."""

    ids: tuple[int, ...]
    tensors: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(one.nbytes for one in self.tensors.values())


class Eyes:
    """A processor beside its model.

    placeholder: the id that the text of a conversation has for an image, before it is made as many ids as it takes.
    unsayable: ids that stand for images; a policy never samples one, for there would be nothing behind it.

    Raises ValueError for a processor without an image token, or whose images cannot be taken one by one.
    """

    def __init__(self, model: Any, processor: Any) -> None:
        self.processor, self.tokenizer = processor, processor.tokenizer
        token = getattr(processor, "image_token", None)
        if not isinstance(token, str):
            raise ValueError(f"{type(processor).__name__} names no image_token: its images cannot be placed")
        self.token = token
        self.placeholder = int(self.tokenizer.convert_tokens_to_ids(self.token))
        config = model.config
        named = (getattr(config, name, None) for name in ("image_token_id", "image_token_index", "video_token_id"))
        vocabulary = config.get_text_config().vocab_size
        self.unsayable = tuple(sorted({one for one in named if isinstance(one, int) and one < vocabulary}))
        self._model, self._device = model.base_model, model.device
        self._kept: OrderedDict[bytes, Seen] = OrderedDict()
        self._lock = Lock()
        self._joins = self._check()

    def __deepcopy__(self, memo: object) -> "Eyes":
        """A copy of a model sees by the same: nothing here is the weights'."""
        return self

    def look(self, image: bytes) -> Seen:
        """One image. Raises ValueError for bytes that are no image."""
        name = hashlib.sha256(image).digest()
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        seen = self._process(self.token, [opened(image)])
        with self._lock:
            self._kept[name] = seen
            while len(self._kept) > 1 and sum(one.nbytes for one in self._kept.values()) > _KEPT_BYTES:
                self._kept.popitem(last=False)
        return seen

    def _process(self, text: str, images: list[Any]) -> Seen:
        found = self.processor(text=[text], images=images, return_tensors="pt", add_special_tokens=False)
        tensors = {name: value for name, value in found.items() if name not in _TEXT}
        return Seen(tuple(found["input_ids"][0].tolist()), tensors)

    def _check(self) -> dict[str, Join]:
        """Images of different sizes, together and one by one, must come to the same; by which joins they do."""
        rng = np.random.default_rng(0)
        images = [Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)) for size in _TRIED]
        texts = [self.token, *(f"{self.token}." for _ in images[1:])]
        try:
            together = self._process("".join(texts), images)
            alone = [self._process(text, [image]) for text, image in zip(texts, images, strict=True)]
            joins = {
                name: _join_to(whole, [one.tensors[name] for one in alone])
                for name, whole in together.tensors.items()
            }
        except (RuntimeError, TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"{self._name} cannot take images one by one: {error}") from error
        found = {name: join for name, join in joins.items() if join is not None}
        same = all(one.tensors.keys() == found.keys() for one in [together, *alone])
        if not same or together.ids != tuple(part for one in alone for part in one.ids):
            raise ValueError(f"{self._name} says something else of images together than of each by itself")
        return found

    def _joined(self, images: Sequence[bytes]) -> dict[str, Tensor]:
        parts = [self.look(image).tensors for image in images]
        return {name: join([part[name] for part in parts]) for name, join in self._joins.items()}

    @property
    def _name(self) -> str:
        return type(self.processor).__name__

    def expanded(self, ids: Sequence[int], images: Sequence[bytes]) -> tuple[list[int], list[int]]:
        """Ids with each placeholder made what its image takes, and of each given id how many it became.

        Raises ValueError unless there are as many placeholders as images.
        """
        count = sum(one == self.placeholder for one in ids)
        if count != len(images):
            raise ValueError(f"{count} places for images were laid out, and there are {len(images)} images")
        left, found, sizes = iter(images), list[int](), list[int]()
        for one in ids:
            new = self.look(next(left)).ids if one == self.placeholder else (one,)
            found += new
            sizes.append(len(new))
        return found, sizes

    def places(self, ids: Sequence[int], images: Sequence[bytes]) -> list[tuple[int, int]]:
        """Where in a context each image's ids are, as (start, stop). Raises ValueError where they do not fit."""
        at, found, ids = 0, list[tuple[int, int]](), list(ids)
        for number, image in enumerate(images):
            own = list(self.look(image).ids)
            while at < len(ids) and (ids[at] != own[0] or ids[at : at + len(own)] != own):
                if ids[at] in self.unsayable:
                    raise ValueError(f"position {at} of the context is no place for image {number}")
                at += 1
            if at == len(ids):
                raise ValueError(f"the context has places for {number} of {len(images)} images")
            found.append((at, at + len(own)))
            at += len(own)
        if any(one in self.unsayable for one in ids[at:]):
            raise ValueError(f"the context has places for more than {len(images)} images")
        return found

    def inputs(self, images: Sequence[bytes]) -> dict[str, Tensor]:
        """What the model takes beside ids, for these images in the order of their places."""
        if not images:
            return {}
        return {name: value.to(self._device) for name, value in self._joined(images).items()}

    def positions(self, ids: Sequence[int], images: Sequence[bytes]) -> Tensor | None:
        """Positions [A, L] of a context, where the model gives images places in space; None for plain counting."""
        index = getattr(self._model, "get_rope_index", None)
        if index is None:
            return None
        if not images:
            return torch.arange(len(ids), device=self._device).expand(3, -1)
        row = torch.tensor([list(ids)], device=self._device)
        given = {name: value for name, value in self.inputs(images).items() if name.endswith("grid_thw")}
        if "mm_token_type_ids" in inspect.signature(index).parameters:
            given["mm_token_type_ids"] = torch.isin(row, torch.tensor(self.unsayable, device=row.device)).int()
        positions, _after = index(row, **given)
        return positions[:, 0]  # type: ignore[no-any-return]


def _end_to_end(parts: Sequence[Tensor]) -> Tensor:
    """Each image is a row, or as many rows as it has pieces."""
    return torch.cat(list(parts))


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """Each image is a row of its pieces, and zeros where another has more (LLaVA-NeXT)."""
    found = parts[0].new_zeros(len(parts), max(part.shape[1] for part in parts), *parts[0].shape[2:])
    for row, part in zip(found, parts, strict=True):
        row[: part.shape[1]] = part[0]
    return found


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """All pieces of all images are one row (Idefics3, SmolVLM)."""
    return torch.cat(list(parts), 1)


def _join_to(whole: Tensor, parts: Sequence[Tensor]) -> Join | None:
    """The way in which images' own tensors make up that of all; None where none does."""
    for join in (_end_to_end, _padded, _side_by_side):
        try:
            if torch.equal(join(parts), whole):
                return join
        except (RuntimeError, IndexError):  # their shapes do not go together so
            continue
    return None


def opened(image: bytes) -> Any:
    """The picture in an image's bytes, in colour. Raises ValueError for bytes that are none."""
    try:
        return Image.open(BytesIO(image)).convert("RGB")
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"{len(image)} bytes are no image that can be read: {error}") from error


def give_eyes(model: Any, processor: Any) -> None:
    """Let a model see through a processor."""
    model.envgym_eyes = Eyes(model, processor)


def eyes_of(model: Any) -> Eyes | None:
    """How a model sees; None for one that reads text only."""
    found = getattr(model, "envgym_eyes", None)
    return found if isinstance(found, Eyes) else None
