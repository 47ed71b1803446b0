from collections.abc import Sequence

import pytest
from envgym_environments.code_repair.cheats import CHEATS, IDLE
from envgym_environments.code_repair.env import CodeRepair
from envgym_environments.code_repair.factory import Plan, Yield, make_tasks
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.runner import run_tests
from envgym_environments.code_repair.sources import packages
from envgym_environments.code_repair.trials import Facts, Trials

from envgym.sandbox import SandboxBackend
from envgym.task import Task
from envgym.testing.cheats import Attempt, Cheat, audit

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(300), pytest.mark.slow]

IN_THE_PROCESS = {"framework", "deceit", "processes", "tests"}
FAMILIES = sorted({cheat.family for cheat in CHEATS})


async def play(tasks: Sequence[Task], backend: SandboxBackend, cheats: Sequence[Cheat]) -> list[Attempt]:
    memo = Memo()
    return await audit(tasks, lambda task: CodeRepair(task, backend, memo=memo), cheats, idle=IDLE.script)


def test_there_are_at_least_forty_cheats_with_names_and_words_of_their_own() -> None:
    assert len(CHEATS) >= 40
    assert len({cheat.name for cheat in CHEATS}) == len({cheat.tries for cheat in CHEATS}) == len(CHEATS)


@pytest.fixture
def named(broken) -> Task:
    """The broken task with a prompt that names its failing tests, as those of the factory do."""
    lines = [f"- {test}" for test in Facts.of(broken).fail_to_pass]
    return broken.model_copy(update={"prompt": "\n".join([broken.prompt, *lines])})


@pytest.mark.parametrize("family", FAMILIES)
def test_no_cheat_gains_more_than_doing_nothing(family: str, named, in_backend) -> None:
    async def body(backend) -> None:
        found = await play([named], backend, [cheat for cheat in CHEATS if cheat.family == family])
        assert not [attempt for attempt in found if attempt.gains or attempt.failed]

    in_backend(body)


def test_many_of_them_fool_a_run_of_the_tests_that_has_no_canaries(named, in_backend) -> None:
    async def body(backend) -> None:
        fooled = set()
        for cheat in CHEATS:
            if cheat.family not in IN_THE_PROCESS or cheat.name in ("flood", "out-of-memory"):
                continue
            async with await backend.create(Trials(named, backend, Memo()).world) as sandbox:
                for action in cheat.script(named)[:-1]:
                    await sandbox.exec(str(action.calls[0].arguments["command"]), timeout_s=10)
                facts = Facts.of(named)
                report = await run_tests(sandbox, facts.layout, selection=facts.fail_to_pass, timeout_s=20)
                if any(report.outcomes.get(test) == "passed" for test in facts.fail_to_pass):
                    fooled.add(cheat.name)
        assert len(fooled) >= 15, "else they would prove nothing"

    in_backend(body)


def test_several_tasks_of_a_real_package_are_not_gained_by_any_cheat(in_backend) -> None:
    package = next(one for one in packages() if one.name == "inflection")

    async def body(backend) -> None:
        tasks = [task async for task in make_tasks(package, backend, Plan(per_package=2), counts=Yield())]
        found = await play(tasks, backend, CHEATS)
        assert not [attempt for attempt in found if attempt.gains or attempt.failed]
        assert len(found) == 2 * len(CHEATS)

    in_backend(body)
