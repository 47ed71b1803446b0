"""`textarena`: the single-player games of that library, unmodified; its own outcomes are the rewards.

TextArena draws from the global generators of ``random`` and numpy. Here each episode has states of its own for
both, put in their place while the game runs and taken back after: a seed is honoured, and no episode disturbs
another. A task's own seed draws how its game begins, which decides its split (`arena_content`); what is drawn later
comes from the episode's seed, too. Games that need a model or a download of their own are not among `GAMES`.
"""

import contextlib
import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
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
from envgym_environments.splits import belongs

__all__ = ["GAMES", "SPEC", "UNFAIR", "Arena", "arena_content", "arena_tasks"]

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
UNFAIR = ("2048-v0-3x3", "Bandit-v0", "Bandit-v0-hard")
"""Ids that nobody can win (Bandit pays more for a wrong button than for the right one): played by name only."""

_LATER = frozenset({"2048", "Bandit", "Blackjack", "Minesweeper"})
"""Kinds that draw while they are played, so that an episode's seed changes them."""
_BY_NUMBER = frozenset({"Minesweeper", "RushHour", "Sokoban", "Sudoku"})
"""Kinds whose beginnings are not compared: the first move draws the board, or each takes seconds to draw."""


class Arena:
    """Implements `envgym.env.Copyable`: forks are copies of the game and of its chance; snapshots are replayed.

    A game is any Python object. Only pickle could write it down, and what is read from a store must not be that.
    """

    tools: tuple[ToolSpec, ...] = ()

    def __init__(self, task: Task) -> None:
        self.task = task
        self.uses_seed = _kind(task) in _LATER
        self._game: Any = None
        self._chance: tuple[Any, Any] = (None, None)
        self._key = ""

    async def reset(self, *, seed: int) -> Step:
        """The task's game from its beginning; seed and task together draw what comes later."""
        text, _ = self.begin()
        self._chance = _chance([1, seed, self.task.seed])
        self._key = _digest(f"{self.task.seed} {seed}" if self.uses_seed else f"{self.task.seed}")
        return Step((Message(role="user", content=text),), state_key=self._key)

    def begin(self) -> tuple[str, str]:
        """Make the game that the task's seed draws: what it shows, and a digest of all of it, hidden things too."""
        self._chance = _chance([0, self.task.seed])
        with self._own_chance():
            self._game = textarena.make(f"{self.task.metadata['game']}-raw")
            self._game.reset(num_players=1, seed=int(np.random.default_rng([0, self.task.seed]).integers(2**31)))
            _complete(self._game.state)
            text = self._seen()
        told = {name: value for name, value in vars(self._game).items() if name not in ("state", "env_id")}
        return text, _digest(repr((text, _plain(told), _plain(self._game.state.game_state))))

    async def step(self, action: Action) -> Step:
        """One move, as a text in the form that the game asks for."""
        said = clean(action.text) if action.error is None and not action.calls else ""
        self._key = _digest(f"{self._key}\0{said}")  # the same moves in the same game give the same state
        with self._own_chance():
            over, _ = self._game.step(said)
            if not over:
                return Step((Message(role="user", content=self._seen()),), state_key=self._key)
            rewards, info = self._game.close()
        if not rewards or 0 not in rewards:
            raise EnvironmentFailure(f"{self.task.metadata['game']} is over and says no reward: {rewards!r}")
        # Countdown and Cryptarithm of 0.7.4 give an invalid move's reason and reward in each other's place
        earned = rewards[0]
        reward = 0.0 if isinstance(earned, str) else float(earned)
        text = earned if isinstance(earned, str) else (info or {}).get(0, {}).get("reason") or "The game is over."
        stop = StopReason.GOAL if reward >= 1.0 else StopReason.LOST
        seen = (Message(role="user", content=bounded(str(text))),)
        return Step(seen, reward, {"reward": reward}, stop, self._key)

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

    def copied(self) -> "Arena":
        """The game as it is, with the same future."""
        other = Arena(self.task)
        other._game, other._chance, other._key = deepcopy(self._game), self._chance, self._key
        return other

    async def close(self) -> None:
        """Let go of the game."""
        self._game = None


def _kind(task: Task) -> str:
    return str(task.metadata["game"]).partition("-v0")[0]


def _chance(seeds: list[int]) -> tuple[Any, Any]:
    drawn = int(np.random.default_rng([abs(seed) for seed in seeds]).integers(2**31))
    return Random(drawn).getstate(), np.random.RandomState(drawn).get_state()


def _plain(value: Any) -> Any:
    """A value in an order of its own: sets of texts come in another one in each process."""
    if isinstance(value, dict):
        return sorted((repr(key), _plain(one)) for key, one in value.items())
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return repr(value) if isinstance(value, str | int | float | None) else type(value).__name__


def arena_content(task: Task) -> str:
    """How a task's game begins, hidden things included, as a digest; of the kinds `_BY_NUMBER` which one it is."""
    game = str(task.metadata["game"])
    return f"{game} {task.seed}" if _kind(task) in _BY_NUMBER else _content(game, task.seed)


@lru_cache(maxsize=16_384)
def _content(game: str, seed: int) -> str:
    return f"{game} {Arena(Task(id=game, prompt='', seed=seed, metadata={'game': game})).begin()[1]}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _complete(state: Any) -> None:
    """What FifteenPuzzle of 0.7.4 asks of its state when it is solved, which lacks it: a win would be a crash."""
    if not hasattr(state, "set_winners"):
        state.set_winners = lambda player_ids, reason: state.set_outcome(1.0, reason)


def arena_tasks(count: int | None = 540, *, game: str | None = None, seed: int = 0) -> TaskSet:
    """`count` games (None: without end) of one id, whose end says how hard it is, or of all but `UNFAIR`.

    How a game begins decides its split, so one that always begins alike (TowerOfHanoi) is wholly of one. Of kinds
    whose beginnings are not compared (Minesweeper, RushHour, Sokoban, Sudoku) every fifth is held out. Raises
    ValueError for an id that there is not.
    """
    if game is not None and game not in GAMES:
        raise ValueError(f"game is {game!r}; it must be one of {', '.join(GAMES)}")
    fair = [name for name in GAMES if name not in UNFAIR]

    def make(index: int, split: str) -> Task:
        name = game or fair[index % len(fair)]
        drawn = seed * 1_000_003 + index
        task = Task(id=f"textarena/{name}/{drawn}", prompt="", split=split, seed=drawn, metadata={"game": name})
        if _kind(task) in _BY_NUMBER:
            return task
        own = "heldout" if belongs(arena_content(task), "heldout") else "train"
        return task if own == split else task.model_copy(update={"split": own})

    return lazy_tasks(make, count, obeyed=False)


SPEC = EnvSpec(
    name="textarena",
    tasks=arena_tasks,
    make=Arena,
    description="57 single-player games of the library TextArena, with seeds that are honoured.",
    in_process=True,
    content=arena_content,
)
