"""Who chooses among the proposals of experts: by votes, by a learned value, or by asking an agent.

The learned one is the turn-level Q of "A Mixture-of-Expert Approach to RL-based Dialogue Management" (Chow et al.
2022, arXiv 2206.00059): its actions are the experts' proposals, so there are as many as experts and not as
sentences. Ours is linear in the words that are seen and fitted to returns (Monte Carlo), expert by expert.
"""

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from envgym.env import Step
from envgym.episode import Episode
from envgym.messages import Action, Message, text_of
from envgym.policy import Agent, Reply
from envgym.tools import compact

__all__ = ["Asked", "Choice", "LearnedValue", "Manager", "Vote", "chosen_by", "fit_manager"]

_CHOSE = re.compile(r"^manager: (\S+)$")


class Manager(Protocol):
    """Chooses at each turn; it forks with the episode."""

    async def choose(self, step: Step, names: Sequence[str], proposals: Sequence[Action], *, seed: int) -> "Choice":
        """Which proposal is carried out."""
        ...

    def fork(self, *, seed: int) -> "Manager":
        """The same from here on."""
        ...

    async def close(self) -> None:
        """Release what it holds; idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """index: of the proposal. reply: what a manager that is an agent said, with the tokens behind it."""

    index: int
    reply: Reply | None = None


def said_by(action: Action) -> str:
    """An action as one text, to compare and to show."""
    return " ".join([*map(compact, action.calls), action.text] if action.calls else [action.text]).strip()


@dataclass(frozen=True, slots=True)
class Vote:
    """Equal proposals are votes for each other; of the most voted the first expert's is taken."""

    async def choose(self, step: Step, names: Sequence[str], proposals: Sequence[Action], *, seed: int) -> Choice:
        """See `Manager`."""
        texts = [said_by(one) for one in proposals]
        return Choice(max(range(len(texts)), key=lambda at: (texts.count(texts[at]), -at)))

    def fork(self, *, seed: int) -> "Vote":
        """It remembers nothing."""
        return self

    async def close(self) -> None:
        """It holds nothing."""


@dataclass(slots=True)
class Asked:
    """An agent in a conversation of its own is shown what is seen and every proposal, and answers with a number.

    What it says and its tokens are a thought of the turn (`Reply.thoughts`), so that a policy behind it can be
    trained. No number of a proposal: the first expert's is taken.
    """

    agent: Agent

    async def choose(self, step: Step, names: Sequence[str], proposals: Sequence[Action], *, seed: int) -> Choice:
        """See `Manager`."""
        listed = "\n".join(
            f"{at}. {name}: {said_by(one)}" for at, (name, one) in enumerate(zip(names, proposals, strict=True), 1)
        )
        question = f"Which of these should be said or done next? Answer with its number alone.\n{listed}"
        seen = (*step.observation, Message(role="user", content=question))
        reply = await self.agent.act(Step(seen))
        told = re.search(r"\d+", reply.action.text)
        number = int(told[0]) if told else 1
        return Choice(number - 1 if 1 <= number <= len(names) else 0, reply)

    def fork(self, *, seed: int) -> "Asked":
        """See `Manager`."""
        return Asked(self.agent.fork(seed=seed))

    async def close(self) -> None:
        """See `Manager`."""
        await self.agent.close()


@dataclass(frozen=True, slots=True)
class LearnedValue:
    """Q(words seen, expert): weights of hashed words [expert, size + 1], the last one a constant.

    explore: the share of turns in which any expert is taken, each as likely.
    """

    names: tuple[str, ...]
    weights: NDArray[np.float64]
    explore: float = 0.0

    def values(self, step: Step) -> dict[str, float]:
        """The value of letting each expert speak now."""
        seen = _features(step.text, self.weights.shape[1] - 1)
        return {name: float(row @ seen) for name, row in zip(self.names, self.weights, strict=True)}

    async def choose(self, step: Step, names: Sequence[str], proposals: Sequence[Action], *, seed: int) -> Choice:
        """See `Manager`. An expert that was never seen has no value, and is taken only where none has."""
        rng = np.random.default_rng([seed, 0x4D])
        if rng.random() < self.explore:
            return Choice(int(rng.integers(len(names))))
        values = self.values(step)
        return Choice(max(range(len(names)), key=lambda at: (values.get(names[at], -np.inf), -at)))

    def fork(self, *, seed: int) -> "LearnedValue":
        """It remembers nothing of an episode."""
        return self

    async def close(self) -> None:
        """It holds nothing."""

    def save(self, path: str | Path) -> None:
        """Write it, as JSON."""
        Path(path).write_text(json.dumps({"names": self.names, "weights": self.weights.tolist()}))

    @classmethod
    def load(cls, path: str | Path, *, explore: float = 0.0) -> "LearnedValue":
        """Read it. Raises ValueError for a file that is none."""
        try:
            raw = json.loads(Path(path).read_text())
            names, weights = tuple(map(str, raw["names"])), np.array(raw["weights"], float)
            if weights.ndim != 2 or len(weights) != len(names) or not np.isfinite(weights).all():
                raise ValueError(f"weights of shape {weights.shape} for {len(names)} experts")
        except (OSError, ValueError, KeyError, TypeError) as error:
            said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{path} is no learned manager: {said}; `fit_manager` makes one") from error
        return cls(names, weights, explore)


@dataclass(slots=True)
class _Fit:
    """Ridge regression of one expert: sums of x x^T and x y."""

    size: int
    gram: NDArray[np.float64] = field(init=False)
    moment: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.gram, self.moment = np.zeros((self.size, self.size)), np.zeros(self.size)

    def add(self, seen: NDArray[np.float64], value: float) -> None:
        self.gram += np.outer(seen, seen)
        self.moment += seen * value


def chosen_by(episode: Episode) -> list[tuple[Step, str]]:
    """What was seen and which expert then spoke, of each turn of an episode that `managed` played."""
    found, seen, name = [], episode.root, ""
    for turn in episode.turns:
        if turn.thought:
            told = _CHOSE.match(text_of(turn.messages[-1]))
            name = told[1] if told else name
        else:
            if name:
                found.append((seen, name))
            seen = turn.step
    return found


def fit_manager(
    episodes: Iterable[Episode], *, gamma: float = 1.0, ridge: float = 1.0, size: int = 256
) -> LearnedValue:
    """The turn-level Q that explains the returns of episodes that `managed` played.

    gamma: the discount of a turn. ridge: of the regression. size: of the hashed words. Failed episodes and those
    whose return nobody knows are left out. Raises ValueError when none is left.
    """
    fits: dict[str, _Fit] = {}
    for episode in episodes:
        if episode.failure is not None or episode.reward is None:
            continue
        chosen = chosen_by(episode)
        for back, (seen, name) in enumerate(reversed(chosen)):
            fit = fits.setdefault(name, _Fit(size + 1))
            fit.add(_features(seen.text, size), gamma**back * episode.reward)
    if not fits:
        raise ValueError("no episode has a manager's choices and a reward: play some with the agent 'managed'")
    names = tuple(sorted(fits))
    rows = [np.linalg.solve(fits[name].gram + ridge * np.eye(size + 1), fits[name].moment) for name in names]
    return LearnedValue(names, np.array(rows))


def _features(text: str, size: int) -> NDArray[np.float64]:
    """Which words are in a text, hashed into `size` places, and a constant; of length sqrt(2) at most."""
    found = np.zeros(size + 1)
    words = Counter(re.findall(r"\w+", text.lower()))
    for word in words:
        found[zlib.crc32(word.encode("utf-8", "surrogatepass")) % size] += 1.0
    length = float(np.linalg.norm(found))
    found = found / length if length else found
    found[-1] = 1.0
    return found
