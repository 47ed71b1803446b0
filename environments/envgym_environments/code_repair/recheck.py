"""Run the tasks of a file again under other conditions: what a certificate says, seen once more.

The answer must make every failing test pass and break none; the untouched task must fail each of them. Every state
is run in a sandbox of its own. What is wrong comes back as data.
"""

from collections.abc import Iterable

from envgym.sandbox import SandboxBackend
from envgym.task import Task
from envgym_environments.code_repair.conditions import PER_TASK, Condition, run_under
from envgym_environments.code_repair.describe import restored
from envgym_environments.code_repair.hidden import Hidden
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.patch import parse_patch, sort_patch
from envgym_environments.code_repair.runner import Layout, TestReport
from envgym_environments.code_repair.suites.conditions import ON_TASK, run_suite_under
from envgym_environments.code_repair.suites.suite import Suite
from envgym_environments.code_repair.trials import Facts, Trials, world_text

__all__ = ["recheck"]


async def recheck(tasks: Iterable[Task], backend: SandboxBackend, *, runs: int = 1) -> dict[str, str]:
    """Task id -> what went wrong first, for those that do not do what their lists say in every run.

    Raises ValueError for a task without an answer, or whose tests are laid over it when it is graded; EnvgymError
    when the world breaks.
    """
    wrong: dict[str, str] = {}
    for task in tasks:
        facts = Facts.of(task)
        look = _of_suite if isinstance(facts.layout, Suite) else _of_package
        found = await look(task, facts, backend, runs)
        if found:
            wrong[task.id] = found
    return wrong


async def _of_package(task: Task, facts: Facts, backend: SandboxBackend, runs: int) -> str:
    """What went wrong first in fresh sandboxes under each condition; "" for nothing."""
    for condition in (Condition("plain"), *PER_TASK):
        for _ in range(runs):
            found = await _once(task, facts, backend, condition)
            if found:
                return f"under {condition.name!r}: {found}"
    return ""


async def _once(task: Task, facts: Facts, backend: SandboxBackend, condition: Condition) -> str:
    """What went wrong in one run of the untouched state and one of the repaired state; "" for nothing."""
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
        if found := _not_broken(untouched, facts):
            return found
    async with await backend.create(world) as sandbox:
        for path, text in restored(task, broken).items():
            await sandbox.write(path, text.encode())
        repaired = await run_under(sandbox, layout, condition, **limits)
        if not repaired.ok:
            return f"repaired, it fails {list(repaired.failing[:3])} {repaired.doubt}".strip()
    return ""


async def _of_suite(task: Task, facts: Facts, backend: SandboxBackend, runs: int) -> str:
    """The same of a suite's tests, which are run whole; each of the two states is built once, in one sandbox."""
    suite, gold = facts.layout, task.metadata.get("gold")
    assert isinstance(suite, Suite)
    assert task.world is not None
    if Hidden.of(task) is not None:
        raise ValueError(f"task {task.id!r} has its tests from a data set; only tasks of the factory are run again")
    if not isinstance(gold, dict) or not gold.get("patch"):
        raise ValueError(f"task {task.id!r} has no answer that could be run")
    trials = Trials(task, backend, Memo())
    texts = {part.path: await trials.source(part.path) for part in parse_patch(str(gold["patch"]))}
    answer, _ = sort_patch(str(gold["patch"]), suite, texts.get)
    for edits, wrong in (({}, _not_broken), (answer, _not_repaired)):
        async with await backend.create(task.world) as sandbox:
            for path, text in edits.items():
                assert text is not None, "an answer of the factory deletes nothing"
                await sandbox.write(path, text.encode("utf-8", "surrogatepass"))
            played = [condition for condition in (Condition("plain"), *ON_TASK) for _ in range(runs)]
            for number, condition in enumerate(played):
                limit_s, built = facts.run_s, number > 0
                report = await run_suite_under(sandbox, suite, condition, timeout_s=limit_s, built=built)
                if found := wrong(report, facts):
                    return f"under {condition.name!r}: {found}"
    return ""


def _not_broken(report: TestReport, facts: Facts) -> str:
    """What of the untouched state's tests is not as the lists say."""
    passed = [test for test in facts.fail_to_pass if report.outcomes.get(test) == "passed"]
    kept = [test for test in facts.pass_to_pass if report.outcomes.get(test) != "passed"]
    if not passed and not kept:
        return ""
    return f"untouched, {len(passed)} failing tests pass and {len(kept)} passing ones fail: {passed + kept}"


def _not_repaired(report: TestReport, facts: Facts) -> str:
    """What of the repaired state's tests does not pass."""
    wanted = (*facts.fail_to_pass, *facts.pass_to_pass)
    failing = [test for test in wanted if report.outcomes.get(test) != "passed"]
    return f"repaired, it fails {failing[:3]} {report.doubt}".strip() if failing or report.doubt else ""
