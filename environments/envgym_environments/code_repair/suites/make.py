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
from envgym_environments.code_repair.certify import as_graded
from envgym_environments.code_repair.factory import Candidate, Plan, Verdict, Yield
from envgym_environments.code_repair.graded import believed
from envgym_environments.code_repair.in_order import place_of, tasks_in_order
from envgym_environments.code_repair.operators import candidates
from envgym_environments.code_repair.places import readable
from envgym_environments.code_repair.rewrite.candidates import Rewrite, written
from envgym_environments.code_repair.rewrite.functions import Target, replaced, targets
from envgym_environments.code_repair.suites.baseline import SuiteBaseline, measure_suite
from envgym_environments.code_repair.suites.conditions import ON_PROJECT
from envgym_environments.code_repair.suites.describe import certified_by, make_suite_task
from envgym_environments.code_repair.suites.journal import Journal
from envgym_environments.code_repair.suites.judge import SuiteBug, validate_in_suite
from envgym_environments.code_repair.suites.projects import Project, missing_programs
from envgym_environments.code_repair.suites.run import build_suite
from envgym_environments.code_repair.suites.suite import Language
from envgym_environments.code_repair.suites.syntax import find_bugs
from envgym_environments.code_repair.suites.syntax.functions import replaced_in, targets_in
from envgym_environments.code_repair.suites.tree import breakable, project_tree, project_world

__all__ = ["find_candidates", "make_suite_tasks", "sources_in"]


def find_candidates(project: Project, tree: Path, *, seed: int) -> list[Candidate]:
    """Every bug of the project's sources, in a random order in which the operators take turns."""
    found: dict[str, list[Candidate]] = {}
    for path, text in sources_in(project, tree):
        bugs = candidates(text) if project.language == "python" else find_bugs(text, project.language)
        for mutation in bugs:
            found.setdefault(mutation.operator, []).append(Candidate(path, text, mutation))
    rng = np.random.default_rng([seed, int(project.sha256[:12], 16)])
    queues = []
    for name in sorted(found):
        of_name = found[name]
        queues.append(deque(of_name[index] for index in rng.permutation(len(of_name))))
    ordered: list[Candidate] = []
    while queues:
        ordered += [queue.popleft() for queue in queues]
        queues = [queue for queue in queues if queue]
    return ordered


def sources_in(project: Project, tree: Path) -> list[tuple[str, str]]:
    """(path, text) of the files that bugs go into: where lines are counted as others count them.

    Raises ValueError where there are files, but none of these.
    """
    return readable(tree, list(breakable(project, tree)), "\r\ufffd\f\v\x1c\x1d\x1e\x85\u2028\u2029")


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
        queue, functions = await _queue(project, tree, plan, counts)
        judge = _Judge(base, baseline, plan, kept)

        async def make(bug: SuiteBug) -> Task | Verdict:
            task = make_suite_task(baseline, tree, bug, plan, cache=cache)
            if not plan.certify:
                return task
            return await _believed(certified_by(task, baseline, bug.proof), bug, backend, kept)

        made = tasks_in_order(queue, functions, judge.bug, make, plan=plan, counts=counts)
        async with aclosing(made) as tasks:
            async for task in tasks:
                yield task


async def _believed(task: Task, bug: SuiteBug, backend: SandboxBackend, journal: Journal) -> Task | Verdict:
    """See `graded.believed`; what the grader said in a build that was stopped it is not asked again."""
    said = journal.said(bug)
    if said is None:
        found = await believed(task, backend)
        if found is not Verdict.CRASHES:  # which may have been the machine's doing: the next build asks again
            journal.graded(bug, found if isinstance(found, Verdict) else Verdict.VALID)
        return found
    return as_graded(task) if said is Verdict.VALID else said


async def _queue(
    project: Project, tree: Path, plan: Plan, counts: Yield
) -> tuple[AsyncGenerator[Candidate, None], int]:
    """What is tried, in order, and in how many functions it lies."""
    if plan.rewrite is not None:
        sources = await asyncio.to_thread(sources_in, project, tree)
        found = [one for path, text in sources for one in _targets(project.language, path, text)]
        return _written(plan.rewrite, project, sources, found, plan, counts), len(found) or 1
    listed = await asyncio.to_thread(find_candidates, project, tree, seed=plan.seed)

    async def in_order() -> AsyncGenerator[Candidate, None]:
        for candidate in listed:
            yield candidate

    return in_order(), len({place_of(candidate) for candidate in listed}) or 1


def _targets(language: Language, path: str, text: str) -> list[Target]:
    return targets(path, text) if language == "python" else targets_in(path, text, language)


async def _written(
    rewrite: Rewrite,
    project: Project,
    sources: Sequence[tuple[str, str]],
    found: Sequence[Target],
    plan: Plan,
    counts: Yield,
) -> AsyncGenerator[Candidate, None]:
    """A writer's functions as candidates; answers that are none are counted by reason."""
    about = Task(id=f"code-repair/{project.slug}", prompt="")
    reads = replaced if project.language == "python" else replaced_in
    async with aclosing(written(rewrite, sources, found, about=about, seed=plan.seed, reads=reads)) as answers:
        async for one in answers:
            if isinstance(one.made, str):
                counts.verdicts.setdefault(one.kind, Counter())[one.made] += 1
            else:
                yield Candidate(one.target.path, one.source, one.made)


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
    """Judges candidates of one project, each once, however often the build is begun."""

    def __init__(self, base: Sandbox, baseline: SuiteBaseline, plan: Plan, journal: Journal) -> None:
        self.plan = plan
        self._base, self._baseline, self._journal = base, baseline, journal

    async def bug(self, candidate: Candidate) -> SuiteBug:
        """What becomes of it."""
        found = self._journal.bug(candidate)
        if found is None:
            found = await validate_in_suite(self._base, self._baseline, candidate, plan=self.plan)
            self._journal.judged(found)
        return found
