"""One RL step's learning: a few epochs of clipped policy-gradient updates over groups of rows.

Gradients are accumulated over batches of bounded size, so memory is bounded and the update is that of the whole
minibatch. Whole groups stay in one minibatch: their credits sum to zero there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from envgym_agents.learn.config import Reinforce
from envgym_agents.learn.loss import clip_share, clipped_policy_gradient, kl_k3, weighted_mean
from envgym_agents.learn.pack import Batch, Row, batches
from envgym_agents.learn.score import Scorer

__all__ = ["Learner", "adamw"]


def adamw(model: torch.nn.Module, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW over everything that trains; only matrices decay."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in trained if weight.ndim >= 2], "weight_decay": weight_decay},
        {"params": [weight for weight in trained if weight.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


@dataclass(slots=True)
class Learner:
    """A model in training: how it is scored, its optimiser, and the bounds of one forward pass.

    reference: the model that `Reinforce.kl` holds the policy near, or None.
    """

    scorer: Scorer
    optimizer: torch.optim.Optimizer
    max_tokens: int = 8192
    device: str = "cpu"
    reference: Scorer | None = None

    def update(
        self, groups: Sequence[Sequence[Row]], config: Reinforce, rng: np.random.Generator, *, lr: float
    ) -> dict[str, float]:
        """Update the model in place; returns metrics.

        A minibatch is some whole groups. Loss, entropy and KL are weighted means over its sampled tokens, the
        weights divided by their total in this minibatch: with a weight of 1 an episode (``token_share="episode"``),
        the mean over its episodes of the mean over their tokens. Every minibatch is one step of the optimiser, so
        an episode in a smaller one weighs more. What is returned is the plain mean over the minibatches of all
        epochs.

        `sampler_gap` is the largest difference between a log-probability as sampled and as computed here, before
        the first update: what the exactness of the token path amounts to.
        """
        for part in self.optimizer.param_groups:
            part["lr"] = lr
        found: list[dict[str, float]] = []
        for _ in range(config.epochs):
            order = rng.permutation(len(groups))
            for chosen in np.array_split(order, min(config.minibatches, len(groups))):
                rows = [row for index in sorted(chosen.tolist()) for row in groups[index]]
                found.append(self._minibatch(rows, config))
        names = found[0].keys() - {"sampler_gap"}
        means = {name: float(np.mean([metrics[name] for metrics in found])) for name in sorted(names)}
        return {**means, "sampler_gap": found[0]["sampler_gap"], "updates": float(len(found))}

    def _minibatch(self, rows: Sequence[Row], config: Reinforce) -> dict[str, float]:
        total = float(sum(row.weights.sum() for row in rows))
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, float] = {}
        gap = 0.0
        parts = batches(
            rows, max_tokens=self.max_tokens, share_prefixes=self.scorer.shares_prefixes, device=self.device
        )
        for batch in parts:
            metrics, batch_gap = self._backward(batch, config, total)
            gap = max(gap, batch_gap)
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        weights = [weight for part in self.optimizer.param_groups for weight in part["params"]]
        norm = float(torch.nn.utils.clip_grad_norm_(weights, config.max_grad_norm))
        if np.isfinite(norm):
            self.optimizer.step()
        positions = float(sum(batch.tokens for batch in parts))
        return {
            **sums,
            "grad_norm": norm,
            "skipped": float(not np.isfinite(norm)),
            "sampler_gap": gap,
            "positions": positions,
        }

    def _backward(self, batch: Batch, config: Reinforce, total: float) -> tuple[dict[str, torch.Tensor], float]:
        scored = self.scorer.score(batch)
        weights = batch.weights / total
        surrogate = clipped_policy_gradient(
            scored.logprobs,
            batch.logprobs,
            credit=batch.credit,
            weights=weights,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
        )
        entropy = weighted_mean(scored.entropy, weights=weights)
        loss = surrogate - config.entropy * entropy
        metrics = {"loss": surrogate.detach(), "entropy": entropy.detach()}
        if config.kl > 0 and self.reference is not None:
            with torch.no_grad():
                reference = self.reference.score(batch).logprobs
            kl = kl_k3(scored.logprobs, reference, weights=weights)
            loss = loss + config.kl * kl
            metrics["kl_reference"] = kl.detach()
        loss.backward()  # type: ignore[no-untyped-call]
        now = scored.logprobs.detach()
        metrics["kl"] = kl_k3(batch.logprobs, now, weights=weights)
        metrics["clip_share"] = clip_share(
            now,
            batch.logprobs,
            credit=batch.credit,
            weights=weights,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
        )
        return metrics, float((now - batch.logprobs).abs().max())
