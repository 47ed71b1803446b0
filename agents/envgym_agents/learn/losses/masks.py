"""Which tokens, and which choices, take part: EARL's entropy gate over tokens, NLPO's mask over the vocabulary."""

import torch
from torch import Tensor

__all__ = ["entropy_gate", "nucleus", "within"]


@torch.no_grad()
def entropy_gate(entropy: Tensor, *, share: float) -> Tensor:
    """The `share` of the tokens [K] with the highest entropy, bool; equal ones at the border all stay in.

    Where the policy is sure, nothing is decided: the gradient is spent where it is not.
    Degenerate: 1 keeps all; no share is so small that none stays.
    Sources: EARL (2025, arXiv 2511.12033); the top 20 %, Wang et al. 2025 (arXiv 2506.01939).
    """
    if share >= 1.0 or not len(entropy):
        return torch.ones_like(entropy, dtype=torch.bool)
    count = max(1, round(share * len(entropy)))
    return entropy >= entropy.topk(count).values[-1]


@torch.no_grad()
def nucleus(logits: Tensor, *, top_p: float) -> Tensor:
    """The smallest sets of likeliest choices that hold at least `top_p` of the probability [..., V], bool.

    Degenerate: 1 keeps every choice that is possible (its logit above -inf); the likeliest one always stays.
    Source: nucleus sampling (Holtzman et al. 2020); as the action mask of NLPO, Ramamurthy et al. 2023 (arXiv
    2210.01241, on NLPO): the set is that of a masking policy, an older copy of the policy.
    """
    if top_p >= 1.0:
        return logits > -torch.inf
    ordered, order = torch.sort(logits.softmax(-1), stable=True, dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    inside = (before < top_p) & (ordered > 0)
    return torch.zeros_like(inside).scatter(-1, order, inside)


def within(logits: Tensor, mask: Tensor) -> Tensor:
    """Logits with what the mask excludes impossible, -inf: the rest is renormalised by the softmax that follows."""
    return logits.masked_fill(~mask, -torch.inf)
