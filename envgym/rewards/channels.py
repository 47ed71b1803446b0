"""From scores to a reward: weights, gates, and what is unknown.

A score of None says nothing; it is not 0, and nothing here makes it 0. A gate is a channel that must reach its
bound for any reward above `closed`: all gates together are a conjunction, and one that is unknown leaves the
reward unknown.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Channel", "Mixture", "Score", "Total"]

Score = float | None
"""What a channel says: a finite number, or None for nothing."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One named part of a reward.

    weight: in the sum; 0.0 is logged only. gate: the least score for which the others count; None is no gate.
    needed: without it the reward is unknown; otherwise what says nothing adds nothing.
    """

    name: str
    weight: float = 1.0
    gate: float | None = None
    needed: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("Channel.name is ''; a channel is known by its name")
        for what, value in (("weight", self.weight), ("gate", self.gate)):
            if value is not None and not math.isfinite(value):
                raise ValueError(f"Channel.{what} of {self.name!r} is {value}; it must be finite")


@dataclass(frozen=True, slots=True)
class Total:
    """A reward and why.

    reward: None where nothing can be said. channels: the scores that were given. silent: the channels that said
    nothing. closed: the gates that were not reached.
    """

    reward: Score
    channels: Mapping[str, float]
    silent: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()

    @property
    def step(self) -> dict[str, Any]:
        """As arguments of `envgym.Step`: reward, channels, and in `info` what those cannot hold."""
        told = {name: list(value) for name, value in (("silent", self.silent), ("closed", self.closed)) if value}
        channels = dict(self.channels) if self.reward is None else {**self.channels, "reward": self.reward}
        return {"reward": self.reward, "channels": channels, "info": told}


@dataclass(frozen=True, slots=True)
class Mixture:
    """How channels make one reward.

    rule: "sum" of weight times score; "mean", that divided by the weights of what was said; "product" of scores to
    the power of their weights (for scores that are not negative). closed: the reward behind a gate that was not
    reached. bounds: the reward is cut to these.
    """

    channels: tuple[Channel, ...]
    rule: Literal["sum", "mean", "product"] = "sum"
    closed: float = 0.0
    bounds: tuple[float, float] = field(default=(-math.inf, math.inf))

    def __post_init__(self) -> None:
        names = [channel.name for channel in self.channels]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"Mixture.channels are {names}; there must be some, each name once")
        if self.rule not in ("sum", "mean", "product"):
            raise ValueError(f"Mixture.rule is {self.rule!r}; it must be 'sum', 'mean' or 'product'")
        if not self.bounds[0] <= self.bounds[1]:
            raise ValueError(f"Mixture.bounds are {self.bounds}; the lower one comes first")

    def total(self, scores: Mapping[str, Score]) -> Total:
        """The reward of scores by name. Raises ValueError for a name it does not know and a score not finite."""
        known = {channel.name for channel in self.channels}
        if unknown := sorted(set(scores) - known):
            raise ValueError(f"no channel is named {unknown[0]!r}; the channels are {sorted(known)}")
        said: dict[str, float] = {}
        for name, score in scores.items():
            if score is not None:
                if not math.isfinite(score):
                    raise ValueError(f"channel {name!r} is {score}; it must be finite, or None for nothing")
                said[name] = float(score)
        silent = tuple(channel.name for channel in self.channels if channel.name not in said)
        gates = [channel for channel in self.channels if channel.gate is not None]
        closed = tuple(g.name for g in gates if g.name in said and said[g.name] < (g.gate or 0.0))
        if closed:  # however the unknown gates are, the conjunction is broken
            return Total(self._cut(self.closed), said, silent, closed)
        unknown_now = [channel for channel in (*gates, *self._needed()) if channel.name in silent]
        return Total(None if unknown_now else self._mixed(said), said, silent)

    def _needed(self) -> Sequence[Channel]:
        return [channel for channel in self.channels if channel.needed]

    def _mixed(self, said: Mapping[str, float]) -> Score:
        parts = [(channel, said[channel.name]) for channel in self.channels if channel.name in said]
        counted = [(channel.weight, score) for channel, score in parts if channel.weight]
        if not counted:
            return None
        if self.rule == "product":
            if any(score < 0 for _, score in counted):
                raise ValueError(f"a product of scores has a negative one: {said}; use the rule 'sum'")
            if any(score == 0 and weight < 0 for weight, score in counted):
                raise ValueError(f"a product divides by a score of 0: {said}; use the rule 'sum'")
            return self._cut(math.prod(score**weight for weight, score in counted))
        total = sum(weight * score for weight, score in counted)
        if self.rule == "mean":
            total /= sum(abs(weight) for weight, _ in counted)
        return self._cut(total)

    def _cut(self, reward: float) -> float:
        return min(max(reward, self.bounds[0]), self.bounds[1])
