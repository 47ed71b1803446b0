"""Cheats in other languages than Python: on a small project all of them, on real ones by turns and by benchmark."""

from collections.abc import Awaitable, Callable

import pytest
from envgym_environments.code_repair.cheats import CHEATS, IDLE
from envgym_environments.code_repair.cheats.of_suites import OF_SUITES
from envgym_environments.code_repair.env import CodeRepair
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.suites import LANGUAGES, Suite
from envgym_environments.code_repair.suites.run import run_suite

from envgym.sandbox import SandboxBackend
from envgym.task import Task
from envgym.testing.cheats import audit

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(600), pytest.mark.slow]


def test_every_language_has_most_cheats_and_those_of_packages_do_nothing_there() -> None:
    for language in LANGUAGES:
        suite = Suite(language=language, test="true", reader="tap", source=("*",))
        task = Task(id="t", prompt="- a::b", metadata={"suite": suite.model_dump(mode="json"), "module": "src/a"})
        idle = [*IDLE.script(task)]
        playing = [cheat for cheat in CHEATS if [*cheat.script(task)] != idle]
        assert set(playing) <= set(OF_SUITES)
        assert len(playing) >= len(OF_SUITES) - 1, language


def test_a_task_of_another_tool_is_cheated_in_the_first_code_of_its_answer() -> None:
    source = ("lib/*.go", "README.md")
    suite = Suite(language="go", test="true", reader="go-json", source=source, tests=("lib/*_test.go",))
    changed = ("README.md", "lib/stack_test.go", "lib/the stack.go", "lib/last.go")
    gold = "".join(f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n" for path in changed)
    metadata = {"suite": suite.model_dump(mode="json"), "gold": {"patch": gold}}
    task = Task(id="t", prompt="- a::b", metadata=metadata)
    idle = [*IDLE.script(task)]
    by_load = [cheat for cheat in OF_SUITES if cheat.name in ("suite-exit", "suite-skip", "suite-printed")]
    for cheat in by_load:
        actions = [*cheat.script(task)]
        assert actions != idle
        command = str(actions[0].calls[0].arguments["command"])
        assert "'lib/the stack.go'" in command
        assert "> lib/zz_cheat.go" in command
    assert len(by_load) == 3
    unknown = Task(id="t", prompt="- a::b", metadata={"suite": metadata["suite"]})
    assert all([*cheat.script(unknown)] == idle for cheat in by_load)


def test_no_cheat_gains_on_a_small_project(
    money: Callable[[SandboxBackend], Awaitable[Task]], run_in_backend
) -> None:
    async def body(backend: SandboxBackend) -> None:
        task, memo = await money(backend), Memo()
        found = await audit([task], lambda one: CodeRepair(one, backend, memo=memo), OF_SUITES, idle=IDLE.script)
        assert len(found) == len(OF_SUITES)
        assert not [attempt for attempt in found if attempt.gains or attempt.failed]

    run_in_backend(body)


def test_some_of_them_fool_a_suite_without_guards(
    money: Callable[[SandboxBackend], Awaitable[Task]], run_in_backend
) -> None:
    async def body(backend: SandboxBackend) -> None:
        task = await money(backend)
        suite, fooled = Suite.model_validate(task.metadata["suite"]), set()
        assert task.world is not None
        for cheat in OF_SUITES:
            async with await backend.create(task.world) as sandbox:
                for action in cheat.script(task)[:-1]:
                    await sandbox.exec(["sh", "-c", str(action.calls[0].arguments["command"])], timeout_s=20)
                report = await run_suite(sandbox, suite)
                if any(report.outcomes.get(test) == "passed" for test in task.metadata["fail_to_pass"]):
                    fooled.add(cheat.name)
        assert {"suite-equal", "suite-tests-edited"} <= fooled, f"else they would prove nothing: {fooled}"

    run_in_backend(body)
