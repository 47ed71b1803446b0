"""Policy-gradient losses, one value per sampled token [K], to be weighted, summed and minimised.

Each is a pure function of tensors [K]: `logprobs` (differentiable, nats, as the learner computes them), `old` or
`ratio` (the policy that it is compared with), `credit`. With zero credit each is zero with a zero gradient. Nothing
here knows models, episodes or configuration; `weights`, which make episodes count alike, are applied outside.
"""

from typing import Literal

import torch
from torch import Tensor

from envgym_agents.learn.losses.units import capped, sum_per

__all__ = [
    "advantage_filter", "advantage_lol", "cispo", "dual_clip", "in_band", "kimi_opmd", "opmd", "ppo_clip",
    "rec_pull", "rec_weight", "reinforce", "topr",
]  # fmt: skip


def reinforce(logprobs: Tensor, *, credit: Tensor) -> Tensor:
    """``-A * log pi``: the likelihood-ratio gradient. Source: REINFORCE (Williams 1992)."""
    return -credit * logprobs


def ppo_clip(ratio: Tensor, *, credit: Tensor, low: float, high: float) -> Tensor:
    """``-min(r * A, clip(r, 1 - low, 1 + high) * A)``: no gradient where r left the band towards A.

    Degenerate: at r = 1 the gradient is REINFORCE's; low = high is PPO's one bound.
    Sources: PPO (Schulman et al. 2017, eq. 7); separate bounds ("clip higher"), DAPO (Yu et al. 2025, arXiv
    2503.14476, clip-higher). With r of a turn or an episode: GSPO (arXiv 2507.18071, eq. 5).
    """
    return -torch.minimum(ratio * credit, ratio.clamp(1.0 - low, 1.0 + high) * credit)


def dual_clip(ratio: Tensor, *, credit: Tensor, low: float, high: float, most: float) -> Tensor:
    """PPO's clipped loss, of negative credit never more than ``most * |A|``.

    Without it one bad token that became far likelier outweighs everything. Degenerate: an infinite bound is
    `ppo_clip`.
    Source: Ye et al. 2020 (arXiv 1912.09729, dual-clip PPO), with `most` > 1.
    """
    clipped = ppo_clip(ratio, credit=credit, low=low, high=high)
    return torch.where(credit < 0, torch.minimum(clipped, -most * credit), clipped)


def cispo(logprobs: Tensor, ratio: Tensor, *, credit: Tensor, low: float, high: float) -> Tensor:
    """``-sg(clip(r, 1 - low, 1 + high)) * A * log pi``: the weight is clipped, no token's gradient is cut off.

    Degenerate: at r = 1 it is REINFORCE. low = 1 leaves only the upper bound, as the paper ran it.
    Source: CISPO in MiniMax-M1 (2025, arXiv 2506.13585).
    """
    return -ratio.detach().clamp(1.0 - low, 1.0 + high) * credit * logprobs


def topr(logprobs: Tensor, sampled: Tensor, *, credit: Tensor, unit: Tensor, most: float = 1.0) -> Tensor:
    """``-w * A * log pi``, w = 1 for a unit whose A is >= 0 in sum, else ``sg(min(pi / mu, most))`` of all of it.

    A unit is an episode: the paper's sign is the trajectory's, so one that failed is let go of as a whole, its
    turns of positive credit too. What should become likelier is followed like supervised data, however unlikely it
    is; what should become unlikelier is let go of as it does.
    sampled: log-probabilities under mu, the policy that played.
    Degenerate: on policy (pi = mu) it is REINFORCE.
    Source: TOPR (Le Roux et al. 2025, arXiv 2503.14286), with the bounds that it recommends: a+ = b+ = 1, a- = 0,
    b- = 1.
    """
    with torch.no_grad():
        tapered = capped(sum_per(logprobs - sampled, unit)).clamp(max=most)
        bad = sum_per(credit, unit) < 0
    return -torch.where(bad, tapered, torch.ones_like(tapered)) * credit * logprobs


def advantage_lol(
    logprobs: Tensor, sampled: Tensor, *, credit: Tensor, unit: Tensor,
    variant: Literal["full", "sequence", "free"] = "full", clip: float = 0.9,
) -> Tensor:  # fmt: skip
    """``-w * max(A, 0) * log pi``: offline policy gradient on what was better than expected, all else left out.

    w, without gradient and clipped to [1 - clip, 1 + clip]: "full", pi / mu of the whole unit; "sequence", pi / mu
    of each token; "free", 1 (no log-probabilities of mu are needed). sampled: log-probabilities under mu, the
    policy that played; of data that others made nobody may know them, and the paper takes the model that training
    begins with. A-LoL with the KL term is "free" beside a divergence from the reference.
    Degenerate: with no positive credit there is no gradient.
    Source: A-LoL (Baheti et al. 2024, arXiv 2305.14718): A-LoL, A-LoL seq., A-LoL ref. free.
    """
    with torch.no_grad():
        apart = logprobs - sampled
        whole = {"full": lambda: sum_per(apart, unit), "sequence": lambda: apart,
                 "free": lambda: torch.zeros_like(apart)}[variant]()  # fmt: skip
        weight = capped(whole).clamp(1.0 - clip, 1.0 + clip)
    return -weight * credit.clamp(min=0.0) * logprobs


def opmd(logprobs: Tensor, *, credit: Tensor, tau: float) -> Tensor:
    """``-A * log pi / (1 + tau)``: policy mirror descent with no ratio at all; tau says how near it stays.

    Degenerate: tau = 0 is REINFORCE. A is what the credit scheme says (the paper's baseline is the group's mean).
    Source: Yao et al. 2025 (Group-Relative REINFORCE, arXiv 2509.24203), simplified OPMD.
    """
    return -credit * logprobs / (1.0 + tau)


def kimi_opmd(logprobs: Tensor, old: Tensor, *, credit: Tensor, unit: Tensor, tau: float) -> Tensor:
    """``-A * log pi + tau / 2 * (log(pi / pi_old) of the unit)^2``, the square shared out over the unit's tokens.

    Degenerate: tau = 0 is REINFORCE, and at pi = pi_old so is its gradient.
    Source: Kimi k1.5 (2025, arXiv 2501.12599, on policy optimization), the regularised surrogate of online policy
    mirror descent.
    """
    apart = sum_per(logprobs - old, unit)
    return -credit * logprobs + tau / 2.0 * apart.square() / sum_per(torch.ones_like(apart), unit)


def in_band(
    ratio: Tensor, *, credit: Tensor, low: float, high: float,
    sides: Literal["one", "two", "ring"] = "one", outer: float = 2.0,
) -> Tensor:  # fmt: skip
    """Which tokens of REINFORCE keep their gradient [K] bool: the clip of PPO as a mask.

    "one": what PPO keeps (outside the band only what pulls back towards it). "two": only what is inside. "ring":
    what is inside, and of what pulls back only what is further off than `outer` (times the ratio's band).
    Source: Yao et al. 2025 (arXiv 2509.24203), REC-OneSide, REC-TwoSide and REC-Ring.
    """
    below, above = ratio < 1.0 - low, ratio > 1.0 + high
    if sides == "one":
        return ~((above & (credit > 0)) | (below & (credit < 0)))
    kept = ~(below | above)
    if sides == "ring":
        kept |= (ratio >= 1.0 + high * outer) & (credit < 0)
        kept |= (ratio <= max(1.0 - low * outer, 0.0)) & (credit > 0)
    return kept


@torch.no_grad()
def rec_weight(
    ratio: Tensor, *, credit: Tensor, kind: Literal["none", "ratio", "advantage"], temperature: float = 1.0
) -> Tensor:
    """What each token's term weighs [K]: 1, its importance ratio, or ``exp(A / temperature)``. No gradient.

    Degenerate: a ratio of 1, or a credit of 0, weighs 1; so does everything as the temperature grows.
    Source: Yao et al. 2025 (arXiv 2509.24203), the weights of REC and of data that is weighed by its advantage.
    """
    if kind == "none":
        return torch.ones_like(ratio)
    return ratio.clone() if kind == "ratio" else capped(credit.to(ratio) / temperature)


def rec_pull(logprobs: Tensor, old: Tensor, *, kind: Literal["none", "square", "likelihood"]) -> Tensor:
    """What holds the policy near what it was, to be added: ``(log(pi / pi_old))^2`` or ``-log pi`` of each token.

    Degenerate: at pi = pi_old the square and its gradient are 0. The likelihood pulls towards all that was sampled,
    whatever it earned: it is that of a constant credit of 1.
    Source: Yao et al. 2025 (arXiv 2509.24203), the regularisers of REINFORCE.
    """
    if kind == "none":
        return torch.zeros_like(logprobs)
    return (logprobs - old).square() if kind == "square" else -logprobs


def advantage_filter(scaled: Tensor, *, most: float) -> Tensor:
    """Which tokens' standardised credit lies within `most` [K] bool: what is further out is an outlier.

    Source: StableReinforce (arXiv 2505.02835, advantage filter), by the 3-sigma rule.
    """
    return scaled.abs() <= most
