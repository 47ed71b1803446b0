"""Fault injection in real sandboxes at 5 % each: kill -9 of a sandbox's init, memory exhaustion, blocking code.

The run completes, each failure is typed, none becomes a reward, and no process, mount, cgroup or file is left.
"""

import asyncio
import os
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as check_env_of_gymnasium

from envgym.as_gymnasium import AsGymnasium
from envgym.env import Env, Snapshot, Step
from envgym.episode import Episode
from envgym.errors import SandboxDied
from envgym.isolate import Isolated
from envgym.jobs import Job, stream
from envgym.limits import Limits, Resources
from envgym.messages import Action, Message, ToolSpec
from envgym.registry import EnvSpec, make_backend
from envgym.replay import Replaying
from envgym.rollout import Rollout
from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import Task, TaskSet, World
from envgym.testing import check_env
from envgym.testing.actions import sample_action
from envgym.testing.fakes import Faults, ScriptedAgent
from envgym.testing.leftovers import Census
from envgym.tools import check_call, tool_spec

pytestmark = pytest.mark.namespaces

TASK = Task(
    id="shell", prompt="Do something.", world=World(resources=Resources(memory_bytes=64 << 20, command_s=10.0))
)
EXHAUST = "head -c 400000000 /dev/zero | tail > /dev/null"


def run_command(command: str) -> str:
    """Run a shell command."""
    return command


class ShellEnv:
    """Commands in a sandbox, with exact snapshots; the world breaks as `faults` says."""

    tools: tuple[ToolSpec, ...] = (tool_spec(run_command, name="run"),)

    def __init__(self, backend: SandboxBackend, faults: Faults, rng: np.random.Generator, blocks: bool) -> None:
        self.task = TASK
        self._backend, self._faults, self._rng, self._blocks = backend, faults, rng, blocks
        self._sandbox: Sandbox | None = None
        self._seed = 0

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        await self.close()
        if self._rng.random() < self._faults.reset_failure:
            raise OSError("injected: reset failed")
        assert TASK.world is not None
        self._seed = seed
        if start is not None and start.sandbox is not None:
            self._sandbox = await self._backend.restore(start.sandbox)
        else:
            self._sandbox = await self._backend.create(TASK.world)
            await self._sandbox.write("seed", str(seed).encode())
        return Step(observation=(Message(role="user", content=TASK.prompt),))

    async def step(self, action: Action) -> Step:
        sandbox = self._alive("step")
        await self._strike(sandbox)
        call = check_call(action.calls[0], self.tools) if action.calls else None
        if call is None or not hasattr(call, "arguments"):
            return Step(observation=(Message(role="tool", content="expected: run COMMAND"),))
        try:
            result = await sandbox.exec(str(call.arguments["command"]))
        except ValueError as error:  # a NUL, a lone surrogate: the model's fault
            return Step(observation=(Message(role="tool", content=f"cannot run that: {error}"),))
        if result.out_of_memory:
            raise SandboxDied("the sandbox ran out of memory")
        text = f"{result.exit_code}: {result.text[:500]}"
        return Step(observation=(Message(role="tool", content=text),), reward=float(result.ok))

    def _alive(self, what: str) -> Sandbox:
        if self._sandbox is None:
            raise RuntimeError(f"{what} before reset: call reset first")
        return self._sandbox

    async def _strike(self, sandbox: Sandbox) -> None:
        draw, faults = self._rng.random(), self._faults
        if draw < faults.step_crash:
            raise ZeroDivisionError("injected: the environment's code crashed")
        draw -= faults.step_crash
        if draw < faults.hang:
            if self._blocks:
                threading.Event().wait()
            await asyncio.Event().wait()
        draw -= faults.hang
        if draw < faults.out_of_memory and (await sandbox.exec(EXHAUST)).out_of_memory:
            raise SandboxDied("the sandbox ran out of memory")
        draw -= faults.out_of_memory
        if 0 <= draw < faults.killed:
            os.kill(await init_of(sandbox), signal.SIGKILL)

    async def snapshot(self) -> Snapshot:
        held = await self._alive("snapshot").snapshot()
        return Snapshot(restore="exact", task_id=TASK.id, seed=self._seed, sandbox=held)

    async def release(self, snapshot: Snapshot) -> None:
        assert snapshot.sandbox is not None
        await self._backend.release(snapshot.sandbox)

    async def fork(self) -> "ShellEnv":
        other = ShellEnv(self._backend, self._faults, self._rng.spawn(1)[0], self._blocks)
        other._sandbox, other._seed = await self._alive("fork").fork(), self._seed
        return other

    async def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()


def _pid_inside(pid: str) -> str:
    with open(f"/proc/{pid}/status") as file:
        return next(line for line in file if line.startswith("NSpid:")).split()[-1]


async def init_of(sandbox: Sandbox) -> int:
    """The init of a sandbox as this host sees it: first process of its pid namespace."""
    result = await sandbox.exec(["readlink", "/proc/self/ns/pid"])
    wanted = result.stdout.decode().strip()
    for entry in os.listdir("/proc"):
        try:
            inside = entry.isdigit() and os.readlink(f"/proc/{entry}/ns/pid") == wanted
            if inside and _pid_inside(entry) == "1":
                return int(entry)
        except OSError:
            continue
    raise AssertionError(f"no init of {wanted}: {result}")


async def isolated_shell(number: int, state: str, *, stack: AsyncExitStack) -> Env:
    """Made in the isolated process, with a backend of its own."""
    backend = await stack.enter_async_context(make_backend("namespace", root=state))
    return ShellEnv(backend, Faults.all(0.05), np.random.default_rng([7, number]), blocks=True)


def leftovers(state: Path) -> list[str]:
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    found = [f"file {path}" for path in state.iterdir()]
    found += [f"mount {path}" for path in mounts if str(state) in path]
    owner = f"envgym-{os.getpid()}-"
    return found + [f"cgroup {path}" for path in Path("/sys/fs/cgroup").glob(f"**/{owner}*")]


@pytest.fixture
def state() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="envgym-test-", dir="/dev/shm", ignore_cleanup_errors=True) as path:
        Path(path).chmod(0o711)
        yield Path(path)


def jobs(make: Callable[[int], Awaitable[Env]], count: int, limits: Limits) -> Iterator[Job]:
    script = ["echo one > a", "cat a seed", "ls", "false", "echo two >> a", "cat a"]
    actions = [Action.call("run", command=command) for command in script]
    for number in range(count):
        rollout = Rollout(limits=limits)
        yield Job(partial(make, number), lambda env: ScriptedAgent(actions), TASK.id, number, f"e{number}", rollout)


def judge(episodes: list[Episode], count: int) -> Counter[tuple[str, str, str]]:
    assert sorted(episode.id for episode in episodes) == sorted(f"e{number}" for number in range(count))
    seen: Counter[tuple[str, str, str]] = Counter()
    for episode in episodes:
        if episode.failure is None:
            assert episode.reward == 5.0, [turn.step.text for turn in episode.turns]
        else:
            assert episode.reward is None
            seen[episode.failure.where, str(episode.failure.boundary), episode.failure.kind] += 1
    assert set(seen) <= {
        ("reset", "environment", "EnvironmentFailure"),
        ("step", "environment", "EnvironmentFailure"),
        ("step", "environment", "DeadlineExceeded"),
        ("step", "infrastructure", "SandboxDied"),
    }, seen
    return seen


@pytest.mark.slow
def test_faults_in_real_sandboxes_are_typed_and_leave_nothing(state: Path) -> None:
    async def main() -> list[Episode]:
        before = Census.take(lambda: leftovers(state))
        rng = np.random.default_rng(11)
        async with make_backend("namespace", root=state) as backend:

            async def make(number: int) -> Env:
                return ShellEnv(backend, Faults.all(0.05), rng, blocks=False)

            stepping = stream(jobs(make, 60, Limits(turns=6, step_s=2)), concurrency=4)
            episodes = [episode async for episode in stepping]
        assert await before.wait_until_back(lambda: leftovers(state), within_s=5) == []
        return episodes

    seen = judge(asyncio.run(main()), 60)
    assert len(seen) == 4, seen


@pytest.mark.slow
def test_blocking_code_over_a_real_sandbox_is_killed_and_its_sandbox_with_it(state: Path) -> None:
    async def main() -> list[Episode]:
        before = Census.take(lambda: leftovers(state))

        async def make(number: int) -> Env:
            return Replaying(partial(Isolated, partial(isolated_shell, number, str(state)), TASK))

        stepping = stream(jobs(make, 24, Limits(turns=6, step_s=4)), concurrency=3)
        episodes = [episode async for episode in stepping]
        # what a killed owner could not remove is named after it, and the next owner removes it
        make_backend("namespace", root=state).reap()
        assert await before.wait_until_back(lambda: leftovers(state), within_s=5) == []
        return episodes

    seen = judge(asyncio.run(main()), 24)
    assert seen["step", "environment", "DeadlineExceeded"], seen


@pytest.mark.slow
def test_an_environment_in_a_real_sandbox_keeps_the_whole_contract(state: Path) -> None:
    async def main() -> None:
        async with make_backend("namespace", root=state) as backend:

            def calm() -> Env:
                return ShellEnv(backend, Faults(), np.random.default_rng(0), blocks=False)

            def choose(step: Step, tools: Sequence[ToolSpec], rng: np.random.Generator) -> Action:
                told = ("echo x >> a", "cat a", "ls", "cd /tmp", "pwd", "V=3", "echo $V")
                chosen = Action.call("run", command=told[int(rng.integers(len(told)))])
                return chosen if rng.random() < 0.9 else sample_action(step, tools, rng)

            await check_env(calm, turns=5, policy=choose)

    asyncio.run(main())


@pytest.mark.slow
def test_the_synchronous_view_makes_and_closes_a_backend_of_its_own() -> None:
    def make(task: Task, *, backend: SandboxBackend) -> Env:
        return ShellEnv(backend, Faults(), np.random.default_rng(0), blocks=False)

    shell = EnvSpec(name="shell", tasks=lambda: TaskSet([TASK]), make=make, sandbox=True)

    async def inside() -> str:
        return env.step("run 'cat a'")[0]

    async def census() -> Census:  # inside a loop, as it is compared inside one
        return Census.take()

    before = asyncio.run(census())
    env = AsGymnasium(shell)
    try:
        check_env_of_gymnasium(env, skip_render_check=True)  # it has no id of its own
        env.reset(seed=3)
        assert env.step("run 'cat seed; echo 東京 > a'")[:2] == ("0: 3", 1.0)
        start = env.snapshot()
        assert asyncio.run(inside()) == "0: 東京\n"
        env.step("run 'rm a'")
        env.reset(options={"start": start})
        assert env.step("run 'cat a'")[0] == "0: 東京\n"
    finally:
        env.close()
        env.close()
    assert asyncio.run(before.wait_until_back(within_s=5)) == []
