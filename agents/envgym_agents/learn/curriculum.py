"""Tasks drawn at the edge of competence: most often those whose estimated solve rate is near a half.

A group of episodes teaches by how its members differ, and outcomes that are 0 or 1 with probability p differ most
(variance p (1 - p)) at a half: what is always solved teaches as little as what never is. Rates change while the
policy learns, so older groups count less, and a share of the draws goes to what was drawn least.
Or most often what fails most (weight 1 - p), which needs tasks that can be solved: what cannot gets the most.
Sources: learnability p (1 - p) as a task's weight, Rutherford et al. 2024 (arXiv 2408.15099), Foster et
al. 2025 (arXiv 2502.12272); prioritized sampling by 1 - p, Kimi k1.5 (2025, arXiv 2501.12599).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envgym.episode import Group
from envgym.task import Task
from envgym_agents.learn.config_loop import Curriculum
from envgym_agents.learn.members import whole_paths
from envgym_agents.learn.play import TaskOrder

__all__ = ["EdgeOrder", "order_of"]


@dataclass(slots=True)
class EdgeOrder:
    """An order as `TaskOrder`, that depends on what came of the tasks so far.

    A draw is a function of (seed, cursor) and of what `saw` was told; `state` holds that, so a resumed run draws
    the same. Raises ValueError without tasks.
    """

    tasks: Sequence[Task]
    seed: int
    config: Curriculum
    cursor: int = 0
    _solved: NDArray[np.float64] = field(init=False)
    _tried: NDArray[np.float64] = field(init=False)
    _drawn: NDArray[np.int64] = field(init=False)
    _index: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.tasks)
        if not count:
            raise ValueError("there are no tasks to draw from; check the split and the task options")
        self._solved, self._tried = np.zeros(count), np.zeros(count)
        self._drawn = np.zeros(count, np.int64)
        self._index = {task.id: number for number, task in enumerate(self.tasks)}

    def draw(self, count: int) -> list[Task]:
        """The next `count` tasks, each once as long as there are others."""
        rng = np.random.default_rng([self.seed, 11, self.cursor])
        left, found = np.ones(len(self.tasks), np.bool_), []
        for _ in range(count):
            if not left.any():
                left[:] = True
            number = int(rng.choice(len(left), p=self._chances(left)))
            left[number] = False
            self._drawn[number] += 1
            found.append(self.tasks[number])
        self.cursor += count
        return found

    @property
    def rates(self) -> NDArray[np.float64]:
        """The estimated solve rate of each task; a half for what was never tried (a uniform prior's mean)."""
        found: NDArray[np.float64] = (self._solved + 1.0) / (self._tried + 2.0)
        return found

    def _chances(self, left: NDArray[np.bool_]) -> NDArray[np.float64]:
        rates, explore = self.rates, self.config.explore
        weight = 4.0 * rates * (1.0 - rates) if self.config.kind == "solve-rate" else 1.0 - rates
        weight = np.where(left, weight / weight[left].max(), 0.0)  # else a great power of small ones is 0 for all
        edge = np.where(left, weight**self.config.sharpness, 0.0)
        rare = left & (self._drawn == self._drawn[left].min())
        mixed = (1.0 - explore) * edge / edge.sum() + explore * rare / rare.sum()
        found: NDArray[np.float64] = mixed / mixed.sum()
        return found

    def saw(self, groups: Sequence[Group]) -> dict[str, float]:
        """Take in what was played; what failed counts nothing. Returns metrics."""
        numbers = []
        for group in groups:
            number = self._index[group.task_id]
            known = [one for one in whole_paths(group) if one.failure is None]
            good = sum((group.reward(episode) or 0.0) > self.config.above for episode in known)
            self._solved[number] = self.config.memory * self._solved[number] + good
            self._tried[number] = self.config.memory * self._tried[number] + len(known)
            numbers.append(number)
        seen = {"tasks_seen": float((self._drawn > 0).sum())}
        return seen | ({"task_rate": float(self.rates[numbers].mean())} if numbers else {})

    def state(self) -> dict[str, Any]:
        """For a checkpoint, as JSON: of each task that was drawn what is known."""
        return {
            self.tasks[number].id: [
                float(self._solved[number]),
                float(self._tried[number]),
                int(self._drawn[number]),
            ]
            for number in np.flatnonzero(self._drawn).tolist()
        }

    def load(self, state: dict[str, Any]) -> None:
        """Be what `state` described."""
        for name, (solved, tried, drawn) in state.items():
            number = self._index[name]
            self._solved[number], self._tried[number], self._drawn[number] = solved, tried, drawn


def order_of(config: Curriculum, tasks: Sequence[Task], seed: int) -> TaskOrder | EdgeOrder:
    """The order of tasks that a configuration asks for."""
    return TaskOrder(tasks, seed) if config.kind == "none" else EdgeOrder(tasks, seed, config)
