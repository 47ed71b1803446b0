"""Supervised learning on an expert's trajectories, until held-out tasks stop improving.

The loss is the negative log-likelihood of the expert's tokens over the same restricted choices that the policy
will sample from, plus a small one on the observations' tokens. Which rows an update sees is a function of seed
and update number, so a run that was killed and resumed equals one that was not.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from envgym_agents.learn.checkpoint import latest
from envgym_agents.learn.config import WarmStart
from envgym_agents.learn.learns import Learns
from envgym_agents.learn.pack import Row

__all__ = ["Imitation", "Point", "imitate", "split_tasks", "with_observations"]


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation, after `update` updates and `seconds` seconds.

    train_loss: mean since the last one. loss, accuracy: on the held-out tasks, per action token (nats; greedy
    hits), averaged over episodes.
    """

    update: int
    train_loss: float
    loss: float
    accuracy: float
    seconds: float


OnUpdate = Callable[["Imitation", float], None]
"""Called after every update with the state and the update's loss on the expert's tokens."""


@dataclass(slots=True)
class Imitation:
    """How far the warm start is. `stop` is "" while it runs, then "plateau", "max_updates" or "minutes"."""

    update: int = 0
    best: float = float("inf")
    reference: float = float("inf")
    waited: int = 0
    drops: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    stop: str = ""
    curve: list[Point] = field(default_factory=list)

    def see(self, point: Point, config: WarmStart) -> None:
        """Take in an evaluation: improve, wait, drop the learning rate, or stop."""
        self.curve.append(point)
        self.best = min(self.best, point.loss)
        if point.loss < self.reference * (1 - config.tolerance):
            self.reference, self.waited = point.loss, 0
        else:
            self.waited += 1
        if self.waited >= config.patience and point.update >= config.min_updates:
            if self.drops >= config.decays:
                self.stop = "plateau"
            self.drops, self.waited = self.drops + 1, 0
        if not self.stop and config.minutes is not None and point.seconds >= config.minutes * 60:
            self.stop = "minutes"
        if not self.stop and point.update >= config.max_updates:
            self.stop = "max_updates"

    def lr(self, config: WarmStart) -> float:
        """The learning rate of the next update: a linear warm-up, then constant between drops."""
        return config.lr * min(1.0, (self.update + 1) / max(config.warmup, 1)) / config.decay**self.drops

    @classmethod
    def of(cls, raw: dict[str, Any]) -> "Imitation":
        """From stored plain data."""
        return cls(**{**raw, "curve": [Point(**point) for point in raw["curve"]]})


def split_tasks(tasks: Sequence[str], share: float, seed: int) -> tuple[set[str], set[str]]:
    """Task ids to learn from and to validate on: at least one of each, drawn from `seed`.

    Raises ValueError with fewer than two distinct tasks.
    """
    known = sorted(set(tasks))
    if len(known) < 2:
        raise ValueError(f"{len(known)} task(s) to imitate; at least 2 are needed, one of them for validation")
    order = np.random.default_rng([seed, 7]).permutation(len(known))
    count = min(max(1, round(share * len(known))), len(known) - 1)
    held = {known[index] for index in order[:count]}
    return set(known) - held, held


def with_observations(row: Row, lm_weight: float) -> Row:
    """The row with every other token of it as a target too; their weights sum to `lm_weight`.

    `credit` tells them apart: 1 for what the expert chose, 0 for what the world said.
    """
    row = replace(row, credit=np.ones(len(row.at), np.float32))
    others = np.setdiff1d(np.arange(1, len(row.ids), dtype=np.int32), row.at)
    if lm_weight == 0 or not len(others):
        return row
    zeros = np.zeros(len(others), np.float32)
    return replace(
        row,
        at=np.concatenate([row.at, others]),
        logprobs=np.concatenate([row.logprobs, zeros]),
        credit=np.concatenate([row.credit, zeros]),
        weights=np.concatenate([row.weights, np.full(len(others), lm_weight / len(others), np.float32)]),
        allowed=(*row.allowed, *[None] * len(others)),
        turn=np.zeros(0, np.int32),
    )


def _chosen(count: int, rows: int, update: int, seed: int) -> list[int]:
    """Which rows an update sees: consecutive pieces of one random permutation per pass over the data."""
    first, last = update * rows, (update + 1) * rows
    laps = range(first // count, (last - 1) // count + 1)
    orders = np.concatenate([np.random.default_rng([seed, 11, lap]).permutation(count) for lap in laps])
    start = first - laps[0] * count
    return [int(index) for index in orders[start : start + rows]]


def imitate(
    learner: Learns,
    train: Sequence[Row],
    held: Sequence[Row],
    config: WarmStart,
    *,
    seed: int,
    folder: Path,
    on_update: OnUpdate = lambda state, loss: None,
) -> Imitation:
    """Train the learner's model in place and leave it with the best validated weights.

    train, held: rows of the expert's episodes, of different tasks. `folder` receives checkpoints, and a run that
    finds some there goes on from them. Returns the curve and why it ended.
    """
    state = Imitation()
    if (newest := latest(folder)) is not None:
        state = Imitation.of(learner.load(newest))
    rows = [with_observations(row, config.lm_weight) for row in train]
    losses: list[float] = []
    started = time.perf_counter() - (state.curve[-1].seconds if state.curve else 0.0)
    while not state.stop and config.max_updates:
        chosen = _chosen(len(rows), config.rows, state.update, seed)
        loss, skipped = learner.imitate([rows[index] for index in chosen], lr=state.lr(config))
        state.update += 1
        state.skipped += skipped
        state.skipped_in_a_row = state.skipped_in_a_row + 1 if skipped else 0
        losses += [] if skipped else [loss]
        on_update(state, loss)
        if state.update % config.evaluate_every == 0 or state.update >= config.max_updates:
            loss, accuracy = learner.validate(held)
            improved = loss < state.best
            seconds = time.perf_counter() - started
            told = float(np.mean(losses)) if losses else loss  # of no update that was made there is none
            state.see(Point(state.update, told, loss, accuracy, seconds), config)
            _save(learner, folder, state, improved)
            losses = []
    if (best := latest(folder / "best")) is not None:
        learner.load(best, state=False)
    return state


def _save(learner: Learns, folder: Path, state: Imitation, improved: bool) -> None:
    """The best weights first: were we killed in between, the same evaluation would write them again."""
    if improved:
        learner.save(folder / "best", state.update, {"loss": state.best})
    learner.save(folder, state.update, asdict(state))
