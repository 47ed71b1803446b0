"""Certificates of suites: that conditions reach the tests, and that a certified task is bound to what was run."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from envgym_environments.code_repair.certify import certificate_of
from envgym_environments.code_repair.conditions import Condition, clock_library
from envgym_environments.code_repair.factory import Plan, Yield
from envgym_environments.code_repair.recheck import recheck
from envgym_environments.code_repair.suites import Suite
from envgym_environments.code_repair.suites.conditions import ON_PROJECT, ON_TASK, run_suite_under
from envgym_environments.code_repair.suites.make import make_suite_tasks
from envgym_environments.code_repair.suites.projects import Project

from envgym.sandbox import SandboxBackend
from envgym.task import World

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(300)]
YEAR_S = 366 * 86_400


def test_conditions_reach_what_the_command_runs(run_in_backend: Callable[..., None]) -> None:
    line = "node -p \"new Date().getFullYear() + ' ' + process.env.TZ\" > said"
    values = {"test": line, "reader": "exit-code"}
    suite = Suite.model_validate({"language": "javascript", "source": ("*.js",)} | values)

    async def body(backend: SandboxBackend) -> None:
        async with await backend.create(World(workdir="/repo")) as sandbox:
            said = []
            for condition in (Condition("plain"), Condition("later", zone="NPT-5:45", later_s=2 * YEAR_S)):
                await run_suite_under(sandbox, suite, condition)
                said.append((await sandbox.read("said")).decode().split())
        assert [zone for _, zone in said] == ["UTC", "NPT-5:45"]
        assert int(said[1][0]) - int(said[0][0]) == (2 if clock_library() else 0)

    run_in_backend(body)


@pytest.mark.slow
def test_a_certified_task_says_what_was_run_and_a_changed_one_does_not_load(
    tmp_path: Path,
    run_in_backend: Callable[[Callable[[SandboxBackend], Awaitable[None]]], None],
    money_project: Callable[[Path], Project],
) -> None:
    project = money_project(tmp_path)

    async def body(backend: SandboxBackend) -> None:
        plan, journal, counts = Plan(per_package=1, certify=True), tmp_path / "money.journal", Yield()
        made = make_suite_tasks(project, backend, plan, counts=counts, cache=tmp_path, journal=journal)
        (task,) = [one async for one in made]
        found_before = journal.read_bytes()
        again = Yield()
        made = make_suite_tasks(project, backend, plan, counts=again, cache=tmp_path, journal=journal)
        assert [one async for one in made] == [task], "a build that goes on gives the same"
        assert (counts.verdicts, counts.tasks) == (again.verdicts, 1)
        assert again.seconds > counts.seconds == 0, "what the first took counts"
        assert journal.read_bytes().startswith(found_before)
        found = certificate_of(task)
        assert found is not None
        assert {condition.name for condition in ON_PROJECT} < found.gold.keys()
        assert {condition.name for condition in ON_TASK} < found.untouched.keys()
        assert found.runs == 2 + len(ON_PROJECT) + 1 + plan.repetitions
        assert "node" in found.versions
        assert not found.network
        guards = {**task.metadata["guards"], "twins": []}
        with pytest.raises(ValueError, match="changed afterwards"):
            certificate_of(task.model_copy(update={"metadata": {**task.metadata, "guards": guards}}))
        assert await recheck([task], backend) == {}
        swapped = {"fail_to_pass": task.metadata["pass_to_pass"], "pass_to_pass": task.metadata["fail_to_pass"]}
        wrong = task.model_copy(update={"metadata": {**task.metadata, **swapped}})
        assert "failing tests pass" in str(await recheck([wrong], backend))
        unrepaired = {"gold": {"patch": "--- /dev/null\n+++ b/notes.js\n@@ -0,0 +1 @@\n+// repairs nothing\n"}}
        wrong = task.model_copy(update={"metadata": {**task.metadata, **unrepaired}})
        assert "repaired, it fails" in str(await recheck([wrong], backend))
        foreign = task.model_copy(update={"metadata": {**task.metadata, "test_patch": "--- a/x\n"}})
        with pytest.raises(ValueError, match="tests from a data set"):
            await recheck([foreign], backend)

    run_in_backend(body)
