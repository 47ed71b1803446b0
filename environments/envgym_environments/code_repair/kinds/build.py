"""Make tasks of a kind: try its places in a seeded order, and keep what the grader itself certifies.

Certified: the real grader gave the answer the full reward and the untouched state none, each as often as
`Plan.repetitions` says, in fresh sandboxes and without memory of the other grades.
"""

import asyncio
import platform
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envgym.errors import SandboxDied
from envgym.sandbox import SandboxBackend
from envgym.task import Task
from envgym_environments.code_repair.baseline import measure, package_world
from envgym_environments.code_repair.certify import Certificate, with_certificate
from envgym_environments.code_repair.conditions import PER_PACKAGE
from envgym_environments.code_repair.graded import WRONG, graded
from envgym_environments.code_repair.judge import Plan, Verdict
from envgym_environments.code_repair.kinds.assemble import assemble
from envgym_environments.code_repair.kinds.contract import Place
from envgym_environments.code_repair.kinds.registry import kind_named
from envgym_environments.code_repair.places import Yield
from envgym_environments.code_repair.sources import Package, layout_of, source_tree

__all__ = ["certify_task", "graded_again", "make_kind_tasks"]


async def make_kind_tasks(
    package: Package, backend: SandboxBackend, plan: Plan, *, counts: Yield, cache: Path | None = None
) -> AsyncIterator[Task]:
    """Certified tasks of `plan.kind` of one package, up to ``plan.per_package``.

    Raises ValueError or EnvgymError when the package's source or suite is not usable.
    """
    kind = kind_named(plan.kind)
    tree = await asyncio.to_thread(source_tree, package, cache=cache)
    async with await backend.create(package_world(tree)) as base:
        baseline = await measure(
            base, package, layout_of(package, tree), conditions=PER_PACKAGE if plan.certify else ()
        )
        places = await asyncio.to_thread(kind.places, tree, baseline, plan)
        rng = np.random.default_rng([plan.seed, int(package.sha256[:12], 16)])
        for place in _ordered(places, rng):
            found = counts.verdicts.setdefault(str(place["form"]), Counter())
            began = time.perf_counter()
            try:
                seen = await kind.prove(base, baseline, tree, place, plan)
            except SandboxDied:
                seen = Verdict.CRASHES
            if isinstance(seen, Verdict):
                found[seen] += 1
                continue
            facts = {"seed": plan.seed, "issue": plan.issue, "suite_s": round(baseline.suite_s, 3), **seen}
            task = assemble(kind, package, baseline.layout, tree, place, facts)
            task_or_why = await certify_task(
                task, backend, runs=plan.repetitions, quarantined=baseline.quarantined, began=began
            )
            if isinstance(task_or_why, Verdict):
                found[task_or_why] += 1
                continue
            found[Verdict.VALID] += 1
            counts.tasks += 1
            yield task_or_why
            if counts.tasks >= plan.per_package:
                return


def _ordered(places: Sequence[Place], rng: np.random.Generator) -> list[Place]:
    """A random order in which the forms take turns."""
    queues: dict[str, deque[Place]] = {}
    for index in rng.permutation(len(places)):
        queues.setdefault(str(places[index]["form"]), deque()).append(places[index])
    ordered: list[Place] = []
    while any(queues.values()):
        ordered += [queue.popleft() for _, queue in sorted(queues.items()) if queue]
    return ordered


async def certify_task(
    task: Task, backend: SandboxBackend, *, runs: int, quarantined: Any = None, began: float | None = None
) -> Task | Verdict:
    """The task with the certificate of its grades, or why it gets none. began: when its making began."""
    began = time.perf_counter() if began is None else began
    wrong = await graded(task, backend, runs=runs)
    if wrong is not None:
        return wrong
    certificate = Certificate(
        gold={"graded": (runs, runs)},
        untouched={"graded": (runs, runs)},
        quarantined=dict(quarantined or {}),
        date_shifted=False,
        versions={"python": platform.python_version(), "pytest": pytest.__version__},
        seconds=round(time.perf_counter() - began, 3),
        digest="",
    )
    return with_certificate(task, certificate)


async def graded_again(task: Task, backend: SandboxBackend, *, runs: int = 1) -> Task | str:
    """The task of a kind with the certificate of the grades that are made now, or what is wrong with it."""
    found = await certify_task(task, backend, runs=runs)
    return WRONG[found] if isinstance(found, Verdict) else found
