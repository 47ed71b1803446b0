"""A whole environment in a few lines, in memory: tools, legal actions, randomness, exact snapshots and forks.

It is the example that conformance kits, adapters and benchmarks are tested with; nobody should learn much from it.
"""

import json
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from envgym.env import Snapshot, Step, StopReason
from envgym.messages import Action, Message, ParseError, ToolSpec
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym.tools import check_call, tool_spec

__all__ = ["MEMORY", "MemoryEnv", "memory_tasks"]


def look(cell: int) -> str:
    """Look from afar: whether the treasure lies left or right of a cell. Wrong one time in four."""
    return str(cell)


def open_cell(cell: int) -> str:
    """Open a cell. The right one ends the game."""
    return str(cell)


def note(text: str) -> str:
    """Write something down; the next observations show it."""
    return text


def give_up() -> None:
    """End the game."""


_MEMORY_TOOLS = (tool_spec(look), tool_spec(open_cell, name="open"), tool_spec(note), tool_spec(give_up))


def memory_tasks(count: int = 3, *, cells: int = 5) -> TaskSet:
    """Tasks of `MemoryEnv`, one per index."""
    return TaskSet(
        [
            Task(
                id=f"memory/{index}",
                prompt=f"A treasure is in one of {cells + index} cells.",
                split="train" if index else "test",
                metadata={"cells": cells + index},
            )
            for index in range(count)
        ]
    )


@dataclass(slots=True)
class _Board:
    """The whole state of a game."""

    secret: int
    rng: np.random.Generator
    opened: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stop: StopReason | None = None

    def dump(self) -> str:
        return json.dumps([self.secret, self.rng.bit_generator.state, self.opened, self.notes, self.stop])

    @classmethod
    def load(cls, text: str) -> "_Board":
        secret, state, opened, notes, stop = json.loads(text)
        rng = np.random.default_rng(0)
        rng.bit_generator.state = state
        return cls(secret, rng, opened, notes, None if stop is None else StopReason(stop))


@cache
def _legal(left: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f"open {cell}" for cell in left) + tuple(f"look {cell}" for cell in left)


class MemoryEnv:
    """Find the treasure: a tiny environment with tools, legal actions, randomness, exact snapshots and forks.

    Reward 1.0 for opening the right cell (GOAL), -0.1 for a wrong one, None for looking and writing.
    """

    tools: tuple[ToolSpec, ...] = _MEMORY_TOOLS

    def __init__(self, task: Task | None = None) -> None:
        self.task = memory_tasks(1)[0] if task is None else task
        self._cells = int(str(self.task.metadata["cells"]))
        self._seed = 0
        self._board: _Board | None = None

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """A fresh game, or the one of `start`."""
        if start is not None:
            if start.restore != "exact" or start.task_id != self.task.id:
                raise ValueError(
                    f"this snapshot is {start.restore!r} of task {start.task_id!r}, not of {self.task.id!r}"
                )
            self._seed, self._board = start.seed, _Board.load(start.state)
            return self._step("restored", None)
        rng = np.random.default_rng(seed)
        self._seed, self._board = seed, _Board(int(rng.integers(self._cells)), rng)
        return self._step(f"{self.task.prompt} The wind is {int(rng.integers(100))}.", None)

    async def step(self, action: Action) -> Step:
        """Play one call; anything else is answered with what was wrong."""
        board = self._playing("step")
        if action.error is not None or not action.calls:
            return self._step(action.error.message if action.error else "expected a tool call", None)
        call = check_call(action.calls[0], self.tools)
        if isinstance(call, ParseError):
            return self._step(call.message, None)
        match call.name:
            case "look":
                return self._step(self._look(int(str(call.arguments["cell"]))), None)
            case "open":
                return self._open(int(str(call.arguments["cell"])))
            case "note":
                board.notes.append(str(call.arguments["text"])[:80])
                return self._step("noted: " + " | ".join(board.notes[-3:]), None)
        board.stop = StopReason.GAVE_UP
        return self._step("you gave up", 0.0)

    def _look(self, cell: int) -> str:
        board = self._playing("look")
        truth = board.secret < cell
        return f"it seems to be {'left' if truth != (board.rng.random() < 0.25) else 'right'} of {cell}"

    def _open(self, cell: int) -> Step:
        board = self._playing("open")
        if cell == board.secret:
            board.stop = StopReason.GOAL
            return self._step("the treasure!", 1.0)
        if cell not in board.opened:
            board.opened.append(cell)
        return self._step(f"cell {cell} is empty" if 0 <= cell < self._cells else f"there is no cell {cell}", -0.1)

    def _playing(self, what: str) -> _Board:
        if self._board is None:
            raise RuntimeError(f"{what} before reset in task {self.task.id!r}: call reset(seed=...) first")
        if self._board.stop is not None:
            raise RuntimeError(
                f"{what} after the end ({self._board.stop}) in task {self.task.id!r}: call reset first"
            )
        return self._board

    def _step(self, text: str, reward: float | None) -> Step:
        board = self._board
        assert board is not None
        legal = _legal(tuple(cell for cell in range(self._cells) if cell not in board.opened))
        return Step(
            observation=(Message(role="tool", content=text),),
            reward=reward,
            channels={"reward": reward, "opened": float(len(board.opened))}
            if board.stop and reward is not None
            else {},
            stop=board.stop,
            state_key=f"{board.secret}/{sorted(board.opened)}/{len(board.notes)}",
            legal=None if board.stop else legal,
        )

    async def snapshot(self) -> Snapshot:
        """The whole game as JSON."""
        if self._board is None:
            raise RuntimeError(f"snapshot before reset in task {self.task.id!r}: there is no state yet")
        return Snapshot(restore="exact", task_id=self.task.id, seed=self._seed, state=self._board.dump())

    async def release(self, snapshot: Snapshot) -> None:
        """It owns nothing."""

    async def fork(self) -> "MemoryEnv":
        """An independent game in the same state."""
        other = MemoryEnv(self.task)
        if self._board is not None:
            other._seed, other._board = self._seed, _Board.load(self._board.dump())
        return other

    async def close(self) -> None:
        """It owns nothing."""


MEMORY = EnvSpec(
    name="memory",
    tasks=memory_tasks,
    make=MemoryEnv,
    description="Find the treasure: a tiny environment in memory, for tests.",
    in_process=True,
)
