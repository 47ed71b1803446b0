"""How a run ended that did not end by itself: the channels of a grade, in all forms of a task."""

from collections.abc import Awaitable, Callable

import pytest
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.hidden import Hidden
from envgym_environments.code_repair.imported_run import judge_imported
from envgym_environments.code_repair.matching import Rules
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.report import TestReport, ended
from envgym_environments.code_repair.suites import Suite
from envgym_environments.code_repair.suites import run as runs
from envgym_environments.code_repair.suites.run import run_suite
from envgym_environments.code_repair.suites.verdict import judge_by_suite
from envgym_environments.code_repair.trials import world_text
from envgym_sandboxes.cgroups import controllers

from envgym.limits import Resources
from envgym.sandbox import SandboxBackend
from envgym.task import Task, World

Make = Callable[[SandboxBackend], Awaitable[Task]]
pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("report", "package", "suite"),
    [
        (TestReport({"a": "failed"}, exit_code=1), "", ""),
        (TestReport({}, exit_code=-6, doubt="it ended early"), "crashed", "crashed"),
        (TestReport({}, exit_code=-9, out_of_memory=True, doubt="killed"), "out_of_memory", "out_of_memory"),
        (TestReport({}, exit_code=None, timed_out=True, doubt="killed"), "timeout", "timeout"),
        (TestReport({"a": "failed"}, errors={"a": "TestDeadline: 3 s"}), "timeout", ""),
        (TestReport({}, exit_code=2, doubt="the build failed", collection_errors={"build": "no"}), "crashed", ""),
        (
            TestReport({}, out_of_memory=True, doubt="the build failed", collection_errors={"build": "no"}),
            "out_of_memory",
            "out_of_memory",
        ),
    ],
)
def test_a_run_has_one_end(report: TestReport, package: str, suite: str) -> None:
    for name, found in ((package, ended(report)), (suite, ended(report, by_command=True))):
        assert found == {one: float(one == name) for one in ("timeout", "out_of_memory", "crashed")}


def shell_suite(test: str, *, build: tuple[str, ...] = ()) -> Suite:
    return Suite(language="c", build=build, test=test, reader="junit", results="r.xml", source=("*.c",))


@pytest.mark.parametrize(
    ("suite", "crashed"),
    [
        (shell_suite("kill -9 $$"), 1.0),
        (shell_suite("kill -9 $$ # {tests}"), 1.0),
        (shell_suite("true # {tests}", build=("exit 2",)), 0.0),
        (shell_suite("true", build=("exit 2",)), 0.0),
    ],
)
def test_a_command_that_dies_has_crashed_and_a_failed_build_not(suite: Suite, crashed: float, in_backend) -> None:
    async def body(backend: SandboxBackend) -> None:
        async with await backend.create(World(workdir="/repo")) as sandbox:
            own, _ = await judge_by_suite(sandbox, suite, ["a"], ["b"], tests=2, run_s=20.0)
            hidden = Hidden("", (), Rules(only_listed=True))
            imported = await judge_imported(sandbox, suite, hidden, ["a"], ["b"], timeout_s=20.0)
        for found in (own, imported.channels):
            assert (found["crashed"], found["timeout"], found["out_of_memory"]) == (crashed, 0.0, 0.0)
            assert not found.get("reward")

    in_backend(body)


def test_the_end_of_an_earlier_part_of_a_selection_is_the_ends_of_all(in_backend, monkeypatch) -> None:
    monkeypatch.setattr(runs, "_MOST_ARGUMENTS", 1)

    async def body(backend: SandboxBackend) -> None:
        good = '<testsuite tests="1" failures="0"><testcase name="b"/></testsuite>'
        hog = "head -c 300M /dev/zero | tail -c 300M > /dev/null"
        suite = shell_suite(f"set -- {{tests}}; if [ $1 = a ]; then {hog}; else printf %s '{good}' > r.xml; fi")
        small = World(workdir="/repo", resources=Resources(memory_bytes=64 << 20))
        for order in (["b", "a"], ["a", "b"]):
            async with await backend.create(small) as sandbox:
                report = await run_suite(sandbox, suite, selection=order, timeout_s=20.0)
            assert (report.outcomes["a"], report.outcomes["b"]) == ("error", "passed")
            assert report.out_of_memory == ("memory" in controllers()), order

    in_backend(body)


ENDS = {
    "crashed": "process.abort()",
    "out_of_memory": "const held = []; for (;;) held.push(Buffer.alloc(1 << 24, 1))",
}


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_a_repair_that_takes_its_runner_down_says_how(end: str, money: Make, run_in_backend) -> None:
    if end == "out_of_memory" and "memory" not in controllers():
        end = "crashed"  # nothing there can say that it was memory

    async def body(backend: SandboxBackend) -> None:
        task = await money(backend)
        assert task.world is not None
        text = world_text(task.world, "index.js") or ""
        broken = make_patch({"index.js": text}, {"index.js": f"{ENDS[end]}\n{text}"})
        plain = {key: value for key, value in task.metadata.items() if key != "guards"}
        imported = plain | {"rules": {"only_listed": True}}
        for form, metadata in (("guarded", task.metadata), ("plain", plain), ("imported", imported)):
            one = task.model_copy(update={"id": f"{task.id}-{form}", "metadata": metadata})
            found = (await CodeRepairGrader(backend, memo=Memo()).grade(one, broken)).channels
            assert (found["reward"], found["f2p"], found["voided"]) == (0.0, 0.0, 0.0), (form, found)
            assert [name for name in ("timeout", "out_of_memory", "crashed") if found[name]] == [end], (form, found)

    run_in_backend(body)
