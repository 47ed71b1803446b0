"""A learner whose weights, gradients and optimiser are divided over other processes, to be used like a `Learner`.

This process has a whole copy of the weights, which the policy samples from or is given; no gradient, no optimiser.
After each update it is brought up to date. Checkpoints are written by the processes, and are those of a `Learner`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from envgym_agents.learn.config import Reinforce
from envgym_agents.learn.learns import Imitated
from envgym_agents.learn.pack import Row
from envgym_agents.learn.score import Scorer
from envgym_agents.learn.worker import Begin

__all__ = ["Processes", "ShardedLearner"]

_AT_ONCE = 256 << 20
"""Bytes of weights that come in one answer."""


class Processes(Protocol):
    """The processes that a learner is divided over: of this host (`Crew`), or of others (`PlacedCrew`)."""

    def ask(self, name: str, *values: Any, **named: Any) -> Any:
        """What a method of every process's learner returned on rank 0."""
        ...


@dataclass(slots=True)
class ShardedLearner:
    """See `envgym_agents.learn.update.Learns`. scorer: of this process's copy of the model that `begin` names."""

    scorer: Scorer
    crew: Processes
    begin: Begin
    max_tokens: int = 8192
    device: str = "cpu"

    def __post_init__(self) -> None:
        self.crew.ask("begin", self.begin)

    @property
    def masks(self) -> None:
        """None: a mask is renewed in one process only."""
        return None

    @property
    def other(self) -> None:
        """None: the processes have it."""
        return None

    def update(
        self, groups: Sequence[Sequence[Row]], config: Reinforce, rng: np.random.Generator, *, lr: float
    ) -> dict[str, float]:
        """As `Learner.update`."""
        metrics: dict[str, float] = self.crew.ask("update", groups, config, rng, lr=lr)
        self._fetch()
        return metrics

    def imitate(self, rows: Sequence[Row], *, lr: float) -> Imitated:
        """As `Learner.imitate`; the copy here is brought up to date by `load`, which ends every imitation."""
        found: Imitated = self.crew.ask("imitate", rows, lr=lr)
        return found

    def validate(self, rows: Sequence[Row]) -> tuple[float, float]:
        """As `Learner.validate`."""
        loss, accuracy = self.crew.ask("validate", rows)
        return loss, accuracy

    def save(
        self, folder: Path, step: int, progress: Mapping[str, Any], *, beside: Mapping[str, Any] | None = None
    ) -> None:
        """As `Learner.save`; rank 0 of a `Crew` writes, so its host must have the run folder."""
        self.crew.ask("save", folder, step, progress, beside=beside)

    def load(
        self, path: Path, *, state: bool = True, beside: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, Any]:
        """As `Learner.load`; every process of a `Crew` reads the folder, so their hosts must share it."""
        progress: dict[str, Any] = self.crew.ask("load", path, state=state)
        if beside is not None:
            beside(torch.load(Path(path) / "optimizer.pt", map_location="cpu", weights_only=True)["beside"])
        self._fetch()
        return progress

    @torch.no_grad()
    def _fetch(self) -> None:
        """Bring the copy here up to date, some weights at a time: they are never there a second time together."""
        own = dict(self.scorer.model.named_parameters())
        for names in _some(own):
            for name, weight in self.crew.ask("weights", names).items():
                own[name].copy_(weight)


def _some(weights: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, ...]]:
    """Their names, as many at once as have `_AT_ONCE` bytes; at least one."""
    names, held = list[str](), 0
    for name, weight in weights.items():
        if names and held + weight.nbytes > _AT_ONCE:
            yield tuple(names)
            names, held = [], 0
        names, held = [*names, name], held + weight.nbytes
    yield tuple(names)
