"""What the suite of an unbroken project does: which tests pass every time, how long it takes, what guards grades.

It is measured once for a project, under every condition of `ON_PROJECT` where tasks are certified: the answer of
each task restores these files byte by byte, so the project's runs are runs of every answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from envgym.errors import EnvironmentFailure
from envgym.sandbox import Sandbox
from envgym_environments.code_repair.conditions import Condition
from envgym_environments.code_repair.suites.conditions import programs, run_suite_under
from envgym_environments.code_repair.suites.guards import Guards
from envgym_environments.code_repair.suites.measure import measure_guards
from envgym_environments.code_repair.suites.projects import Project
from envgym_environments.code_repair.suites.run import run_suite
from envgym_environments.code_repair.suites.suite import Suite

__all__ = ["SuiteBaseline", "measure_suite"]

_MOST_LOST = 0.25


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


async def measure_suite(
    shell: Sandbox, project: Project, *, repetitions: int = 2, conditions: Sequence[Condition] = ()
) -> SuiteBaseline:
    """Run the suite `repetitions` times, and under these conditions; keep the tests that passed in every run.

    Raises EnvironmentFailure when it cannot be run, or when more than a quarter of it does not pass every time.
    """
    suite = project.suite
    first = await run_suite(shell, suite)
    runs = [first, *[await run_suite(shell, suite, built=True) for _ in range(max(2, repetitions) - 1)]]
    named = ["plain"] * len(runs) + [condition.name for condition in conditions]
    runs += [await run_suite_under(shell, suite, condition, built=True) for condition in conditions]
    for run in runs:
        if run.doubt or run.collection_errors or not run.passing:
            why = run.doubt or dict(list(run.collection_errors.items())[:2]) or "no test passed"
            raise EnvironmentFailure(f"the suite of {project.slug} does not run before any bug: {why}")
    names = [name for name in first.outcomes if any(run.outcomes.get(name) != "skipped" for run in runs)]
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
    suite_s, build_s = min(run.wall_s for run in runs), first.wall_s
    return SuiteBaseline(project, suite, kept, suite_s, build_s, guards, tuple(named), versions)
