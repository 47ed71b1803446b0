"""From hidden states to what is said of sampled tokens, a bounded number of positions at a time.

Logits are positions times vocabulary: for long sequences and a large vocabulary far more memory than the model.
Here they exist for `chunk` positions only, in both directions: on the way back each chunk is computed again from
its hidden states. What is worth knowing of them (log-probability, entropy, divergence from another model, a mask)
is taken before they go.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from envgym_agents.learn.losses.divergence import Kind, between
from envgym_agents.learn.losses.masks import nucleus, within

__all__ = ["Asked", "Logits", "Scored", "in_chunks"]

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


def _pick(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logs = logits.log_softmax(-1)
    # 0 * -inf is nan, in the value and in the gradient: closed choices are replaced before multiplying
    closed = logs == -torch.inf
    finite = logs.masked_fill(closed, 0.0)
    entropy = -(finite.exp().masked_fill(closed, 0.0) * finite).sum(-1)
    return finite.gather(1, targets[:, None])[:, 0], entropy, logs.argmax(-1) == targets
