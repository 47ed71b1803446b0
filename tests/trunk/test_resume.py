"""Law p: a run killed at any point plays every job once, and stores what an uninterrupted one would have."""

import asyncio
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgym.env import Env, Snapshot, Step
from envgym.episode import Began, Episode
from envgym.errors import Boundary, Failure
from envgym.jobs import Job, run_episode, stream
from envgym.limits import Limits
from envgym.messages import Action
from envgym.policy import Agent, Reply
from envgym.rollout import Rollout
from envgym.store import StoreReader, StoreWriter
from envgym.store.log import read_log
from envgym.store.records import Answered
from envgym.testing.fakes import MemoryEnv, RandomAgent, memory_tasks

TASKS = memory_tasks(4)
PATH = str(Path(__file__).parent)


class Deaf:
    """An environment that counts its steps."""

    steps = 0

    def __init__(self, inner: Env) -> None:
        self.inner, self.task = inner, inner.task
        self.tools = inner.tools

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        return await self.inner.reset(seed=seed, start=start)

    async def step(self, action: Action) -> Step:
        Deaf.steps += 1
        return await self.inner.step(action)

    async def snapshot(self) -> Snapshot:
        return await self.inner.snapshot()

    async def release(self, snapshot: Snapshot) -> None:
        await self.inner.release(snapshot)

    async def fork(self) -> "Deaf":
        return Deaf(await self.inner.fork())

    async def close(self) -> None:
        await self.inner.close()


def a_random_agent(env: Env, seed: int) -> Agent:
    return RandomAgent(env.tools, seed=seed)


def jobs(
    count: int = 5, *, snapshot_every: int = 0, make_agent: Callable[[Env, int], Agent] = a_random_agent
) -> Iterator[Job]:
    rollout = Rollout(Limits(turns=6), snapshot_every=snapshot_every, provenance=(("a", "b"),))

    def one(number: int) -> Job:
        task = TASKS[number % len(TASKS)]

        async def world() -> Env:
            return Deaf(MemoryEnv(task))

        return Job(world, lambda env: make_agent(env, number), task.id, number, f"e{number}", rollout, group="g")

    return (one(number) for number in range(count))


def play(path: Path, found: Iterator[Job], **options: Any) -> dict[str, Episode]:
    async def work() -> dict[str, Episode]:
        with StoreWriter(path) as memory:
            return {episode.id: episode async for episode in stream(found, concurrency=2, memory=memory, **options)}

    return asyncio.run(work())


def cuts(path: Path) -> Iterator[tuple[int, int]]:
    """Every place in a run's log where it could have been killed, and how many turns were answered until then."""
    (log,) = path.glob("logs/*.log")
    turns = 0
    for record, after in read_log(log):
        turns += isinstance(record, Answered)
        yield after, turns


@pytest.mark.slow
@pytest.mark.parametrize("snapshot_every", [0, 2])
def test_law_p_a_run_cut_off_anywhere_goes_on_to_the_same_episodes(tmp_path: Path, snapshot_every: int) -> None:
    killed = tmp_path / "killed"

    async def work() -> dict[str, Episode]:
        memory = StoreWriter(killed)  # and never closed
        playing = stream(jobs(snapshot_every=snapshot_every), concurrency=2, memory=memory)
        return {episode.id: episode async for episode in playing}

    whole = asyncio.run(work())
    steps = sum(len(episode.turns) for episode in whole.values())
    for cut, (size, turns) in enumerate(cuts(killed)):
        again = tmp_path / f"cut{cut}"
        shutil.copytree(killed, again)
        (log,) = again.glob("logs/*.log")
        os.truncate(log, size + cut % 3)  # whole records, and one or two bytes of the next
        Deaf.steps = 0
        assert play(again, jobs(snapshot_every=snapshot_every)) == whole
        with StoreReader(again) as reader:
            assert {episode.id: episode for episode in reader} == whole
            assert sorted(reader.ids) == sorted(whole)
            assert not reader.unfinished
        assert Deaf.steps <= steps, "what has ended is not played again"
        if snapshot_every:
            assert Deaf.steps <= steps - turns + 2 * 2, "at most the turns since the last snapshot of two open ones"


def test_what_was_said_is_not_said_again(tmp_path: Path) -> None:
    """Killed while the world was answering: the action is there, and is given to the world once more."""
    (whole,) = play(tmp_path / "whole", jobs(1)).values()
    path = tmp_path / "killed"
    memory = StoreWriter(path)
    memory.begin(Began.of(whole))
    memory.turn(whole.id, 0, whole.turns[0])
    memory.said(whole.id, 1, replace(whole.turns[1], step=Step()))
    (log,) = path.glob("logs/*.log")
    memory._worker.shutdown()
    os.close(memory._lock)
    assert play(path, jobs(1)) == {whole.id: whole}
    assert not log.exists()


def test_an_agent_that_does_not_repeat_itself_begins_again_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (whole,) = play(tmp_path / "whole", jobs(1)).values()
    assert len(whole.turns) > 2
    with StoreWriter(tmp_path / "s") as memory:
        memory.begin(Began.of(whole))
        memory.turn(whole.id, 0, whole.turns[0])
        memory.turn(whole.id, 1, whole.turns[1])
    with caplog.at_level(logging.WARNING, "envgym"):
        found = play(tmp_path / "s", jobs(1, make_agent=lambda env, _: RandomAgent(env.tools, seed=99)))
    assert "its draws do not come from its seed alone; it begins again" in caplog.text
    (other,) = play(tmp_path / "t", jobs(1, make_agent=lambda env, _: RandomAgent(env.tools, seed=99))).values()
    assert found == {whole.id: other}


def test_a_memory_of_another_plan_is_refused(tmp_path: Path) -> None:
    play(tmp_path / "s", jobs(2))
    with pytest.raises(ValueError, match=r"episode e\d is recorded with task .* go on with what began it"):
        play(tmp_path / "s", (replace(job, task_id="another") for job in jobs(2)))
    with pytest.raises(ValueError, match="recorded with seed 0, and is now to be played with 7"):
        play(tmp_path / "s", (replace(job, seed=7) for job in jobs(1)))


def test_an_episode_whose_world_failed_is_gone_on_with_by_the_next_call(tmp_path: Path) -> None:
    class Breaking(Deaf):
        broken = True

        async def step(self, action: Action) -> Step:
            if Breaking.broken and len(self.taken) == 2:
                raise OSError("no world")
            self.taken.append(action)
            return await super().step(action)

        def __init__(self, inner: Env) -> None:
            super().__init__(inner)
            self.taken: list[Action] = []

    def breaking() -> Iterator[Job]:
        for job in jobs(1):

            async def world() -> Env:
                return Breaking(MemoryEnv(TASKS[0]))

            yield replace(job, make_env=world)

    (failed,) = play(tmp_path / "s", breaking()).values()
    assert failed.failure is not None
    assert len(StoreReader(tmp_path / "s").unfinished["e0"].turns) == 2
    Breaking.broken = False
    (whole,) = play(tmp_path / "whole", jobs(1)).values()
    assert play(tmp_path / "s", breaking()) == {"e0": whole}


RUN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_resume
print("begin", flush=True)
for name in test_resume.play(Path(sys.argv[1]), test_resume.jobs(400, snapshot_every=3)):
    pass
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_law_p_with_sigkill_at_random_moments(tmp_path: Path) -> None:
    whole = play(tmp_path / "whole", jobs(400, snapshot_every=3))
    chance, path, ended = random.Random(3), tmp_path / "s", 0
    kills = 0
    while True:
        command = [sys.executable, "-c", RUN, str(path), PATH]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begin\n"
            if kills < 8:
                try:
                    process.wait(chance.uniform(0.01, 0.3))
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                kills += 1
            if process.stdout.read() == "done\n":
                break
        with StoreReader(path) as reader:
            assert reader.damage == []
            assert len(reader) >= ended, "nothing is lost"
            assert all(whole[episode.id] == episode for episode in reader)
            for name, found in reader.unfinished.items():
                assert tuple(found.turns) == whole[name].turns[: len(found.turns)], "what is stored is a prefix"
            ended = len(reader)
    with StoreReader(path) as reader:
        assert {episode.id: episode for episode in reader} == whole
        assert reader.table("episodes").num_rows == len(whole)


class Paid:
    """An agent that knows what its answers cost."""

    name = "agent"

    def __init__(self, env: Env, seed: int) -> None:
        self._inner = RandomAgent(env.tools, seed=seed)

    async def act(self, step: Step) -> Reply:
        return replace(await self._inner.act(step), cost={"usd": 0.25, "completion_tokens": 3})

    def fork(self, *, seed: int) -> Agent:
        raise NotImplementedError

    async def close(self) -> None:
        await self._inner.close()


def test_what_an_answer_cost_is_in_its_turn_also_when_the_world_answers_in_another_process(tmp_path: Path) -> None:
    paid = jobs(1, make_agent=Paid)
    (whole,) = play(tmp_path / "whole", paid).values()
    assert [turn.step.cost["usd"] for turn in whole.turns] == [0.25] * len(whole.turns)
    path = tmp_path / "killed"
    with StoreWriter(path) as memory:
        memory.begin(Began.of(whole))
        memory.said(whole.id, 0, replace(whole.turns[0], step=Step(cost={"usd": 0.25, "completion_tokens": 3.0})))
    assert play(path, jobs(1, make_agent=Paid)) == {whole.id: whole}


@pytest.mark.parametrize("where", ["make", "reset"])
def test_a_world_that_cannot_be_had_again_costs_no_recorded_turn(tmp_path: Path, where: str) -> None:
    (whole,) = play(tmp_path / "whole", jobs(1)).values()
    with StoreWriter(tmp_path / "s") as memory:
        memory.begin(Began.of(whole))
        memory.turn(whole.id, 0, whole.turns[0])

    class Down(Deaf):
        async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
            raise OSError("no world")

    async def world() -> Env:
        if where == "make":
            raise OSError("no world")
        return Down(MemoryEnv(TASKS[0]))

    (failed,) = play(tmp_path / "s", (replace(job, make_env=world) for job in jobs(1)), retries=1).values()
    assert failed.failure is not None
    assert failed.turns == whole.turns[:1]
    assert tuple(StoreReader(tmp_path / "s").unfinished[whole.id].turns) == whole.turns[:1]
    assert play(tmp_path / "s", jobs(1)) == {whole.id: whole}


def test_a_snapshot_that_a_further_try_may_begin_at_is_not_released(tmp_path: Path) -> None:
    released: list[Snapshot] = []

    class Breaking(Deaf):
        left = 3

        async def step(self, action: Action) -> Step:
            Breaking.left -= 1
            if Breaking.left == 0:
                raise OSError("no world")
            return await super().step(action)

        async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
            assert start is None or start not in released
            return await super().reset(seed=seed, start=start)

        async def release(self, snapshot: Snapshot) -> None:
            released.append(snapshot)
            await super().release(snapshot)

    async def world() -> Env:
        return Breaking(MemoryEnv(TASKS[0]))

    (whole,) = play(tmp_path / "whole", jobs(1, snapshot_every=1)).values()
    assert len(whole.turns) > 3
    found = play(tmp_path / "s", (replace(job, make_env=world) for job in jobs(1, snapshot_every=1)), retries=1)
    assert found == {whole.id: whole}
    kept = [turn.snapshot for turn in whole.turns]
    assert [one for one in released if one in kept] == [whole.turns[2].snapshot], "that of the turn that failed"


def test_law_p_what_is_played_elsewhere_is_stored_once_and_not_played_again(tmp_path: Path) -> None:
    asked: list[str] = []

    async def elsewhere(job: Job) -> Episode:
        asked.append(job.episode_id)
        episode = await run_episode(replace(job, elsewhere=None, rollout=replace(job.rollout, record=None)))
        if asked.count(job.episode_id) == 1 and job.seed % 2:
            failure = Failure(boundary=Boundary.INFRASTRUCTURE, kind="HostLost", message="", where="play", turn=0)
            return replace(episode, turns=(), stop=None, failure=failure, grades=())
        return episode

    def there() -> Iterator[Job]:
        return (replace(job, elsewhere=elsewhere) for job in jobs())

    cut = play(tmp_path / "cut", jobs(1))  # begun here, and gone on with elsewhere
    first = play(tmp_path / "cut", there(), retries=1)
    assert {name: asked.count(name) for name in first} == {"e0": 0, "e1": 2, "e2": 1, "e3": 2, "e4": 1}
    with StoreReader(tmp_path / "cut") as reader:
        assert sorted(episode.id for episode in reader) == sorted(first)
    assert [turn.step for turn in cut["e0"].turns] == [turn.step for turn in first["e0"].turns]
    here = play(tmp_path / "here", jobs())
    for name, episode in first.items():
        assert [turn.step for turn in episode.turns] == [turn.step for turn in here[name].turns]
    before = len(asked)
    assert play(tmp_path / "cut", there()).keys() == first.keys()
    assert len(asked) == before
