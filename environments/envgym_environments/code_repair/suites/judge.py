"""Prove one change of a project in any language by the project's own suite, which fails with it and not without.

The same proof as for Python packages (`code_repair.judge`), by commands: the same tests fail in every run of the
broken state, and the suite passes whole when the change is undone. There is no coverage to choose tests by, so each
run is one of the whole suite; what is tested is built once for each state of the code.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from envgym.errors import SandboxDied
from envgym.sandbox import Sandbox
from envgym_environments.code_repair.conditions import Condition, Seen
from envgym_environments.code_repair.judge import Candidate, Plan, Verdict
from envgym_environments.code_repair.patch import apply_patch, make_patch, parse_patch
from envgym_environments.code_repair.runner import Outcome, TestReport
from envgym_environments.code_repair.suites.baseline import SuiteBaseline
from envgym_environments.code_repair.suites.conditions import ON_TASK, on_suite, run_suite_under
from envgym_environments.code_repair.suites.run import run_suite

__all__ = ["Proof", "SuiteBug", "Texts", "lay", "prove", "validate_in_suite"]

Texts = Mapping[str, str | None]
"""Path -> text; None where there is no file."""

_PLAIN = Condition("plain")


@dataclass(frozen=True, slots=True)
class Proof:
    """What the suite said of a broken state: the verdict and, where valid, what fails and what passes.

    errors: failing test -> one line, where the runner says one. runs: of the broken state, good where just these
    failed, in order. repaired: the run of the state that was put back. seconds: how long it took.
    """

    verdict: Verdict
    failing: tuple[str, ...] = ()
    passing: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[Seen, ...] = ()
    repaired: tuple[Seen, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SuiteBug:
    """A judged candidate, and the patch that undoes it. interacting: as of `Bug`."""

    candidate: Candidate
    proof: Proof
    patch: str
    interacting: bool = False

    @property
    def verdict(self) -> Verdict:
        """What became of it."""
        return self.proof.verdict

    @property
    def failing(self) -> tuple[str, ...]:
        """The tests that fail with it."""
        return self.proof.failing


async def validate_in_suite(
    base: Sandbox, baseline: SuiteBaseline, candidate: Candidate, *, plan: Plan
) -> SuiteBug:
    """Judge one candidate; what is put back is what its patch makes of the broken texts."""
    broken, originals = candidate.broken, candidate.originals
    patch = make_patch(broken, originals)
    fixed = {parsed.path: apply_patch(parsed, broken[parsed.path]) for parsed in parse_patch(patch)}
    assert fixed == originals, f"the answer of {candidate.mutation.digest} does not undo it"
    return SuiteBug(candidate, await prove(base, baseline, broken, fixed, plan=plan), patch)


async def prove(base: Sandbox, baseline: SuiteBaseline, broken: Texts, fixed: Texts, *, plan: Plan) -> Proof:
    """Run the suite with the files of `broken`, and of `fixed` again, in a fork of the unbroken, built sandbox.

    A state that kills its sandbox crashes. Raises EnvgymError for the world's other faults.
    """
    began = time.monotonic()
    async with await base.fork() as sandbox:
        try:
            return await _prove(sandbox, baseline, broken, fixed, plan, began)
        except SandboxDied:
            return Proof(Verdict.CRASHES)


async def _prove(
    sandbox: Sandbox, baseline: SuiteBaseline, broken: Texts, fixed: Texts, plan: Plan, began: float
) -> Proof:
    await lay(sandbox, broken)
    first = await run_suite(sandbox, baseline.suite, timeout_s=baseline.run_s)
    outcomes = _seen(first, baseline.tests)
    failing = tuple(name for name in baseline.tests if outcomes[name] in ("failed", "error"))
    verdict = _first_look(first, failing, len(baseline.tests), plan)
    if verdict is not None:
        return Proof(verdict, failing)
    runs: list[Seen] = [(_PLAIN.name, True)]
    for condition in _again(plan, baseline):
        limit_s = baseline.run_s
        report = await run_suite_under(sandbox, baseline.suite, condition, timeout_s=limit_s, built=True)
        runs.append((condition.name, _seen(report, baseline.tests) == outcomes and not report.doubt))
    if not all(same for _, same in runs):
        return Proof(Verdict.FLAKY, failing, runs=tuple(runs))
    await lay(sandbox, fixed)
    restored = await run_suite(sandbox, baseline.suite, timeout_s=baseline.run_s)
    repaired = restored.ok and set(_seen(restored, baseline.tests).values()) == {"passed"}
    if not repaired:
        return Proof(Verdict.NOT_RESTORED, failing)
    return Proof(
        Verdict.VALID,
        failing,
        passing=tuple(name for name in baseline.tests if outcomes[name] == "passed"),
        errors={name: first.errors[name] for name in failing if name in first.errors},
        runs=tuple(runs),
        repaired=(("restored by the answer", repaired),),
        seconds=time.monotonic() - began,
    )


async def lay(sandbox: Sandbox, texts: Texts) -> None:
    """Put files into a sandbox's workdir, and take away those that are None."""
    for path, text in texts.items():
        if text is None:
            await sandbox.exec(["rm", "-f", "--", path])
        else:
            await sandbox.write(path, text.encode("utf-8", "surrogatepass"))


def _again(plan: Plan, baseline: SuiteBaseline) -> tuple[Condition, ...]:
    """Under what the runs behind the first are made; where tasks are certified, one of them is that of `ON_TASK`.

    Another order, zone and date find what one more plain run finds, so they take the place of one.
    """
    special = on_suite(ON_TASK, baseline.suite, date=baseline.dated) if plan.certify else ()
    return (*[_PLAIN] * (plan.repetitions - 1 - len(special)), *special)


def _seen(report: TestReport, tests: Sequence[str]) -> dict[str, Outcome]:
    """The outcome of each baseline test; one that did not run (its file or package broke) is an error."""
    return {name: report.outcomes.get(name, "error") for name in tests}


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
