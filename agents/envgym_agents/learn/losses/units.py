"""What is said of each token, said of the turn or the episode that it is in: sums, means and ratios over units.

A unit is named by a number per token [K] (of its turn, of its episode), in any order. Only sampled tokens are given
to these functions, so an observation can enter no sum and no count (law b), and the rows that an episode was cut
into leave no trace (law a).
"""

from typing import Literal

import torch
from torch import Tensor

__all__ = ["Level", "capped", "mean_per", "ratio", "standardised", "sum_per"]

Level = Literal["token", "turn", "sequence"]
"""What one number is said of: a sampled token, all of a turn's, or all of an episode's."""

_EXPONENT = 30.0
"""exp of more is of no use to any loss, and of 89 is infinite in float32."""


def capped(log_ratio: Tensor) -> Tensor:
    """``exp`` of a log-ratio that is held within 30 nats of 0: finite in every precision, for any policy."""
    return log_ratio.clamp(-_EXPONENT, _EXPONENT).exp()


def sum_per(values: Tensor, unit: Tensor) -> Tensor:
    """The sum over each token's unit, said again at each of its tokens [K]. Differentiable in `values`."""
    if not len(values):
        return values
    total = torch.zeros(int(unit.max()) + 1, dtype=values.dtype, device=values.device)
    return total.index_add(0, unit, values)[unit]


def mean_per(values: Tensor, unit: Tensor) -> Tensor:
    """The mean over each token's unit, said again at each of its tokens [K]. Differentiable in `values`."""
    return sum_per(values, unit) / sum_per(torch.ones_like(values), unit)


def ratio(logprobs: Tensor, old: Tensor, *, unit: Tensor | None = None, bound: float | None = None) -> Tensor:
    """How much likelier each token, or the unit it is in, is now than under `old` [K].

    unit: none is token by token, as in PPO. With a unit, the exponential of its mean log-ratio (GSPO's
    length-normalised ratio). The gradient of a token's mean ratio goes to that token's own log-probability alone,
    as in GSPO-token, so that summed over the unit it equals GSPO's.
    bound: the log-ratio is held within it before it is exponentiated, and its gradient is zero outside.

    Degenerate: equal policies give 1 everywhere; a unit of one token is that token.
    Sources: PPO (Schulman et al. 2017, eq. 6); GSPO and GSPO-token (Zheng et al. 2025, arXiv 2507.18071); pre-clip,
    StableReinforce (Zhang et al. 2025, arXiv 2505.02835).
    """
    apart = logprobs - old
    if unit is not None:
        with torch.no_grad():
            whole = mean_per(apart, unit)
        apart = whole + (apart - apart.detach())
    if bound is not None:
        apart = apart.clamp(-bound, bound)
    return capped(apart)


def standardised(values: Tensor, weights: Tensor) -> Tensor:
    """Values as standard deviations from their weighted mean [K]; zeros where they do not differ."""
    total = weights.sum()
    if not len(values) or total <= 0:
        return torch.zeros_like(values)
    mean = (weights * values).sum() / total
    spread = ((weights * (values - mean) ** 2).sum() / total).sqrt()
    scale = values.abs().max().clamp(min=torch.finfo(values.dtype).tiny)
    if spread <= 1e-6 * scale:  # equal but for rounding
        return torch.zeros_like(values)
    return (values - mean) / spread
