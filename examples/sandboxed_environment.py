"""An environment that acts in a sandbox: the agent types shell commands until a file has the right content.

It needs a sandbox backend (``envgym doctor``). Snapshots are exact: the sandbox freezes itself and goes on above.
Run it: ``python examples/sandboxed_environment.py``
"""

import asyncio
import json

from envgym import (
    Action,
    EnvSpec,
    Message,
    Sandbox,
    SandboxBackend,
    Snapshot,
    Step,
    StopReason,
    Task,
    TaskSet,
    World,
    make,
    make_backend,
)


class Shell:
    """Make ``sum.txt`` hold the sum of the numbers in ``numbers.txt``."""

    tools = ()

    def __init__(
        self, task: Task, *, backend: SandboxBackend, sandbox: Sandbox | None = None, turns: int = 0
    ) -> None:
        self.task, self._backend, self._sandbox, self._turns, self._seed = task, backend, sandbox, turns, 0

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        await self.close()
        self._seed = seed if start is None else start.seed
        if start is not None and start.sandbox is not None:
            self._over = json.loads(start.state)
            self._sandbox = await self._backend.restore(start.sandbox)
            return self._see("restored")
        assert self.task.world is not None
        self._over = False
        self._sandbox = await self._backend.create(self.task.world)
        return self._see(self.task.prompt)

    async def step(self, action: Action) -> Step:
        if self._sandbox is None or self._over:
            raise RuntimeError(f"step before reset or after the end of task {self.task.id!r}")
        try:
            result = await self._sandbox.exec(action.text, timeout_s=10)
        except ValueError as error:  # no command: NUL bytes, lone surrogates. The model's fault, so it is told
            return self._see(f"not a command: {error}", reward=0.0)
        found = await self._sandbox.exec(["sh", "-c", "cat sum.txt 2>/dev/null"])
        self._over = found.stdout.strip() == b"6"
        return self._see(result.text[-2000:] or f"status {result.exit_code}", reward=float(self._over))

    def _see(self, text: str, *, reward: float | None = None) -> Step:
        return Step(
            (Message(role="user", content=text),), reward=reward, stop=StopReason.GOAL if self._over else None
        )

    async def snapshot(self) -> Snapshot:
        if self._sandbox is None:
            raise RuntimeError(f"snapshot before reset in task {self.task.id!r}")
        frozen = await self._sandbox.snapshot()
        state = json.dumps(self._over)
        return Snapshot(restore="exact", task_id=self.task.id, seed=self._seed, state=state, sandbox=frozen)

    async def release(self, snapshot: Snapshot) -> None:
        if snapshot.sandbox is not None:
            await self._backend.release(snapshot.sandbox)

    async def fork(self) -> "Shell":
        assert self._sandbox is not None
        other = Shell(self.task, backend=self._backend)
        other._sandbox, other._seed, other._over = await self._sandbox.fork(), self._seed, self._over
        return other

    async def close(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()
            self._sandbox = None


WORLD = World(files={"/work/numbers.txt": "1\n2\n3\n"})
TASKS = TaskSet([Task(id="sum", prompt="Write the sum of numbers.txt to sum.txt.", world=WORLD)])
SPEC = EnvSpec("sum", lambda: TASKS, Shell, description="Sum numbers in a shell.", sandbox=True)


async def main() -> None:
    async with make_backend("auto") as backend:
        env = make(SPEC, backend=backend)
        print(env.task.prompt, "->", (await env.reset(seed=0)).text)
        await env.step(Action.say("total=$(paste -sd+ numbers.txt)"))
        fork = await env.fork()  # variables of the shell included
        wrong = await fork.step(Action.say('echo "$total" > sum.txt'))
        right = await env.step(Action.say("echo $((total)) > sum.txt"))
        print(f"fork: reward {wrong.reward}, original: reward {right.reward}, {right.stop}")
        await fork.close()
        await env.close()


if __name__ == "__main__":
    asyncio.run(main())
