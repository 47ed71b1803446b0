"""ArCHer's turn critic: twin values of turns and twin values of states, learned off-policy from single turns.

What a turn is worth, Q, is its reward plus the slow copy's value of the state that follows; what a state is worth,
V, is the slow copy's Q of the turn that the present policy takes there. So one turn with its reward and what came
next is all it needs, whoever took it and whatever the episode came to.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from envgym.credit import Ledger
from envgym.credit.ledger import Floats, Ints
from envgym_agents.learn.values.critic import known, mean_of
from envgym_agents.learn.values.fresh import is_fresh
from envgym_agents.learn.values.likelihood import turn_ratios
from envgym_agents.learn.values.losses import Objective
from envgym_agents.learn.values.network import Body, Head, Network
from envgym_agents.learn.values.places import Places, places
from envgym_agents.learn.values.targets import Horizon

__all__ = ["Archer"]


class Archer:
    """Values of turns [N], values of states [M], and, if wanted, a baseline of tokens [T].

    V is read before a turn, Q before and after it. Each of the twins has its own slow copy:

        Q_i(s, a) <- r + gamma * V_i_slow(s'), or r where the episode ended; nothing where a bound cut it off
        V_i(s)    <- Q_i_slow(s, a), a by the present policy
        A(s, a)    = min(Q_1, Q_2) - min(V_1, V_2)

    Source: ArCHer (Zhou et al. 2024, arXiv 2402.19446). `a` is sampled anew at replayed states: fresh
    turns in the ledger (`envgym_agents.learn.values.fresh`), and then nothing else teaches V and the baseline.
    Where a ledger has none, stored turns stand for them with the weight min(ratio, `Horizon.most`), ratio being how
    much likelier each is now: in expectation the same where no ratio is cut off, and no turn is generated. The
    baseline is trained towards A by squared error at each token; A minus it has less variance and the same expected
    gradient.
    """

    def __init__(
        self, body: Body, objective: Objective, horizon: Horizon, *, baseline: bool = False, seed: int = 0,
        **options: Any,
    ) -> None:  # fmt: skip
        self.objective, self.horizon, self.baseline = objective, horizon, baseline
        outputs = objective.outputs
        heads = {
            "v": Head(body.width, count=2, outputs=outputs, seed=seed),
            "q": Head(2 * body.width, count=2, outputs=outputs, seed=seed + 1),
        }
        if baseline:
            heads["baseline"] = Head(body.width, seed=seed + 2)
        self.network = Network(body, nn.ModuleDict(heads), **options)

    @property
    def warm(self) -> bool:
        """Whether enough updates were made for its values to be used."""
        return self.network.updates >= self.horizon.warmup

    def action_values(self, ledger: Ledger) -> NDArray[np.float64]:
        """min(Q_1, Q_2) [N]; NaN before the warm-up is over and for turns that sampled nothing."""
        return self._least(ledger)[0]

    def values(self, ledger: Ledger) -> NDArray[np.float64]:
        """min(V_1, V_2) [M]; NaN before the warm-up is over, and for states in which no turn was taken."""
        found = np.full(len(ledger.state_M), np.nan)
        found[ledger.before_N] = self._least(ledger)[1]
        return found

    @torch.no_grad()
    def token_baseline(self, ledger: Ledger) -> NDArray[np.float64]:
        """What the turn's advantage is expected to be, before each of its tokens [T]."""
        if not self.baseline:
            raise ValueError("this critic learns no baseline of tokens; make it with baseline=True")
        if not self.warm:
            return np.full(int(ledger.tokens[-1]), np.nan)
        there = places(ledger, tokens=True)
        return known(self._heads["baseline"](self.network.read(there.rows))[:, 0, 0].cpu().numpy(), there.token_T)

    def _least(self, ledger: Ledger) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if not self.warm:
            nothing = np.full(len(ledger.reward_N), np.nan)
            return nothing, nothing
        there = places(ledger)
        q_N2, v_N2 = self._twins(there, self._heads, self.network.read(there.rows))
        return q_N2.min(1), v_N2.min(1)

    @property
    def _heads(self) -> nn.ModuleDict:
        assert isinstance(self.network.head, nn.ModuleDict)
        return self.network.head

    @torch.no_grad()
    def _twins(
        self, there: Places, heads: nn.Module, states: Tensor
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Q of turns [N, 2] and V of the states before them [N, 2]; NaN where there is no place."""
        assert isinstance(heads, nn.ModuleDict)
        found_q, found_v = (np.full((len(there.state_N), 2), np.nan) for _ in range(2))
        acted = np.flatnonzero((there.after_N >= 0) & (there.state_N >= 0))
        stood = np.flatnonzero(there.state_N >= 0)
        if len(stood):
            found_v[stood] = self.objective.values(heads["v"](states[there.state_N[stood]])).cpu().numpy()
        if len(acted):
            found_q[acted] = self.objective.values(heads["q"](_pairs(states, there, acted))).cpu().numpy()
        return found_q, found_v

    def update(self, ledger: Ledger, apart_T: Floats | None = None) -> dict[str, float]:
        """One update from single turns; returns metrics. apart_T: log-ratios of tokens (see `log_ratios`)."""
        there = places(ledger, tokens=self.baseline)
        seen = self.network.read(there.rows, slow=True)
        q_N2, v_N2 = self._twins(there, self.network.slow_head, seen)
        following, last = self._following(ledger, v_N2)
        acted = (there.after_N >= 0) & (there.state_N >= 0)
        learn_q = np.flatnonzero(acted & ~np.isnan(following).any(1))
        fresh = np.array([is_fresh(episode) for episode, _ in ledger.parts], np.bool_)[ledger.row_N]
        learn_v = np.flatnonzero(acted & fresh if fresh.any() else acted)
        target_q = ledger.reward_N[learn_q, None] + self.horizon.gamma * following[learn_q]
        weight = np.ones(len(learn_v))
        if apart_T is not None and not fresh.any():
            weight = np.minimum(turn_ratios(apart_T, ledger)[learn_v], self.horizon.most)
        advantage_N = q_N2.min(1) - v_N2.min(1)

        def loss(states: Tensor) -> Tensor:
            q = self._heads["q"](_pairs(states, there, learn_q))
            v = self._heads["v"](states[there.state_N[learn_v]])
            total = states.sum() * 0.0
            for twin in range(2):
                total = total + mean_of(self.objective, q[:, twin], target_q[:, twin])
                total = total + _weighted(self.objective, v[:, twin], q_N2[learn_v, twin], weight)
            known_N = np.where(fresh | (not fresh.any()), advantage_N, np.nan)
            return total + self._baseline_loss(states, there, ledger, known_N)

        found = self.network.fit(there.rows, loss, seen=seen)
        targets = np.concatenate([target_q.ravel(), q_N2[learn_v].ravel()])
        outside = self.objective.outside(torch.from_numpy(targets))
        return {
            **found,
            "value": float(v_N2[learn_v].mean()) if len(learn_v) else 0.0,
            "advantage": float(np.abs(advantage_N[learn_v]).mean()) if len(learn_v) else 0.0,
            "outside": outside / max(len(targets), 1),
            "cut_off": float(last - fresh.sum()),
        }

    def _following(self, ledger: Ledger, v_N2: Floats) -> tuple[Floats, int]:
        """Values of states that followed [N, 2]: 0 after an end, NaN where unknown; how many ends were cut off."""
        following = np.full(v_N2.shape, np.nan)
        following[:-1] = v_N2[1:]
        ends = ledger.turns[1:][np.diff(ledger.turns) > 0] - 1
        following[ends] = np.where(ledger.truncated_G[ledger.row_N[ends]], np.nan, 0.0)[:, None]
        following[~ledger.alive_G[ledger.row_N]] = np.nan
        return following, int(np.isnan(following[ends]).any(1).sum())

    def _baseline_loss(self, states: Tensor, there: Places, ledger: Ledger, advantage_N: Floats) -> Tensor:
        if not self.baseline:
            return states.sum() * 0.0
        wanted_T = advantage_N[ledger.turn_T]
        tokens = np.flatnonzero((there.token_T >= 0) & ~np.isnan(wanted_T))
        found = self._heads["baseline"](states[there.token_T[tokens]])[:, 0, 0]
        wanted = torch.from_numpy(wanted_T[tokens].astype(np.float32)).to(found.device)
        loss: Tensor = ((found - wanted) ** 2).sum() / 2 / max(len(tokens), 1)
        return loss

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return self.network.state()

    def load(self, state: dict[str, Any]) -> None:
        """Be what `state` described."""
        self.network.load(state)


def _pairs(states: Tensor, there: Places, turns: Ints) -> Tensor:
    """What is read before and after some turns, side by side [K, 2H]."""
    return torch.cat([states[there.state_N[turns]], states[there.after_N[turns]]], -1)


def _weighted(objective: Objective, outputs: Tensor, targets: Floats, weights: Floats) -> Tensor:
    wanted = torch.from_numpy(targets.astype(np.float32)).to(outputs.device)
    shares = torch.from_numpy((weights / max(weights.sum(), 1e-8)).astype(np.float32)).to(outputs.device)
    return objective.loss(outputs, wanted, shares)
