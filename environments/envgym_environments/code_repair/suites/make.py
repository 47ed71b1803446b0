"""Make tasks of a project in any language: which mistakes are tried, in which order, and what comes of them.

How one is judged is `judge`'s business, what a task says `describe`'s. Order and choice depend on the seed alone.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import numpy as np

from envgym.errors import EnvironmentFailure
from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import Task
from envgym_environments.code_repair.factory import Plan, Verdict, Yield
from envgym_environments.code_repair.operators import candidates
from envgym_environments.code_repair.suites.baseline import SuiteBaseline, measure_suite
from envgym_environments.code_repair.suites.conditions import ON_PROJECT
from envgym_environments.code_repair.suites.describe import certified_by, make_suite_task
from envgym_environments.code_repair.suites.journal import Journal
from envgym_environments.code_repair.suites.judge import SuiteBug, Trial, validate_in_suite
from envgym_environments.code_repair.suites.projects import Project, missing_programs
from envgym_environments.code_repair.suites.run import build_suite
from envgym_environments.code_repair.suites.syntax import find_bugs
from envgym_environments.code_repair.suites.tree import breakable, project_tree, project_world

__all__ = ["find_trials", "make_suite_tasks"]


def find_trials(project: Project, tree: Path, *, seed: int) -> list[Trial]:
    """Every bug of the project's sources, in a random order in which the operators take turns."""
    found: dict[str, list[Trial]] = {}
    for path in breakable(project, tree):
        text = (tree / path).read_bytes().decode("utf-8", "replace")
        if any(letter in text for letter in "\r\ufffd\f\v\x1c\x1d\x1e\x85\u2028\u2029"):
            continue  # lines would be counted otherwise than others count them
        bugs = candidates(text) if project.language == "python" else find_bugs(text, project.language)
        for mutation in bugs:
            found.setdefault(mutation.operator, []).append(Trial(path, text, mutation))
    rng = np.random.default_rng([seed, int(project.sha256[:12], 16)])
    queues = []
    for name in sorted(found):
        of_name = found[name]
        queues.append(deque(of_name[index] for index in rng.permutation(len(of_name))))
    ordered: list[Trial] = []
    while queues:
        ordered += [queue.popleft() for queue in queues]
        queues = [queue for queue in queues if queue]
    return ordered


async def make_suite_tasks(
    project: Project,
    backend: SandboxBackend,
    plan: Plan,
    *,
    counts: Yield,
    cache: Path | None = None,
    journal: Path | None = None,
) -> AsyncIterator[Task]:
    """Valid tasks of one project, up to ``plan.per_package``; verdicts are added to `counts` as they fall.

    journal: a file that takes what is found as it is found; what is there already is not run again.
    Raises ValueError or EnvgymError when its source, its suite or a program that it needs is not usable here.
    """
    missing = missing_programs(project)
    if missing:
        raise EnvironmentFailure(
            f"{project.slug} needs {', '.join(missing)}, not found where sandboxes look for programs; install "
            "them from the system's packages (scripts/setup.sh does)"
        )
    tree, kept = await project_tree(project, backend, cache=cache), Journal(journal)
    counts.seconds += kept.before_s
    async with await backend.create(project_world(project, tree, cache=cache)) as base:
        baseline = await _baseline(base, project, plan, kept)
        queue = await asyncio.to_thread(find_trials, project, tree, seed=plan.seed)
        functions = len({_place(trial) for trial in queue}) or 1
        cap = plan.per_function or max(3, -(-2 * plan.per_package // functions))
        made: Counter[tuple[str, str]] = Counter()
        async with aclosing(_judged(_Judge(base, baseline, plan, kept), queue, made, cap)) as bugs:
            async for bug in bugs:
                counts.verdicts.setdefault(bug.trial.mutation.operator, Counter())[bug.proof.verdict] += 1
                if bug.proof.verdict is Verdict.VALID:
                    made[_place(bug.trial)] += 1
                    counts.tasks += 1
                    task = make_suite_task(baseline, tree, bug, cache=cache)
                    yield certified_by(task, baseline, bug.proof) if plan.certify else task
                    if made.total() >= plan.per_package:
                        return


async def _baseline(base: Sandbox, project: Project, plan: Plan, journal: Journal) -> SuiteBaseline:
    """What the unbroken suite does, in a sandbox that is built afterwards."""
    found = journal.baseline(project)
    if found is None:
        found = await measure_suite(base, project, conditions=ON_PROJECT if plan.certify else ())
        journal.measured(found)
        return found
    _, broken = await build_suite(base, project.suite, None, project.suite.timeout_s)
    if broken is not None:
        raise EnvironmentFailure(f"{project.slug} was built before, and is not now: {broken.doubt}")
    return found


class _Judge:
    """Judges trials of one project, each once, however often the build is begun."""

    def __init__(self, base: Sandbox, baseline: SuiteBaseline, plan: Plan, journal: Journal) -> None:
        self.in_flight = plan.in_flight
        self._base, self._baseline, self._plan, self._journal = base, baseline, plan, journal

    async def bug(self, trial: Trial) -> SuiteBug:
        """What becomes of it."""
        found = self._journal.bug(trial)
        if found is None:
            found = await validate_in_suite(self._base, self._baseline, trial, plan=self._plan)
            self._journal.judged(found)
        return found


def _place(trial: Trial) -> tuple[str, str]:
    return trial.path, trial.mutation.function


async def _judged(
    judge: _Judge, queue: Sequence[Trial], made: Counter[tuple[str, str]], cap: int
) -> AsyncGenerator[SuiteBug, None]:
    """Judge candidates, `in_flight` at once, and give the verdicts in queue order.

    A trial whose function has its share is skipped, in queue order, so what comes out depends on no timing.
    """
    running: deque[tuple[Trial, asyncio.Task[SuiteBug]]] = deque()
    waiting = iter(queue)
    try:
        while True:
            while len(running) < judge.in_flight:
                trial = next((one for one in waiting if made[_place(one)] < cap), None)
                if trial is None:
                    break
                running.append((trial, asyncio.create_task(judge.bug(trial))))
            if not running:
                return
            trial, judged = running.popleft()
            bug = await judged
            if made[_place(trial)] < cap:
                yield bug
    finally:
        for _, left in running:
            left.cancel()
        await asyncio.gather(*(left for _, left in running), return_exceptions=True)
