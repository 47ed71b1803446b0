"""What recording costs a live run: the time that a turn of 500 tokens and 2 kB of text takes with and without a
store.

Both runs play the same episodes in a world and with an agent that cost next to nothing. The bar is 1 % of a turn at
1,000 turns a second; the floor is one `write(2)` of the turn's bytes. `python benchmarks/store_append.py --quick`.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from _harness import Row, finish, options, scratch_folder

from envgym.env import Env, Step, StopReason
from envgym.jobs import Job, stream
from envgym.limits import Limits
from envgym.messages import Action, Message
from envgym.policy import Agent, Completion, Reply, VersionRun
from envgym.replay import as_env
from envgym.rollout import Rollout
from envgym.store import StoreWriter
from envgym.task import Task

TURNS, PROMPT, SAMPLED = 20, 300, 200
SAID, SEEN = "word " * 160, "seen " * 240
TASK = Task(id="t", prompt="")
COMPLETION = Completion(tuple(range(SAMPLED)), (-0.5,) * SAMPLED, (VersionRun(0, 1),), "stop")
ACTION = Action(message=Message(role="assistant", content=SAID))
STEP = Step(observation=(Message(role="user", content=SEEN),), reward=0.0)
LAST = Step(observation=STEP.observation, reward=1.0, stop=StopReason.SUBMITTED)
IDS = tuple(range(PROMPT))


class World:
    """Says the same, and stops."""

    tools = ()
    waits = False

    def __init__(self) -> None:
        self.task, self._left = TASK, 0

    async def reset(self, *, seed: int) -> Step:
        self._left = TURNS
        return STEP

    async def step(self, action: Action) -> Step:
        self._left -= 1
        if self.waits:
            await asyncio.sleep(0)
        return STEP if self._left else LAST

    async def close(self) -> None: ...


class Waiting(World):
    """Takes a turn of the loop to answer: what it is asked is recorded before."""

    waits = True


class Speaker:
    """Says the same, with tokens."""

    name = "agent"

    def __init__(self) -> None:
        self._position = 0

    async def act(self, step: Step) -> Reply:
        position, self._position = self._position, self._position + PROMPT + SAMPLED
        return Reply(ACTION, IDS, COMPLETION, 0, position)

    def fork(self, *, seed: int) -> "Speaker":
        return Speaker()

    async def close(self) -> None: ...


def jobs(count: int, world: type[World]) -> Iterator[Job]:
    rollout = Rollout(Limits(turns=TURNS + 1))

    async def make() -> Env:
        return as_env(world(), world)

    def agent(_env: Env) -> Agent:
        return Speaker()

    return (Job(make, agent, "t", number, f"e{number}", rollout) for number in range(count))


async def played(count: int, memory: StoreWriter | None, world: type[World] = World) -> float:
    """Seconds per turn."""
    began = time.perf_counter()
    async for _episode in stream(jobs(count, world), concurrency=16, memory=memory):
        pass
    return (time.perf_counter() - began) / (count * TURNS)


def floor(path: Path, count: int) -> float:
    """Seconds of one write of a turn's bytes."""
    data = bytes(4 * PROMPT + 8 * SAMPLED + len(SAID) + len(SEEN) + 200)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    began = time.perf_counter()
    for _ in range(count):
        os.write(fd, data)
    os.close(fd)
    return (time.perf_counter() - began) / count


def main() -> None:
    given = options(__doc__)
    rounds, count = (2, 50) if given.quick else (9, 500)
    times: dict[str, list[float]] = {}
    with scratch_folder() as scratch:
        asyncio.run(played(20, None))
        for number in range(rounds):
            for world in (World, Waiting):
                times.setdefault(f"{world.__name__}", []).append(asyncio.run(played(count, None, world)))
                for kind, size in (("log", 1 << 40), ("shards", 8 << 20)):  # six shards on the way
                    with StoreWriter(scratch / f"{world.__name__}{kind}{number}", log_bytes=size) as memory:
                        took = asyncio.run(played(count, memory, world))
                    times.setdefault(f"{world.__name__} {kind}", []).append(took)
            times.setdefault("floor", []).append(floor(scratch / f"floor{number}", count * TURNS))
    us = {name: statistics.median(values) * 1e6 for name, values in times.items()}
    rows = []
    for world, what in (("World", "a world that answers at once"), ("Waiting", "a world that waits")):
        for kind, bar in (("log", 10.0), ("shards", None)):
            cost = us[f"{world} {kind}"] - us[world]
            name = f"recording, {what}{'' if kind == 'log' else ', with shards'}"
            rows.append(Row(name, cost, 1000, "a turn at 1,000/s", "us", bar, absolute=True))
        rows.append(Row(f"a turn that is not recorded, {what}", us[world], us["floor"], "floor: write(2)", "us"))
    finish("store_append", rows, given, turns=count * TURNS)


if __name__ == "__main__":
    main()
