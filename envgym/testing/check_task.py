"""The task contract, executable: ids are unique, tasks are data, splits do not overlap, and they can be solved.

`check_tasks` looks at the data alone; `check_task` also plays: the reference solution scores full, doing nothing
scores none. How an environment behaves is `check_env`'s business.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from envgym.env import THE_AGENT, Env, Playable
from envgym.episode import Episode
from envgym.jobs import Job, run_episode
from envgym.limits import Limits
from envgym.policy import AgentFactory
from envgym.replay import as_env
from envgym.rollout import Rollout
from envgym.task import Task, TaskSet
from envgym.testing.fakes import ScriptedAgent

__all__ = ["check_task", "check_task_sync", "check_tasks"]

_MANY = 1000


def check_tasks(
    tasks: TaskSet,
    *,
    splits: Sequence[str] | None = None,
    seeded: bool = False,
    content: Callable[[Task], Any] | None = None,
) -> None:
    """Check tasks as data (of an infinite set, the first 1,000). Raises AssertionError with the broken sentence.

    splits: when given, the names that tasks may have. seeded, content: as of `envgym.registry.EnvSpec`: without
    them, tasks that differ in id, split and seed only are one problem, which must be of one split; with `content`
    those are for which it is the same.
    """
    assert isinstance(tasks, TaskSet), f"a task set is a TaskSet; it is a {type(tasks).__name__}"
    found = tasks.take(_MANY) if tasks.infinite else list(tasks)
    assert found, "a task set holds at least one task"
    for index, task in enumerate(found):
        assert isinstance(task, Task), f"a task set holds Tasks; task {index} is a {type(task).__name__}"
    ids = [task.id for task in found]
    twice = sorted({name for name in ids if ids.count(name) > 1}) if len(set(ids)) < len(ids) else []
    assert not twice, f"task ids are unique in their set; twice: {twice[:5]}"
    for index, task in enumerate(found):
        again = Task.model_validate_json(task.model_dump_json())
        assert again == task, f"a task reads back from JSON as it was; task {task.id!r} does not"
        assert tasks[index] == task, f"task {index} ({task.id!r}) is the same whenever it is asked for"
        known = tasks.split_at(index)
        assert known == task.split, f"split_of tells the split of task {index}: {known!r} is not {task.split!r}"
        assert splits is None or task.split in splits, (
            f"split {task.split!r} of {task.id!r} is one of {list(splits or ())}"
        )
    if content is not None:
        _check_content(found[:3], content)
    _check_splits(found, seeded, content)


def _check_content(found: Sequence[Task], content: Callable[[Task], Any]) -> None:
    for task in found:
        asked, again = content(task), content(Task.model_validate_json(task.model_dump_json()))
        try:
            json.dumps(asked, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise AssertionError(f"content is JSON; that of task {task.id!r} is not: {error}") from error
        assert asked == again, f"content is a function of a task's data; of task {task.id!r}, stored, it differs"


def _check_splits(found: Sequence[Task], seeded: bool, content: Callable[[Task], Any] | None) -> None:
    """A problem belongs to one split. Most sets give each task a seed of its own, whatever is drawn by it."""
    seen: dict[str, Task] = {}
    blank = {"id": "", "split": ""} if seeded else {"id": "", "split": "", "seed": 0}
    for task in found:
        told = task.model_copy(update=blank).model_dump(mode="json") if content is None else content(task)
        asked = json.dumps(told, sort_keys=True)
        other = seen.setdefault(asked, task)
        assert other.split == task.split, (
            f"splits are disjoint: {task.id!r} of {task.split!r} is the same problem as {other.id!r} of "
            f"{other.split!r}"
            + (
                ""
                if other.seed == task.seed or content is not None
                else " but for the task's seed (if that draws the world, say seeded=True)"
            )
        )


def _idle(task: Task, *, seed: int) -> ScriptedAgent:
    return ScriptedAgent([""] * 1000)


async def check_task(  # noqa: PLR0913  # one parameter per condition
    tasks: TaskSet,
    make: Callable[[Task], Env | Playable | Awaitable[Env]],
    reference: AgentFactory,
    *,
    full: float = 1.0,
    seeds: Sequence[int] = (0, 1),
    idle: AgentFactory = _idle,
    limits: Limits | None = None,
    seeded: bool = False,
    content: Callable[[Task], Any] | None = None,
) -> None:
    """Check tasks as data, and that each is worth something: `reference` scores `full`, `idle` scores none.

    Scores are episode rewards (the sum over turns). `idle` says nothing (empty messages) by default. seeded,
    content: as of `check_tasks`. Raises AssertionError with the broken sentence.
    """
    check_tasks(tasks, seeded=seeded, content=content)
    rollout = Rollout(limits=limits or Limits(turns=8))
    for task in tasks.take(_MANY):
        for seed in seeds:
            solved = await play(task, make, reference, seed, rollout)
            assert solved.failure is None, f"the reference solution of {task.id!r} runs: {solved.failure}"
            assert abs((solved.reward or 0.0) - full) <= 1e-9, (
                f"the reference solution of {task.id!r} (seed {seed}) scores full: {solved.reward}, not {full}; "
                f"it ended with {solved.stop}"
            )
            nothing = await play(task, make, idle, seed, rollout)
            assert nothing.failure is None, f"doing nothing in {task.id!r} breaks nothing: {nothing.failure}"
            assert (nothing.reward or 0.0) <= 0.0, (
                f"doing nothing in {task.id!r} (seed {seed}) scores none: {nothing.reward}"
            )


async def play(
    task: Task, make: Callable[[Task], Any], factory: AgentFactory, seed: int, rollout: Rollout, *, name: str = ""
) -> Episode:
    """One episode of an agent in an environment that `make` gives; failures are in it. name: of who plays."""

    async def make_env() -> Env:
        made = make(task)
        made = await made if isinstance(made, Awaitable) else made
        return as_env(made, partial(make, task))

    job = Job(
        make_env=make_env,
        make_agent=lambda env: factory(task, seed=seed),
        task_id=task.id,
        seed=seed,
        episode_id=f"check/{task.id}/{seed}{name and '/' + name}",
        rollout=rollout,
        actor=THE_AGENT,
    )
    return await run_episode(job)


def check_task_sync(
    tasks: TaskSet,
    make: Callable[[Task], Env | Playable | Awaitable[Env]],
    reference: AgentFactory,
    **options: Any,
) -> None:
    """`check_task` on an event loop of its own, for a plain test function."""
    asyncio.run(check_task(tasks, make, reference, **options))
