"""Make tasks of a project in any language: one bug at a time, kept only when the project's own suite proves it.

The same proof as for Python packages (see `factory`), by commands instead of a warm interpreter: the suite passes
twice before, fails the same tests each time after, and passes whole when the bug's patch is undone. There is no
coverage to choose places by, so every run is a run of the whole suite.
"""

import asyncio
import hashlib
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from envgym.errors import EnvironmentFailure, SandboxDied
from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import Task, evenly
from envgym_environments.code_repair.conditions import Condition
from envgym_environments.code_repair.factory import Plan, Verdict, Yield
from envgym_environments.code_repair.filtering.licences import sources_of_tree
from envgym_environments.code_repair.operators import Mutation, apply, candidates
from envgym_environments.code_repair.patch import apply_patch, make_patch, parse_patch
from envgym_environments.code_repair.runner import Outcome, TestReport
from envgym_environments.code_repair.suites.conditions import (
    ON_PROJECT,
    ON_TASK,
    programs,
    run_suite_under,
    suite_certificate,
)
from envgym_environments.code_repair.suites.guards import Guards
from envgym_environments.code_repair.suites.measure import measure_guards
from envgym_environments.code_repair.suites.projects import Project, missing_programs
from envgym_environments.code_repair.suites.run import run_suite
from envgym_environments.code_repair.suites.suite import Suite
from envgym_environments.code_repair.suites.syntax import find_bugs
from envgym_environments.code_repair.suites.tree import breakable, project_tree, project_world

__all__ = [
    "SuiteBaseline",
    "SuiteBug",
    "Trial",
    "find_trials",
    "make_suite_tasks",
    "measure_suite",
    "validate_in_suite",
]

_MOST_LOST = 0.25
_MOST_GUARDS = 300
_SHOWN = 5
_LINE = 200


@dataclass(frozen=True, slots=True)
class SuiteBaseline:
    """What an unbroken project does: its suite without the tests that do not pass every time, and those that do.

    suite_s: a whole run once everything is built. build_s: the first build. conditions: of all runs, in order.
    """

    project: Project
    suite: Suite
    tests: tuple[str, ...]
    suite_s: float
    build_s: float
    guards: Guards = field(default_factory=Guards)
    conditions: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def run_s(self) -> float:
        """How long a run of a broken project may take."""
        return min(self.suite.timeout_s, 20.0 + 2.0 * self.build_s + 4.0 * self.suite_s)


@dataclass(frozen=True, slots=True)
class Trial:
    """A mutation to be tried: of which file, and that file's text."""

    path: str
    source: str
    mutation: Mutation


@dataclass(frozen=True, slots=True)
class SuiteBug:
    """A judged mutation: its verdict and, where valid, what fails, what passes, and the patch that undid it."""

    trial: Trial
    verdict: Verdict
    failing: tuple[str, ...] = ()
    passing: tuple[str, ...] = ()
    report: TestReport | None = None
    patch: str = ""
    conditions: tuple[str, ...] = ()
    seconds: float = 0.0


async def measure_suite(
    shell: Sandbox, project: Project, *, repetitions: int = 2, conditions: Sequence[Condition] = ()
) -> SuiteBaseline:
    """Run the suite `repetitions` times, and under these conditions; keep the tests that passed in every run.

    Raises EnvironmentFailure when it cannot be run, or when more than a quarter of it does not pass every time.
    """
    suite = project.suite
    runs = [await run_suite(shell, suite) for _ in range(max(2, repetitions))]
    named = ["plain"] * len(runs) + [condition.name for condition in conditions]
    runs += [await run_suite_under(shell, suite, condition, built=True) for condition in conditions]
    for run in runs:
        if run.doubt or run.collection_errors or not run.passing:
            why = run.doubt or dict(list(run.collection_errors.items())[:2]) or "no test passed"
            raise EnvironmentFailure(f"the suite of {project.slug} does not run before any bug: {why}")
    names = [name for name in runs[0].outcomes if any(run.outcomes.get(name) != "skipped" for run in runs)]
    kept = tuple(sorted(name for name in names if all(run.outcomes.get(name) == "passed" for run in runs)))
    if len(kept) < (1 - _MOST_LOST) * len(names):
        lost = [name for name in names if name not in kept]
        raise EnvironmentFailure(
            f"only {len(kept)} of {len(names)} tests of {project.slug} pass every time (at least "
            f"{1 - _MOST_LOST:.0%} must); the first that do not: {lost[:3]}"
        )
    known = set(kept)
    others = {name: "does not pass every time" for run in runs for name in run.outcomes if name not in known}
    suite = suite.model_copy(update={"deselect": {**suite.deselect, **others}})
    guards = await measure_guards(shell, suite, project.canaries, kept)
    versions = await programs(shell, project.needs) if conditions else {}
    suite_s, build_s = min(run.wall_s for run in runs), runs[0].wall_s
    return SuiteBaseline(project, suite, kept, suite_s, build_s, guards, tuple(named), versions)


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


def _seen(report: TestReport, tests: Sequence[str]) -> dict[str, Outcome]:
    """The outcome of each baseline test; one that did not run (its file or package broke) is an error."""
    return {name: report.outcomes.get(name, "error") for name in tests}


async def validate_in_suite(base: Sandbox, baseline: SuiteBaseline, trial: Trial, *, plan: Plan) -> SuiteBug:
    """Judge one trial in a fork of the unbroken, built sandbox; a bug that kills its sandbox crashes."""
    async with await base.fork() as sandbox:
        try:
            return await _judge(sandbox, baseline, trial, plan)
        except SandboxDied:
            return SuiteBug(trial, Verdict.CRASHES)


async def _judge(sandbox: Sandbox, baseline: SuiteBaseline, trial: Trial, plan: Plan) -> SuiteBug:
    began = time.monotonic()
    broken = apply(trial.source, trial.mutation)
    await sandbox.write(trial.path, broken.encode())
    report = await run_suite(sandbox, baseline.suite, timeout_s=baseline.run_s)
    outcomes = _seen(report, baseline.tests)
    failing = tuple(name for name in baseline.tests if outcomes[name] in ("failed", "error"))
    verdict = _first_look(report, failing, len(baseline.tests), plan)
    if verdict is not None:
        return SuiteBug(trial, verdict, failing)
    for _ in range(plan.repetitions - 1):
        again = await run_suite(sandbox, baseline.suite, timeout_s=baseline.run_s, built=True)
        if _seen(again, baseline.tests) != outcomes or again.doubt:
            return SuiteBug(trial, Verdict.FLAKY, failing)
    for condition in ON_TASK if plan.certify else ():
        limit_s = baseline.run_s
        again = await run_suite_under(sandbox, baseline.suite, condition, timeout_s=limit_s, built=True)
        if _seen(again, baseline.tests) != outcomes or again.doubt:
            return SuiteBug(trial, Verdict.FLAKY, failing)
    conditions = ["plain"] * plan.repetitions + [one.name for one in ON_TASK if plan.certify]
    patch = make_patch({trial.path: broken}, {trial.path: trial.source})
    (parsed,) = parse_patch(patch)
    text = apply_patch(parsed, broken)
    assert text == trial.source, f"the answer of {trial.mutation.digest} does not undo it"
    await sandbox.write(trial.path, text.encode())
    restored = await run_suite(sandbox, baseline.suite, timeout_s=baseline.run_s)
    if not restored.ok or any(outcome != "passed" for outcome in _seen(restored, baseline.tests).values()):
        return SuiteBug(trial, Verdict.NOT_RESTORED, failing)
    passing = tuple(name for name in baseline.tests if outcomes[name] == "passed")
    spent_s = time.monotonic() - began
    return SuiteBug(trial, Verdict.VALID, failing, passing, report, patch, tuple(conditions), spent_s)


def _first_look(report: TestReport, failing: Sequence[str], suite: int, plan: Plan) -> Verdict | None:
    """A reason to stop after the first run, if there is one."""
    if report.collection_errors and not report.outcomes and not report.timed_out:
        return Verdict.BREAKS_IMPORT
    if report.timed_out:
        return Verdict.HANGS
    if report.doubt:
        return Verdict.CRASHES
    if report.collection_errors:
        return Verdict.BREAKS_IMPORT
    if not failing:
        return Verdict.SURVIVED
    if len(failing) > max(1.0, plan.max_failing * suite):
        return Verdict.FAILS_TOO_MUCH
    return None


async def make_suite_tasks(
    project: Project, backend: SandboxBackend, plan: Plan, *, counts: Yield, cache: Path | None = None
) -> AsyncIterator[Task]:
    """Valid tasks of one project, up to ``plan.per_package``; verdicts are added to `counts` as they fall.

    Raises ValueError or EnvgymError when its source, its suite or a program that it needs is not usable here.
    """
    missing = missing_programs(project)
    if missing:
        raise EnvironmentFailure(
            f"{project.slug} needs {', '.join(missing)}, not found where sandboxes look for programs; install "
            "them from the system's packages (scripts/setup.sh does)"
        )
    tree = await project_tree(project, backend, cache=cache)
    async with await backend.create(project_world(project, tree, cache=cache)) as base:
        baseline = await measure_suite(base, project, conditions=ON_PROJECT if plan.certify else ())
        queue = await asyncio.to_thread(find_trials, project, tree, seed=plan.seed)
        functions = len({_place(trial) for trial in queue}) or 1
        cap = plan.per_function or max(3, -(-2 * plan.per_package // functions))
        made: Counter[tuple[str, str]] = Counter()
        async with aclosing(_judged(base, baseline, queue, plan, made, cap)) as bugs:
            async for bug in bugs:
                counts.verdicts.setdefault(bug.trial.mutation.operator, Counter())[bug.verdict] += 1
                if bug.verdict is Verdict.VALID:
                    made[_place(bug.trial)] += 1
                    task = make_suite_task(baseline, tree, bug, cache=cache)
                    yield _certified(task, baseline, bug) if plan.certify else task
                    if made.total() >= plan.per_package:
                        return


def _certified(task: Task, baseline: SuiteBaseline, bug: SuiteBug) -> Task:
    """The answer restores the unbroken file byte by byte: a run of the unbroken project is one of the answer."""
    gold = [*baseline.conditions, "restored by the answer"]
    return suite_certificate(
        task,
        baseline.suite,
        gold=gold,
        untouched=bug.conditions,
        versions=baseline.versions,
        seconds=bug.seconds,
    )


def _place(trial: Trial) -> tuple[str, str]:
    return trial.path, trial.mutation.function


async def _judged(
    base: Sandbox,
    baseline: SuiteBaseline,
    queue: Sequence[Trial],
    plan: Plan,
    made: Counter[tuple[str, str]],
    cap: int,
) -> AsyncGenerator[SuiteBug, None]:
    """Judge candidates, `plan.in_flight` at once, and give the verdicts in queue order.

    A trial whose function has its share is skipped, in queue order, so what comes out depends on no timing.
    """
    running: deque[tuple[Trial, asyncio.Task[SuiteBug]]] = deque()
    waiting = iter(queue)
    try:
        while True:
            while len(running) < plan.in_flight:
                trial = next((one for one in waiting if made[_place(one)] < cap), None)
                if trial is None:
                    break
                running.append((trial, asyncio.create_task(validate_in_suite(base, baseline, trial, plan=plan))))
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


# -- the task ----------------------------------------------------------------------------------------------------


def _prompt(baseline: SuiteBaseline, failing: Sequence[str], errors: Sequence[str]) -> str:
    project = baseline.project
    lines = [
        f"Since the last change, {len(failing)} of the {len(baseline.tests)} tests of {project.name} "
        f"{project.version} ({project.language}) fail{'s' if len(failing) == 1 else ''}:",
        "",
    ]
    lines += [f"- {test}\n  {error[:_LINE]}" for test, error in list(zip(failing, errors, strict=True))[:_SHOWN]]
    if len(failing) > _SHOWN:
        lines.append(f"- and {len(failing) - _SHOWN} more")
    lines += [
        "",
        f"The code is in {', '.join(baseline.suite.source)}. The mistake is in one place of that code; the",
    ]
    lines[-1] += " tests are right. Repair it, so that these tests pass again and no other test breaks."
    commands = " && ".join([*baseline.suite.build, baseline.suite.test.replace(" {tests}", "")])
    return "\n".join([*lines, "", f"The whole suite is run by: {commands}"])


def make_suite_task(baseline: SuiteBaseline, tree: Path, bug: SuiteBug, *, cache: Path | None = None) -> Task:
    """The task of a valid bug. Its id depends on the project's version, the file and the bug only."""
    trial, project = bug.trial, baseline.project
    mutation, path = trial.mutation, trial.path
    digest = hashlib.blake2b(f"{path}\x1f{mutation.digest}".encode(), digest_size=5).hexdigest()
    found = bug.report.errors if bug.report else {}
    errors = [found.get(test, "not run: what holds it broke") for test in bug.failing]
    gold: dict[str, JsonValue] = {
        "path": path,
        "line": mutation.line,
        "column": mutation.column,
        "wrong": mutation.after,
        "right": mutation.before,
        "patch": bug.patch,
    }
    metadata: dict[str, JsonValue] = {
        "package": project.name,
        "version": project.version,
        "sha256": project.sha256,
        "origin": project.origin,
        "licence": project.licence,
        "sources": sources_of_tree(
            tree,
            origin=f"{project.origin} {project.source}=={project.version}",
            sha256=project.sha256,
            licence=project.licence,
        ),
        "language": project.language,
        "suite": baseline.suite.model_dump(mode="json"),
        "module": path,
        "function": mutation.function,
        "operator": mutation.operator,
        "line": mutation.line,
        "fail_to_pass": list(bug.failing),
        "pass_to_pass": list(evenly(bug.passing, _MOST_GUARDS)),
        "errors": dict(zip(bug.failing, errors, strict=True)),
        "tests": len(baseline.tests),
        "suite_s": round(baseline.suite_s + baseline.build_s, 3),
        "guards": baseline.guards.of(bug.failing).model_dump(mode="json"),
        "gold": gold,
    }
    return Task(
        id=f"code-repair/{project.slug}/{mutation.operator}-{digest}",
        prompt=_prompt(baseline, bug.failing, errors),
        world=project_world(project, tree, {path: apply(trial.source, mutation)}, cache=cache),
        split=project.split,
        metadata=metadata,
    )
