"""Rewards of tokens that no one labelled: how much likelier a trained copy finds each than its frozen reference.

The sum over an episode is trained to tell successes from failures (PRIME), or the better of two episodes from the
worse (DPO, whose log-ratios are RTO's rewards of tokens). Every prefix's sum is then a value, every token's part a
reward.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from envgym.credit import Ledger
from envgym.credit.ledger import Floats, Ints
from envgym_agents.learn.update import adamw
from envgym_agents.learn.values.likelihood import Likelihood
from envgym_agents.learn.values.places import Sampled, sampled

__all__ = ["ImplicitReward", "Pair", "pairs_of"]

Pair = tuple[int, int]
"""Two rows of a ledger: the better, the worse."""


def pairs_of(ledger: Ledger, *, most: int = 4) -> list[Pair]:
    """For every row, up to `most` of its group's rows (of the same actor) that earned less: the least first.

    Rows that sampled nothing and failed worlds are in no pair. Ties of what was earned are in the ledger's order.
    """
    outcome = ledger.outcome_G
    able = ledger.alive_G & (np.diff(ledger.row_tokens) > 0)
    found: list[Pair] = []
    for group in range(len(ledger.groups)):
        for actor in np.unique(ledger.actor_G[ledger.group_G == group]):
            rows = np.flatnonzero((ledger.group_G == group) & (ledger.actor_G == actor) & able)
            rising = rows[np.argsort(outcome[rows], kind="stable")]
            for better in rows:
                worse = rising[outcome[rising] < outcome[better]]
                found += [(int(better), int(one)) for one in worse[:most]]
    return found


class ImplicitReward:
    """``log pi(token) - log reference(token)`` for every sampled token [T], in nats; `beta` times it is its reward.

    model: where copy and reference both begin; it is copied twice and not changed.
    learn: what an update learns from: outcomes one by one, or pairs of a group's. above: an outcome above it is a
    success. NaN: before `warmup` updates were made, and for failed worlds. max_grad_norm: longer gradients are
    shortened to it; 0: none is.

    Sources: outcome reward as a log-ratio, Free Process Rewards (Yuan et al. 2024, arXiv 2412.01981); online, by
    cross-entropy on the policy's own episodes, PRIME (Cui et al. 2025, arXiv 2502.01456); from pairs, DPO (Rafailov
    et al. 2023, arXiv 2305.18290, eq. 7), and its tokens' log-ratios as rewards, RTO (Zhong et al. 2024, arXiv
    2404.18922).
    """

    def __init__(
        self, model: Likelihood, *, beta: float = 0.05, lr: float = 1e-4, above: float = 0.0, warmup: int = 0,
        max_grad_norm: float = 1.0, learn: Literal["outcomes", "pairs"] = "outcomes",
    ) -> None:  # fmt: skip
        if learn not in ("outcomes", "pairs"):
            raise ValueError(f"learn is {learn!r}; it must be 'outcomes' or 'pairs'")
        self.learn = learn
        if not 0 < beta < np.inf:
            raise ValueError(f"beta is {beta}; it must be above 0 and finite")
        self.beta, self.above, self.warmup, self._longest = beta, above, warmup, max_grad_norm
        self._now, self._reference = model.copy(), model.copy()
        self._now.scorer.model.requires_grad_(True)
        self._reference.scorer.model.requires_grad_(False)
        self.optimizer = adamw(self._now.scorer.model, lr=lr, weight_decay=0.0)
        self.updates = 0

    @property
    def warm(self) -> bool:
        """Whether enough updates were made for its rewards to be used."""
        return self.updates >= self.warmup

    def __call__(self, ledger: Ledger) -> NDArray[np.float64]:
        """Log-ratios of tokens [T]."""
        if not self.warm:
            return np.full(int(ledger.tokens[-1]), np.nan)
        tokens = sampled(ledger)
        found = (self._now.of(tokens) - self._reference.of(tokens)).double().numpy()
        return np.where(ledger.alive_G[ledger.row_N][ledger.turn_T], found, np.nan)

    def rewards(self, ledger: Ledger) -> NDArray[np.float64]:
        """Rewards of tokens [T]: `beta` times their log-ratios."""
        return self.beta * self(ledger)

    def update(self, ledger: Ledger, apart_T: Floats | None = None) -> dict[str, float]:
        """One update from the rows' outcomes alone; returns metrics. apart_T is not used.

        learn="pairs": `prefer`, of the groups' pairs. Else
        ``-label * log s - (1 - label) * log(1 - s)``, s the logistic function of a row's sum, mean over rows.
        """
        if self.learn == "pairs":
            return self.prefer(ledger, pairs_of(ledger))
        rows = np.flatnonzero(ledger.alive_G & (np.diff(ledger.row_tokens) > 0))
        label = torch.from_numpy((ledger.outcome_G[rows] > self.above).astype(np.float32))

        def loss(sums_G: Tensor) -> Tensor:
            return binary_cross_entropy_with_logits(sums_G[rows], label)

        if not len(rows):
            return {}
        found, sums = self._step(ledger, loss)
        right = float(((sums[rows] > 0) == (label > 0.5)).float().mean())
        return {**found, "accuracy": right, "labels": float(label.mean())}

    def prefer(self, ledger: Ledger, pairs: Sequence[Pair]) -> dict[str, float]:
        """One DPO update from pairs of rows; returns metrics. ``-log s(sum of better - sum of worse)``, mean.

        Raises ValueError for a pair of rows that hold nothing to compare.
        """
        counts = np.diff(ledger.row_tokens)
        for pair in pairs:
            if not all(0 <= row < ledger.rows and counts[row] and ledger.alive_G[row] for row in pair):
                raise ValueError(f"pair {pair}: both must be rows below {ledger.rows} that sampled something")
        if not pairs:
            return {}
        better, worse = (np.array(side, np.intp) for side in zip(*pairs, strict=True))

        def loss(sums_G: Tensor) -> Tensor:
            return -logsigmoid(sums_G[better] - sums_G[worse]).mean()

        found, sums = self._step(ledger, loss)
        return {**found, "accuracy": float((sums[better] > sums[worse]).float().mean()), "pairs": float(len(pairs))}

    def _step(self, ledger: Ledger, loss: Callable[[Tensor], Tensor]) -> tuple[dict[str, float], Tensor]:
        """One step down a loss of the rows' sums [G]; what is returned besides are the sums before it."""
        tokens: Sampled = sampled(ledger)
        row_T: Ints = ledger.row_N[ledger.turn_T]
        apart = (self._now.of(tokens) - self._reference.of(tokens)) * self.beta
        sums = torch.zeros(ledger.rows).index_add(0, torch.from_numpy(row_T), apart).requires_grad_()
        value = loss(sums)
        value.backward()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad(set_to_none=True)
        assert sums.grad is not None
        self._now.backward(tokens, self.beta * sums.grad[row_T])
        weights = [weight for part in self.optimizer.param_groups for weight in part["params"]]
        norm = float(torch.nn.utils.clip_grad_norm_(weights, self._longest or torch.inf))
        if np.isfinite(norm):
            self.optimizer.step()
        self.updates += 1
        found = {"loss": float(value.detach()), "grad_norm": norm, "skipped": float(not np.isfinite(norm))}
        return found, sums.detach()

    def state(self) -> dict[str, Any]:
        """For a checkpoint: the copy and its optimiser. The reference is not in it: make it of the same model."""
        model = self._now.scorer.model
        return {"copy": model.state_dict(), "optimizer": self.optimizer.state_dict(), "updates": self.updates}

    def load(self, state: dict[str, Any]) -> None:
        """Be what `state` described. Raises ValueError for another model's."""
        try:
            self._now.scorer.model.load_state_dict(state["copy"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.updates = state["updates"]
        except (KeyError, RuntimeError, ValueError) as error:
            raise ValueError(f"this is the state of another implicit reward: {error}") from error
