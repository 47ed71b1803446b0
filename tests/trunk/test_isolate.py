"""An environment in its own process: the same answers, and whatever it does can be stopped."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from pydantic import JsonValue

from envgym import registry
from envgym.deadlines import deadline
from envgym.env import Env, Snapshot, Step
from envgym.errors import Boundary, DeadlineExceeded, EnvironmentFailure, SandboxDied
from envgym.isolate import Isolated
from envgym.messages import Action
from envgym.replay import Replaying
from envgym.task import Task
from envgym.testing import check_env
from envgym.testing.fakes import MEMORY, Faults, FaultyEnv, MemoryEnv
from envgym.testing.leftovers import Census
from envgym.testing.memory import memory_tasks

TASK = memory_tasks(1)[0]


def faulty(faults: Faults, task: Task = TASK) -> Env:
    return FaultyEnv(MemoryEnv(task), faults=faults, rng=np.random.default_rng(0), hard=True)


@asynccontextmanager
async def isolated(make: Any = MemoryEnv, **options: Any) -> AsyncIterator[Isolated]:
    before = Census.take()
    env = Isolated(make, TASK, **options)
    try:
        yield env
    finally:
        await env.close()
        await env.close()
        assert await before.wait_until_back() == []


@pytest.mark.slow  # sixteen processes, one after the other
@pytest.mark.timeout(400)
def test_it_is_an_env_like_any_other() -> None:
    async def both() -> None:
        report = await check_env(lambda: Isolated(MemoryEnv, TASK).start(), turns=2, uses_seed=True)
        assert report.unreached == ()

    asyncio.run(both())


@pytest.mark.slow
def test_snapshots_and_forks_by_replay_reach_the_same_state() -> None:
    async def play() -> None:
        async with isolated() as inner:
            env = Replaying(partial(Isolated, MemoryEnv, TASK), first=inner)
            await env.reset(seed=3)
            await env.step(Action.call("note", text="one"))
            fork = await env.fork()
            try:
                assert fork.inner is not inner
                assert (await fork.step(Action.call("note", text="two"))).text == "noted: one | two"
            finally:
                await fork.close()
            assert (await env.step(Action.call("note", text="three"))).text == "noted: one | three"
            assert (await env.snapshot()).restore == "replay"

    asyncio.run(play())


class Kept(MemoryEnv):
    """Says how many of its snapshots are not released yet."""

    held = 0

    async def snapshot(self) -> Snapshot:
        self.held += 1
        return await super().snapshot()

    async def release(self, snapshot: Snapshot) -> None:
        self.held -= 1

    async def step(self, action: Action) -> Step:
        return Step(state_key=str(self.held))


@pytest.mark.slow
def test_forks_may_start_together_and_release_what_they_started_from() -> None:
    async def play() -> None:
        async with isolated(Kept) as env:
            await env.reset(seed=3)
            for fork in await asyncio.gather(env.fork(), env.fork()):
                assert (await fork.step(Action.say("x"))).state_key == "0"
                await fork.close()
            assert (await env.step(Action.say("x"))).state_key == "0"

    asyncio.run(play())


@pytest.mark.slow
def test_the_registry_makes_it_by_name_and_by_spec() -> None:
    async def play() -> None:
        registry.register("environments", "memory", MEMORY)
        try:
            env = registry.make("memory", 1, isolate="process")
            with pytest.raises(ValueError, match="isolate is 'proces'; it must be 'process'"):
                registry.make("memory", 1, isolate="proces")  # type: ignore[arg-type]
        finally:
            registry.unregister("environments", "memory")
        assert isinstance(env, Isolated)
        assert [spec.name for spec in env.tools] == ["look", "open", "note", "give_up"]
        assert env.pid != os.getpid()
        here = MemoryEnv(env.task)
        for action in (
            None,
            Action.call("look", cell=2),
            Action.call("note", text="a\ud800\x00東"),
            Action.call("give_up"),
        ):
            if action is None:
                assert await env.reset(seed=5) == await here.reset(seed=5)
            else:
                assert await env.step(action) == await here.step(action)
        await env.close()

    asyncio.run(play())


@pytest.mark.slow
def test_the_contracts_errors_come_back_as_themselves() -> None:
    async def play() -> None:
        async with isolated() as env:
            with pytest.raises(RuntimeError, match="step before reset"):
                await env.step(Action.say("x"))
            await env.reset(seed=0)
            await env.step(Action.call("give_up"))
            with pytest.raises(RuntimeError, match="after the end"):
                await env.step(Action.say("x"))
            await env.reset(seed=0)
        async with isolated(partial(faulty, Faults(step_crash=1.0))) as env:
            await env.reset(seed=0)
            with pytest.raises(EnvironmentFailure, match="ZeroDivisionError: injected"):
                await env.step(Action.say("x"))
            await env.reset(seed=0)
        async with isolated(partial(faulty, Faults(reset_failure=1.0))) as env:
            with pytest.raises(EnvironmentFailure, match="OSError: injected"):
                await env.reset(seed=0)

    asyncio.run(play())


@pytest.mark.slow
def test_blocking_code_is_killed_at_its_deadline() -> None:
    async def play() -> None:
        async with isolated(partial(faulty, Faults(hang=1.0))) as env:
            await env.reset(seed=0)
            pid = env.pid
            with pytest.raises(DeadlineExceeded):
                await deadline(env.step(Action.say("x")), 0.1, "step", Boundary.ENVIRONMENT)
            assert pid is not None
            await _until_gone(pid)
            with pytest.raises(SandboxDied):
                await env.step(Action.say("x"))

    asyncio.run(play())


@pytest.mark.slow
def test_a_killed_process_and_one_out_of_memory_are_typed() -> None:
    async def play() -> None:
        async with isolated(partial(faulty, Faults(killed=1.0))) as env:
            await env.reset(seed=0)
            with pytest.raises(SandboxDied, match="died"):
                await env.step(Action.say("x"))
        async with isolated(partial(faulty, Faults(out_of_memory=1.0)), memory_bytes=400 << 20) as env:
            await env.reset(seed=0)
            with pytest.raises(SandboxDied, match="out of memory"):
                await env.step(Action.say("x"))

    asyncio.run(play())


class Lying(MemoryEnv):
    """Answers with what is no step, or writes what it likes into the channel."""

    async def step(self, action: Action) -> Any:
        match action.text:
            case "huge":
                return Step(state_key="x" * (70 << 20))
            case "object":
                return Step(info={"self": self})
            case "raw":
                for fd in map(int, os.listdir("/proc/self/fd")):
                    if fd < 3:
                        continue
                    try:
                        os.write(fd, b"\x00\x00\x00\x04nope")
                    except OSError:
                        continue
        return await super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize(("text", "message"), [("huge", "the bound is"), ("object", "JSON"), ("raw", "protocol")])
def test_an_answer_that_breaks_the_protocol_is_the_environments_failure(text: str, message: str) -> None:
    async def play() -> None:
        async with isolated(Lying) as env:
            await env.reset(seed=0)
            with pytest.raises(EnvironmentFailure, match=message):
                await env.step(Action.say(text))

    asyncio.run(play())


def test_what_cannot_be_pickled_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="picklable make"):
        Isolated(lambda: MemoryEnv(), TASK)


@pytest.mark.slow
def test_the_wrong_task_and_a_failing_make_are_typed() -> None:
    async def play() -> None:
        async with isolated(partial(MemoryEnv, memory_tasks(2)[1])) as env:
            with pytest.raises(EnvironmentFailure, match="has task 'memory/1'"):
                await env.start()
        async with isolated(partial(int, "no number")) as env:
            with pytest.raises(ValueError, match="no number"):
                await env.start()

    asyncio.run(play())


OWNER = """
import asyncio, sys
from functools import partial
from envgym.isolate import Isolated
from envgym.messages import Action
from envgym.deadlines import deadline
from envgym.testing.fakes import *
sys.path.append({here!r})

async def main():
    env = Isolated({make}, memory_tasks(1)[0])
    await env.reset(seed=0)
    print(env.pid, flush=True)
    await env.step(Action.call("note", text="x"))
    input()

asyncio.run(main())
"""


class Spinning(MemoryEnv):
    """Has a child process, and then holds the interpreter lock for ever."""

    async def step(self, action: Action) -> Step:
        subprocess.Popen(["sleep", "1000"])  # noqa: ASYNC220
        import re

        re.match(r"(a+)+$", "a" * 64 + "b")
        return Step()


def _group(pgid: int) -> set[int]:
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == pgid and fields[0] != "Z":
                found.add(int(entry))
    return found


async def _until_gone(pgid: int) -> None:
    async with asyncio.timeout(60):
        while _group(pgid):  # noqa: ASYNC110  # the kernel tells nobody
            await asyncio.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("make", ["MemoryEnv", "partial(__import__('test_isolate').Spinning)"])
def test_a_killed_owner_takes_the_whole_group_with_it(make: str) -> None:
    code = OWNER.format(here=os.path.dirname(__file__), make=make)
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert owner.stdout is not None
    pgid = int(owner.stdout.readline())
    assert len(_group(pgid)) >= 2
    end = time.monotonic() + 10
    while "Spinning" in make and len(_group(pgid)) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(owner.pid, signal.SIGKILL)
    owner.communicate()
    while _group(pgid) and time.monotonic() < end:
        time.sleep(0.01)
    assert _group(pgid) == set()


@pytest.mark.slow
def test_arguments_survive_the_pipe() -> None:
    async def play() -> None:
        value: JsonValue = {"a": [1, 2.5, None, True, "\ud800"]}
        async with isolated() as env:
            await env.reset(seed=0)
            step = await env.step(Action.call("look", cell=value))
            assert "not a valid integer" in step.text
            assert "\\ud800" in step.text

    asyncio.run(play())
