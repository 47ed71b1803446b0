"""`retry`: any single-turn task, made multi-turn by saying no more than "try again" after a wrong answer.

UFO (unary feedback as observation), "Let's Try Again": the reward of a right answer decays with each attempt, and
repeated answers are punished. An attempt is one episode of the inner environment; the next begins
with the same seed, so it is the same problem. What acts in a sandbox begins each attempt in a fresh one.
"""

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from pydantic import JsonValue

from envgym.env import Durable, Env, Snapshot, Step, StopReason
from envgym.messages import Action, Message, ToolSpec
from envgym.policy import Agent
from envgym.registry import EnvSpec, find
from envgym.registry import make as made
from envgym.registry import spec as spec_of
from envgym.sandbox import SandboxBackend
from envgym.task import Task, TaskSet
from envgym.tools import compact

__all__ = ["SANDBOXED", "SPEC", "Retry", "expert", "make_retry", "retry_tasks", "sandboxed_tasks"]


@dataclass(frozen=True, slots=True)
class _Rules:
    tries: int
    decay: float
    penalty: float
    full: float


@dataclass(slots=True)
class _Attempts:
    """made: digests of what was submitted or said at the end of each attempt."""

    made: list[str] = field(default_factory=list)
    over: bool = False


class Retry:
    """Implements `envgym.env.Env` around an inner one; its snapshots are the inner one's with the attempts beside.

    tries: attempts in all. decay: what a right answer's reward is multiplied by for each attempt before it.
    penalty: of an answer that was given before. full: an inner reward from which on an attempt is right.
    """

    def __init__(
        self,
        task: Task,
        inner: Env,
        *,
        tries: int = 5,
        decay: float = 0.8,
        penalty: float = 0.1,
        full: float = 1.0,
    ) -> None:
        if tries < 1 or not 0 <= decay <= 1 or penalty < 0:
            raise ValueError(
                f"tries is {tries}, decay {decay}, penalty {penalty}; they must be at least 1, 0 to 1, at least 0"
            )
        self.task = task
        self._rules = _Rules(tries, decay, penalty, full)
        self._inner = inner
        self.tools: tuple[ToolSpec, ...] = inner.tools
        self.uses_seed: bool | None = getattr(inner, "uses_seed", None)
        self._seed = 0
        self._kept: _Attempts | None = None

    @property
    def grader(self) -> Any:
        """The inner environment's own grader, or None."""
        return getattr(self._inner, "grader", None)

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """The inner problem, or the state of `start`."""
        if start is None:
            step = await self._inner.reset(seed=seed)
            self._seed, self._kept = seed, _Attempts()
            return self._step(step)
        if start.task_id != self.task.id:
            raise ValueError(f"cannot start task {self.task.id!r} from a snapshot of task {start.task_id!r}")
        step = await self._inner.reset(seed=start.seed, start=start.inside())
        self._seed, self._kept = start.seed, msgspec.convert(json.loads(start.state)["kept"], _Attempts)
        return self._step(replace(step, reward=None, channels={}))

    async def step(self, action: Action) -> Step:
        """A turn of the inner environment; where that ends with less than `full`, the same problem again."""
        kept, rules = self._going("step"), self._rules
        step = await self._inner.step(action)
        if step.stop is None:
            return self._step(replace(step, reward=None, channels={}))
        said = _said(step, action)
        again = float(said in kept.made)
        kept.made.append(said)
        earned = step.reward or 0.0
        right = earned >= rules.full - 1e-9
        reward = earned * rules.decay ** (len(kept.made) - 1) if right else -rules.penalty * again
        channels = {"right": float(right), "attempts": float(len(kept.made)), "repeated": again}
        if right or len(kept.made) >= rules.tries:
            kept.over = True
            stop = StopReason.GOAL if right else StopReason.LOST
            channels["reward"] = reward
            return self._step(replace(step, reward=reward, channels=channels, stop=stop, info={}))
        fresh = await self._inner.reset(seed=self._seed)
        seen = (Message(role="user", content="That is not right. Try again."),)
        return self._step(
            replace(fresh, observation=seen, reward=reward or None, channels=channels, cost=step.cost)
        )

    def _step(self, step: Step) -> Step:
        assert self._kept is not None
        made = self._kept.made
        # what was answered before decides what a repetition is, so it is part of the state, in any order
        before = hashlib.blake2b(" ".join(sorted(made)).encode(), digest_size=8).hexdigest() if made else ""
        key = f"{len(made)}/{before}/{step.state_key}" if step.state_key else ""
        return replace(step, state_key=key)

    def _going(self, what: str) -> _Attempts:
        if self._kept is None:
            raise RuntimeError(f"{what} before reset in task {self.task.id!r}: call reset(seed=...) first")
        if self._kept.over and what == "step":
            raise RuntimeError(f"step after the end in task {self.task.id!r}: call reset first")
        return self._kept

    async def snapshot(self) -> Snapshot:
        """The inner snapshot and the attempts; it restores as the inner one does."""
        self._going("snapshot")
        return self._with(await self._inner.snapshot())

    async def durable_snapshot(self) -> Snapshot:
        """As `snapshot`, of the inner one's durable state where it has such."""
        self._going("snapshot")
        inner = self._inner
        return self._with(await (inner.durable_snapshot() if isinstance(inner, Durable) else inner.snapshot()))

    def _with(self, inner: Snapshot) -> Snapshot:
        assert self._kept is not None
        return inner.around({"kept": msgspec.to_builtins(self._kept)}, task_id=self.task.id, seed=self._seed)

    async def release(self, snapshot: Snapshot) -> None:
        """Release the inner snapshot."""
        await self._inner.release(snapshot.inside())

    async def fork(self) -> "Retry":
        """An independent one around a fork of the inner environment."""
        rules = self._rules
        other = Retry(
            self.task, await self._inner.fork(), tries=rules.tries, decay=rules.decay, penalty=rules.penalty,
            full=rules.full,
        )  # fmt: skip
        other._seed = self._seed
        if self._kept is not None:
            other._kept = _Attempts(list(self._kept.made), self._kept.over)
        return other

    async def close(self) -> None:
        """Close the inner environment."""
        await self._inner.close()


def _said(step: Step, action: Action) -> str:
    """A digest of what an attempt ended with: what was handed in, else the calls, else the words.

    Thoughts beside a call and the calls' ids are no part of an answer.
    """
    said = step.submission or "\n".join(map(compact, action.calls)) or action.text
    return hashlib.blake2b(said.strip().encode("utf-8", "replace"), digest_size=12).hexdigest()


def retry_tasks(inner: str = "synthetic", **options: Any) -> TaskSet:
    """The tasks of another environment, by its name, with the options of its own tasks. Raises ValueError."""
    tasks = spec_of(inner).tasks(**options)
    length = None if tasks.infinite else len(tasks)

    def make(index: int) -> Task:
        task = tasks[index]
        data: dict[str, JsonValue] = {"inner": inner, "task": task.model_dump(mode="json")}
        return Task(id=f"retry/{task.id}", prompt=task.prompt, split=task.split, seed=task.seed, metadata=data)

    return TaskSet.lazy(make, length=length)


def sandboxed_tasks(inner: str = "python", **options: Any) -> TaskSet:
    """As `retry_tasks`, of an environment that acts in a sandbox unless another is named. Raises ValueError."""
    return retry_tasks(inner, **options)


def expert(task: Task, *, seed: int = 0) -> Agent:
    """The inner environment's expert, who needs no second try. Raises ValueError where there is none."""
    inner: Agent = find("agents", f"{task.metadata['inner']}-expert")(
        Task.model_validate(task.metadata["task"]), seed=seed
    )
    return inner


def make_retry(
    task: Task,
    *,
    backend: SandboxBackend | None = None,
    tries: int = 5,
    decay: float = 0.8,
    penalty: float = 0.1,
    full: float = 1.0,
    **options: Any,
) -> Retry:
    """See `Retry`; options: of the inner environment; backend: where that acts, if it needs a sandbox.

    Raises ValueError where it needs one and none is given.
    """
    inner = spec_of(str(task.metadata["inner"]))
    if inner.sandbox and backend is None:
        raise ValueError(
            f"environment {inner.name!r} acts in a sandbox: play task {task.id!r} by {SANDBOXED.name!r}, with "
            "backend="
        )
    inside = made(inner, Task.model_validate(task.metadata["task"]), backend=backend, **options)
    return Retry(task, inside, tries=tries, decay=decay, penalty=penalty, full=full)


SPEC = EnvSpec(
    name="retry",
    tasks=retry_tasks,
    make=make_retry,
    description="Any single-turn environment, made multi-turn by 'try again' after a wrong answer (UFO).",
    in_process=True,
)
SANDBOXED = EnvSpec(
    name="retry-sandboxed",
    tasks=sandboxed_tasks,
    make=make_retry,
    description="As `retry`, around an environment that acts in a sandbox.",
    sandbox=True,
)
