"""Distillation on policy: the student samples, and a teacher says of each of its tokens how likely it finds it.

The student learns in the states that it comes to itself, so what it would get wrong later is corrected where it
happens. Either each sampled token gets credit (`teaching`), or the divergence of both distributions is descended
(`divergence.between`); no gradient goes through the sampling.
"""

from torch import Tensor

from envgym_agents.learn.losses.divergence import k1

__all__ = ["teaching"]


def teaching(sampled: Tensor, teacher: Tensor) -> Tensor:
    """Credit of each token [K]: ``log pi_T - log mu``, how much likelier the teacher finds it than who sampled it.

    sampled, teacher: log-probabilities [K] of the sampled tokens, the teacher's with no gradient. Its mean over
    samples is minus KL(mu || pi_T) of the next token, so policy gradients with it descend the reverse KL of single
    steps; what a token leads to is not in it (a discount of 0). Degenerate: all zero where both agree.
    Sources: Gu et al. 2023, MiniLLM (arXiv 2306.08543, its single-step part); Agarwal et al.
    2023, GKD (arXiv 2306.13649); Lu et al. 2025, "On-Policy Distillation" (Thinking Machines Lab).
    """
    return -k1(sampled, teacher)
