"""State that survives kill -9: written beside, made durable, then renamed into place.

Every random draw of the learner is a function of (seed, purpose, counter), so model, optimiser and counters are
the whole state; there is no generator to save. A checkpoint is a Hugging Face model folder with three files more:

step-000010/
  config.json model.safetensors ...   the model as others load it, adapters added to the weights they change
  adapters.pt                         the adapters by themselves, where there are any: training goes on from them
                                      (no safetensors: vLLM takes all of these in a folder for the model's)
  optimizer.pt                        the optimiser's state, what else was learned, and who masks
  progress.json                       the stage's counters

How many processes wrote it cannot be seen from it.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from envgym_agents.learn.adapters import adapted, merged_weights
from envgym_agents.learn.shard import divided_like, take, whole
from envgym_agents.model import load_weights, save_model
from envgym_agents.weights import Stored

__all__ = ["State", "latest", "load_checkpoint", "place_checkpoint", "save_checkpoint"]

_KEPT = 2
_NAME = re.compile(r"step-(\d{6})")


def _place(made: Path, path: Path) -> None:
    """Move a whole folder to `path` once it is on disk; one that is there gives way at the last moment."""
    for file in made.iterdir():
        with open(file, "rb") as stream:
            os.fsync(stream.fileno())
    _synced(made)
    if path.exists():
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    made.rename(path)
    _synced(path.parent)


def _synced(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@dataclass(frozen=True, slots=True)
class State:
    """What a checkpoint holds of a model and its optimiser, whole. adapters: {} where it has none."""

    model: Any
    weights: Mapping[str, Tensor]
    adapters: Mapping[str, Tensor]
    optimizer: Mapping[str, Any]

    @classmethod
    def of(cls, model: Any, optimizer: torch.optim.Optimizer, *, keep: bool = True) -> "State":
        """The present state; of a divided model all processes ask at the same time. keep: this one will save it."""
        trained = {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}
        adapters = whole(trained, keep=keep) if adapted(model) else {}
        weights = whole(merged_weights(model) if adapters else model.state_dict(), keep=keep)
        return cls(model, weights, adapters, whole(optimizer.state_dict(), keep=keep))


def save_checkpoint(
    folder: str | Path, step: int, state: State, *, progress: Mapping[str, Any],
    beside: Mapping[str, Any] | None = None, tokenizer: Any = None, masks: Mapping[str, Tensor] | None = None,
) -> Path:  # fmt: skip
    """Save the state after `step` updates of a stage; see `place_checkpoint`.

    beside: what else was learned, as tensors, numbers, strings and containers of them. masks: the masking policy's
    weights, where it is neither the first model nor this one.
    """

    def write(made: Path) -> None:
        save_model(made, state.model, tokenizer, weights=state.weights)
        if state.adapters:
            torch.save({name: weight.contiguous() for name, weight in state.adapters.items()}, made / "adapters.pt")
        kept = {"optimizer": state.optimizer, "beside": dict(beside or {})}
        torch.save(kept if masks is None else kept | {"masks": dict(masks)}, made / "optimizer.pt")
        (made / "progress.json").write_text(json.dumps(dict(progress)))

    return place_checkpoint(folder, step, write)


def place_checkpoint(folder: str | Path, step: int, write: Callable[[Path], None]) -> Path:
    """A checkpoint that `write` fills a folder with, whole or not at all; the last two are kept, no others."""
    path = Path(folder) / f"step-{step:06d}"
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(".step-*"):  # of a process that was killed here
        shutil.rmtree(left, ignore_errors=True)
    made = path.with_name(f".{path.name}.{os.getpid()}")
    write(made)
    _place(made, path)
    for old in [*_numbered(folder)[:-_KEPT], *path.parent.glob(".step-*")]:
        shutil.rmtree(old)
    return path


def latest(folder: str | Path) -> Path | None:
    """The newest checkpoint of a folder, None when there is none."""
    found = _numbered(folder)
    return found[-1] if found else None


def _numbered(folder: str | Path) -> list[Path]:
    if not Path(folder).is_dir():
        return []
    return sorted(path for path in Path(folder).iterdir() if _NAME.fullmatch(path.name) and path.is_dir())


def load_checkpoint(
    path: str | Path,
    *,
    model: Any,
    optimizer: torch.optim.Optimizer | None = None,
    beside: Callable[[dict[str, Any]], None] | None = None,
    masks: Callable[[dict[str, Any]], Any] | None = None,
) -> dict[str, Any]:
    """Bring model and optimiser to a saved state and return its progress. beside: takes what else was saved.

    masks: takes the masking policy's weights.

    Of a divided model each process takes its part. Raises ValueError, naming the folder, when it is not a
    checkpoint of this model.
    """
    path = Path(path)
    try:
        _load_weights(path, model)
        if optimizer is not None or beside is not None or masks is not None:
            # of a divided model mapped, not read: each process takes its part of every tensor
            mapped = any(isinstance(weight, DTensor) for weight in model.parameters())
            state = torch.load(path / "optimizer.pt", map_location="cpu", weights_only=True, mmap=mapped)
            if optimizer is not None:
                optimizer.load_state_dict(_divided(state["optimizer"], optimizer))
            if beside is not None:
                beside(state["beside"])
            if masks is not None:
                masks(state["masks"])
        progress: dict[str, Any] = json.loads((path / "progress.json").read_text())
    except (KeyError, RuntimeError, ValueError, OSError) as error:
        raise ValueError(f"checkpoint {path} is of another model or version: {error}") from error
    return progress


@torch.no_grad()
def _load_weights(path: Path, model: Any) -> None:
    weights = dict(model.named_parameters())
    if adapted(model):
        weights = {name: weight for name, weight in weights.items() if weight.requires_grad}
        found: Mapping[str, Tensor] = torch.load(path / "adapters.pt", map_location="cpu", weights_only=True)
    elif (stored := Stored(path)).covers(model):
        for name, weight in weights.items():
            take(weight, stored.rows(name))
        return
    else:
        found = load_weights(path, model)
    for name, weight in weights.items():
        if found[name].shape != weight.shape:
            raise ValueError(f"{name} has the shape {tuple(found[name].shape)}, and {tuple(weight.shape)} here")
        weight.copy_(divided_like(found[name], weight))


def _divided(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimiser's state, divided as the weights are that it is of."""
    trained = [weight for group in optimizer.param_groups for weight in group["params"]]

    def part(value: Any, weight: Tensor) -> Any:
        return divided_like(value, weight) if isinstance(value, Tensor) and value.shape == weight.shape else value

    return state | {
        "state": {
            number: {name: part(value, trained[number]) for name, value in one.items()}
            for number, one in state["state"].items()
        }
    }
