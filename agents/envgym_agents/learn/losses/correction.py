"""The sampler and the learner are two programs, and samples may be of older weights: weights that correct for it.

A correction is a truncated importance weight (its bound is bias for variance), a rejection is a mask of what is too
far off to be corrected. Both are numbers without gradient that multiply a token's loss. `diagnose` says how far
apart the two are; a run that trusts a correction should watch it.
"""

from typing import Literal

import torch
from torch import Tensor

from envgym_agents.learn.losses.units import capped, mean_per, sum_per

__all__ = ["Scope", "diagnose", "effective_share", "kept", "truncated"]

Scope = Literal["none", "token", "turn", "sequence"]
"""What is weighted or rejected as one: nothing, each sampled token, each turn, each episode."""


@torch.no_grad()
def truncated(learner: Tensor, sampled: Tensor, *, unit: Tensor | None, most: float) -> Tensor:
    """``min(pi_learner / pi_sampler, most)`` [K], of each token or of all of its unit. No gradient.

    Degenerate: equal log-probabilities give exactly 1.
    Sources: truncated importance sampling, Ionides 2008; for a sampler that differs from the learner, Yao et al.
    2025 ("Your efficient RL framework secretly brings you off-policy RL training") token by token; decoupled
    objectives under staleness, Hilton et al. 2021 (arXiv 2110.00641) and AReaL (arXiv 2505.24298).
    """
    apart = learner - sampled
    return capped(apart if unit is None else sum_per(apart, unit)).clamp(max=most)


@torch.no_grad()
def kept(learner: Tensor, sampled: Tensor, *, unit: Tensor | None, low: float, high: float) -> Tensor:
    """Which tokens' ratio lies in [low, high] [K] bool; of a unit, its geometric mean, so that length is no fault.

    Degenerate: equal log-probabilities keep everything where low <= 1 <= high.
    Sources: IcePop (Ling team 2025, token masks on both sides); geometric sequence masks, Liu, Li et al. 2025
    ("When speed kills stability", section on geometric rejection sampling).
    """
    apart = learner - sampled
    found = capped(apart if unit is None else mean_per(apart, unit))
    return (found >= low) & (found <= high)


@torch.no_grad()
def effective_share(weights: Tensor) -> Tensor:
    """``(sum w)^2 / (n sum w^2)``, the effective sample size as a share of n, in (0, 1]; 1 for no samples.

    Source: Kong 1992; Owen, "Monte Carlo theory, methods and examples" (2013), importance sampling.
    """
    if not len(weights) or not bool((weights > 0).any()):
        return torch.ones((), dtype=weights.dtype, device=weights.device)
    return weights.sum() ** 2 / (len(weights) * (weights**2).sum())


@torch.no_grad()
def diagnose(learner: Tensor, sampled: Tensor, *, weights: Tensor, episode: Tensor) -> dict[str, float]:
    """How far what the learner computes is from what the sampler said of the same tokens.

    mismatch_kl: KL(sampler || learner) per token by k3, weighted as the loss is. mismatch_max: the largest ratio,
    either way. ess_token, ess_episode: effective sample sizes, as shares, of the ratios of tokens and of episodes.
    """
    if not len(learner):
        return {}
    apart = (learner - sampled).clamp(-30.0, 30.0)
    total = weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
    kl = (weights * (apart.exp() - apart - 1.0)).sum() / total
    whole = torch.zeros(int(episode.max()) + 1, dtype=apart.dtype, device=apart.device).index_add(0, episode, apart)
    whole = whole[torch.unique(episode)]
    return {
        "mismatch_kl": float(kl),
        "mismatch_max": float(apart.abs().max().exp()),
        "ess_token": float(effective_share(apart.exp())),
        "ess_episode": float(effective_share(capped(whole - whole.max()))),
    }
