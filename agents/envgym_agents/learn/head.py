"""From hidden states to what is said of sampled tokens, a bounded number of positions at a time.

Logits are positions times vocabulary: for long sequences and a large vocabulary far more memory than the model.
Here they exist for `chunk` positions only, in both directions: on the way back each chunk is computed again from
its hidden states, and beside its logits stand two arrays of their size, no more. What is worth knowing of them
(log-probability, entropy, divergence from another model, a mask) is taken before they go.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from envgym_agents.learn.losses.divergence import Kind, between
from envgym_agents.learn.losses.masks import nucleus, within

__all__ = ["Asked", "Logits", "Scored", "in_chunks", "positions_at_once"]

Logits = Callable[[Tensor], Tensor]
"""From hidden states [C, H] to logits [C, V], float32 at least, divided by the temperature."""


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """In the order of the batch's tokens.

    logprobs [K] and entropy [K] in nats; best [K], whether the token was the likeliest one. divergence [K] from the
    other model, of the whole distributions, where it was asked for, else zeros. inside [K]: False where a mask
    shuts the token out; its log-probability then says 0.
    """

    logprobs: Tensor
    entropy: Tensor
    best: Tensor
    divergence: Tensor
    inside: Tensor


@dataclass(frozen=True, slots=True)
class Asked:
    """What else is wanted, of another model: a divergence from it, and choices masked to its nucleus."""

    divergence: Kind | None = None
    top_p: float = 1.0


def positions_at_once(chunk: int, most_mib: int, vocabulary: int) -> int:
    """At most `chunk`, and no more than have float32 logits of `most_mib` MiB together; at least one.

    A chunk of so many positions alone would grow with the vocabulary, and be larger than a model of half a billion
    weights where that has 150,000 ids.
    """
    return max(1, min(chunk, most_mib * 2**20 // (4 * max(1, vocabulary))))


def in_chunks(
    states: Tensor, targets: Tensor, logits: Logits, *, chunk: int, open_KV: Tensor | None = None,
    other: tuple[Tensor, Logits] | None = None, asked: Asked | None = None,
) -> Scored:  # fmt: skip
    """Score targets [K] at hidden states [K, H]; differentiable.

    open_KV: which choices each token had [K, V], or None for all. other: states of another model at the same
    places, and its logits; they get no gradient.
    """
    asked = asked or Asked()
    parts: list[tuple[Tensor, ...]] = []
    for start in range(0, len(targets), chunk):
        piece = slice(start, start + chunk)
        closed = None if open_KV is None else ~open_KV[piece]
        beside = None if other is None else (other[0][piece], other[1])

        def one(
            states: Tensor, targets: Tensor, closed: Tensor | None = closed,
            beside: tuple[Tensor, Logits] | None = beside,
        ) -> tuple[Tensor, ...]:  # fmt: skip
            return _one(states, targets, logits, closed=closed, beside=beside, asked=asked)

        single = start == 0 and chunk >= len(targets)  # nothing would be saved
        if torch.is_grad_enabled() and not single:
            parts.append(
                checkpoint(one, states[piece], targets[piece], use_reentrant=False, preserve_rng_state=False)
            )
        else:
            parts.append(one(states[piece], targets[piece]))
    return Scored(*(torch.cat(values) for values in zip(*parts, strict=True)))


def _one(
    states: Tensor, targets: Tensor, logits: Logits, *, closed: Tensor | None,
    beside: tuple[Tensor, Logits] | None, asked: Asked,
) -> tuple[Tensor, ...]:  # fmt: skip
    made = logits(states)
    if closed is not None:
        made = made.masked_fill(closed, -torch.inf)
    inside = torch.ones_like(targets, dtype=torch.bool)
    found = None
    if beside is not None and (asked.divergence or asked.top_p < 1):
        with torch.no_grad():
            theirs = beside[1](beside[0])
            theirs = theirs if closed is None else theirs.masked_fill(closed, -torch.inf)
        if asked.top_p < 1:
            mask = nucleus(theirs, top_p=asked.top_p)
            made, inside = within(made, mask), mask.gather(1, targets[:, None])[:, 0]
        if asked.divergence:
            found = between(made.log_softmax(-1), theirs.log_softmax(-1), kind=asked.divergence)
    logprobs, entropy, best = _pick(made, targets)
    logprobs = torch.where(inside, logprobs, torch.zeros_like(logprobs))
    return logprobs, entropy, best, torch.zeros_like(entropy) if found is None else found, inside


class _Pick(torch.autograd.Function):
    """Logits [C, V] and targets [C] -> log-probability and entropy, in nats [C]; the gradient by hand.

    With p the softmax, its log-probability l and entropy h: ``dl/dz_j = [j = target] - p_j`` and
    ``dh/dz_j = -p_j (log p_j + h)``. So two arrays as large as the logits are all that the way back needs beside
    them; recorded operation by operation it would be seven. Degenerate: what is closed (-inf) has no share in
    either and gets no gradient; a closed target says 0.
    """

    @staticmethod
    def forward(context: Any, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        total = logits.logsumexp(-1)
        shares = (logits - total[:, None]).exp_()
        entropy = -shares.xlogy_(shares).sum(-1)
        logprobs = logits.gather(1, targets[:, None])[:, 0] - total
        said = logprobs != -torch.inf
        context.save_for_backward(logits, targets, total, entropy, said)
        return torch.where(said, logprobs, 0.0), entropy

    @staticmethod
    @once_differentiable
    def backward(context: Any, of_logprobs: Tensor, of_entropy: Tensor) -> tuple[Tensor, None]:
        logits, targets, total, entropy, said = context.saved_tensors
        of_logprobs = torch.where(said, of_logprobs, 0.0)
        found = logits - total[:, None]
        shares = found.exp()
        found.masked_fill_(shares == 0, 0.0)  # 0 * -inf is nan
        found.add_(entropy[:, None]).mul_(of_entropy[:, None]).add_(of_logprobs[:, None]).mul_(shares).neg_()
        return found.scatter_add_(1, targets[:, None], of_logprobs[:, None]), None


def _pick(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logprobs, entropy = _Pick.apply(logits, targets)  # type: ignore[no-untyped-call]
    return logprobs, entropy, logits.argmax(-1) == targets
