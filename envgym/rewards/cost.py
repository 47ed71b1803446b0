"""Cost as a channel: what was spent, made comparable, and weighed against what it bought."""

import math
from collections.abc import Sequence

__all__ = ["mixed_with_cost", "price_score", "price_scores"]


def price_score(cost: float, *, most: float, least: float = 0.0) -> float:
    """One minus a cost, normalised to [0, 1] between two bounds: 1.0 at `least` and below, 0.0 at `most` and above.

    Of one episode, as it needs no batch. Raises ValueError for a cost that is negative or not finite, and for
    bounds without room between them.
    """
    if not (math.isfinite(cost) and cost >= 0):
        raise ValueError(f"a cost is {cost}; it must be finite and not negative")
    if not least < most:
        raise ValueError(f"least is {least} and most {most}; least must be below most")
    return min(1.0, max(0.0, (most - cost) / (most - least)))


def price_scores(costs_G: Sequence[float]) -> list[float]:
    """One minus each cost, normalised to [0, 1] over the batch: the cheapest has 1.0, the dearest 0.0.

    Router-R1 (Zhang et al. 2025, arXiv 2506.09033) rewards the inverse of tokens times price,
    normalised in the batch. Where all cost the same, nothing can be told apart, and all have 1.0. Raises
    ValueError for a cost that is negative or not finite.
    """
    for cost in costs_G:
        if not (math.isfinite(cost) and cost >= 0):
            raise ValueError(f"a cost is {cost}; it must be finite and not negative")
    if not costs_G:
        return []
    low, high = min(costs_G), max(costs_G)
    return [1.0 if high == low else (high - cost) / (high - low) for cost in costs_G]


def mixed_with_cost(format_score: float, outcome: float, price: float, *, alpha: float) -> float:
    """Router-R1's total: ``format + (1 - alpha) * outcome + alpha * price``, with the format first.

    A wrong format (`format_score` below 0; Router-R1: -1) is all that counts: the rest is set to 0. Raises
    ValueError for an `alpha` outside [0, 1].
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is {alpha}; it must be in [0, 1]")
    return format_score if format_score < 0 else format_score + (1 - alpha) * outcome + alpha * price
