"""Make tasks: break a real package in one place, and keep the bug only when the tests prove it in a sandbox.

A valid bug passes before (the baseline), fails at least one covering test after, fails the same tests again,
and passes when its text is put back. Everything else is counted by reason. Order and choice depend on the seed
alone, never on timing. It does not store tasks (see `taskset`) and does not play them (see `env`).
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np

from envgym.errors import SandboxDied
from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import Task
from envgym_environments.code_repair.baseline import Baseline, measure, package_world
from envgym_environments.code_repair.describe import make_task
from envgym_environments.code_repair.operators import Mutation, apply, candidates
from envgym_environments.code_repair.patch import apply_patch, make_patch, parse_patch
from envgym_environments.code_repair.runner import TestReport, run_tests
from envgym_environments.code_repair.sources import Package, layout_of, source_tree

__all__ = ["Bug", "Candidate", "Plan", "Verdict", "Yield", "make_tasks", "validate"]


class Verdict(StrEnum):
    """What became of a candidate."""

    VALID = "valid"
    SURVIVED = "survived"
    BREAKS_IMPORT = "breaks_import"
    FAILS_TOO_MUCH = "fails_too_much"
    HANGS = "hangs"
    CRASHES = "crashes"
    FLAKY = "flaky"
    NOT_RESTORED = "not_restored"


@dataclass(frozen=True, slots=True)
class Plan:
    """How many tasks of a package are made, and how strictly.

    per_package: tasks to stop at. per_function: most tasks of one function (None: enough for `per_package`, at
    least 3). in_flight: sandboxes at work at once. max_failing: largest share of the suite that one bug may fail.
    full_suite_s: a suite faster than this is run whole for the second repetition; a slower one by the covering
    tests and a random tenth of the others. hanging_tests: most tests that may run into their deadline.
    most_covering: places that more tests than this execute are left out: their tasks are slow to play.
    repetitions: how many runs of a broken state must agree on every test that executes the place.
    """

    per_package: int = 100
    per_function: int | None = None
    in_flight: int = 2
    max_failing: float = 0.5
    full_suite_s: float = 2.0
    hanging_tests: int = 2
    most_covering: int = 250
    repetitions: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.repetitions < 2:
            raise ValueError(
                f"Plan.repetitions is {self.repetitions}; it must be at least 2: one run agrees with none"
            )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A mutation of one file: `path` in the tree, the file's text, and the tests that can notice."""

    path: str
    source: str
    mutation: Mutation
    covering: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bug:
    """A judged candidate: its verdict and, where valid, the tests it fails, and the covering ones it does not.

    patch: what undoes it, as it was applied when the tests passed again.
    """

    candidate: Candidate
    verdict: Verdict
    failing: tuple[str, ...] = ()
    passing: tuple[str, ...] = ()
    report: TestReport | None = None
    patch: str = ""


@dataclass(slots=True)
class Yield:
    """Counts of verdicts by operator, over one or more packages.

    Places that no test executes are `uncovered`, those that too many execute `crowded`.
    """

    verdicts: dict[str, Counter[str]] = field(default_factory=dict)
    uncovered: int = 0
    crowded: int = 0
    seconds: float = 0.0

    def add(self, bug: Bug) -> None:
        """Count one judged candidate."""
        self.verdicts.setdefault(bug.candidate.mutation.operator, Counter())[bug.verdict] += 1

    @property
    def valid(self) -> int:
        """How many were valid."""
        return sum(counts[Verdict.VALID] for counts in self.verdicts.values())

    @property
    def tried(self) -> int:
        """How many were judged."""
        return sum(counts.total() for counts in self.verdicts.values())


def _sources(tree: Path, baseline: Baseline) -> list[tuple[str, str]]:
    """(path, text) of the package's modules that tests execute; files with foreign line ends are left out."""
    found = []
    for path in sorted(baseline.covers):
        text = (tree / path).read_bytes().decode("utf-8", "replace")
        if "\r" not in text and "\ufffd" not in text and "\f" not in text:
            found.append((path, text))
    return found


def _ordered(found: Sequence[Candidate], rng: np.random.Generator) -> list[Candidate]:
    """A random order in which the operators take turns, so that no operator dominates."""
    by_operator: dict[str, list[Candidate]] = {}
    for candidate in found:
        by_operator.setdefault(candidate.mutation.operator, []).append(candidate)
    queues = []
    for name in sorted(by_operator):
        of_name = by_operator[name]
        queues.append(deque(of_name[index] for index in rng.permutation(len(of_name))))
    ordered: list[Candidate] = []
    while queues:
        ordered += [queue.popleft() for queue in queues]
        queues = [queue for queue in queues if queue]
    return ordered


def _agree(first: TestReport, second: TestReport, tests: Sequence[str]) -> bool:
    return all(first.outcomes.get(test) == second.outcomes.get(test) for test in tests)


async def validate(base: Sandbox, baseline: Baseline, candidate: Candidate, *, plan: Plan, seed: int) -> Bug:
    """Judge one candidate in a fork of the unbroken sandbox; a bug that kills its sandbox crashes.

    The world's other faults pass through as EnvgymError.
    """
    async with await base.fork() as sandbox:
        try:
            return await _judge(sandbox, baseline, candidate, plan, seed)
        except SandboxDied:
            return Bug(candidate, Verdict.CRASHES)


async def _judge(sandbox: Sandbox, baseline: Baseline, candidate: Candidate, plan: Plan, seed: int) -> Bug:
    await sandbox.write(candidate.path, apply(candidate.source, candidate.mutation).encode())
    first = await _run(sandbox, baseline, candidate.covering)
    failing = first.failing
    verdict = _first_look(first, failing, len(baseline.tests), plan)
    if verdict is not None:
        return Bug(candidate, verdict, failing)
    wide = _second_selection(baseline, candidate, plan, seed)
    second = await _run(sandbox, baseline, wide)
    others = tuple(test for test in second.failing if test not in set(candidate.covering))
    if second.doubt or second.collection_errors or not _agree(first, second, candidate.covering):
        return Bug(candidate, Verdict.FLAKY, failing)
    for _ in range(plan.repetitions - 2):
        if not _agree(first, await _run(sandbox, baseline, candidate.covering), candidate.covering):
            return Bug(candidate, Verdict.FLAKY, failing)
    if others and (await _run(sandbox, baseline, others)).failing != others:
        return Bug(candidate, Verdict.FLAKY, failing)
    failing = second.failing
    if len(failing) > plan.max_failing * len(baseline.tests):
        return Bug(candidate, Verdict.FAILS_TOO_MUCH, failing)
    patch, text = _undone(candidate)
    await sandbox.write(candidate.path, text.encode())
    restored = await _run(sandbox, baseline, failing)
    if not restored.ok:
        return Bug(candidate, Verdict.NOT_RESTORED, failing)
    passing = tuple(test for test in candidate.covering if second.outcomes.get(test) == "passed")
    return Bug(candidate, Verdict.VALID, failing, passing, second, patch)


def _undone(candidate: Candidate) -> tuple[str, str]:
    """The patch that undoes the bug, and the file after it was really applied to the broken one."""
    broken = apply(candidate.source, candidate.mutation)
    patch = make_patch({candidate.path: broken}, {candidate.path: candidate.source})
    (parsed,) = parse_patch(patch)
    text = apply_patch(parsed, broken)
    assert text is not None
    return patch, text


def _first_look(report: TestReport, failing: Sequence[str], suite: int, plan: Plan) -> Verdict | None:
    """A reason to stop after the first run, if there is one."""
    if report.collection_errors or (not report.seconds and not report.running):
        return Verdict.BREAKS_IMPORT
    hanging = sum(error.startswith("TestDeadline") for error in report.errors.values())
    if report.timed_out or hanging > plan.hanging_tests:
        return Verdict.HANGS
    if report.doubt:
        return Verdict.CRASHES
    if not failing:
        return Verdict.SURVIVED
    if len(failing) > plan.max_failing * suite:
        return Verdict.FAILS_TOO_MUCH
    return None


def _second_selection(baseline: Baseline, candidate: Candidate, plan: Plan, seed: int) -> tuple[str, ...]:
    if baseline.suite_s < plan.full_suite_s:
        return baseline.tests
    rng = np.random.default_rng([seed, int(candidate.mutation.digest, 16)])
    chosen = set(candidate.covering)
    chosen |= {test for test in baseline.tests if rng.random() < 0.1}
    return tuple(test for test in baseline.tests if test in chosen)


async def _run(sandbox: Sandbox, baseline: Baseline, tests: Sequence[str]) -> TestReport:
    """Run `tests` with deadlines of a few times what they take in the unbroken package."""
    slowest_s = max(baseline.seconds[test] for test in tests)
    return await run_tests(
        sandbox,
        baseline.layout,
        selection=tests,
        timeout_s=10.0 + 4.0 * (baseline.cost_s(tests) + baseline.suite_s),
        test_timeout_s=2.0 + 8.0 * slowest_s,
    )


def _find(tree: Path, baseline: Baseline, plan: Plan, counts: Yield) -> list[Candidate]:
    found: list[Candidate] = []
    for path, source in _sources(tree, baseline):
        for mutation in candidates(source):
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
        baseline = await measure(base, package, layout_of(package, tree))
        found = await asyncio.to_thread(_find, tree, baseline, plan, counts)
        rng = np.random.default_rng([plan.seed, int(package.sha256[:12], 16)])
        queue = _ordered(found, rng)
        functions = len({_place(candidate) for candidate in found}) or 1
        cap = plan.per_function or max(3, -(-2 * plan.per_package // functions))
        made: Counter[tuple[str, str]] = Counter()
        async with aclosing(_judged(base, baseline, queue, plan, made, cap)) as bugs:
            async for bug in bugs:
                counts.add(bug)
                if bug.verdict is Verdict.VALID:
                    made[_place(bug.candidate)] += 1
                    yield make_task(baseline, tree, bug)
                    if made.total() >= plan.per_package:
                        return


async def _judged(
    base: Sandbox,
    baseline: Baseline,
    queue: Sequence[Candidate],
    plan: Plan,
    made: Counter[tuple[str, str]],
    cap: int,
) -> AsyncGenerator[Bug, None]:
    """Judge candidates, `plan.in_flight` at once, and give the verdicts in queue order.

    A candidate whose function has its share is skipped; the check is made in queue order, so what comes out does
    not depend on which sandbox was faster.
    """
    running: deque[tuple[Candidate, asyncio.Task[Bug]]] = deque()
    waiting = iter(queue)
    try:
        while True:
            while len(running) < plan.in_flight:
                candidate = next((one for one in waiting if made[_place(one)] < cap), None)
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
