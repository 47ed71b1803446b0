"""Make tasks: break a real package, and keep the bug only when the tests prove it in a sandbox.

Everything that is tried is counted by what became of it. Order and choice depend on the seed alone, never on
timing. Several bugs of one task are made of bugs that were proved one by one. It does not judge (see `judge`),
store tasks (see `taskset`) or play them (see `env`).
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import Task
from envgym_environments.code_repair.baseline import Baseline, measure, package_world
from envgym_environments.code_repair.combine import Pool, interacting, together
from envgym_environments.code_repair.conditions import PER_PACKAGE
from envgym_environments.code_repair.describe import make_task
from envgym_environments.code_repair.judge import Bug, Candidate, Plan, Verdict, validate
from envgym_environments.code_repair.operators import OPERATORS, SMALL, candidates
from envgym_environments.code_repair.patch import counts as counts_as_source
from envgym_environments.code_repair.rewrite.candidates import Rewrite, functions_of, written
from envgym_environments.code_repair.rewrite.functions import Target
from envgym_environments.code_repair.runner import Layout
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


@dataclass(slots=True)
class Yield:
    """Counts of verdicts by operator, over one or more packages.

    Places that no test executes are `uncovered`, those that too many execute `crowded`. tasks: how many were made
    of the valid ones.
    """

    verdicts: dict[str, Counter[str]] = field(default_factory=dict)
    uncovered: int = 0
    crowded: int = 0
    seconds: float = 0.0
    tasks: int = 0

    def add(self, bug: Bug) -> None:
        """Count one judged candidate."""
        self.verdicts.setdefault(bug.candidate.operator, Counter())[bug.verdict] += 1

    @property
    def valid(self) -> int:
        """How many were valid."""
        return sum(counts[Verdict.VALID] for counts in self.verdicts.values())

    @property
    def tried(self) -> int:
        """How many were judged."""
        return sum(counts.total() for counts in self.verdicts.values())


def covered_sources(tree: Path, layout: Layout, covered: Sequence[str]) -> list[tuple[str, str]]:
    """(path, text) of the package's modules that tests execute; files with foreign line ends are left out."""
    found = []
    for path in sorted(covered):
        if not counts_as_source(path, layout):
            continue
        text = (tree / path).read_bytes().decode("utf-8", "replace")
        if "\r" not in text and "\ufffd" not in text and "\f" not in text:
            found.append((path, text))
    return found


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


def find_candidates(tree: Path, baseline: Baseline, plan: Plan, counts: Yield) -> list[Candidate]:
    """Every single mistake of the package that some tests, and not too many, can notice."""
    found: list[Candidate] = []
    operators = SMALL if plan.operators == "small" else OPERATORS
    for path, source in covered_sources(tree, baseline.layout, list(baseline.covers)):
        for mutation in candidates(source, operators=operators):
            covering = baseline.covering(path, mutation.first_line, mutation.last_line)
            if 0 < len(covering) <= plan.most_covering:
                found.append(Candidate(path, source, mutation, covering))
            counts.uncovered += not covering
            counts.crowded += len(covering) > plan.most_covering
    return found


def _place(candidate: Candidate) -> tuple[str, str]:
    return candidate.path, candidate.mutation.function


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
        cap = plan.per_function or max(3, -(-2 * plan.per_package // functions))
        cap = cap * plan.bugs if plan.bugs > 1 else cap
        made: Counter[tuple[str, str]] = Counter()
        pool = Pool(plan)
        async with aclosing(_judged(base, baseline, queue, plan, made, cap)) as bugs:
            async for bug in bugs:
                counts.add(bug)
                if bug.verdict is not Verdict.VALID:
                    continue
                made[_place(bug.candidate)] += 1
                whole = await _whole(base, baseline, pool, bug, plan, counts)
                if whole is not None:
                    counts.tasks += 1
                    yield make_task(baseline, tree, whole, plan)
                    if counts.tasks >= plan.per_package:
                        return


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

    return in_order(), len({_place(candidate) for candidate in listed}) or 1


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


async def _whole(base: Sandbox, baseline: Baseline, pool: Pool, bug: Bug, plan: Plan, counts: Yield) -> Bug | None:
    """The bug of a task: this one, or it and others that are valid together; None while there is none."""
    if plan.bugs == 1:
        return bug
    group = pool.add(bug)
    if not group:
        return None
    whole = await validate(base, baseline, together(group, baseline.tests), plan=plan, seed=plan.seed)
    counts.add(whole)
    return replace(whole, interacting=interacting(group, whole.failing)) if whole.verdict is Verdict.VALID else None


async def _judged(
    base: Sandbox,
    baseline: Baseline,
    queue: AsyncGenerator[Candidate, None],
    plan: Plan,
    made: Counter[tuple[str, str]],
    cap: int,
) -> AsyncGenerator[Bug, None]:
    """Judge candidates, `plan.in_flight` at once, and give the verdicts in queue order.

    A candidate whose function has its share is skipped; the check is made in queue order, so what comes out does
    not depend on which sandbox was faster.
    """
    running: deque[tuple[Candidate, asyncio.Task[Bug]]] = deque()
    try:
        while True:
            while len(running) < plan.in_flight:
                candidate = await _next(queue, made, cap)
                if candidate is None:
                    break
                work = validate(base, baseline, candidate, plan=plan, seed=plan.seed)
                running.append((candidate, asyncio.create_task(work)))
            if not running:
                return
            candidate, judged = running.popleft()
            bug = await judged
            if made[_place(candidate)] < cap:
                yield bug
    finally:
        for _, left in running:
            left.cancel()
        await asyncio.gather(*(left for _, left in running), return_exceptions=True)
        await queue.aclose()


async def _next(
    queue: AsyncGenerator[Candidate, None], made: Counter[tuple[str, str]], cap: int
) -> Candidate | None:
    """The next candidate whose function does not have its share yet."""
    async for candidate in queue:
        if made[_place(candidate)] < cap:
            return candidate
    return None
