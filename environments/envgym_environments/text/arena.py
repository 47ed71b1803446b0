"""`textarena`: the single-player games of that library, unmodified; its own outcomes are the rewards.

TextArena draws from the global generators of ``random`` and numpy. Here each episode has states of its own for
both,
put in their place while the game runs and taken back after, so that a seed is honoured and no episode disturbs
another. Games that need a model or a download of their own are not among `GAMES`.
"""

import contextlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random, getstate, setstate
from typing import Any

import numpy as np
import textarena

from envgym.env import Step, StopReason
from envgym.errors import EnvironmentFailure
from envgym.messages import Action, Message, ToolSpec
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym_environments.played import bounded, clean, lazy_tasks

__all__ = ["GAMES", "SPEC", "Arena", "arena_tasks"]

_KINDS = {
    "2048": "ultra-easy mega-easy super-easy very-easy easy . hard very-hard extreme 3x3 5x5 6x6 8x8 10x10",
    "Bandit": ". hard",
    "Blackjack": ". long",
    "Countdown": ".",
    "Crosswords": ". hardcore",
    "Cryptarithm": ".",
    "FifteenPuzzle": ".",
    "FrozenLake": ". random hardcore",
    "GuessTheNumber": ". hardcore",
    "LightsOut": ".",
    "LogicPuzzle": ". hard",
    "Mastermind": ". hard extreme",
    "Minesweeper": ". small medium hard",
    "PegJump": ".",
    "RushHour": ".",
    "Secretary": ". long",
    "Set": ".",
    "Slitherlink": ".",
    "Sokoban": ". medium",
    "Sudoku": "very-easy easy . medium hard",
    "ThreeCardMonte": ".",
    "TowerOfHanoi": ". medium hard hardcore extreme",
}

GAMES: tuple[str, ...] = tuple(
    f"{name}-v0" if kind == "." else f"{name}-v0-{kind}" for name, kinds in _KINDS.items() for kind in kinds.split()
)
"""TextArena's ids of the games that one player plays and that need nothing else."""


class Arena:
    """Implements `envgym.env.Playable`; snapshots and forks play the actions again."""

    tools: tuple[ToolSpec, ...] = ()
    uses_seed = True

    def __init__(self, task: Task) -> None:
        self.task = task
        self._game: Any = None
        self._chance: tuple[Any, Any] = (None, None)

    async def reset(self, *, seed: int) -> Step:
        """A new game of the task's kind; task and seed together draw it."""
        drawn = int(np.random.default_rng([seed, self.task.seed]).integers(2**31))
        self._chance = (Random(drawn).getstate(), np.random.RandomState(drawn).get_state())
        with self._own_chance():
            self._game = textarena.make(f"{self.task.metadata['game']}-raw")
            self._game.reset(num_players=1, seed=drawn)
            _complete(self._game.state)
            text = self._seen()
        return Step((Message(role="user", content=text),))

    async def step(self, action: Action) -> Step:
        """One move, as a text in the form that the game asks for."""
        said = clean(action.text) if action.error is None and not action.calls else ""
        with self._own_chance():
            over, _ = self._game.step(said)
            if not over:
                return Step((Message(role="user", content=self._seen()),))
            rewards, info = self._game.close()
        if not rewards or 0 not in rewards:
            raise EnvironmentFailure(f"{self.task.metadata['game']} is over and says no reward: {rewards!r}")
        # Countdown and Cryptarithm of 0.7.4 give an invalid move's reason and reward in each other's place
        earned = rewards[0]
        reward = 0.0 if isinstance(earned, str) else float(earned)
        text = earned if isinstance(earned, str) else (info or {}).get(0, {}).get("reason") or "The game is over."
        stop = StopReason.GOAL if reward >= 1.0 else StopReason.LOST
        return Step((Message(role="user", content=bounded(str(text))),), reward, {"reward": reward}, stop)

    def _seen(self) -> str:
        _, found = self._game.get_observation()
        return bounded("\n".join(str(entry[1]) for entry in found) or "(nothing new)")

    @contextmanager
    def _own_chance(self) -> Iterator[None]:
        """The game's states of chance in the place of the process's, and what games print nowhere."""
        kept = (getstate(), np.random.get_state())
        setstate(self._chance[0])
        np.random.set_state(self._chance[1])
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                yield
        finally:
            self._chance = (getstate(), np.random.get_state())
            setstate(kept[0])
            np.random.set_state(kept[1])

    async def close(self) -> None:
        """Let go of the game."""
        self._game = None


def _complete(state: Any) -> None:
    """What FifteenPuzzle of 0.7.4 asks of its state when it is solved, which lacks it: a win would be a crash."""
    if not hasattr(state, "set_winners"):
        state.set_winners = lambda player_ids, reason: state.set_outcome(1.0, reason)


def arena_tasks(count: int | None = 570, *, game: str | None = None) -> TaskSet:
    """`count` games (None: without end) of one id, or of all in turn.

    Raises ValueError for an id that there is not.
    """
    if game is not None and game not in GAMES:
        raise ValueError(f"game is {game!r}; it must be one of {', '.join(GAMES)}")

    def make(index: int, split: str) -> Task:
        name = game or GAMES[index % len(GAMES)]
        return Task(id=f"textarena/{name}/{index}", prompt="", split=split, seed=index, metadata={"game": name})

    return lazy_tasks(make, count)


SPEC = EnvSpec(
    name="textarena",
    tasks=arena_tasks,
    make=Arena,
    description="57 single-player games of the library TextArena, with seeds that are honoured.",
    in_process=True,
)
