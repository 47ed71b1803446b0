"""Make tasks: break a real package, and keep the bug only when the tests prove it in a sandbox.

Everything that is tried is counted by what became of it. Order and choice depend on the seed alone, never on
timing (see `in_order`). It does not judge (see `judge`), store tasks (see `taskset`) or play them (see `env`).
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import numpy as np

from envgym.sandbox import SandboxBackend
from envgym.task import Task
from envgym_environments.code_repair.baseline import Baseline, measure, package_world
from envgym_environments.code_repair.conditions import PER_PACKAGE
from envgym_environments.code_repair.describe import make_task
from envgym_environments.code_repair.graded import believed
from envgym_environments.code_repair.in_order import place_of, tasks_in_order
from envgym_environments.code_repair.judge import Bug, Candidate, Plan, Verdict, validate
from envgym_environments.code_repair.places import Yield, covered_sources, find_candidates
from envgym_environments.code_repair.rewrite.candidates import Rewrite, functions_of, written
from envgym_environments.code_repair.rewrite.functions import Target
from envgym_environments.code_repair.sources import Package, layout_of, source_tree

__all__ = [
    "Bug",
    "Candidate",
    "Plan",
    "Verdict",
    "Yield",
    "covered_sources",
    "find_candidates",
    "make_tasks",
    "validate",
]


def _ordered(found: Sequence[Candidate], rng: np.random.Generator) -> list[Candidate]:
    """A random order in which the operators take turns, in a random order too, so that none dominates."""
    by_operator: dict[str, list[Candidate]] = {}
    for candidate in found:
        by_operator.setdefault(candidate.mutation.operator, []).append(candidate)
    queues = []
    names = sorted(by_operator)
    for index in rng.permutation(len(names)):
        of_name = by_operator[names[index]]
        queues.append(deque(of_name[place] for place in rng.permutation(len(of_name))))
    ordered: list[Candidate] = []
    while queues:
        ordered += [queue.popleft() for queue in queues]
        queues = [queue for queue in queues if queue]
    return ordered


async def make_tasks(
    package: Package, backend: SandboxBackend, plan: Plan, *, counts: Yield, cache: Path | None = None
) -> AsyncIterator[Task]:
    """Valid tasks of one package, up to ``plan.per_package``; verdicts are added to `counts` as they fall.

    Raises ValueError or EnvgymError when the package's source or suite is not usable.
    """
    tree = await asyncio.to_thread(source_tree, package, cache=cache)
    async with await backend.create(package_world(tree)) as base:
        conditions = PER_PACKAGE if plan.certify else ()
        baseline = await measure(base, package, layout_of(package, tree), conditions=conditions)
        queue, functions = await _queue(tree, baseline, plan, counts)

        async def judge(candidate: Candidate) -> Bug:
            return await validate(base, baseline, candidate, plan=plan, seed=plan.seed)

        async def make(bug: Bug) -> Task | Verdict:
            task = make_task(baseline, tree, bug, plan)
            return await believed(task, backend) if plan.certify else task

        made = tasks_in_order(queue, functions, judge, make, plan=plan, counts=counts, tests=baseline.tests)
        async with aclosing(made) as tasks:
            async for task in tasks:
                yield task


async def _queue(
    tree: Path, baseline: Baseline, plan: Plan, counts: Yield
) -> tuple[AsyncGenerator[Candidate, None], int]:
    """What is tried, in order, and in how many functions it lies."""
    if plan.rewrite is not None:
        sources = await asyncio.to_thread(covered_sources, tree, baseline.layout, list(baseline.covers))
        found = functions_of(sources, baseline, plan.most_covering)
        return _written(plan.rewrite, sources, found, baseline, plan, counts), len(found) or 1
    listed = await asyncio.to_thread(find_candidates, tree, baseline, plan, counts)
    rng = np.random.default_rng([plan.seed, int(baseline.package.sha256[:12], 16)])

    async def in_order() -> AsyncGenerator[Candidate, None]:
        for candidate in _ordered(listed, rng):
            yield candidate

    return in_order(), len({place_of(candidate) for candidate in listed}) or 1


async def _written(
    rewrite: Rewrite,
    sources: Sequence[tuple[str, str]],
    found: Sequence[Target],
    baseline: Baseline,
    plan: Plan,
    counts: Yield,
) -> AsyncGenerator[Candidate, None]:
    """A writer's functions as candidates; answers that are none are counted by reason."""
    about = Task(id=f"code-repair/{baseline.package.slug}", prompt="")
    async with aclosing(written(rewrite, sources, found, about=about, seed=plan.seed)) as answers:
        async for one in answers:
            if isinstance(one.made, str):
                counts.verdicts.setdefault(one.kind, Counter())[one.made] += 1
                continue
            covering = baseline.covering(one.target.path, one.made.first_line, one.made.last_line)
            yield Candidate(one.target.path, one.source, one.made, covering)
