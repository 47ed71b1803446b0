"""How far the policy is from another one, token by token: estimated from what was sampled, or exactly.

Sampled estimates need one log-probability of each policy per token; exact ones need both distributions, which exist
for a few positions at a time only (`envgym_agents.learn.head`). All are zero where both agree, and never negative
except `k1`, which is so only on average.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from envgym_agents.learn.losses.units import sum_per

__all__ = ["Kind", "between", "descended", "estimate", "k1", "to_go"]

Kind = Literal["reverse", "forward", "js"]
"""KL(policy || other), which avoids what the other would not do; KL(other || policy), which keeps all it would do;
and the Jensen-Shannon divergence, half of each to their mean."""

_LEAST = -1e4
"""Stands for the logarithm of zero."""


def k1(logprobs: Tensor, other: Tensor) -> Tensor:
    """``log pi - log other`` [K]: on average over samples KL(pi || other); its own gradient is zero on average.

    So it is for rewards, not for losses. Source: Schulman, "Approximating KL divergence" (2020).
    """
    return logprobs - other


def estimate(logprobs: Tensor, other: Tensor, *, kind: Kind = "reverse") -> Tensor:
    """An unbiased estimate of the divergence's value from the policy's own samples [K], token by token.

    To be told, not to be descended: samples move with the policy, and its own gradient does not know that. That of
    the reverse kind is on average the forward KL's, and that of the others is no divergence's at all (`descended`).
    With d = log other - log pi and rho = exp(d): reverse ``rho - d - 1`` (k3), forward ``rho d - (rho - 1)``, js
    ``(rho d - (1 + rho) log((1 + rho) / 2)) / 2``: each the generator of an f-divergence, shifted so that it is
    zero and flat at rho = 1.
    Sources: Schulman (2020), k3; f-divergences with forward and JS generators for RL, DPH-RL (Li et al. 2025, arXiv
    2509.07430).
    """
    apart = (other - logprobs).clamp(-30.0, 30.0)
    rho = apart.exp()
    if kind == "reverse":
        return rho - apart - 1.0
    if kind == "forward":
        return rho * apart - (rho - 1.0)
    return (rho * apart - (1.0 + rho) * ((1.0 + rho) / 2.0).log()) / 2.0


def descended(logprobs: Tensor, other: Tensor, *, kind: Kind = "reverse") -> Tensor:
    """`estimate` [K] with the gradient that is on average the divergence's own, token by token.

    Of an f-divergence E_pi[f(rho)] that is ``E_pi[(f(rho) - rho f'(rho)) grad log pi]``, up to a constant that adds
    nothing on average. With d and rho as in `estimate`: reverse ``-d``, forward ``1 - rho``, js
    ``-log((1 + rho) / 2) / 2``. Of the reverse kind so is the gradient of ``d^2 / 2`` (k2).
    Source: the log-derivative trick; f and f' as in `estimate`.
    """
    apart = (other - logprobs.detach()).clamp(-30.0, 30.0)
    rho = apart.exp()
    if kind == "reverse":
        slope = -apart
    elif kind == "forward":
        slope = 1.0 - rho
    else:
        slope = -((1.0 + rho) / 2.0).log() / 2.0
    return estimate(logprobs.detach(), other, kind=kind) + slope * (logprobs - logprobs.detach())


def between(logs: Tensor, other: Tensor, *, kind: Kind = "reverse") -> Tensor:
    """The divergence of whole distributions [..., V] of log-probabilities: [...], in nats.

    What neither can say (-inf in both) counts nothing. Degenerate: js is at most log 2.
    """
    p, q = logs.exp(), other.exp()
    one, two = logs.clamp(min=_LEAST), other.clamp(min=_LEAST)  # 0 * -inf is nan, in the value and in the gradient
    if kind == "reverse":
        return (p * (one - two)).sum(-1)
    if kind == "forward":
        return (q * (two - one)).sum(-1)
    middle = torch.logaddexp(one, two) - math.log(2.0)
    return ((p * (one - middle)).sum(-1) + (q * (two - middle)).sum(-1)) / 2.0


def to_go(values: Tensor, unit: Tensor) -> Tensor:
    """The sum of each token's value and those after it in its unit [K]; tokens stand in the order of their time.

    With `k1` it is what a divergence taken as a reward costs from here on: subtracted from credit, its gradient is
    that of the whole sequence's KL. Source: per-token KL in the reward, Ziegler et al. 2019 (arXiv 1909.08593).
    """
    order = torch.argsort(unit, stable=True)
    grouped, units = values[order], unit[order]
    whole = sum_per(values, unit)[order]
    before = grouped.cumsum(0) - grouped
    first = torch.ones_like(units, dtype=torch.bool)
    first[1:] = units[1:] != units[:-1]
    starts = before[first][first.cumsum(0) - 1]
    found = torch.empty_like(values)
    found[order] = whole - (before - starts)
    return found
