"""Supervised losses: what was done becomes likelier, chosen by what it earned.

SFT takes all; expert iteration and ReST-EM what was good enough; RAFT the best of each group. All three are the
likelihood of chosen tokens, so here is one formula and who is chosen.
"""

from collections.abc import Sequence

from torch import Tensor

__all__ = ["best_of_groups", "negative_likelihood", "restricted_share"]


def negative_likelihood(logprobs: Tensor) -> Tensor:
    """``-log pi`` [K]. Source: maximum likelihood; as a stage before RL, ReFT (Luong et al. 2024)."""
    return -logprobs


def best_of_groups(scores: Sequence[float], group: Sequence[int], *, least: float | None = None) -> list[bool]:
    """Which episodes are imitated: those that score above `least`; without it each group's best.

    Degenerate: a group whose members all score the same has no best, for nothing tells them apart; nor has a
    group of one. Of several best ones the first is taken.
    Sources: RAFT (Dong et al. 2023, arXiv 2304.06767, algorithm 1); expert iteration (Anthony et al. 2017), with a
    threshold ReST-EM (Singh et al. 2023, arXiv 2312.06585, algorithm 1).
    """
    if least is not None:
        return [score > least for score in scores]
    found = [False] * len(scores)
    for name in dict.fromkeys(group):
        members = [number for number, other in enumerate(group) if other == name]
        top = max(members, key=lambda number: (scores[number], -number))
        found[top] = scores[top] > min(scores[number] for number in members)
    return found


def restricted_share(weights: Tensor, chosen: Tensor) -> Tensor:
    """Weights of the chosen tokens, so scaled that they sum to 1; all zero where none is chosen.

    So a stream's size does not depend on how many tokens other streams have: each has its own denominator.
    """
    picked = weights * chosen
    total = picked.sum()
    return picked / total if float(total) > 0 else picked
