"""The verdict of a project's own suite on a repaired state: what of the failing tests passes, what is kept.

The process that runs the tests also runs the submitted code and can write the results, so every run has canaries in
it, and a test that passes is believed only after it came to its end in a second run, where that end makes it fail
with a secret word, and failed in a third, where a literal of it is another (see `guards`). Every run has a fork of
its own of a state in which no submitted code has run. A task without guards is judged by one run.
"""

import secrets
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from envgym.sandbox import Sandbox
from envgym_environments.code_repair.report import ended
from envgym_environments.code_repair.runner import TestReport
from envgym_environments.code_repair.suites.guards import Edit, Guards
from envgym_environments.code_repair.suites.look import Look, drawn, look
from envgym_environments.code_repair.suites.run import build_suite, run_suite
from envgym_environments.code_repair.suites.suite import Suite

__all__ = ["judge_by_suite", "judge_guarded"]

_Seen = Callable[[Sequence[Edit]], Awaitable[Look]]


async def judge_by_suite(
    sandbox: Sandbox,
    suite: Suite,
    fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str],
    *,
    tests: int,
    run_s: float,
) -> tuple[dict[str, float], bool]:
    """The channels that are not zero, and whether they repeat, without guards.

    The failing tests run first where the suite can select; the whole suite decides. tests: how many it has.
    """
    selects = "{tests}" in suite.test
    if selects:
        first = await run_suite(sandbox, suite, selection=fail_to_pass, timeout_s=run_s)
        share = _share(first, fail_to_pass)
        if share < 1.0 or not first.ok:
            return {"f2p": share, **ended(first, by_command=True)}, first.repeats
    whole = await run_suite(sandbox, suite, timeout_s=2.0 * run_s, built=selects)
    return _verdict(whole, _share(whole, fail_to_pass), fail_to_pass, pass_to_pass, tests, whole.ok), whole.repeats


def _verdict(
    whole: TestReport,
    share: float,
    fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str],
    tests: int,
    fine: bool,
) -> dict[str, float]:
    channels = {"f2p": share, **ended(whole, by_command=True)}
    if share < 1.0:
        return channels
    others = {*pass_to_pass, *whole.outcomes} - set(fail_to_pass)
    passed = sum(whole.outcomes.get(name) == "passed" for name in others)
    must = max(len(others), tests - len(fail_to_pass))
    kept = passed / must if must else 1.0
    resolved = float(fine and kept == 1.0)
    return channels | {"reward": resolved, "resolved": resolved, "success": resolved, "p2p": kept}


def _share(report: TestReport, wanted: Sequence[str]) -> float:
    """The share of the failing tests that pass; none where the run is not confirmed and nothing failed in it."""
    if report.doubt and not report.failing:
        return 0.0
    return sum(report.outcomes.get(name) == "passed" for name in wanted) / len(wanted)


async def judge_guarded(
    base: Sandbox,
    suite: Suite,
    guards: Guards,
    fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str],
    *,
    tests: int,
    run_s: float,
) -> tuple[dict[str, float], bool]:
    """The channels that are not zero, and whether they repeat. base: nothing of the submission has run in it.

    A failing test counts as passed where it passed and its guards held; contradicted guards void the grade.
    """
    rng = np.random.default_rng(secrets.randbits(128))
    names = [*pass_to_pass, *fail_to_pass]
    _, broken = await build_suite(base, suite, fail_to_pass, run_s)
    if broken is not None:
        return ended(broken, by_command=True), broken.repeats

    async def seen(edits: Sequence[Edit]) -> Look:
        return await look(base, suite, drawn(guards.canaries, rng), edits, rng, names=names, timeout_s=2.0 * run_s)

    first = await seen(())
    whole = first.report
    if first.void:
        return {"voided": 1.0}, True
    passed = {name for name in fail_to_pass if whole.outcomes.get(name) == "passed"}
    if first.unseen or not passed or (whole.doubt and not whole.failing and not guards.canaries):
        return {"f2p": 0.0, **ended(whole, by_command=True)}, whole.repeats
    proven, lies = await _proven(seen, guards, passed, set(fail_to_pass) - passed, rng)
    if lies:
        return {"voided": 1.0}, True
    share = len(proven) / len(fail_to_pass)
    fine = not whole.doubt and not whole.collection_errors and not whole.failing
    found = _verdict(whole, share, fail_to_pass, pass_to_pass, tests, fine)
    return found, whole.repeats and (proven == passed)


async def _proven(
    seen: _Seen, guards: Guards, passed: set[str], failed: set[str], rng: np.random.Generator
) -> tuple[set[str], bool]:
    """Of the tests that passed, those whose guards held; and whether one of them was contradicted."""
    ends = [edit for edit in guards.ends if passed & set(edit.tests)]
    proven = set(passed)
    if ends:
        at_end = await seen(ends)
        if at_end.void or any(_passed(at_end.report, edit, passed) for edit in ends):
            return set(), True
        for edit in ends:
            if not at_end.by(edit):
                proven -= set(edit.tests)
    if proven and guards.twins:
        lies = await _twins_pass(seen, [one for one in guards.twins if not failed & set(one.tests)], rng)
        return (set(), True) if lies else (proven, False)
    return proven, False


async def _twins_pass(seen: _Seen, twins: Sequence[Edit], rng: np.random.Generator) -> bool:
    """Whether twins pass: the same test with one changed literal, and again with another.

    Two, for right code that is not the project's may do for one literal what makes the test pass.
    """
    tried: set[tuple[str, int]] = set()
    again: set[str] | None = None
    for _ in range(2):
        chosen: list[Edit] = []
        used: set[str] = set()
        for index in rng.permutation(len(twins)):
            edit = twins[int(index)]
            mine = set(edit.tests)
            if (edit.path, edit.at) in tried or used & mine or (again is not None and not again & mine):
                continue
            used |= mine
            tried.add((edit.path, edit.at))
            chosen.append(edit)
        if not chosen:
            return bool(again)
        shown = await seen(chosen)
        if shown.void:
            return True
        again = {name for edit in chosen for name in _passed(shown.report, edit, {*edit.tests})}
        if not again:
            return False
    return True


def _passed(report: TestReport, edit: Edit, tests: set[str]) -> list[str]:
    """The tests of an edit, of these, that are reported as passed though the edit makes them fail."""
    return [name for name in edit.tests if name in tests and report.outcomes.get(name) == "passed"]
