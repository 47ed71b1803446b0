"""`textworld`: text adventures that the library TextWorld generates on the spot, one per task, kept in a cache.

A game is compiled once per machine (seconds) into a file below the cache, named by all that it was made from.
Commands that are possible are listed. Forks copy the interpreter's memory and what the library knows of the game;
snapshots, which must outlive this process, play the commands again.
"""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import textworld
import textworld.generator

from envgym.env import Step, StopReason
from envgym.messages import Action, Message, ToolSpec
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym_environments.experts import expert_of
from envgym_environments.played import bounded, clean, lazy_tasks

__all__ = ["SPEC", "TextWorld", "expert", "game_content", "game_file", "textworld_tasks"]


_SIZES = ("rooms", "objects", "quest")


def game_file(task: Task, folder: Path | None = None) -> Path:
    """The compiled game of a task, made if it is not there yet."""
    data = task.metadata
    name = "-".join([textworld.__version__, *(str(data[size]) for size in _SIZES), str(task.seed)])
    home = folder or Path(os.environ.get("ENVGYM_CACHE") or Path.home() / ".cache" / "envgym") / "textworld"
    path = home / f"{name}.z8"
    if path.is_file() and path.with_suffix(".json").is_file():
        return path
    home.mkdir(parents=True, exist_ok=True)
    options = _options(task)
    with tempfile.TemporaryDirectory(dir=home) as scratch:  # a torn game is never seen
        options.path = str(Path(scratch) / path.name)
        textworld.make(options)
        for ending in (".json", ".z8"):
            Path(options.path).with_suffix(ending).replace(path.with_suffix(ending))
    return path


def _options(task: Task) -> textworld.GameOptions:
    options = textworld.GameOptions()
    options.seeds = task.seed
    options.nb_rooms, options.nb_objects, options.quest_length = (int(str(task.metadata[size])) for size in _SIZES)
    return options


def game_content(task: Task) -> list[str]:
    """What a task's game is made of, drawn without compiling it: its errand, the way to its end, what is true.

    The names of things are part of it, so two houses of one shape are two. It takes a third of a second and more.
    """
    game = textworld.generator.make_game(_options(task))
    return [game.objective, *game.walkthrough, "", *sorted(map(str, game.world.facts))]


class TextWorld:
    """Implements `envgym.env.Copyable`. Each point of the game pays its share of all points."""

    tools: tuple[ToolSpec, ...] = ()
    uses_seed = False  # a game is made of its task's seed alone

    def __init__(self, task: Task, *, turns: int = 50, cache: str | None = None) -> None:
        if turns < 1:
            raise ValueError(f"turns is {turns}; it must be at least 1")
        self.task, self._turns = task, turns
        self._cache = None if cache is None else Path(cache)
        self._game: Any = None
        self._score = self._taken = 0

    async def reset(self, *, seed: int) -> Step:
        """The game's beginning; it draws nothing."""
        await self.close()
        asked = textworld.EnvInfos(
            admissible_commands=True, score=True, max_score=True, won=True, lost=True, objective=True, facts=True
        )
        with _unknown_to_its_interpreter():
            self._game = textworld.start(str(game_file(self.task, self._cache)), asked)
        self._score = self._taken = 0
        state = self._game.reset()
        return self._step(state, f"{state.objective}\n{_body(str(state.feedback))}")

    async def step(self, action: Action) -> Step:
        """One command; one that the game does not know costs a turn."""
        said = clean(action.text).replace("\n", " ").strip() if not action.calls else ""
        said = said.encode()[:190].decode("utf-8", "ignore")  # its interpreter takes no more bytes
        state, _, _ = self._game.step(said or "wait a moment")
        self._taken += 1
        return self._step(state, _body(str(state.feedback)))

    def _step(self, state: Any, text: str) -> Step:
        most = max(1, int(state.max_score or 1))
        gained, self._score = int(state.score or 0) - self._score, int(state.score or 0)
        won, lost, late = bool(state.won), bool(state.lost), self._taken >= self._turns
        stop = StopReason.GOAL if won else StopReason.LOST if lost else StopReason.TURN_LIMIT if late else None
        legal = None if stop else tuple(sorted(state.admissible_commands))
        reward = gained / most if self._taken and (gained or stop) else None
        channels = {"reward": self._score / most} if stop else {}
        facts = "\n".join([str(self._score), *sorted(map(str, state.facts))])  # what is true in the world
        key = hashlib.blake2b(facts.encode(), digest_size=12).hexdigest()
        return Step((Message(role="user", content=bounded(text)),), reward, channels, stop, key, legal)

    def copied(self) -> "TextWorld":
        """The game as it is, in an interpreter of its own."""
        other = TextWorld(self.task, turns=self._turns, cache=None if self._cache is None else str(self._cache))
        other._score, other._taken = self._score, self._taken
        if self._game is not None:
            with _unknown_to_its_interpreter():
                other._game = self._game.copy()
        return other

    async def close(self) -> None:
        """End the game's interpreter."""
        if self._game is not None:
            self._game.close()
            self._game = None


@contextmanager
def _unknown_to_its_interpreter() -> Iterator[None]:
    """Without the warnings of its interpreter, which knows no generated game by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _body(text: str) -> str:
    """What a game says, without its banner and its prompt."""
    return text.rpartition("$$$$$$$")[2].partition("\n>")[0].strip()


def textworld_tasks(
    count: int | None = 100, *, rooms: int = 3, objects: int = 5, quest: int = 4, seed: int = 0
) -> TaskSet:
    """`count` games (None: without end), every fifth of them held out by its number.

    No two were seen to be alike, of the smallest size neither; `game_content` tells. Raises ValueError for sizes
    that make none.
    """
    if not 1 <= rooms <= 50 or not 1 <= objects <= 100 or not 1 <= quest <= 30:
        raise ValueError(
            f"rooms is {rooms}, objects {objects}, quest {quest}; they must be 1 to 50, 1 to 100, 1 to 30"
        )

    def make(index: int, split: str) -> Task:
        sizes = {"rooms": rooms, "objects": objects, "quest": quest}
        number = (seed * 1_000_003 + index) % 2**31
        return Task(id=f"textworld/{rooms}-{objects}-{quest}/{number}", prompt="", split=split, seed=number,
                    metadata=dict(sizes))  # fmt: skip

    return lazy_tasks(make, count)


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """The walkthrough that the game was generated with."""
    game = textworld.Game.load(str(game_file(task).with_suffix(".json")))
    return Action.say(game.walkthrough[len(seen) - 1])


expert = expert_of(_decide)

SPEC = EnvSpec(
    name="textworld",
    tasks=textworld_tasks,
    make=TextWorld,
    description="Text adventures that the library TextWorld generates on the spot.",
    in_process=True,
    content=game_content,
)
