"""A head on hidden states, the model that makes them, its optimiser, and the slow copy that gives targets.

The model is read in passes of bounded size. Where it trains too, its gradient goes through in the same passes, from
the gradient of the loss at what was read: so a loss may look at everything at once (a sum over an episode, pairs of
episodes), and memory stays that of one pass.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from envgym_agents.learn.pack import Row, placed
from envgym_agents.learn.score import Scorer
from envgym_agents.learn.update import adamw

__all__ = ["Body", "Head", "Network"]


class Body:
    """A causal model that is read at places of rows.

    trains: whether it learns with the head; else no gradient reaches it, and whoever owns it may go on training it.
    """

    def __init__(self, model: Any, *, trains: bool = False, max_tokens: int = 8192, device: str = "cpu") -> None:
        self.scorer, self.trains = Scorer(model), trains
        self._bounds: dict[str, Any] = {
            "max_tokens": max_tokens, "share_prefixes": self.scorer.shares_prefixes, "device": device,
        }  # fmt: skip
        self.device = device

    @property
    def width(self) -> int:
        """H, the numbers of one hidden state."""
        model = self.scorer.model
        return int(model.config.vocab_size if model.base_model is model else model.config.hidden_size)

    @torch.no_grad()
    def read(self, rows: Sequence[Row]) -> Tensor:
        """The hidden state at each of the rows' places [K, H], float32, without gradient."""
        found = torch.zeros(sum(len(row.at) for row in rows), self.width, device=self.device)
        for batch, number in placed(rows, **self._bounds):
            found[number] = self.scorer.hidden(batch)[batch.where].float()
        return found

    def backward(self, rows: Sequence[Row], gradient_KH: Tensor) -> None:
        """Add to the model's gradients, given that of a loss at what `read` gave for the same rows."""
        for batch, number in placed(rows, **self._bounds):
            self.scorer.hidden(batch)[batch.where].float().backward(gradient_KH[number])  # type: ignore[no-untyped-call]

    def copy(self) -> "Body":
        """The same with weights of its own."""
        model = deepcopy(self.scorer.model)
        bounds = {name: self._bounds[name] for name in ("max_tokens", "device")}
        return Body(model, trains=self.trains, **bounds)


class Head(nn.Module):
    """`count` separate small networks on one hidden state: [..., H] -> [..., count, outputs].

    Each is normalisation, one layer of H units, output. flat: outputs begin at 0 (a classifier's at even odds);
    else at small random numbers, so that several disagree where nothing was learned.
    """

    def __init__(self, width: int, *, count: int = 1, outputs: int = 1, flat: bool = True, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.parts = nn.ModuleList(_part(width, outputs, flat=flat) for _ in range(count))

    def forward(self, states: Tensor) -> Tensor:
        """What each of the networks says of each state."""
        return torch.stack([part(states) for part in self.parts], -2)


def _part(width: int, outputs: int, *, flat: bool) -> nn.Module:
    last = nn.Linear(width, outputs)
    if flat:
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), last)


class Network:
    """Head and body in training, and their slow copies.

    tau: how far the slow copies go towards the others after every update, in (0, 1]; 1 makes them equal.
    `updates`: how many were made. max_grad_norm: longer gradients are shortened to it; 0: none is.
    """

    def __init__(
        self, body: Body, head: nn.Module, *, lr: float, tau: float = 1.0, max_grad_norm: float = 1.0
    ) -> None:
        if not 0 < tau <= 1:
            raise ValueError(f"tau is {tau}; it must be above 0 and at most 1")
        self.body, self.head, self.tau, self._longest = body, head.to(body.device), tau, max_grad_norm
        self.slow_head = deepcopy(self.head).requires_grad_(False)
        self.slow_body = body.copy() if body.trains else body
        if body.trains:
            self.slow_body.scorer.model.requires_grad_(False)
        self._trained = nn.ModuleList([self.head, body.scorer.model] if body.trains else [self.head])
        self.optimizer = adamw(self._trained, lr=lr, weight_decay=0.0)
        self.updates = 0

    def read(self, rows: Sequence[Row], *, slow: bool = False) -> Tensor:
        """Hidden states [K, H] without gradient."""
        return (self.slow_body if slow else self.body).read(rows)

    def fit(
        self, rows: Sequence[Row], loss: Callable[[Tensor], Tensor], *, seen: Tensor | None = None
    ) -> dict[str, float]:
        """One update. loss: of the hidden states [K, H], through `head`; a scalar. Returns loss and gradient norm.

        seen: what `read` gave for the slow copy: where the body does not train, the same need not be read again.
        An update whose gradient is not finite is left out and counted in ``skipped``.
        """
        known = seen is not None and not self.body.trains
        states = (seen if known and seen is not None else self.body.read(rows)).requires_grad_(self.body.trains)
        self.optimizer.zero_grad(set_to_none=True)
        value = loss(states)
        value.backward()  # type: ignore[no-untyped-call]
        if self.body.trains and states.grad is not None:
            self.body.backward(rows, states.grad)
        norm = float(torch.nn.utils.clip_grad_norm_(self._trained.parameters(), self._longest or torch.inf))
        finite = norm == norm and norm < float("inf")
        if finite:
            self.optimizer.step()
            self._follow()
        self.updates += 1
        return {"loss": float(value.detach()), "grad_norm": norm, "skipped": float(not finite)}

    @torch.no_grad()
    def _follow(self) -> None:
        """Source: soft updates, Lillicrap et al. 2016 (DDPG, arXiv 1509.02971, algorithm 1)."""
        pairs = [(self.slow_head, self.head)]
        if self.body.trains:
            pairs.append((self.slow_body.scorer.model, self.body.scorer.model))
        for slow, fast in pairs:
            for old, new in zip(slow.parameters(), fast.parameters(), strict=True):
                old.lerp_(new, self.tau)

    def state(self) -> dict[str, Any]:
        """Everything that training changed, for a checkpoint: tensors, numbers and strings."""
        own = self.body.trains
        return {
            "head": self.head.state_dict(),
            "slow_head": self.slow_head.state_dict(),
            "body": self.body.scorer.model.state_dict() if own else {},
            "slow_body": self.slow_body.scorer.model.state_dict() if own else {},
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Be what `state` described, to the last bit. Raises ValueError for the state of another network."""
        try:
            self.head.load_state_dict(state["head"])
            self.slow_head.load_state_dict(state["slow_head"])
            if self.body.trains:
                self.body.scorer.model.load_state_dict(state["body"])
                self.slow_body.scorer.model.load_state_dict(state["slow_body"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.updates = state["updates"]
        except (KeyError, RuntimeError, ValueError) as error:
            raise ValueError(f"this is the state of another value network: {error}") from error
