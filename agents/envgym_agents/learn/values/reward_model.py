"""Reward models: one score of a whole episode, learned from which of two is better or which succeeded.

Several of them that disagree say where their score means nothing. `worst_case` and `uncertainty_weighted` make one
careful number of their scores; a policy that exploits one model's mistakes does not gain by them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from envgym.credit import Ledger
from envgym.credit.ledger import Floats, Ints
from envgym_agents.learn.values.implicit import Pair, pairs_of
from envgym_agents.learn.values.network import Body, Head, Network
from envgym_agents.learn.values.places import Places, places

__all__ = ["AGGREGATES", "Aggregate", "RewardModel", "mean_score", "uncertainty_weighted", "worst_case"]

Aggregate = Callable[[Floats], Floats]
"""From scores [K, E] of E models to one score [K]."""


def mean_score(scores_KE: Floats) -> NDArray[np.float64]:
    """The mean of E scores [K]: careful of nothing."""
    return np.asarray(np.asarray(scores_KE, np.float64).mean(-1))


def worst_case(scores_KE: Floats) -> NDArray[np.float64]:
    """WCO: the least of E scores [K]. Source: Coste et al. 2023 (arXiv 2310.02743)."""
    return np.asarray(np.asarray(scores_KE, np.float64).min(-1))


def uncertainty_weighted(scores_KE: Floats, *, weight: float = 0.1) -> NDArray[np.float64]:
    """UWO: the mean of E scores minus `weight` times their (population) variance [K]; of one score, itself.

    Source: Coste et al. 2023 (arXiv 2310.02743).
    """
    scores = np.asarray(scores_KE, np.float64)
    return np.asarray(scores.mean(-1) - weight * scores.var(-1))


AGGREGATES: Mapping[str, Aggregate] = {
    "mean": mean_score, "worst-case": worst_case, "uncertainty-weighted": uncertainty_weighted,
}  # fmt: skip
"""What is made of several scores, by the name that configurations use."""


class RewardModel:
    """`count` scores read at a row's last sampled token, from heads that began differently.

    learn: "pairs" trains ``-log s(score of better - score of worse)`` on a group's rows that earned differently
    (Bradley & Terry 1952; Ouyang et al. 2022, eq. 1), where only differences of scores mean something; "outcomes"
    trains ``log s(score)`` to be the log-probability of success (an outcome above 0). aggregate: what is made of
    the scores.
    With a body that trains, the heads share it, and disagree less than separate models would.
    """

    def __init__(
        self, body: Body, *, count: int = 4, learn: Literal["pairs", "outcomes"] = "pairs",
        aggregate: Aggregate = uncertainty_weighted, warmup: int = 0, seed: int = 0, **options: Any,
    ) -> None:  # fmt: skip
        if learn not in ("pairs", "outcomes"):
            raise ValueError(f"learn is {learn!r}; it must be 'pairs' or 'outcomes'")
        self.learn, self.aggregate, self.warmup = learn, aggregate, warmup
        self.network = Network(body, Head(body.width, count=count, flat=False, seed=seed), **options)

    @property
    def warm(self) -> bool:
        """Whether enough updates were made for its scores to be used."""
        return self.network.updates >= self.warmup

    @torch.no_grad()
    def scores(self, ledger: Ledger) -> NDArray[np.float64]:
        """Every head's score of every row [G, count]; NaN for rows that sampled nothing and for failed worlds."""
        there = places(ledger)
        found = self.network.head(self.network.read(there.rows))[..., 0].cpu().numpy().astype(np.float64)
        rows, at = _last(ledger, there)
        scores = np.full((ledger.rows, found.shape[-1]), np.nan)
        scores[rows] = found[at]
        return scores

    def __call__(self, ledger: Ledger) -> NDArray[np.float64]:
        """Rewards of turns [N]: a row's score at its last turn that sampled something, 0 at the others.

        NaN before the warm-up is over and for failed worlds.
        """
        if not self.warm:
            return np.full(len(ledger.reward_N), np.nan)
        scores = self.scores(ledger)
        found = np.where(ledger.alive_G[ledger.row_N], 0.0, np.nan)
        rows = np.flatnonzero(~np.isnan(scores).any(-1))
        turns = np.array([_last_turn(ledger, int(row)) for row in rows], np.intp)
        found[turns] = self.aggregate(scores[rows])
        return found

    def update(self, ledger: Ledger, apart_T: Floats | None = None) -> dict[str, float]:
        """One update from a ledger's rows; returns metrics. apart_T is not used."""
        if self.learn == "pairs":
            return self.prefer(ledger, pairs_of(ledger))
        there = places(ledger)
        rows, at = _last(ledger, there)
        label = torch.from_numpy((ledger.outcome_G[rows] > 0).astype(np.float32))
        if not len(rows):
            return {}

        def loss(states: Tensor) -> Tensor:
            scores = self.network.head(states[at])[..., 0]
            return binary_cross_entropy_with_logits(scores, label.to(scores)[:, None].expand_as(scores))

        return self.network.fit(there.rows, loss)

    def prefer(self, ledger: Ledger, pairs: Sequence[Pair]) -> dict[str, float]:
        """One update from pairs of rows; returns metrics. Raises ValueError for rows that have no score."""
        there = places(ledger)
        rows, at = _last(ledger, there)
        place = dict(zip(rows.tolist(), at.tolist(), strict=True))
        if unknown := [pair for pair in pairs if not set(pair) <= place.keys()]:
            raise ValueError(f"pair {unknown[0]}: both must be rows that sampled something in a world that held")
        if not pairs:
            return {}
        better, worse = ([place[pair[side]] for pair in pairs] for side in range(2))
        right: list[float] = []

        def loss(states: Tensor) -> Tensor:
            scores = self.network.head(states)[..., 0]
            apart = scores[better] - scores[worse]
            right.append(float((apart > 0).float().mean()))
            return -logsigmoid(apart).mean()

        return {**self.network.fit(there.rows, loss), "accuracy": right[0], "pairs": float(len(pairs))}

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return self.network.state()

    def load(self, state: dict[str, Any]) -> None:
        """Be what `state` described."""
        self.network.load(state)


def _last_turn(ledger: Ledger, row: int) -> int:
    turns = np.arange(ledger.turns[row], ledger.turns[row + 1])
    return int(turns[np.diff(ledger.tokens)[turns] > 0][-1])


def _last(ledger: Ledger, there: Places) -> tuple[Ints, Ints]:
    """The rows that sampled something, and the place of each one's last sampled token."""
    turns = np.flatnonzero(there.after_N >= 0)
    rows = ledger.row_N[turns]
    last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
    return rows[last], there.after_N[turns[last]]
