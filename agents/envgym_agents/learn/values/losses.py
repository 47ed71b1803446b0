"""What a value network's outputs mean and how far they are from a target: classification, or squared error.

An `Objective` turns outputs into values and outputs with targets into a loss. Values are numbers in the units of
reward. Nothing here knows networks or episodes.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Literal, Protocol

import torch
from torch import Tensor

from envgym.arguments import checked_between, checked_count

__all__ = ["MSE", "HLGauss", "Objective", "TwoHot", "clipped_square", "objective"]


class Objective(Protocol):
    """How values are read from outputs and trained."""

    @property
    def outputs(self) -> int:
        """How many numbers a network gives for one value."""
        ...

    def values(self, outputs: Tensor) -> Tensor:
        """[..., outputs] -> the value of each [...]."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """``sum(w * l)`` over [K, outputs], targets [K] and weights [K]: a scalar; 0 for K = 0."""
        ...

    def outside(self, targets: Tensor) -> int:
        """How many targets cannot be said and are clamped to the nearest that can."""
        ...


@dataclass(frozen=True, slots=True)
class MSE:
    """One output, which is the value; half the squared error."""

    @property
    def outputs(self) -> int:
        """One."""
        return 1

    def values(self, outputs: Tensor) -> Tensor:
        """The output itself."""
        return outputs[..., 0]

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """``sum(w * (v - target)^2 / 2)``."""
        return (weights * (outputs[..., 0] - targets) ** 2).sum() / 2

    def outside(self, targets: Tensor) -> int:
        """None: every number can be said."""
        return 0


@dataclass(frozen=True, slots=True)
class HLGauss:
    """Classification into `bins` bins of equal width on [low, high]; a target is a Gaussian around its value.

    The probability of a bin is the Gaussian's mass in it (a difference of two values of erf), divided by its mass
    in [low, high]; the loss is the cross-entropy, the value the expectation over the bins' centres. sigma: the
    Gaussian's deviation in widths of a bin. Targets outside are clamped to [low, high]. Where the range cuts the
    Gaussian off (closer to a bound than about 4 sigma) the value is drawn inward, by less than a bin's width at the
    bound itself: choose a range a little wider than the returns.
    Source: Stop Regressing (Farebrother et al. 2024, arXiv 2403.03950, appendix A; sigma is 0.75
    widths there); the histogram loss is Imani & White 2018 (arXiv 1806.04613).
    """

    low: float
    high: float
    bins: int = 51
    sigma: float = 0.75

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, self.bins)
        checked_between("sigma", self.sigma, 1e-3, 1e3)

    @property
    def outputs(self) -> int:
        """One logit for each bin."""
        return self.bins

    @property
    def width(self) -> float:
        """Of a bin."""
        return (self.high - self.low) / self.bins

    def encode(self, targets: Tensor) -> Tensor:
        """Values [...] -> probabilities of bins [..., bins], which sum to 1."""
        edges = torch.linspace(self.low, self.high, self.bins + 1, dtype=torch.float64, device=targets.device)
        inside = targets.double().clamp(self.low, self.high)
        below = torch.erf((edges - inside[..., None]) / (sqrt(2) * self.sigma * self.width))
        mass = below[..., 1:] - below[..., :-1]
        return (mass / (below[..., -1:] - below[..., :1])).to(targets.dtype)

    def decode(self, probabilities: Tensor) -> Tensor:
        """Probabilities [..., bins] -> expectations over the bins' centres [...]."""
        half = self.width / 2
        return (probabilities * _even(self.low + half, self.high - half, self.bins, probabilities)).sum(-1)

    def values(self, outputs: Tensor) -> Tensor:
        """Expectations under the softmax of the logits."""
        return self.decode(outputs.softmax(-1))

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """``sum(w * cross-entropy)``."""
        return -(weights * (self.encode(targets) * outputs.log_softmax(-1)).sum(-1)).sum()

    def outside(self, targets: Tensor) -> int:
        """How many lie outside [low, high]."""
        return int(((targets < self.low) | (targets > self.high)).sum())


@dataclass(frozen=True, slots=True)
class TwoHot:
    """Classification over `bins` values evenly on [low, high], both included; a target lies on its two neighbours.

    Each neighbour has the probability that makes the expectation the target, so that decoding is exact everywhere
    on [low, high]; targets outside are clamped.
    Source: Schrittwieser et al. 2020 (MuZero, appendix F); also in Stop Regressing.
    """

    low: float
    high: float
    bins: int = 51

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, self.bins)

    @property
    def outputs(self) -> int:
        """One logit for each value."""
        return self.bins

    def encode(self, targets: Tensor) -> Tensor:
        """Values [...] -> probabilities [..., bins], at most two of them above 0."""
        place = (targets.double().clamp(self.low, self.high) - self.low) / (self.high - self.low) * (self.bins - 1)
        lower = place.floor().clamp(0, self.bins - 2)
        upper = place - lower
        found = torch.zeros(*targets.shape, self.bins, dtype=torch.float64, device=targets.device)
        found.scatter_(-1, lower.long()[..., None], (1 - upper)[..., None])
        found.scatter_(-1, lower.long()[..., None] + 1, upper[..., None])
        return found.to(targets.dtype)

    def decode(self, probabilities: Tensor) -> Tensor:
        """Probabilities [..., bins] -> expectations [...]."""
        return (probabilities * _even(self.low, self.high, self.bins, probabilities)).sum(-1)

    def values(self, outputs: Tensor) -> Tensor:
        """Expectations under the softmax of the logits."""
        return self.decode(outputs.softmax(-1))

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """``sum(w * cross-entropy)``."""
        return -(weights * (self.encode(targets) * outputs.log_softmax(-1)).sum(-1)).sum()

    def outside(self, targets: Tensor) -> int:
        """How many lie outside [low, high]."""
        return int(((targets < self.low) | (targets > self.high)).sum())


def clipped_square(values: Tensor, targets: Tensor, weights: Tensor, *, old: Tensor, most: float) -> Tensor:
    """``sum(w * max((v - t)^2, (clip(v, old - most, old + most) - t)^2) / 2)`` over [K]: a scalar.

    A value that has gone further than `most` from `old` towards its target gets no gradient; one that is on its way
    back, or went the wrong way, does. Degenerate: an infinite bound, or ``old = v``, is `MSE`.
    Source: the value loss of PPO's first implementations, one of PPO-max's switches (Zheng et al. 2023, arXiv
    2307.04964).
    """
    held = torch.maximum(torch.minimum(values, old + most), old - most)
    return (weights * torch.maximum((values - targets) ** 2, (held - targets) ** 2)).sum() / 2


def objective(
    kind: Literal["hl-gauss", "two-hot", "mse"], *, low: float = 0.0, high: float = 1.0, bins: int = 51
) -> Objective:
    """An objective by name; the range is of no matter to "mse". Raises ValueError for what is no range or kind."""
    if kind == "mse":
        return MSE()
    if kind == "hl-gauss":
        return HLGauss(low, high, bins)
    if kind == "two-hot":
        return TwoHot(low, high, bins)
    raise ValueError(f"loss is {kind!r}; it must be 'hl-gauss', 'two-hot' or 'mse'")


def _even(low: float, high: float, count: int, like: Tensor) -> Tensor:
    """`count` numbers from `low` to `high`, of a tensor's kind and where it is."""
    return torch.linspace(low, high, count, dtype=like.dtype, device=like.device)


def _check_range(low: float, high: float, bins: int) -> None:
    checked_count("bins", bins, least=2)
    if not -float("inf") < low < high < float("inf"):
        raise ValueError(f"low is {low} and high {high}; both must be finite, low below high")
