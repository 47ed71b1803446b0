"""TRL's and verl's own functions, and random minibatches in float64 as they are given to them and to us.

The packages lie beside the environment, where scripts/setup.sh puts them with the little that importing them needs.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the learner needs the extra [train]")
from envgym_agents.learn.config import Reinforce  # noqa: E402
from envgym_agents.learn.losses.objective import Objective, Tokens  # noqa: E402

BESIDE = Path(sys.prefix) / "peers"


@contextmanager
def beside() -> Iterator[None]:
    """Peers can be imported; what importing them changes for others is undone, and what they warn of is theirs."""
    if not BESIDE.is_dir():
        pytest.skip(f"{BESIDE} is not here; scripts/setup.sh makes it")
    before = dict(os.environ)
    sys.path.append(str(BESIDE))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.path.remove(str(BESIDE))
        for name in os.environ.keys() - before.keys():
            del os.environ[name]


@pytest.fixture(scope="session")
def trl() -> SimpleNamespace:
    with beside():
        from trl.experimental.gkd.gkd_trainer import GKDTrainer
        from trl.trainer import utils
        from trl.trainer.dpo_trainer import DPOTrainer
        from trl.trainer.grpo_trainer import GRPOTrainer
        from trl.trainer.sft_trainer import SFTTrainer
    return SimpleNamespace(grpo=GRPOTrainer, dpo=DPOTrainer, sft=SFTTrainer, gkd=GKDTrainer, utils=utils)


@pytest.fixture(scope="session")
def verl() -> SimpleNamespace:
    with beside():
        from verl.trainer.ppo import core_algos, rollout_corr_helper
        from verl.utils import torch_functional
        from verl.workers.config import ActorConfig
        from verl.workers.config.actor import PolicyLossConfig
    return SimpleNamespace(
        algos=core_algos, correction=rollout_corr_helper, functional=torch_functional, actor=ActorConfig,
        policy=PolicyLossConfig,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Minibatch:
    """B sequences of L places as peers are given them, float64; mask [B, L] says which were sampled.

    logprobs, entropy: leaves, to which gradients go. credit [B]: of a whole sequence.
    """

    logprobs: "torch.Tensor"
    entropy: "torch.Tensor"
    old: "torch.Tensor"
    sampled: "torch.Tensor"
    reference: "torch.Tensor"
    credit: "torch.Tensor"
    mask: "torch.Tensor"

    @property
    def lengths(self) -> "torch.Tensor":
        return self.mask.sum(1)

    def tokens(self, share: str) -> Tokens:
        """The same for us: sampled tokens alone. share: "episode" or "token", what counts the same."""
        inside = self.mask.bool()
        row = torch.arange(len(self.mask))[:, None].expand_as(self.mask)[inside]
        zeros = torch.zeros(len(row), dtype=torch.float64)
        weights = torch.ones_like(zeros) if share == "token" else 1 / self.lengths[row]
        packed = {
            name: getattr(self, name)[inside] for name in ("logprobs", "entropy", "old", "sampled", "reference")
        }
        return Tokens(
            **packed, divergence=zeros, credit=self.credit[row], weights=weights / weights.sum(), imitation=zeros,
            observation=zeros, demonstration=zeros, episode=row, turn=row, group=row // 2, context=row // 2,
            policy=torch.ones_like(row, dtype=torch.bool), inside=torch.ones_like(row, dtype=torch.bool),
        )  # fmt: skip

    def ours(self, *, share: str = "episode", **settings: object) -> "torch.Tensor":
        """The loss that a configuration makes of it."""
        bounds = {name: settings.pop(name) for name in ("clip_low", "clip_high", "entropy") if name in settings}
        return Objective(Reinforce(loss=settings, **bounds))(self.tokens(share))[0]


def made(seed: int, *, empty: bool = False, far: float = 6.0) -> Minibatch:
    """Six sequences of up to nine tokens with observations between them, two of one token alone.

    empty: the last one sampled nothing. far: nats that a fifth of the ratios are away from 1.
    """
    rng = np.random.default_rng(seed)
    size, length = 6, 9
    mask = (rng.random((size, length)) < 0.7).astype(np.float64)
    mask[:, 0] = 1
    mask[1:3, 1:] = 0
    if empty:
        mask[-1] = 0
    old = -rng.exponential(1.0, mask.shape)
    apart = rng.normal(0, 0.3, mask.shape)
    jumps = rng.random(mask.shape) < 0.2
    apart[jumps] = rng.uniform(-far, far, int(jumps.sum()))
    values = {
        "old": old, "logprobs": old + apart, "sampled": old + rng.normal(0, 0.4, mask.shape),
        "reference": old + rng.normal(0, 0.5, mask.shape), "entropy": rng.exponential(1.0, mask.shape),
        "credit": rng.normal(0, 1, size), "mask": mask,
    }  # fmt: skip
    tensors = {name: torch.from_numpy(value) for name, value in values.items()}
    for leaf in ("logprobs", "entropy"):
        tensors[leaf].requires_grad_()
    return Minibatch(**tensors)


@pytest.fixture(scope="session")
def minibatch() -> Callable[..., Minibatch]:
    return made


def same_descent(
    ours: "torch.Tensor", theirs: "torch.Tensor", *leaves: "torch.Tensor", within: float = 1e-12
) -> None:
    """Both are the same number, and have the same gradient at every leaf, relative to its largest part.

    The numbers are sums of terms of both signs: what is left of these is compared with 1.
    """
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=10 * within, abs=10 * within)
    found = (torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True) for loss in (ours, theirs))
    for leaf, *both in zip(leaves, *found, strict=True):
        mine, other = (torch.zeros_like(leaf) if one is None else one for one in both)
        assert float((mine - other).abs().max()) <= within * float(other.abs().max()) + 1e-15, (mine, other)


@pytest.fixture(scope="session")
def same() -> Callable[..., None]:
    return same_descent
