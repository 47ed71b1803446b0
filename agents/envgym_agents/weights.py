"""A model folder's weights, read from its safetensors one by one: whole, or only the rows that are asked for.

So a process of many needs memory for its own part, never for the model. Where a folder names its weights
otherwise than the model does (the library renames and joins some while it loads), the library has to load it.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from envgym_agents.model import empty_model, sees

__all__ = ["Rows", "Stored", "check_weights", "fill", "fillable"]

Rows = Callable[[int, int], Tensor]
"""Rows [start, stop) of a weight, as they are stored."""


_INDEX = "model.safetensors.index.json"


def check_weights(folder: str | Path) -> None:
    """Raise ValueError, with its name, for a file of a model folder's weights that is not there, or not whole.

    Only what the files say of themselves is read. As the library does, one file is taken before several.
    """
    place, names = Path(folder), ["model.safetensors"]
    if not (place / names[0]).is_file() and (place / _INDEX).is_file():
        try:
            names = sorted(set(json.loads((place / _INDEX).read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{_INDEX} in it does not say which file has which weight: {error}") from error
    for name in names:
        if not (place / name).is_file():
            raise ValueError(f"there is no {name} in it, which would have weights")
        try:
            with safe_open(str(place / name), framework="pt"):
                pass
        except SafetensorError as error:
            raise ValueError(f"{name} in it is no whole safetensors file, get it again: {error}") from error


class Stored:
    """The weights of a folder by name; nothing is read before it is asked for. Empty where there are none."""

    def __init__(self, folder: str | Path) -> None:
        self._folder, self._file = Path(folder), dict[str, str]()
        index = self._folder / _INDEX
        if index.is_file():
            self._file = json.loads(index.read_text())["weight_map"]
        elif (self._folder / "model.safetensors").is_file():
            with self._opened("model.safetensors") as file:
                self._file = dict.fromkeys(file.keys(), "model.safetensors")

    def _opened(self, name: str) -> Any:
        return safe_open(str(self._folder / name), framework="pt")

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of a weight; None where there is none of this name."""
        if name not in self._file:
            return None
        with self._opened(self._file[name]) as file:
            return tuple(file.get_slice(name).get_shape())

    def rows(self, name: str) -> Rows:
        """How to read rows of a weight."""

        def read(start: int, stop: int) -> Tensor:
            with self._opened(self._file[name]) as file:
                found: Tensor = file.get_slice(name)[start:stop]
                return found

        return read

    def covers(self, model: Any) -> bool:
        """Whether all that the model keeps is here under the same name, in the same shape; tied weights once."""
        try:
            return all(self.shape(name) == tuple(weight.shape) for name, weight in _kept(model))
        except (OSError, SafetensorError):  # a file that is missing: the library says which, when it loads
            return False


def _kept(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Weights, and the buffers that a folder has."""
    yield from model.named_parameters()
    names = {id(weight) for _, weight in model.named_parameters()}
    yield from ((name, one) for name, one in model.state_dict(keep_vars=True).items() if _is_buffer(one, names))


def _is_buffer(value: Any, weights: set[int]) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, torch.nn.Parameter) and id(value) not in weights


def fillable(folder: str | Path) -> Any | None:
    """The folder's causal LM without memory (`model.empty_model`), for `fill`.

    None where it cannot be filled from the folder one by one, or where it sees.
    """
    if sees(folder):
        return None
    model = empty_model(folder)
    fits = Stored(folder).covers(model) and all(hasattr(one, "config") for _, one in _computed(model))
    return model if fits else None


def _computed(model: Any) -> list[tuple[str, Any]]:
    """Modules with buffers that no folder has, because they follow from the configuration (rotary frequencies)."""
    return [(name, one) for name, one in model.named_modules() if one._non_persistent_buffers_set]


@torch.no_grad()
def fill(model: Any, folder: str | Path, *, device: str, place: Callable[[Tensor, Rows], None]) -> None:
    """Give a model of `fillable`, divided by now or not, memory on a device and the folder's weights.

    place: takes what of a weight is here.
    """
    model.to_empty(device=device)
    for name, module in _computed(model):
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, type(module)(module.config).to(device))
    stored = Stored(folder)
    for name, weight in _kept(model):
        place(weight, stored.rows(name))
