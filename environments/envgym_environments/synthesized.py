"""Plays the tasks that `envgym synthesize` made: the environment they were found in, with their goal as its end.

A task of a single step begins where its lead has brought the world: what was done before it is done again first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from envgym.env import Env, Snapshot, Step, StopReason
from envgym.errors import EnvironmentFailure
from envgym.messages import Action, Message, ToolSpec
from envgym.registry import EnvSpec, make
from envgym.sandbox import SandboxBackend
from envgym.synthesis.explore import state_of
from envgym.task import Task, TaskSet
from envgym.wire import action_from_json
from envgym.wrappers import Seen, Wrapped
from envgym_environments.lines import read_lines

__all__ = ["SANDBOXED", "SPEC", "Goal", "Led", "make_synthesized", "synthesized_tasks"]


@dataclass(frozen=True, slots=True)
class Goal:
    """Ends an episode with reward 1.0 in the state that is asked for; the world's own rewards do not count.

    seed: of the world in which the goal was found, whatever the episode's is. Where the world ends first, the
    reward is 0.0.
    """

    task: Task
    goal: str
    seed: int
    name: str = "goal"

    def begin(self, seen: Seen) -> tuple[dict[str, Any], Step]:
        """The prompt stands first."""
        asked = Message(role="user", content=self.task.prompt)
        return {}, replace(seen.last, observation=(asked, *seen.last.observation))

    def act(self, state: dict[str, Any], action: Action, seen: Seen) -> tuple[dict[str, Any], Action | Step]:
        """Actions are not changed."""
        return state, action

    def see(self, state: dict[str, Any], action: Action, step: Step, seen: Seen) -> tuple[dict[str, Any], Step]:
        """Reached, over, or neither."""
        if state_of(step) == self.goal:
            step = replace(step, reward=1.0, channels={"reward": 1.0}, stop=StopReason.GOAL, legal=None)
        elif step.stop is not None:
            step = replace(step, reward=0.0, channels={"reward": 0.0})
        else:
            step = replace(step, reward=None, channels={})
        return state, step


class Led:
    """An `Env` in which some actions are done before it is anybody's turn. Its snapshots are the inner one's."""

    def __init__(self, inner: Env, lead: Sequence[Action]) -> None:
        self._inner, self._lead, self.task = inner, tuple(lead), inner.task

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What actions may call."""
        return self._inner.tools

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """The world after the lead. Raises EnvironmentFailure where it ends on the way."""
        step = await self._inner.reset(seed=seed, start=start)
        for at, action in enumerate(self._lead if start is None else ()):
            if step.stop is not None:
                raise EnvironmentFailure(
                    f"task {self.task.id!r} ends ({step.stop}) after {at} of the {len(self._lead)} actions that "
                    "lead to where it begins: the environment does not honour its seed, or is another than it was"
                )
            step = await self._inner.step(action)
        return replace(step, reward=None, channels={})

    async def step(self, action: Action) -> Step:
        """See the inner one."""
        return await self._inner.step(action)

    async def snapshot(self) -> Snapshot:
        """See the inner one."""
        return await self._inner.snapshot()

    async def release(self, snapshot: Snapshot) -> None:
        """See the inner one."""
        await self._inner.release(snapshot)

    async def fork(self) -> "Led":
        """See the inner one."""
        return Led(await self._inner.fork(), self._lead)

    async def close(self) -> None:
        """Close the inner one."""
        await self._inner.close()


def synthesized_tasks(path: str, *, count: int | None = None, seed: int = 0) -> TaskSet:
    """The tasks of a file that `envgym synthesize` wrote.

    count: so many are drawn, each as often as its score says; None: each once, in the order of the file.
    """
    tasks = read_lines(path, Task.model_validate_json, what="task as JSON")
    if count is None:
        return TaskSet(tasks)
    if count < 1 or not tasks:
        raise ValueError(f"count is {count} of {len(tasks)} tasks in {path}; there must be at least one of each")
    scores = np.array([_made(task).get("score", 1.0) for task in tasks], float)
    drawn = np.random.default_rng(seed).choice(len(tasks), count, p=scores / scores.sum())
    return TaskSet(
        [tasks[at].model_copy(update={"id": f"{tasks[at].id}/{number}"}) for number, at in enumerate(drawn)]
    )


def _made(task: Task) -> dict[str, Any]:
    made: Any = task.metadata.get("synthesized")
    if not isinstance(made, dict):
        raise ValueError(f"task {task.id!r} was not synthesized; its metadata has no 'synthesized'")
    return made


def make_synthesized(task: Task, *, backend: SandboxBackend | None = None, **options: Any) -> Env:
    """options: of the environment that the task was found in; backend: where that acts, if it needs a sandbox."""
    made = _made(task)
    inner: Env = make(str(made["env"]), Task.model_validate(made["base"]), backend=backend, **options)
    if lead := made.get("lead"):
        inner = Led(inner, [action_from_json(one) for one in lead])
    return Wrapped(inner, Goal(task, str(made["goal"]), int(made["seed"])))


SANDBOXED = EnvSpec(
    name="synthesized-sandboxed",
    tasks=synthesized_tasks,
    make=make_synthesized,
    description="Tasks that `envgym synthesize` found in an environment that acts in a sandbox.",
    sandbox=True,
)
SPEC = EnvSpec(
    name="synthesized",
    tasks=synthesized_tasks,
    make=make_synthesized,
    description="Tasks that `envgym synthesize` found in another environment.",
)
