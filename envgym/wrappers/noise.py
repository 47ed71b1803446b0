"""What is seen is not what is there: letters go wrong, lines are lost or out of order, rewards waver.

Of a message with pictures the words are changed, piece by piece, and the pictures are not.
"""

import string
from dataclasses import dataclass, replace

import numpy as np

from envgym.arguments import checked_between
from envgym.env import Step
from envgym.messages import Action
from envgym.wrappers.twist import Seen, State, retold

__all__ = ["Noise", "Perturbation"]

_LETTERS = np.array(list(string.ascii_lowercase))


@dataclass(frozen=True, slots=True)
class Noise:
    """Letters and digits of observations go wrong with probability `rate`; rewards get a normal error of `sigma`.

    The true reward is then the channel "clean_reward". What is not said stays unsaid: None gets no noise.
    """

    rate: float = 0.02
    sigma: float = 0.0
    name: str = "noise"

    def __post_init__(self) -> None:
        checked_between("noise.rate", self.rate, 0, 1)
        checked_between("noise.sigma", self.sigma, 0, 1e9)

    def begin(self, seen: Seen) -> tuple[State, Step]:
        """The first step too."""
        return {}, self._noisy(seen.last, seen.rng)

    def act(self, state: State, action: Action, seen: Seen) -> tuple[State, Action | Step]:
        """Actions are not changed."""
        return state, action

    def see(self, state: State, action: Action, step: Step, seen: Seen) -> tuple[State, Step]:
        """With errors."""
        return state, self._noisy(step, seen.rng)

    def _noisy(self, step: Step, rng: np.random.Generator) -> Step:
        observation = tuple(retold(message, lambda text: self._garbled(text, rng)) for message in step.observation)
        if not self.sigma or step.reward is None:
            return replace(step, observation=observation)
        reward = float(step.reward + rng.normal(0.0, self.sigma))
        channels = {**step.channels, "clean_reward": float(step.reward)}
        return replace(step, observation=observation, reward=reward, channels=channels)

    def _garbled(self, text: str, rng: np.random.Generator) -> str:
        if not self.rate or not text:
            return text
        hit = rng.random(len(text)) < self.rate
        other = _LETTERS[rng.integers(len(_LETTERS), size=len(text))]
        return "".join(
            str(new) if wrong and old.isalnum() else old for old, wrong, new in zip(text, hit, other, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Perturbation:
    """Each line of an observation is lost with probability `drop`, and the others come in any order (`shuffle`).

    One line of each text always stays. The first step, which says what is asked, is left whole.
    """

    drop: float = 0.1
    shuffle: bool = False
    name: str = "perturbation"

    def __post_init__(self) -> None:
        checked_between("perturbation.drop", self.drop, 0, 1)

    def begin(self, seen: Seen) -> tuple[State, Step]:
        """As it is."""
        return {}, seen.last

    def act(self, state: State, action: Action, seen: Seen) -> tuple[State, Action | Step]:
        """Actions are not changed."""
        return state, action

    def see(self, state: State, action: Action, step: Step, seen: Seen) -> tuple[State, Step]:
        """With lines missing or moved."""
        observation = tuple(retold(one, lambda text: self._torn(text, seen.rng)) for one in step.observation)
        return state, replace(step, observation=observation)

    def _torn(self, text: str, rng: np.random.Generator) -> str:
        lines = text.split("\n")
        kept = [line for line, draw in zip(lines, rng.random(len(lines)), strict=True) if draw >= self.drop]
        kept = kept or [lines[int(rng.integers(len(lines)))]]
        if self.shuffle:
            kept = [kept[at] for at in rng.permutation(len(kept))]
        return "\n".join(kept)
