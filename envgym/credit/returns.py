"""Where value comes from: rewards of an episode's turns, turned into one value per turn.

A turn's reward of None ("nothing said") counts as 0 in a sum, and differs from 0.0 only there being nothing
to grade. Only the turns that an episode added itself are valued.
"""

import numpy as np
from numpy.typing import NDArray

from envgym.episode import Episode, Group

__all__ = ["discounted_returns", "outcomes", "turn_rewards"]


def turn_rewards(episode: Episode) -> NDArray[np.float64]:
    """Rewards [N], one per turn; None becomes 0."""
    return np.array([turn.step.reward or 0.0 for turn in episode.turns], np.float64)


def discounted_returns(group: Group, *, gamma: float = 1.0, bootstrap: float = 0.0) -> list[NDArray[np.float64]]:
    """Return-to-go of every turn: G_n = r_n + gamma * G_(n+1), one array [N] per episode of the group.

    Discounting is per turn, never per token (observation tokens never enter a recursion). An episode that was
    truncated ends with `bootstrap` as the value of what was not seen; a failed one has no value: NaN.

    Raises ValueError unless 0 <= gamma <= 1.
    Source: Sutton & Barto, Reinforcement Learning, 2nd ed., eq. 3.9, with turns as time steps.
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma is {gamma}; it must be in [0, 1]")
    return [_returns(episode, gamma, bootstrap) for episode in group]


def _returns(episode: Episode, gamma: float, bootstrap: float) -> NDArray[np.float64]:
    values = np.full(len(episode.turns), np.nan)
    if episode.failure is not None:
        return values
    value = bootstrap if episode.stop is not None and episode.stop.truncated else 0.0
    rewards = turn_rewards(episode)
    for index in range(len(rewards) - 1, -1, -1):
        value = rewards[index] + gamma * value
        values[index] = value
    return values


def outcomes(group: Group, *, bootstrap: float = 0.0) -> NDArray[np.float64]:
    """Undiscounted return [G] of each episode; NaN where the world failed."""
    return np.array(
        [
            np.nan
            if episode.failure is not None
            else turn_rewards(episode).sum()
            + (bootstrap if episode.stop is not None and episode.stop.truncated else 0.0)
            for episode in group
        ],
        np.float64,
    )
