"""The learner's formulas, as pure functions over one value per sampled token.

Every function takes `weights` [K], the share of each token in the sum; `pack` makes them so that each episode
counts the same, whatever its length and however it was cut into rows. Nothing here knows models or episodes.
"""

from torch import Tensor

__all__ = ["clip_share", "clipped_policy_gradient", "kl_k3", "weighted_mean"]


def clipped_policy_gradient(
    logprobs: Tensor, old_logprobs: Tensor, *, credit: Tensor, weights: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """The clipped surrogate, to be minimised: ``-sum(w * min(r * A, clip(r, 1 - low, 1 + high) * A))``.

    All inputs [K]; r = exp(logprobs - old_logprobs); returns a scalar. Where r is outside the band on the side
    that A pushes to, the gradient is zero. Zero credit gives zero loss and zero gradient.
    Sources: PPO (Schulman et al. 2017, eq. 7); separate bounds, DAPO (Yu et al. 2025, eq. 10).
    """
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -(weights * (ratio * credit).minimum(clipped * credit)).sum()


def clip_share(
    logprobs: Tensor, old_logprobs: Tensor, *, credit: Tensor, weights: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """The weighted share of tokens whose gradient the clipping cut to zero. A scalar in [0, sum of weights]."""
    ratio = (logprobs - old_logprobs).exp()
    cut = ((ratio > 1.0 + clip_high) & (credit > 0)) | ((ratio < 1.0 - clip_low) & (credit < 0))
    return (weights * cut).sum()


def kl_k3(logprobs: Tensor, reference: Tensor, *, weights: Tensor) -> Tensor:
    """An estimate of KL(policy || reference) from the policy's own samples: ``exp(d) - d - 1``, d = ref - policy.

    All [K]; a scalar, never negative, zero exactly when both agree on every token.
    Source: Schulman, "Approximating KL divergence" (2020), estimator k3.
    """
    difference = reference - logprobs
    return (weights * (difference.exp() - difference - 1.0)).sum()


def weighted_mean(values: Tensor, *, weights: Tensor) -> Tensor:
    """``sum(w * v)``: with per-episode weights, the mean over episodes of the mean over their tokens."""
    return (weights * values).sum()
