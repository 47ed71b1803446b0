"""Critics: values of states before turns, or before every sampled token, learned from episodes old and new.

A critic is an `Estimate`: ``estimated(critic, Level.STATE, Meaning.VALUE)``. Its targets are bootstrapped from a
slow copy of itself, so it learns from turns whose outcome is far away, and from episodes of another version.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from envgym.credit import Ledger
from envgym.credit.ledger import Floats, Ints
from envgym_agents.learn.values.likelihood import turn_ratios
from envgym_agents.learn.values.losses import Objective, clipped_square
from envgym_agents.learn.values.network import Body, Head, Network
from envgym_agents.learn.values.places import Places, places
from envgym_agents.learn.values.targets import Horizon, bootstrapped

__all__ = ["TokenCritic", "TurnCritic", "known", "mean_of"]


def known(values_K: Floats, at: Ints) -> NDArray[np.float64]:
    """The values at some places; NaN for -1."""
    if not len(values_K):
        return np.full(len(at), np.nan)
    return np.where(at >= 0, values_K[at], np.nan).astype(np.float64)


def mean_of(
    objective: Objective, outputs: Tensor, targets: Floats, *, old: Floats | None = None, most: float = 0.0
) -> Tensor:
    """The mean loss over K outputs [K, outputs] and their targets [K]; 0 for K = 0.

    old, most: values [K] that the outputs' are held near (`clipped_square`); 0: they are not.
    """
    wanted = torch.from_numpy(np.asarray(targets, np.float32)).to(outputs.device)
    weights = torch.full_like(wanted, 1.0 / max(len(wanted), 1))
    if old is None or not most:
        return objective.loss(outputs, wanted, weights)
    before = torch.from_numpy(np.asarray(old, np.float32)).to(outputs.device)
    return clipped_square(objective.values(outputs), wanted, weights, old=before, most=most)


class TurnCritic:
    """Values of states [M] for a ledger: what a row will still earn, read before each of its turns.

    The state after a row's last turn was never shown to anybody, so no context holds it: its value is what a second
    output, read at the last sampled token, expects of the state that follows. It is trained where one did, and used
    where a bound cut a row off.

    NaN: before `Horizon.warmup` updates were made, for failed worlds, and where nothing stands before a turn.

    most: how far an update may take a value from what the slow copy says of it; 0: as far as it likes.
    """

    def __init__(
        self,
        body: Body,
        objective: Objective,
        horizon: Horizon,
        *,
        seed: int = 0,
        most: float = 0.0,
        **options: Any,
    ) -> None:
        self.objective, self.horizon, self.most = objective, horizon, most
        head = Head(body.width, count=2, outputs=objective.outputs, seed=seed)
        self.network = Network(body, head, **options)

    @property
    def warm(self) -> bool:
        """Whether enough updates were made for its values to be used."""
        return self.network.updates >= self.horizon.warmup

    def __call__(self, ledger: Ledger) -> NDArray[np.float64]:
        """Values [M]."""
        if not self.warm:
            return np.full(len(ledger.state_M), np.nan)
        there = places(ledger)
        return self._values(ledger, there, self.network.head, self.network.read(there.rows))

    @torch.no_grad()
    def _values(self, ledger: Ledger, there: Places, head: nn.Module, states: Tensor) -> NDArray[np.float64]:
        """Values of states [M]."""
        found = self.objective.values(head(states)).cpu().numpy()
        after_N = known(found[:, 1], there.after_N)
        value_M = np.full(len(ledger.state_M), np.nan)
        value_M[ledger.before_N] = known(found[:, 0], there.state_N)
        some = np.diff(ledger.turns) > 0
        value_M[ledger.last_G[some]] = after_N[ledger.turns[1:][some] - 1]
        return value_M

    def update(self, ledger: Ledger, apart_T: Floats | None = None) -> dict[str, float]:
        """One update from a ledger's rows, each turn counting the same; returns metrics.

        apart_T: log-ratios of tokens (see `log_ratios`). Rows with a turn that no value can be read for are left
        out.
        """
        there = places(ledger)
        seen = self.network.read(there.rows, slow=True)
        value_M = self._values(ledger, there, self.network.slow_head, seen)
        value_N = value_M[ledger.before_N]
        tail = np.where(ledger.truncated_G, value_M[ledger.last_G], 0.0)
        usable = ledger.alive_G & ~np.isnan(tail)
        usable[ledger.row_N[np.isnan(value_N)]] = False
        turns = np.flatnonzero(usable[ledger.row_N])
        target_N = bootstrapped(
            ledger.reward_N, np.nan_to_num(value_N), ledger.turns, self.horizon, tail_R=np.nan_to_num(tail),
            ratio_K=None if apart_T is None else turn_ratios(apart_T, ledger),
        )  # fmt: skip
        follows = turns[(turns + 1 < ledger.turns[1:][ledger.row_N[turns]]) & (there.after_N[turns] >= 0)]
        wanted = np.concatenate([target_N[turns], value_N[follows + 1]])

        def loss(states: Tensor) -> Tensor:
            outputs = self.network.head(states)
            before = mean_of(
                self.objective,
                outputs[there.state_N[turns], 0],
                target_N[turns],
                old=value_N[turns],
                most=self.most,
            )
            return before + mean_of(self.objective, outputs[there.after_N[follows], 1], value_N[follows + 1])

        found = self.network.fit(there.rows, loss, seen=seen)
        return {**found, **_fit(target_N[turns], value_N[turns], self.objective, wanted)}

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return self.network.state()

    def load(self, state: dict[str, Any]) -> None:
        """Be what `state` described."""
        self.network.load(state)


class TokenCritic:
    """Values before sampled tokens [T]; sampled tokens are the steps, observation tokens enter no recursion.

    A row that a bound cut off goes on with the value of its last token, as `token_advantage` has it. most: as of
    `TurnCritic`.
    """

    def __init__(
        self,
        body: Body,
        objective: Objective,
        horizon: Horizon,
        *,
        seed: int = 0,
        most: float = 0.0,
        **options: Any,
    ) -> None:
        self.objective, self.horizon, self.most = objective, horizon, most
        self.network = Network(body, Head(body.width, outputs=objective.outputs, seed=seed), **options)

    @property
    def warm(self) -> bool:
        """Whether enough updates were made for its values to be used."""
        return self.network.updates >= self.horizon.warmup

    def __call__(self, ledger: Ledger) -> NDArray[np.float64]:
        """Values [T]; NaN before the warm-up is over and where nothing can be read."""
        if not self.warm:
            return np.full(int(ledger.tokens[-1]), np.nan)
        there = places(ledger, tokens=True)
        return self._values(there, self.network.head, self.network.read(there.rows))

    @torch.no_grad()
    def _values(self, there: Places, head: nn.Module, states: Tensor) -> NDArray[np.float64]:
        return known(self.objective.values(head(states)).cpu().numpy()[:, 0], there.token_T)

    def update(self, ledger: Ledger, apart_T: Floats | None = None) -> dict[str, float]:
        """One update from a ledger's rows, each token counting the same; returns metrics. apart_T: log-ratios."""
        there = places(ledger, tokens=True)
        seen = self.network.read(there.rows, slow=True)
        value_T = self._values(there, self.network.slow_head, seen)
        rows = ledger.row_tokens
        row_T = np.repeat(np.arange(ledger.rows), np.diff(rows))
        some = np.flatnonzero(ledger.tokens[1:] > ledger.row_tokens[ledger.row_N])
        paid = np.zeros(len(value_T))
        np.add.at(paid, ledger.tokens[1:][some] - 1, ledger.reward_N[some])
        tail = np.zeros(ledger.rows)
        cut = ledger.truncated_G & (np.diff(rows) > 0)
        tail[cut] = np.nan_to_num(value_T[rows[1:][cut] - 1])
        usable = ledger.alive_G.copy()
        usable[row_T[np.isnan(value_T)]] = False
        tokens = np.flatnonzero(usable[row_T])
        target_T = bootstrapped(
            paid, np.nan_to_num(value_T), rows, self.horizon, tail_R=tail,
            ratio_K=None if apart_T is None else np.exp(np.clip(apart_T, -30, 30)),
        )  # fmt: skip

        def loss(states: Tensor) -> Tensor:
            outputs = self.network.head(states[there.token_T[tokens]])
            return mean_of(self.objective, outputs[:, 0], target_T[tokens], old=value_T[tokens], most=self.most)

        found = self.network.fit(there.rows, loss, seen=seen)
        return {**found, **_fit(target_T[tokens], value_T[tokens], self.objective, target_T[tokens])}

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return self.network.state()

    def load(self, state: dict[str, Any]) -> None:
        """Be what `state` described."""
        self.network.load(state)


def _fit(targets: Floats, values: Floats, objective: Objective, wanted: Floats) -> dict[str, float]:
    """How well values said their targets, and the share of targets that the objective cannot say."""
    spread = float(np.var(targets)) if len(targets) else 0.0
    explained = 1.0 - float(np.var(targets - values)) / spread if spread > 1e-12 else 0.0
    outside = objective.outside(torch.from_numpy(np.asarray(wanted, np.float64)))
    return {
        "value": float(values.mean()) if len(values) else 0.0,
        "explained": explained,
        "outside": outside / max(len(wanted), 1),
    }
