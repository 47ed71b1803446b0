"""`retry`: any single-turn task, made multi-turn by saying no more than "try again" after a wrong answer.

UFO (unary feedback as observation), "Let's Try Again": the reward of a right answer decays with each attempt, and
repeated answers are punished. An attempt is one episode of the inner environment; the next begins
with the same seed, so it is the same problem.
"""

import json
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
from pydantic import JsonValue

from envgym.env import Env, Snapshot, Step, StopReason
from envgym.messages import Action, Message, ToolSpec
from envgym.policy import Agent
from envgym.registry import EnvSpec, find
from envgym.registry import make as made
from envgym.registry import spec as spec_of
from envgym.replay import as_env
from envgym.task import Task, TaskSet
from envgym.wire import snapshot_from_json, snapshot_to_json

__all__ = ["SPEC", "Retry", "expert", "retry_tasks"]


@dataclass(slots=True)
class _Attempts:
    """made: what was submitted or said at the end of each attempt."""

    made: list[str] = field(default_factory=list)
    over: bool = False


class Retry:
    """Implements `envgym.env.Env` around an inner one.

    tries: attempts in all. decay: what a right answer's reward is multiplied by for each attempt before it.
    penalty: of an answer that was given before. full: an inner reward from which on an attempt is right.
    options: of the inner environment.
    """

    def __init__(
        self,
        task: Task,
        *,
        tries: int = 5,
        decay: float = 0.8,
        penalty: float = 0.1,
        full: float = 1.0,
        **options: Any,
    ) -> None:
        if tries < 1 or not 0 <= decay <= 1 or penalty < 0:
            raise ValueError(
                f"tries is {tries}, decay {decay}, penalty {penalty}; they must be at least 1, 0 to 1, at least 0"
            )
        self.task = task
        self._bounds = (tries, decay, penalty, full)
        self._options = options
        inner = spec_of(str(task.metadata["inner"]))
        if inner.sandbox:
            raise ValueError(f"environment {inner.name!r} acts in a sandbox; `retry` wraps those that do not")
        inside = Task.model_validate(task.metadata["task"])
        self._inner: Env = as_env(made(inner, inside, **options), partial(made, inner, inside, **options))
        self.tools: tuple[ToolSpec, ...] = self._inner.tools
        self.uses_seed = bool(getattr(self._inner, "uses_seed", False))
        self._seed = 0
        self._kept: _Attempts | None = None

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """The inner problem, or the state of `start`."""
        if start is None:
            step = await self._inner.reset(seed=seed)
            self._seed, self._kept = seed, _Attempts()
            return self._step(step)
        if start.task_id != self.task.id:
            raise ValueError(f"cannot start task {self.task.id!r} from a snapshot of task {start.task_id!r}")
        raw = json.loads(start.state)
        step = await self._inner.reset(seed=start.seed, start=snapshot_from_json(raw["inner"]))
        self._seed, self._kept = start.seed, msgspec.convert(raw["kept"], _Attempts)
        return self._step(replace(step, reward=None, channels={}))

    async def step(self, action: Action) -> Step:
        """A turn of the inner environment; where that ends with less than `full`, the same problem again."""
        kept = self._going("step")
        step = await self._inner.step(action)
        if step.stop is None:
            return self._step(replace(step, reward=None, channels={}))
        tries, decay, penalty, full = self._bounds
        said = (step.submission or action.text or repr(action.calls)).strip()
        said = said.encode("utf-8", "replace").decode()[:2000]
        again = float(said in kept.made)
        kept.made.append(said)
        earned = step.reward or 0.0
        right = earned >= full - 1e-9
        reward = earned * decay ** (len(kept.made) - 1) if right else -penalty * again
        channels = {"right": float(right), "attempts": float(len(kept.made)), "repeated": again}
        if right or len(kept.made) >= tries:
            kept.over = True
            stop = StopReason.GOAL if right else StopReason.LOST
            channels["reward"] = reward
            return self._step(replace(step, reward=reward, channels=channels, stop=stop, info={}))
        fresh = await self._inner.reset(seed=self._seed)
        seen = (Message(role="user", content="That is not right. Try again."),)
        return self._step(replace(fresh, observation=seen, reward=reward or None, channels=channels))

    def _step(self, step: Step) -> Step:
        assert self._kept is not None
        attempts = len(self._kept.made)
        return replace(step, state_key=f"{attempts}/{step.state_key}" if step.state_key else "")

    def _going(self, what: str) -> _Attempts:
        if self._kept is None:
            raise RuntimeError(f"{what} before reset in task {self.task.id!r}: call reset(seed=...) first")
        if self._kept.over and what == "step":
            raise RuntimeError(f"step after the end in task {self.task.id!r}: call reset first")
        return self._kept

    async def snapshot(self) -> Snapshot:
        """The inner snapshot and the attempts; it restores as the inner one does."""
        kept = self._going("snapshot")
        inner = await self._inner.snapshot()
        state = {"inner": snapshot_to_json(inner), "kept": msgspec.to_builtins(kept)}
        return Snapshot(restore=inner.restore, task_id=self.task.id, seed=self._seed, state=json.dumps(state))

    async def release(self, snapshot: Snapshot) -> None:
        """Release the inner snapshot."""
        inner = snapshot_from_json(json.loads(snapshot.state)["inner"])
        if inner is not None:
            await self._inner.release(inner)

    async def fork(self) -> "Retry":
        """An independent one around a fork of the inner environment."""
        tries, decay, penalty, full = self._bounds
        other = Retry(self.task, tries=tries, decay=decay, penalty=penalty, full=full, **self._options)
        if self._kept is not None:
            await other._inner.close()
            other._inner = await self._inner.fork()
            other._seed = self._seed
            other._kept = _Attempts(list(self._kept.made), self._kept.over)
        return other

    async def close(self) -> None:
        """Close the inner environment."""
        await self._inner.close()


def retry_tasks(inner: str = "synthetic", **options: Any) -> TaskSet:
    """The tasks of another environment, by its name, with the options of its own tasks. Raises ValueError."""
    tasks = spec_of(inner).tasks(**options)
    length = None if tasks.infinite else len(tasks)

    def make(index: int) -> Task:
        task = tasks[index]
        data: dict[str, JsonValue] = {"inner": inner, "task": task.model_dump(mode="json")}
        return Task(id=f"retry/{task.id}", prompt=task.prompt, split=task.split, seed=task.seed, metadata=data)

    return TaskSet.lazy(make, length=length)


def expert(task: Task, *, seed: int = 0) -> Agent:
    """The inner environment's expert, who needs no second try. Raises ValueError where there is none."""
    inner: Agent = find("agents", f"{task.metadata['inner']}-expert")(
        Task.model_validate(task.metadata["task"]), seed=seed
    )
    return inner


def _make(task: Task, **options: Any) -> Retry:
    return Retry(task, **options)


SPEC = EnvSpec(
    name="retry",
    tasks=retry_tasks,
    make=_make,
    description="Any single-turn environment, made multi-turn by 'try again' after a wrong answer (UFO).",
    in_process=True,
)
