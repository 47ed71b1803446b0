"""Run tasks again under other conditions: what a certificate says, seen once more, or for the first time.

The answer must make every failing test pass and break none; the untouched task must fail each of them. Every state
is run in a sandbox of its own, and graded once. What is wrong comes back as data. So a task from anywhere (a
mirror, self-play, another tool's data set) gets the certificate that the factory's tasks have.
"""

import platform
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest

from envgym.errors import GraderFailure
from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import Task
from envgym_environments.code_repair.certify import Certificate, counted, with_certificate
from envgym_environments.code_repair.conditions import PER_TASK, Condition, Seen, applied, clock_library, run_under
from envgym_environments.code_repair.describe import restored
from envgym_environments.code_repair.graded import WRONG, believed
from envgym_environments.code_repair.hidden import Hidden
from envgym_environments.code_repair.judge import Verdict
from envgym_environments.code_repair.matching import Rules, settle
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.patch import parse_patch, sort_patch
from envgym_environments.code_repair.runner import Layout, TestReport
from envgym_environments.code_repair.suites.conditions import (
    ON_TASK,
    dates,
    on_suite,
    programs_of,
    run_suite_under,
)
from envgym_environments.code_repair.suites.judge import Texts, lay
from envgym_environments.code_repair.suites.suite import Suite
from envgym_environments.code_repair.trials import Facts, Trials, world_text

__all__ = ["certified_again"]

_PLAIN = Condition("plain")


@dataclass(slots=True)
class _Runs:
    """What was seen of the two states; wrong: what went wrong first, "" for nothing."""

    gold: list[Seen] = field(default_factory=list)
    untouched: list[Seen] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    date: bool = False
    wrong: str = ""

    def add(self, state: list[Seen], condition: Condition, wrong: str) -> bool:
        """Note a run of a state, and whether it was as it should be."""
        state.append((condition.name, not wrong))
        if wrong:
            self.wrong = f"under {condition.name!r}: {wrong}"
        return not wrong


async def certified_again(task: Task, backend: SandboxBackend, *, runs: int = 1) -> Task | str:
    """The task with the certificate of the runs that are made now, or what went wrong first.

    runs: of each state under each condition. Raises ValueError for a task without an answer, EnvgymError when the
    world breaks; tests of a data set that do not fit their own task are wrong, no fault of the world's.
    """
    began, facts = time.monotonic(), Facts.of(task)
    try:
        look = _of_suite if isinstance(facts.layout, Suite) else _of_package
        seen = await look(task, facts, backend, runs)
    except GraderFailure as failure:
        return str(failure)
    if seen.wrong:
        return seen.wrong
    certificate = Certificate(
        gold=counted(seen.gold),
        untouched=counted(seen.untouched),
        date_shifted=seen.date,
        versions=seen.versions,
        seconds=round(time.monotonic() - began, 3),
        digest="",
    )
    found = await believed(with_certificate(task, certificate), backend)
    return WRONG[found] if isinstance(found, Verdict) else found


async def _of_package(task: Task, facts: Facts, backend: SandboxBackend, runs: int) -> _Runs:
    """What was seen in fresh sandboxes under each condition, up to what is wrong."""
    if Hidden.of(task) is not None:
        raise ValueError(f"task {task.id!r} has tests that are laid over it but no suite that runs them")
    seen = _Runs(versions={"python": platform.python_version(), "pytest": pytest.__version__})
    seen.date = clock_library() is not None
    for condition in (_PLAIN, *filter(None, map(applied, PER_TASK))):
        for _ in range(runs):
            if not await _once(task, facts, backend, condition, seen):
                return seen
    return seen


async def _once(task: Task, facts: Facts, backend: SandboxBackend, condition: Condition, seen: _Runs) -> bool:
    """One run of the untouched state and one of the repaired state; whether both were as they should be."""
    assert isinstance(facts.layout, Layout)
    assert task.world is not None
    layout, world = facts.layout, task.world
    selection = (*facts.fail_to_pass, *facts.pass_to_pass)
    limits = {"selection": selection, "timeout_s": facts.run_s, "test_timeout_s": facts.test_s}

    def broken(path: str) -> str:
        text = world_text(world, path)
        if text is None:
            raise ValueError(f"task {task.id!r}: {path} is not in its world")
        return text

    async with await backend.create(world) as sandbox:
        untouched = await run_under(sandbox, layout, condition, **limits)
        if not seen.add(seen.untouched, condition, _not_broken(untouched, facts, Rules())):
            return False
    async with await backend.create(world) as sandbox:
        for path, text in restored(task, broken).items():
            await sandbox.write(path, text.encode())
        repaired = await run_under(sandbox, layout, condition, **limits)
        wrong = f"repaired, it fails {list(repaired.failing[:3])} {repaired.doubt}".strip()
        return seen.add(seen.gold, condition, "" if repaired.ok else wrong)


async def _of_suite(task: Task, facts: Facts, backend: SandboxBackend, runs: int) -> _Runs:
    """The same of a suite's tests; each of the two states is built once, in one sandbox.

    The suite is run whole, or by the tests that a data set lists where no other one counts. Tests that a data set
    keeps to itself are laid over both states, as they are when it is graded.
    """
    suite, gold = facts.layout, task.metadata.get("gold")
    assert isinstance(suite, Suite)
    if not isinstance(gold, dict) or not gold.get("patch"):
        raise ValueError(f"task {task.id!r} has no answer that could be run")
    trials = Trials(task, backend, Memo())
    texts = {part.path: await trials.source(part.path) for part in parse_patch(str(gold["patch"]))}
    answer, _ = sort_patch(str(gold["patch"]), suite, texts.get)
    seen = _Runs()
    states: tuple[tuple[list[Seen], Texts, _Judges], ...] = (
        (seen.untouched, {}, _not_broken),
        (seen.gold, answer, _not_repaired),
    )
    for state, edits, judge in states:
        async with aclosing(_played(task, facts, backend, edits, runs, seen)) as played:
            async for condition, report in played:
                if not seen.add(state, condition, judge(report, facts, _rules(task))):
                    return seen
    return seen


_Judges = Callable[[TestReport, Facts, Rules], str]


def _rules(task: Task) -> Rules:
    hidden = Hidden.of(task)
    return Rules() if hidden is None else hidden.rules


async def _played(
    task: Task, facts: Facts, backend: SandboxBackend, edits: Texts, runs: int, seen: _Runs
) -> AsyncGenerator[tuple[Condition, TestReport], None]:
    """The runs of one state under each condition."""
    suite, hidden, rules = facts.layout, Hidden.of(task), _rules(task)
    assert isinstance(suite, Suite)
    assert task.world is not None
    selects = "{tests}" in suite.test and not (rules.truncated or rules.untimed)
    listed = (
        list(dict.fromkeys((*facts.fail_to_pass, *facts.pass_to_pass))) if rules.only_listed and selects else None
    )
    async with await backend.create(task.world) as sandbox:
        await _prepare(sandbox, edits, hidden)
        seen.versions = seen.versions or await programs_of(sandbox, suite)
        seen.date = await dates(sandbox, suite)
        built = False
        for condition in (_PLAIN, *on_suite(ON_TASK, suite, date=seen.date)):
            for _ in range(runs):
                report = await run_suite_under(
                    sandbox, suite, condition, timeout_s=facts.run_s, built=built, selection=listed
                )
                built = True
                yield condition, report


async def _prepare(sandbox: Sandbox, edits: Texts, hidden: Hidden | None) -> None:
    await lay(sandbox, edits)
    if hidden is not None:
        await hidden.lay(sandbox)


def _not_broken(report: TestReport, facts: Facts, rules: Rules) -> str:
    """What of the untouched state's tests is not as the lists say; of a run that was cut off nothing is known."""
    if report.timed_out:
        return f"untouched, it ran out of time {report.doubt}".strip()
    found = settle(report.outcomes, facts.fail_to_pass, facts.pass_to_pass, rules)
    passed = [test for test, fine in zip(facts.fail_to_pass, found.repaired, strict=True) if fine]
    kept = [test for test, fine in zip(facts.pass_to_pass, found.kept, strict=True) if not fine]
    if not passed and not kept:
        return ""
    return f"untouched, {len(passed)} failing tests pass and {len(kept)} passing ones fail: {(passed + kept)[:20]}"


def _not_repaired(report: TestReport, facts: Facts, rules: Rules) -> str:
    """What of the repaired state's tests does not pass."""
    wanted = (*facts.fail_to_pass, *facts.pass_to_pass)
    found = settle(report.outcomes, facts.fail_to_pass, facts.pass_to_pass, rules)
    failing = [test for test, fine in zip(wanted, (*found.repaired, *found.kept), strict=True) if not fine]
    return f"repaired, it fails {failing[:3]} {report.doubt}".strip() if failing or report.doubt else ""
