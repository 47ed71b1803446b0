"""Whether a set of code-repair tasks holds what it promises: answers resolve, nothing does not, tests repeat.

    python benchmarks/task_set.py --tasks tasks.jsonl --sample 1000 --executions 30000

Of a task file (without one: tasks of one small package, built first) a sample drawn by the seed is graded twice,
with the task's own answer and with an empty submission, nobody remembering anything. Then the suite of each
answered task is run again and again, each in a fresh sandbox, until so many tests have run: one whose outcome is
not that of the first run is a flake. The bars are counts, and do not depend on the machine.
"""

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from _harness import Row, finish, options
from envgym_environments.code_repair.factory import Plan, Yield, make_tasks
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.runner import run_tests
from envgym_environments.code_repair.sources import packages
from envgym_environments.code_repair.suites.run import run_suite
from envgym_environments.code_repair.suites.suite import Suite
from envgym_environments.code_repair.taskset import load_tasks
from envgym_environments.code_repair.trials import Facts

from envgym.registry import make_backend
from envgym.sandbox import SandboxBackend
from envgym.task import Task

T = TypeVar("T")


def more(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--tasks", type=Path, help="a task file (`envgym tasks build`)")
    parser.add_argument("--sample", type=int, default=0, help="how many tasks (0: 2 when quick, else 20)")
    parser.add_argument("--executions", type=int, default=0, help="single tests (0: 300 when quick, else 3,000)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")


async def tasks_of(given: argparse.Namespace, backend: SandboxBackend, count: int) -> list[Task]:
    """The sample, without order."""
    if given.tasks is None:
        package = next(one for one in packages() if one.name == "inflection")
        return [task async for task in make_tasks(package, backend, Plan(per_package=count), counts=Yield())]
    found = load_tasks(given.tasks)
    chosen = np.random.default_rng(given.seed).choice(len(found), min(count, len(found)), replace=False)
    return [found[int(index)] for index in sorted(chosen)]


def answer(task: Task) -> str:
    """The task's own repair as a diff."""
    gold = task.metadata.get("gold")
    patch = gold.get("patch") if isinstance(gold, dict) else None
    if not isinstance(patch, str):
        raise ValueError(f"task {task.id!r} has no answer; a sample can hold tasks with a gold patch only")
    return patch


async def resolved(task: Task, backend: SandboxBackend, patch: str) -> dict[str, float]:
    """The channels of a grade that nobody remembers."""
    return dict((await CodeRepairGrader(backend, memo=Memo()).grade(task, patch)).channels)


async def outcomes(task: Task, backend: SandboxBackend) -> dict[str, str]:
    """What each test of the suite does with the answer, in a fresh sandbox."""
    facts = Facts.of(task)
    async with await backend.create(task.world) as sandbox:
        await sandbox.write("/tmp/answer.patch", answer(task).encode())
        done = await sandbox.exec(["patch", "-s", "-p1", "-i", "/tmp/answer.patch"])
        if not done.ok:
            raise RuntimeError(f"the answer of {task.id} does not apply: {done.text[-300:]}")
        if isinstance(facts.layout, Suite):
            report = await run_suite(sandbox, facts.layout, timeout_s=2 * facts.run_s)
        else:
            report = await run_tests(sandbox, facts.layout, timeout_s=facts.run_s, test_timeout_s=facts.test_s)
    return dict(report.outcomes)


async def at_once(tasks: Sequence[Task], do: Callable[[Task], Awaitable[T]]) -> list[T]:
    """One result for each task, as many at a time as there are cores."""
    places = asyncio.Semaphore(os.cpu_count() or 1)

    async def one(task: Task) -> T:
        async with places:
            return await do(task)

    return list(await asyncio.gather(*map(one, tasks)))


async def flakes(tasks: Sequence[Task], backend: SandboxBackend, enough: int) -> tuple[int, list[str]]:
    """How many single tests ran again, and each that did something else than the first time."""
    first = await at_once(tasks, lambda task: outcomes(task, backend))
    ran, differing, at = 0, list[str](), 0
    expected = dict(zip((task.id for task in tasks), first, strict=True))
    size = max(1, os.cpu_count() or 1)
    while ran < enough:
        batch = [tasks[(at + index) % len(tasks)] for index in range(size)]
        at += size
        for task, found in zip(batch, await at_once(batch, lambda task: outcomes(task, backend)), strict=True):
            before = expected[task.id]
            ran += len(found)
            differing += [f"{task.id} {name}" for name in before | found if before.get(name) != found.get(name)]
            if not found and not before:
                raise RuntimeError(f"no test of {task.id} ran")
    return ran, differing


async def main() -> None:
    given = options(__doc__ or "", more=more)
    count = given.sample or (2 if given.quick else 20)
    enough = given.executions or (300 if given.quick else 3000)
    async with make_backend("auto") as backend:
        tasks = await tasks_of(given, backend, count)
        if not tasks:
            raise RuntimeError("the sample is empty")
        gold = await at_once(tasks, lambda task: resolved(task, backend, answer(task)))
        idle = await at_once(tasks, lambda task: resolved(task, backend, ""))
        ran, differing = await flakes(tasks, backend, enough)
    lost = [task.id for task, found in zip(tasks, gold, strict=True) if found["resolved"] != 1.0]
    free = [task.id for task, found in zip(tasks, idle, strict=True) if found["resolved"] or found["f2p"]]
    rows = [
        Row("answers not resolved", len(lost), len(tasks), "tasks", "tasks", 0.0, absolute=True),
        Row("gained by doing nothing", len(free), len(tasks), "tasks", "tasks", 0.0, absolute=True),
        Row("flaky executions", len(differing), ran, "single tests run again", "tests", 0.0, absolute=True),
    ]
    voided = sum(found["voided"] for found in (*gold, *idle))
    finish("task_set", rows, given, lost=lost, free=free, flaky=differing, voided=voided)


if __name__ == "__main__":
    asyncio.run(main())
