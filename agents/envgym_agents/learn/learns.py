"""What the stages of a run need of a learner, wherever its model lies."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from envgym_agents.learn.config import Reinforce
from envgym_agents.learn.pack import Row
from envgym_agents.learn.score import Scorer

__all__ = ["Imitated", "Learns"]


class Imitated(NamedTuple):
    """The loss of an update, in nats, and whether it was left out, because its gradient was no number."""

    loss: float
    skipped: bool


class Learns(Protocol):
    """A learner of this process, or one that is divided over others."""

    @property
    def scorer(self) -> Scorer:
        """Of a whole model here, with the weights as they are after the last update."""
        ...

    @property
    def max_tokens(self) -> int:
        """Most positions of a pass."""
        ...

    @property
    def device(self) -> str:
        """Where the model of `scorer` lies."""
        ...

    @property
    def masks(self) -> Mapping[str, Tensor] | None:
        """The masking policy's weights, where it is renewed; "mask_renewed" of an update tells when."""
        ...

    @property
    def other(self) -> Any:
        """The scorer of the model that masks, or of the reference; None where there is none here."""
        ...

    def update(
        self, groups: Sequence[Sequence[Row]], config: Reinforce, rng: np.random.Generator, *, lr: float
    ) -> dict[str, float]:
        """Learn from groups of episodes by their credit; returns metrics."""
        ...

    def imitate(self, rows: Sequence[Row], *, lr: float) -> Imitated:
        """Learn to say what was said; returns the loss before, and whether the update was left out."""
        ...

    def validate(self, rows: Sequence[Row]) -> tuple[float, float]:
        """The loss of what was said, and how much of it is the likeliest."""
        ...

    def save(
        self, folder: Path, step: int, progress: Mapping[str, Any], *, beside: Mapping[str, Any] | None = None
    ) -> None:
        """Write a checkpoint."""
        ...

    def load(
        self, path: Path, *, state: bool = True, beside: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, Any]:
        """Go back to one; returns its progress."""
        ...
