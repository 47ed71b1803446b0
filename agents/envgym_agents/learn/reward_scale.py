"""What was earned, in the unit that a critic learns in: PPO-max's scaling and clipping of rewards.

Only what is learned from is scaled. Episodes are stored, counted and shown with what they really earned.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from envgym.credit import Ledger, Truncation, outcome
from envgym.credit.reference import is_greedy
from envgym.env import EARNED_BY
from envgym.episode import Episode, Group, Turn
from envgym_agents.learn.collect import Collected
from envgym_agents.learn.config import Rewards

__all__ = ["RewardScale"]


@dataclass(frozen=True, slots=True)
class RewardScale:
    """Mean and spread of the returns of every episode so far, and rewards in their unit.

    count: how many episodes; mean: of their returns; squares: the sum of their squared distances from it.
    Source: score reparameterisation, "Secrets of RLHF, part I: PPO" (Zheng et al. 2023, arXiv 2307.04964), whose
    episodes are one answer long. Here a return is the sum of an episode's rewards; each is divided by the spread of
    returns, and their mean is taken off the last, so that of one turn it is the paper's ``(r - mean) / std``.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def spread(self) -> float:
        """The standard deviation of returns; 1 while all were the same, which says nothing of their unit."""
        spread = math.sqrt(self.squares / self.count) if self.count else 0.0
        return spread if spread > 1e-8 * max(1.0, abs(self.mean)) else 1.0

    def saw(self, groups: Sequence[Group], *, truncation: Truncation = "mask") -> "RewardScale":
        """The same after these episodes too. Greedy members, forks, and returns that are not known do not count."""
        ledger = Ledger.of(groups)
        returns = outcome(truncation=truncation).of(ledger)
        counts = np.array([episode.parent is None and not is_greedy(episode) for episode, _ in ledger.parts], bool)
        new = returns[counts & ~np.isnan(returns)] if len(returns) else returns
        if not len(new):
            return self
        # two samples as one: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm"
        count, apart = self.count + len(new), float(new.mean()) - self.mean
        squares = self.squares + float(((new - new.mean()) ** 2).sum())
        return RewardScale(
            count, self.mean + apart * len(new) / count, squares + apart**2 * self.count * len(new) / count
        )

    def of(self, groups: Sequence[Group], settings: Rewards) -> list[Group]:
        """The groups with their rewards as `settings` asks; what said nothing of reward still says nothing."""
        if settings.scale == "none":
            return list(groups)
        return [replace(group, episodes=tuple(self._episode(one, settings) for one in group)) for group in groups]

    def _episode(self, episode: Episode, settings: Rewards) -> Episode:
        """One episode; every actor's mean is taken off the last of its own rewards."""
        last = {_earner(turn): at for at, turn in enumerate(episode.turns) if turn.step.reward is not None}
        turns = list(episode.turns)
        for at, turn in enumerate(turns):
            if turn.step.reward is not None:
                off = self.mean if settings.scale == "normal" and last[_earner(turn)] == at else 0.0
                earned = (turn.step.reward - off) / self.spread
                if settings.clip is not None:
                    earned = min(max(earned, -settings.clip), settings.clip)
                turns[at] = replace(turn, step=replace(turn.step, reward=earned))
        return replace(episode, turns=tuple(turns))

    def collected(self, found: Collected, settings: Rewards) -> Collected:
        """What is learned from of what a step played."""
        return replace(found, groups=self.of(found.groups, settings), whole=self.of(found.whole, settings))

    def shown(self) -> dict[str, float]:
        """For the metrics; nothing where nothing is scaled."""
        return {"return_mean": self.mean, "return_spread": self.spread} if self.count else {}

    def state(self) -> dict[str, Any]:
        """All of it as plain JSON; {} where nothing was seen."""
        return asdict(self) if self.count else {}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "RewardScale":
        """What `state` described; of nothing: what is known at the beginning."""
        return cls(**state)


def _earner(turn: Turn) -> str:
    return str(turn.step.info.get(EARNED_BY, turn.actor))
