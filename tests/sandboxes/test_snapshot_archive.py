"""Episodes start from archived snapshots of a real sandbox, and in the end nothing is held."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from envgym_sandboxes.namespace import NamespaceBackend

from envgym.buffer import SnapshotArchive, Start, Status, starts_of, turn_bound
from envgym.env import Snapshot, Step, StopReason
from envgym.episode import Episode
from envgym.errors import SnapshotGone
from envgym.jobs import Job, run_episode
from envgym.limits import Limits
from envgym.messages import Action, Message, ToolSpec
from envgym.replay import forked
from envgym.rollout import Rollout
from envgym.sandbox import Sandbox, SandboxBackend, SandboxSnapshot
from envgym.task import Task, World
from envgym.testing.fakes import ScriptedAgent


class Ladder:
    """Climb four rungs, a line in a file each; the state is the sandbox's files and nothing else."""

    tools: tuple[ToolSpec, ...] = ()

    def __init__(self, task: Task, backend: SandboxBackend) -> None:
        self.task, self.backend = task, backend
        self.sandbox: Sandbox | None = None
        self.seed = 0

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        await self.close()
        self.seed = seed
        if start is None:
            self.sandbox = await self.backend.create(self.task.world)
        else:
            assert start.sandbox is not None
            self.sandbox = await self.backend.restore(start.sandbox)
        return await self._look()

    async def step(self, action: Action) -> Step:
        assert self.sandbox is not None
        await self.sandbox.exec(["sh", "-c", "echo rung >> ladder"])
        return await self._look()

    async def _look(self) -> Step:
        assert self.sandbox is not None
        rungs = (await self.sandbox.exec(["sh", "-c", "cat ladder 2>/dev/null | wc -l"])).text.strip()
        stop = StopReason.GOAL if rungs == "4" else None
        return Step(
            (Message(role="user", content=rungs),), reward=1.0 if stop else None, stop=stop, state_key=rungs
        )

    async def snapshot(self) -> Snapshot:
        assert self.sandbox is not None
        sandbox = await self.sandbox.snapshot()
        return Snapshot(restore="exact", task_id=self.task.id, seed=self.seed, sandbox=sandbox)

    async def release(self, snapshot: Snapshot) -> None:
        assert snapshot.sandbox is not None
        await self.backend.release(snapshot.sandbox)

    async def fork(self) -> "Ladder":
        return await forked(self, Ladder(self.task, self.backend))

    async def close(self) -> None:
        if self.sandbox is not None:
            await self.sandbox.close()
            self.sandbox = None


async def climb(
    backend: SandboxBackend, task: Task, name: str, start: Snapshot | None, rollout: Rollout
) -> Episode:
    async def make_env() -> Ladder:
        return Ladder(task, backend)

    job = Job(make_env, lambda env: ScriptedAgent(["up"] * 9), task.id, 0, name, rollout, start=start)
    return await run_episode(job)


async def held(backend: SandboxBackend, snapshots: list[Snapshot]) -> int:
    """How many of these the backend still has."""
    found = 0
    for one in snapshots:
        assert one.sandbox is not None
        try:
            await backend.retain(one.sandbox)
        except SnapshotGone:
            continue
        await backend.release(one.sandbox)
        found += 1
    return found


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(120)
def test_episodes_start_from_a_teachers_states_and_every_reference_is_given_back(
    make: Callable[[], NamespaceBackend],
) -> None:
    async def play() -> None:
        task = Task(id="ladder", prompt="climb", world=World())
        async with make() as backend:
            teacher = await climb(backend, task, "teacher", None, Rollout(snapshot_every=1))
            assert teacher.stop is StopReason.GOAL, teacher.failure
            starts, rest = starts_of(teacher, origin="teacher", keep=3)
            every = [turn.snapshot for turn in teacher.turns if turn.snapshot is not None]
            assert ([one.left for one in starts], len(rest), len(every)) == ([3, 2, 1], 1, 4)
            keeper = Ladder(task, backend)
            for snapshot in rest:
                await keeper.release(snapshot)

            archive = SnapshotArchive(keeper, most=3)
            for start in starts:
                await archive.add(start)
            rng = np.random.default_rng(0)
            for lent in archive.choose(24, rng):
                most = turn_bound(lent.start.left, slack=0.6, least=1)  # 2, 2 and 1: too few for the first state
                rollout = Rollout(limits=Limits(turns=most))
                episode = await climb(backend, task, "student", lent.start.snapshot, rollout)
                assert episode.failure is None
                assert episode.root.text == str(4 - lent.start.left)  # the very state that the teacher had
                await archive.settle(lent, episode, won=episode.stop is StopReason.GOAL)
            assert [archive.status(one.key) for one in starts] == [Status.DEAD_END, Status.SOLVED, Status.SOLVED]

            lost = starts[2]
            await keeper.release(lost.snapshot)  # somebody took away what is the archive's
            for lent in archive.choose(6, rng):
                episode = await climb(backend, task, "late", lent.start.snapshot, Rollout(limits=Limits(turns=1)))
                await archive.settle(lent, episode, won=False)
            assert (lost.key in archive, archive.counts["gone"], len(archive)) == (False, 1, 2)

            assert await held(backend, every) == 2
            await archive.close()
            assert await held(backend, every) == 0
            assert archive.counts == {"added": 3, "gone": 1, "released": 2}

    asyncio.run(play())


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(120)
def test_an_archive_of_durable_snapshots_outlives_its_process_and_leaves_none_behind(
    make: Callable[[], NamespaceBackend],
) -> None:
    async def play() -> None:
        async with make() as backend:
            sandbox = await backend.create(World())
            killed = SnapshotArchive(backend, most=2)
            disk: Any = None
            for name in ("a", "b", "c"):  # c comes after the checkpoint that survives, and pushes a out
                await sandbox.write("who", name.encode())
                await killed.add(Start(name, await sandbox.snapshot(durable=True), "t"))
                disk = json.loads(json.dumps(killed.state())) if name == "b" else disk
            assert ("a" in killed, killed.doomed) == (False, 1)
        async with make() as backend:
            archive = await SnapshotArchive.restore(disk, backend, SandboxSnapshot.model_validate)
            for start in archive.starts:
                async with await backend.restore(start.snapshot) as again:
                    assert await again.read("who") == start.key.encode()
            (lost,) = [one for one in await backend.snapshots() if one not in [s.snapshot for s in archive.starts]]
            await archive.close()
            assert await backend.snapshots() == [lost]  # c: nobody knows of it any more, and it can be listed
            await backend.release(lost)
            assert archive.counts["released"] == 2

    asyncio.run(play())
