"""Judge a bug: break a fork of the unbroken package, run the tests, and keep the bug only when they prove it.

A valid bug passes before (the baseline), fails at least one covering test after, fails the same tests again (and,
where certified, under other conditions), and passes when its text is put back. A bug may be several mistakes in
several files. Which ones are tried is `factory`'s business.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from envgym.errors import SandboxDied
from envgym.sandbox import Sandbox
from envgym_environments.code_repair.baseline import Baseline
from envgym_environments.code_repair.conditions import PER_TASK, Seen, applied, disagreeing, run_under
from envgym_environments.code_repair.operators import Mutation, apply_all
from envgym_environments.code_repair.patch import apply_patch, make_patch, parse_patch
from envgym_environments.code_repair.rewrite.candidates import Rewrite
from envgym_environments.code_repair.runner import TestReport, run_tests

__all__ = ["Bug", "Candidate", "Distance", "Issue", "Judged", "Operators", "Plan", "Verdict", "validate"]

Distance = Literal["function", "file", "package"]
Issue = Literal["full", "short", "symptom"]
Operators = Literal["all", "small"]
_MOST_QUARANTINED = 3


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
    """How many tasks of a package are made, of which kind, and how strictly.

    per_package: tasks to stop at. per_function: most tasks of one function (None: enough for `per_package`, at
    least 3). in_flight: sandboxes at work at once. max_failing: largest share of the suite that one bug may fail.
    full_suite_s: a suite faster than this is run whole for the second repetition (where certified, every one); a
    slower one by the covering tests and a random tenth of the others. hanging_tests: most tests that may run into
    their deadline.
    most_covering: places that more tests than this execute are left out: their tasks are slow to play.
    repetitions: how many runs of a broken state must agree on every test that executes the place.
    bugs: mistakes in one task. distance: where those of one task lie: in one function, in several functions of one
    file, or in several files. issue: how much the prompt says (`issue.issue_of`).
    operators: "all", or "small" for those whose bugs the compact tools can mostly undo.
    kind: what is asked where it is no repair (see `kinds`).
    rewrite: a writer's functions are tried in the place of operators' mistakes.
    certify: also run the package and every task under the conditions of `conditions`, and store what was seen.
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
    bugs: int = 1
    distance: Distance = "file"
    issue: Issue = "full"
    certify: bool = False
    operators: Operators = "all"
    kind: str = ""
    rewrite: Rewrite | None = None

    def __post_init__(self) -> None:
        if self.repetitions < 2:
            raise ValueError(
                f"Plan.repetitions is {self.repetitions}; it must be at least 2: one run agrees with none"
            )
        if not 1 <= self.bugs <= 5:
            raise ValueError(f"Plan.bugs is {self.bugs}; a task has 1 to 5 mistakes")
        if self.kind and self.rewrite is not None:
            raise ValueError(f"Plan.kind is {self.kind!r} and Plan.rewrite is given; a model rewrites repairs only")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A mutation of one file: `path` in the tree, the file's text, and the tests that can notice, where known.

    beside: further mistakes of the same task, each a candidate of its own.
    """

    path: str
    source: str
    mutation: Mutation
    covering: tuple[str, ...] = ()
    beside: tuple["Candidate", ...] = ()

    @property
    def parts(self) -> tuple["Candidate", ...]:
        """Every mistake, by path and place."""
        own = Candidate(self.path, self.source, self.mutation, self.covering)
        return tuple(
            sorted((own, *self.beside), key=lambda one: (one.path, one.mutation.line, one.mutation.column))
        )

    @property
    def operator(self) -> str:
        """The operator's name, or how many bugs there are."""
        return self.mutation.operator if not self.beside else f"{len(self.parts)}-bugs"

    @property
    def key(self) -> str:
        """What tells it from every other candidate of its package."""
        return "\x1f".join(f"{one.path}\x1f{one.mutation.digest}" for one in self.parts)

    @property
    def originals(self) -> dict[str, str]:
        """Path -> the text without a mistake."""
        return {one.path: one.source for one in self.parts}

    @property
    def broken(self) -> dict[str, str]:
        """Path -> the text with all mistakes in it. Raises ValueError where two overlap."""
        return {
            path: apply_all(text, [one.mutation for one in self.parts if one.path == path])
            for path, text in self.originals.items()
        }


class Judged(Protocol):
    """A candidate and what became of it, whoever judged it: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def candidate(self) -> Candidate:
        """What was judged."""

    @property
    def verdict(self) -> Verdict:
        """What came of it."""

    @property
    def failing(self) -> Sequence[str]:
        """The tests that fail with it."""


@dataclass(frozen=True, slots=True)
class Bug:
    """A judged candidate: its verdict and, where valid, the tests it fails, and the covering ones it does not.

    patch: what undoes it, as it was applied when the tests passed again. quarantined: test -> why it is in none of
    the lists. runs: of the broken state, good where the failing tests failed. interacting: several mistakes that
    together fail other tests than each for itself. seconds: how long judging took.
    """

    candidate: Candidate
    verdict: Verdict
    failing: tuple[str, ...] = ()
    passing: tuple[str, ...] = ()
    report: TestReport | None = None
    patch: str = ""
    quarantined: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[Seen, ...] = ()
    interacting: bool = False
    seconds: float = 0.0


async def validate(base: Sandbox, baseline: Baseline, candidate: Candidate, *, plan: Plan, seed: int) -> Bug:
    """Judge one candidate in a fork of the unbroken sandbox; a bug that kills its sandbox crashes.

    The world's other faults pass through as EnvgymError.
    """
    began = time.perf_counter()
    async with await base.fork() as sandbox:
        try:
            bug = await _judge(sandbox, baseline, candidate, plan, seed)
            return replace(bug, seconds=time.perf_counter() - began)
        except SandboxDied:
            return Bug(candidate, Verdict.CRASHES)


async def _judge(sandbox: Sandbox, baseline: Baseline, candidate: Candidate, plan: Plan, seed: int) -> Bug:
    for path, text in candidate.broken.items():
        await sandbox.write(path, text.encode())
    first = await _run(sandbox, baseline, candidate.covering)
    failing = first.failing
    verdict = _first_look(first, failing, len(baseline.tests), plan)
    if verdict is not None:
        return Bug(candidate, verdict, failing)
    wide = _second_selection(baseline, candidate, plan, seed)
    second = await _run(sandbox, baseline, wide)
    others = tuple(test for test in second.failing if test not in set(candidate.covering))
    again = await _again(sandbox, baseline, (*candidate.covering, *others), plan)
    runs = [("plain", first), ("plain", second), *again]
    odd = disagreeing(runs, candidate.covering) | disagreeing(runs[1:], others)
    failing = tuple(test for test in second.failing if test not in odd)
    doubtful = bool(second.doubt or second.collection_errors or not failing)
    if doubtful or len(odd) > (_MOST_QUARANTINED if plan.certify else 0):
        return Bug(candidate, Verdict.FLAKY, first.failing)
    if others and set((await _run(sandbox, baseline, others)).failing) != set(others):
        return Bug(candidate, Verdict.FLAKY, failing)
    if len(failing) > plan.max_failing * len(baseline.tests):
        return Bug(candidate, Verdict.FAILS_TOO_MUCH, failing)
    patch, texts = _undone(candidate)
    for path, text in texts.items():
        await sandbox.write(path, text.encode())
    if not (await _run(sandbox, baseline, failing)).ok:
        return Bug(candidate, Verdict.NOT_RESTORED, failing)
    passed = {test for test, outcome in second.outcomes.items() if outcome == "passed"} - odd.keys()
    passing = tuple(test for test in candidate.covering if test in passed)
    known = set(failing) - set(others)  # the first run had the covering tests alone
    seen = tuple((name, (known if run is first else set(failing)) <= set(run.failing)) for name, run in runs)
    return Bug(candidate, Verdict.VALID, failing, passing, second, patch, odd, seen)


async def _again(
    sandbox: Sandbox, baseline: Baseline, tests: Sequence[str], plan: Plan
) -> list[tuple[str, TestReport]]:
    """Further runs of these tests, as many and under what conditions the plan wants."""
    runs = [("plain", await _run(sandbox, baseline, tests)) for _ in range(plan.repetitions - 2)]
    for condition in filter(None, map(applied, PER_TASK if plan.certify else ())):
        limits = _limits(baseline, tests)
        runs.append((condition.name, await run_under(sandbox, baseline.layout, condition, **limits)))
    return runs


def _undone(candidate: Candidate) -> tuple[str, dict[str, str]]:
    """The patch that undoes the bug, and the files after it was really applied to the broken ones."""
    broken, originals = candidate.broken, candidate.originals
    patch = make_patch(broken, originals)
    texts: dict[str, str] = {}
    for parsed in parse_patch(patch):
        text = apply_patch(parsed, broken[parsed.path])
        assert text == originals[parsed.path], f"the gold patch of {candidate.mutation.digest} does not undo it"
        texts[parsed.path] = text
    return patch, texts


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
    if plan.certify or baseline.suite_s < plan.full_suite_s:
        return baseline.tests
    rng = np.random.default_rng([seed, int(candidate.mutation.digest, 16)])
    chosen = set(candidate.covering)
    chosen |= {test for test in baseline.tests if rng.random() < 0.1}
    return tuple(test for test in baseline.tests if test in chosen)


def _limits(baseline: Baseline, tests: Sequence[str]) -> dict[str, Any]:
    """`tests` as a selection, with deadlines of a few times what they take in the unbroken package."""
    slowest_s = max(baseline.seconds[test] for test in tests)
    return {
        "selection": tests,
        "timeout_s": 10.0 + 4.0 * (baseline.cost_s(tests) + baseline.suite_s),
        "test_timeout_s": 2.0 + 8.0 * slowest_s,
    }


async def _run(sandbox: Sandbox, baseline: Baseline, tests: Sequence[str]) -> TestReport:
    return await run_tests(sandbox, baseline.layout, **_limits(baseline, tests))
