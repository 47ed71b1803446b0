"""A package before anything is broken: its world, the tests that pass there every time, and what each covers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envgym.errors import EnvironmentFailure
from envgym.limits import Resources
from envgym.sandbox import Sandbox
from envgym.task import Tree, World
from envgym_environments.code_repair.conditions import Condition, Seen, applied, disagreeing, run_under
from envgym_environments.code_repair.runner import PRELOAD, TEST_ENV, WORKDIR, Layout, TestReport, Trace, run_tests
from envgym_environments.code_repair.sources import Package

__all__ = ["Baseline", "measure", "package_world"]

_MOST_LOST = 0.25
_TRACE_S = 180.0


@dataclass(frozen=True, slots=True)
class Baseline:
    """What an unbroken package does.

    layout: with flaky, failing and skipped tests deselected. seconds: test id -> duration.
    covers: file -> line -> tests that execute it, in running order. imported: file -> lines that run at import.
    quarantined: test -> why it is deselected, of those that ran. runs: all of them, good where `tests` all passed.
    """

    package: Package
    layout: Layout
    tests: tuple[str, ...]
    seconds: Mapping[str, float]
    covers: Mapping[str, Mapping[int, Sequence[str]]]
    imported: Mapping[str, frozenset[int]]
    suite_s: float
    quarantined: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[Seen, ...] = ()

    def covering(self, path: str, first_line: int, last_line: int) -> tuple[str, ...]:
        """The tests that execute at least one of these lines, in running order."""
        lines = self.covers.get(path, {})
        wanted = {test for line in range(first_line, last_line + 1) for test in lines.get(line, ())}
        return tuple(test for test in self.tests if test in wanted)

    def cost_s(self, tests: Sequence[str]) -> float:
        """How long these tests take in themselves."""
        return sum(self.seconds[test] for test in tests)


def package_world(tree: Path, files: Mapping[str, str] | None = None) -> World:
    """The world of a package's tree, with `files` (absolute path in the world -> text) laid over it."""
    return World(
        trees=(Tree(source=str(tree), target=WORKDIR),),
        files=dict(files or {}),
        workdir=WORKDIR,
        env=dict(TEST_ENV),
        preload=PRELOAD,
        resources=Resources(output_bytes=8 << 20, command_s=120.0),
    )


async def measure(
    shell: Sandbox,
    package: Package,
    layout: Layout,
    *,
    repetitions: int = 2,
    conditions: Sequence[Condition] = (),
) -> Baseline:
    """Run the suite once traced, `repetitions` times plainly, once under each condition; keep what always passed.

    Raises EnvironmentFailure when the suite cannot be run, or when more than a quarter of it does not pass.
    """
    runs = [("traced", await run_tests(shell, layout, trace=Trace(), timeout_s=_TRACE_S))]
    runs += [("plain", await run_tests(shell, layout, timeout_s=_TRACE_S)) for _ in range(repetitions)]
    for condition in filter(None, map(applied, conditions)):
        async with await shell.fork() as fork:  # what a condition leaves behind is no part of the package
            runs.append((condition.name, await run_under(fork, layout, condition, timeout_s=_TRACE_S)))
    for name, run in runs:
        if run.collection_errors or (run.doubt and not run.outcomes):
            where = dict(list(run.collection_errors.items())[:3]) or run.doubt or run.stderr[-300:]
            raise EnvironmentFailure(
                f"the suite of {package.slug} does not run before any bug (run: {name}): {where}"
            )
    traced = runs[0][1]
    names = [name for name in traced.outcomes if traced.outcomes[name] != "skipped"]
    odd = disagreeing(runs, names)
    kept = tuple(name for name in names if name not in odd and traced.outcomes[name] == "passed")
    if len(kept) < (1 - _MOST_LOST) * len(names):
        lost = [name for name in names if name not in kept]
        raise EnvironmentFailure(
            f"only {len(kept)} of {len(names)} tests of {package.slug} pass every time (at least "
            f"{1 - _MOST_LOST:.0%} must); the first that do not: {lost[:3]}"
        )
    broken = {name: f"fails unbroken: {traced.errors.get(name, '')[:120]}" for name in names if name not in kept}
    return _baseline(package, layout, kept, runs, broken | odd)


def _baseline(
    package: Package,
    layout: Layout,
    kept: tuple[str, ...],
    runs: Sequence[tuple[str, TestReport]],
    quarantined: Mapping[str, str],
) -> Baseline:
    traced = runs[0][1]
    plain = [run for name, run in runs if name == "plain"]
    lost = tuple(name for name in traced.outcomes if name not in set(kept))
    covers: dict[str, dict[int, list[str]]] = {}
    for name in kept:
        for path, lines in traced.lines.get(name, {}).items():
            of_file = covers.setdefault(path, {})
            for line in lines:
                of_file.setdefault(line, []).append(name)
    return Baseline(
        package=package,
        layout=layout.model_copy(update={"deselect": (*layout.deselect, *lost)}),
        tests=kept,
        seconds={name: max(run.seconds[name] for run in plain) for name in kept},
        covers=covers,
        imported={path: frozenset(lines) for path, lines in traced.import_lines.items()},
        suite_s=min(run.wall_s for run in plain),
        quarantined=quarantined,
        runs=tuple((name, all(run.outcomes.get(test) == "passed" for test in kept)) for name, run in runs),
    )
