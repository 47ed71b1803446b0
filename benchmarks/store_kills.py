"""kill -9 at 200 random moments of a run with forks and faults: what is lost, played twice, or other than in a
whole run.

The run plays episodes in a world that breaks now and then, forks every second one from a stored snapshot, and
records all of it. It is killed at a random moment and started again, over and over; a run that comes to its end
is followed by a fresh one. `python benchmarks/store_kills.py --quick`.
"""

import asyncio
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from _harness import Row, finish, options, scratch_folder

from envgym.env import Env, Step
from envgym.episode import Episode, ForkPoint
from envgym.jobs import Job, stream
from envgym.limits import Limits
from envgym.messages import Action
from envgym.rollout import Origin, Rollout, play
from envgym.store import StoreReader, StoreWriter
from envgym.testing.fakes import MemoryEnv, RandomAgent, memory_tasks

EPISODES, STEP_S, BREAKS = 60, 0.001, 0.02
DRAWS = random.SystemRandom()
"""Others in every process: no fault of the world repeats itself."""
TASKS = memory_tasks(8)
LIMITS = Limits(turns=8)


class Breaking(MemoryEnv):
    """Answers after a while, or not at all."""

    chance: float = BREAKS

    async def step(self, action: Action) -> Step:
        await asyncio.sleep(STEP_S)
        if DRAWS.random() < self.chance:
            raise OSError("the world broke")
        return await super().step(action)


class Sound(Breaking):
    chance = 0.0


def jobs(world: type[Breaking]) -> Iterator[Job]:
    rollout = Rollout(LIMITS, snapshot_every=2)

    def one(number: int) -> Job:
        task = TASKS[number % len(TASKS)]

        async def make() -> Env:
            return world(task)

        def agent(env: Env) -> RandomAgent:
            return RandomAgent(env.tools, seed=number)

        return Job(make, agent, task.id, number, f"e{number:03d}", rollout)

    return (one(number) for number in range(EPISODES))


async def fork(parent: Episode, memory: StoreWriter, world: type[Breaking]) -> Episode:
    """Another continuation of an episode, from the snapshot before its third turn, or its first."""
    at = 2 if len(parent.turns) > 2 else 0
    task = next(task for task in TASKS if task.id == parent.task_id)
    env, agent = world(task), RandomAgent(MemoryEnv.tools, seed=parent.seed + 1000)
    name = f"{parent.id}/0"
    origin = Origin(name, parent.seed, parent=ForkPoint(parent.id, at), start=parent.turns[at].snapshot)
    try:
        return await play(env, {"agent": agent}, origin=origin, rollout=Rollout(LIMITS, record=memory))
    finally:
        await env.close()


async def run(store: Path, world: type[Breaking]) -> None:
    with StoreWriter(store, log_bytes=40_000) as memory:
        while True:  # what broke is gone on with
            async for episode in stream(jobs(world), concurrency=8, memory=memory):
                if episode.failure is None and episode.seed % 2 == 0 and f"{episode.id}/0" not in memory:
                    again = await fork(episode, memory, world)
                    if again.failure is None:
                        memory.append(again)
            if len(memory) == EPISODES + EPISODES // 2:
                return


def checked(store: Path, whole: dict[str, Episode], ended: set[str]) -> tuple[Counter[str], set[str]]:
    """What is wrong with a store, and the ids that have ended in it."""
    wrong: Counter[str] = Counter()
    with StoreReader(store) as reader:
        now = set(reader.ids)
        wrong["lost"] += len(ended - now) + len(reader.damage)
        wrong["twice"] += reader.table("episodes").num_rows - len(now)
        wrong["other"] += sum(whole[episode.id] != episode for episode in reader)
        for name, found in reader.unfinished.items():
            wrong["other"] += tuple(found.turns) != whole[name].turns[: len(found.turns)]
    return wrong, now


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        asyncio.run(run(Path(sys.argv[2]), Breaking))
        return
    given = options(__doc__)
    kills = 8 if given.quick else 200
    chance, wrong, killed, finished, since = np.random.default_rng(0), Counter(), 0, 0, time.perf_counter()
    with scratch_folder() as scratch:
        asyncio.run(run(scratch / "whole", Sound))
        whole = {episode.id: episode for episode in StoreReader(scratch / "whole")}
        command = [sys.executable, __file__, "--run"]
        began = time.perf_counter()
        subprocess.run([*command, str(scratch / "timed")], check=True)
        takes = time.perf_counter() - began
        number, ended = 0, set[str]()
        while killed < kills:
            store = scratch / f"run{number}"
            with subprocess.Popen([*command, str(store)]) as process:
                try:
                    process.wait(float(chance.uniform(0.1, 0.9)) * takes)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
            if process.returncode == 0:
                finished += 1
            elif process.returncode == -signal.SIGKILL:
                killed += 1
            else:
                raise RuntimeError(f"the run itself failed with status {process.returncode}")
            if (store / "shards").is_dir():
                found, ended = checked(store, whole, ended)
                wrong += found
            if process.returncode == 0:
                wrong["lost"] += len(whole.keys() - ended)
                shutil.rmtree(store)
                number, ended = number + 1, set()
    rows = [Row(f"{kind}, after {killed} kills", wrong[kind], len(whole), "episodes of a run", "number", 0,
    absolute=True)
            for kind in ("lost", "twice", "other")]  # fmt: skip
    finish("store_kills", rows, given, kills=killed, runs_finished=finished, seconds=time.perf_counter() - since)


if __name__ == "__main__":
    main()
