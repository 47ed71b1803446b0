"""Which tasks a run learned from as it learned on the whole: LIMR's score, from stored episodes alone.

A task whose reward rises as the mean over all tasks does is one that the learning went through; one that is always
or never solved, or that jumps about, is not. The score ranks tasks for another run (`envgym data impact`).
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from envgym.episode import Episode

__all__ = ["learning_impact", "reward_curves"]


def reward_curves(episodes: Iterable[Episode], *, channel: str = "") -> dict[str, list[float]]:
    """Of every task the mean reward of its groups, in the order of their ids, which is that of a run's steps.

    Only episodes of groups count (not evaluations), no forks, and none whose world failed. channel: a channel of
    the last step in the place of the reward. Raises ValueError, naming the episode, for a value outside 0 to 1: the
    score measures the distance to 1.
    """
    groups: dict[tuple[str, str], list[float]] = {}
    for episode in episodes:
        if not episode.group or episode.failure is not None or episode.parent is not None:
            continue
        last = episode.turns[-1].step if episode.turns else episode.root
        value = last.channels.get(channel, 0.0) if channel else episode.reward or 0.0
        if not 0.0 <= value <= 1.0:
            raise ValueError(
                f"episode {episode.id}: its {channel or 'reward'} is {value}, and learning impact needs values "
                "from 0 to 1; name a channel that has such"
            )
        groups.setdefault((episode.task_id, episode.group), []).append(value)
    found: dict[str, list[float]] = {}
    for task, group in sorted(groups):
        found.setdefault(task, []).append(float(np.mean(groups[task, group])))
    return found


def learning_impact(curves: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """LIMR's score of each task: 1 - sum_k (r_k - m_k)^2 / sum_k (1 - m_k)^2, at most 1.

    r_k: the task's reward when it was played for the k-th time. m_k: the mean of all that were played as often. A
    task that was played less often than others (the run ended within a pass) is compared over what it has.
    Degenerate: where everything is always solved the score is 1.
    Source: Li et al. 2025, "LIMR: Less is More for RL Scaling" (arXiv 2502.11886, section 2.2), and its published
    code, which keeps what scores 0.2 or more.
    """
    longest = max(map(len, curves.values()), default=0)
    means = [float(np.mean([one[k] for one in curves.values() if len(one) > k])) for k in range(longest)]
    found = {}
    for task, curve in curves.items():
        mean = np.array(means[: len(curve)])
        room = float(((1.0 - mean) ** 2).sum())
        apart = float(((np.array(curve) - mean) ** 2).sum())
        found[task] = 1.0 - apart / room if room else 1.0
    return found
