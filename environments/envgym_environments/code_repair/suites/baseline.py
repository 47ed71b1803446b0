"""What the suite of an unbroken project does: which tests pass every time, how long it takes, what guards grades.

It is measured once for a project, under every condition of `ON_PROJECT` where tasks are certified: the answer of
each task restores these files byte by byte, so the project's runs are runs of every answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from envgym.errors import EnvironmentFailure
from envgym.sandbox import Sandbox
from envgym_environments.code_repair.conditions import Condition, Seen
from envgym_environments.code_repair.suites.conditions import dates, on_suite, programs, run_suite_under
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

    suite_s: a whole run once everything is built. build_s: the first build. runs: good where `tests` all passed.
    dated: whether the tests can be shown another date.
    """

    project: Project
    suite: Suite
    tests: tuple[str, ...]
    suite_s: float
    build_s: float
    guards: Guards = field(default_factory=Guards)
    runs: tuple[Seen, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    dated: bool = False

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
    dated = bool(conditions) and await dates(shell, suite)
    reaching = on_suite(conditions, suite, date=dated)
    named = ["plain"] * len(runs) + [condition.name for condition in reaching]
    runs += [await run_suite_under(shell, suite, condition, built=True) for condition in reaching]
    for run in runs:
        if run.doubt or run.collection_errors or not run.passing:
            why = run.doubt or dict(list(run.collection_errors.items())[:2]) or "no test passed"
            raise EnvironmentFailure(f"the suite of {project.slug} does not run before any bug: {why}")
    seen_names = dict.fromkeys(name for run in runs for name in run.outcomes)
    names = [name for name in seen_names if any(run.outcomes.get(name) != "skipped" for run in runs)]
    kept = tuple(sorted(name for name in names if all(run.outcomes.get(name) == "passed" for run in runs)))
    if len(kept) < (1 - _MOST_LOST) * len(names):
        lost = [name for name in names if name not in kept]
        raise EnvironmentFailure(
            f"only {len(kept)} of {len(names)} tests of {project.slug} pass every time (at least "
            f"{1 - _MOST_LOST:.0%} must); the first that do not: {lost[:3]}"
        )
    known = set(kept)
    others: dict[str, str] = {}
    for under, run in zip(named, runs, strict=True):
        for name in sorted(seen_names.keys() - known):
            if run.outcomes.get(name) != "passed":
                others.setdefault(name, f"does not pass every time: {run.outcomes.get(name, 'not run')} ({under})")
    suite = suite.model_copy(update={"deselect": {**suite.deselect, **others}})
    guards = await measure_guards(shell, suite, project.canaries, kept)
    versions = await programs(shell, project.needs) if conditions else {}
    suite_s, build_s = min(run.wall_s for run in runs), first.wall_s
    fine = [all(run.outcomes.get(name) == "passed" for name in kept) for run in runs]
    seen = tuple(zip(named, fine, strict=True))
    return SuiteBaseline(project, suite, kept, suite_s, build_s, guards, seen, versions, dated)
