"""How credit travels down: group-relative episode credit and turn-level return, composed and spread to tokens.

A `Scheme` is any function from a group to one float32 array per episode, one float per *sampled* token. Prompt
and observation tokens have no place in the result, so they cannot receive credit.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from envgym.credit.baseline import centre
from envgym.credit.returns import discounted_returns, outcomes
from envgym.episode import Group

__all__ = ["Scheme", "group_relative", "to_tokens", "turn_relative", "zero_variance"]

Scheme = Callable[[Group], list[NDArray[np.float32]]]


def to_tokens(group: Group, turn_credit: list[NDArray[np.float64]]) -> list[NDArray[np.float32]]:
    """Give every sampled token its turn's credit: [N] per episode -> [T sampled] per episode."""
    spread = []
    for episode, credit in zip(group, turn_credit, strict=True):
        counts = [len(turn.sampled_ids) for turn in episode.turns]
        spread.append(np.repeat(credit, counts).astype(np.float32))
    return spread


def group_relative(
    *,
    gamma: float = 1.0,
    baseline: Literal["mean", "leave_one_out"] = "mean",
    scale: Literal["none", "std"] = "none",
    bootstrap: float = 0.0,
) -> Scheme:
    """Episode outcome minus its group's, travelling to earlier turns with the factor gamma per turn.

    A turn that lies k turns before the end gets ``gamma**k`` of the episode's credit. gamma=1 is GRPO's
    uniform spread.
    """

    def scheme(group: Group) -> list[NDArray[np.float32]]:
        credit = centre(
            outcomes(group, bootstrap=bootstrap), [group.task_id] * len(group), baseline=baseline, scale=scale
        )
        decayed = [
            value * gamma ** np.arange(len(episode.turns) - 1, -1, -1.0)
            for value, episode in zip(credit, group, strict=True)
        ]
        return to_tokens(group, decayed)

    return scheme


def turn_relative(
    *,
    gamma: float = 1.0,
    baseline: Literal["mean", "leave_one_out"] = "mean",
    scale: Literal["none", "std"] = "none",
    weight: float = 1.0,
    bootstrap: float = 0.0,
) -> Scheme:
    """Turn-level discounted return, each turn compared with its peers, mixed with group-relative credit.

    Peers of a turn are the turns of the group that acted in the same state (`state_key` of the step they
    answered); turns without a key, and states that only one turn visited, get the group-relative term alone.
    ``credit = group_relative + weight * (return-to-go centred among state peers)``.

    Source: the composition of step-level groups with episode-level ones is GiGPO's (Feng et al. 2025,
    arXiv 2505.10978, eq. 8); the keys here come from the environment.
    """
    outer = group_relative(gamma=gamma, baseline=baseline, scale=scale, bootstrap=bootstrap)

    def scheme(group: Group) -> list[NDArray[np.float32]]:
        returns = discounted_returns(group, gamma=gamma, bootstrap=bootstrap)
        keys: list[tuple[str, int, int]] = []
        for number, episode in enumerate(group):
            before = [episode.root, *(turn.step for turn in episode.turns[:-1])][: len(episode.turns)]
            keys += [
                (step.state_key, -1, -1) if step.state_key else ("", number, index)
                for index, step in enumerate(before)
            ]
        flat = np.concatenate(returns) if returns else np.zeros(0)
        inner = centre(flat, keys, baseline=baseline, scale=scale)
        ends = np.cumsum([len(values) for values in returns], dtype=int)
        per_episode = [inner[end - len(values) : end] for values, end in zip(returns, ends, strict=True)]
        by_turn = to_tokens(group, per_episode)
        return [a + np.float32(weight) * b for a, b in zip(outer(group), by_turn, strict=True)]

    return scheme


def zero_variance(group: Group) -> bool:
    """Whether the group's outcomes are all equal (or fewer than two are known): it then teaches nothing."""
    known = outcomes(group)
    known = known[~np.isnan(known)]
    return len(known) < 2 or float(np.ptp(known)) == 0.0
