"""The command line as a script meets it: arguments in, exit status, standard output and standard error out."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from envgym_environments.text.guess import SPEC as GUESS
from envgym_environments.text.guess import Guess

from envgym import Action, Episode, ForkPoint, Limits, Message, Origin, Rollout, Step, branch, play
from envgym.cli import run
from envgym.registry import register, unregister
from envgym.testing.fakes import (
    MEMORY,
    Faults,
    FaultyEnv,
    MemoryEnv,
    RandomAgent,
    ScriptedAgent,
    ScriptedPolicy,
)


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str


Envgym = Callable[..., Ran]


@pytest.fixture
def envgym(capsys: pytest.CaptureFixture[str]) -> Envgym:
    def call(*arguments: str) -> Ran:
        code = run(arguments)
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return call


@pytest.fixture
def memory() -> Iterator[None]:
    """An environment in memory and an agent for it, under names."""

    def player(task: object, *, seed: int, tools: tuple[object, ...] = ()) -> RandomAgent:
        """Play random legal actions, as calls."""
        return RandomAgent(tools, seed=seed)  # type: ignore[arg-type]

    register("environments", "memory", MEMORY)
    register("agents", "player", player)
    yield
    unregister("environments", "memory")
    unregister("agents", "player")


@pytest.fixture
def full_disk() -> Iterator[None]:
    """An environment whose world cannot be made."""

    def make(task: object) -> Guess:
        raise OSError(28, "No space left on device")

    register("environments", "full-disk", replace(GUESS, name="full-disk", make=make))
    yield
    unregister("environments", "full-disk")


class _Forgetful(Guess):
    """A world that ignores its past: a replay of it sees another observation."""

    count = 0

    async def reset(self, *, seed: int) -> Step:
        type(self).count += 1
        step = await super().reset(seed=seed)
        return replace(step, observation=(Message(role="user", content=f"{step.text} ({self.count})"),))


@pytest.fixture
def forgetful() -> Iterator[None]:
    register("environments", "forgetful", replace(GUESS, name="forgetful", make=_Forgetful))
    yield
    unregister("environments", "forgetful")


@pytest.fixture
def memory_episodes() -> list[Episode]:
    """An episode with tokens, a fork of it, and one whose world failed."""

    async def play_all() -> list[Episode]:
        env = MemoryEnv()
        agent = ScriptedAgent([Action.call("look", cell=0)] * 9, policy=ScriptedPolicy())
        rollout = Rollout(limits=Limits(turns=1))
        root = await play(env, {"agent": agent}, origin=Origin("root", 0), rollout=rollout)
        at = Origin("root", 0, parent=ForkPoint("root", 1), step=root.turns[-1].step)
        forks = await branch(env, agent, at=at, seeds=[1], rollout=rollout)
        broken = FaultyEnv(MemoryEnv(), faults=Faults(step_crash=1.0), rng=np.random.default_rng(0))
        other = ScriptedAgent([Action.call("look", cell=0)])
        return [root, *forks, await play(broken, {"agent": other}, origin=Origin("broken", 0), rollout=rollout)]

    return asyncio.run(play_all())
