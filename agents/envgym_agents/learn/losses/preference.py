"""Learning from which of two was better: pairs of units that may be compared, and DPO's loss over them.

A unit is an episode or a turn. Episodes are comparable within their group; turns where they were sampled in the
very same context (forks of one state, or the first turns of a group). What says which was better is the units'
scores, such as their credit. A pair needs all of both units' tokens, so this loss is never cut into micro-batches.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["dpo", "pairs", "totals"]


def pairs(scores: Sequence[float], comparable: Sequence[int], *, margin: float = 0.0) -> list[tuple[int, int]]:
    """(better, worse) of all units with the same number in `comparable` whose scores differ by more than `margin`.

    Degenerate: a unit alone, or among equals, is in no pair.
    """
    among: dict[int, list[int]] = {}
    for unit, name in enumerate(comparable):
        among.setdefault(name, []).append(unit)
    return [
        (better, worse)
        for members in among.values()
        for better in members
        for worse in members
        if scores[better] - scores[worse] > margin
    ]


def totals(values: Tensor, unit: Tensor, *, units: int, mean: bool = False) -> Tensor:
    """The sum of each unit's tokens [units], or their mean; 0 for a unit without tokens. Differentiable."""
    total = torch.zeros(units, dtype=values.dtype, device=values.device).index_add(0, unit, values)
    if not mean:
        return total
    count = torch.zeros_like(total).index_add(0, unit, torch.ones_like(values))
    return total / count.clamp(min=1.0)


def dpo(margins: Tensor, found: Sequence[tuple[int, int]], *, beta: float, smoothing: float = 0.0) -> Tensor:
    """``-log sigmoid(beta * (m_better - m_worse))`` for each pair [P]; m = log(pi / reference) of a unit.

    smoothing: the probability that a preference is the wrong way round. Degenerate: equal margins cost log 2 with a
    gradient of beta / 2; no pairs, an empty result.
    Sources: DPO (Rafailov et al. 2023, eq. 7), conservative DPO (Mitchell 2023); over all of a trajectory's
    actions, DMPO and multi-turn DPO (Shi et al. 2024, arXiv 2406.14868; Xiong et al. 2024, arXiv 2409.02392);
    over one step after a common prefix, Step-DPO (Lai et al. 2024, arXiv 2406.18629).
    """
    better = margins[[pair[0] for pair in found]]
    worse = margins[[pair[1] for pair in found]]
    logit = beta * (better - worse)
    log_sigmoid = torch.nn.functional.logsigmoid
    return -(1.0 - smoothing) * log_sigmoid(logit) - smoothing * log_sigmoid(-logit)
