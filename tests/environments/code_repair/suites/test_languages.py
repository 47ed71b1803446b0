"""Real projects in all eight languages: what the factory makes of them, and what the grader says of its answers.

Sources and toolchains come from the registries at set-up; a project is left out, with the reason, only where this
machine has not got its toolchain. CI takes that for a failure.
"""

import asyncio

import pytest
from envgym_environments.code_repair.certify import certificate_of
from envgym_environments.code_repair.cheats import IDLE
from envgym_environments.code_repair.cheats.of_suites import OF_SUITES
from envgym_environments.code_repair.describe import restore
from envgym_environments.code_repair.env import CodeRepair
from envgym_environments.code_repair.factory import Plan, Yield
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.suites import LANGUAGES, Suite
from envgym_environments.code_repair.suites.conditions import ON_PROJECT, on_suite
from envgym_environments.code_repair.suites.guards import Guards
from envgym_environments.code_repair.suites.make import make_suite_tasks
from envgym_environments.code_repair.suites.projects import missing_programs, projects
from envgym_environments.code_repair.trials import Trials

from envgym.messages import Action
from envgym.registry import make_backend
from envgym.sandbox import SandboxBackend
from envgym.task import Task
from envgym.testing.cheats import audit

pytestmark = [pytest.mark.namespaces, pytest.mark.slow, pytest.mark.timeout(1200)]
_MADE: dict[str, list[Task]] = {}


async def made(language: str, backend: SandboxBackend) -> list[Task]:
    """Three certified tasks of the language's first project, made once for all tests of this file."""
    if language not in _MADE:
        project = projects(language=language)[0]  # type: ignore[arg-type]
        missing = missing_programs(project)
        if missing:
            pytest.skip(f"{project.slug} needs {', '.join(missing)}, which this machine has not")
        plan = Plan(per_package=3, certify=True)
        _MADE[language] = [task async for task in make_suite_tasks(project, backend, plan, counts=Yield())]
    return _MADE[language]


async def check_carried(task: Task, language: str, backend: SandboxBackend) -> None:
    """It carries what rebuilds and grades it, and does not show its answer."""
    data = task.metadata
    assert Suite.model_validate(data["suite"]).language == data["language"] == language
    assert all(data[key] for key in ("package", "version", "sha256", "origin", "licence", "operator", "module"))
    guards = Guards.model_validate(data["guards"])
    assert guards.canaries
    assert guards.twins
    certificate = certificate_of(task)
    assert certificate is not None
    assert {one.name for one in on_suite(ON_PROJECT, Suite.model_validate(data["suite"]))} < certificate.gold.keys()
    assert "other order" in " ".join(certificate.gold)
    assert certificate.gold["graded"] == certificate.untouched["graded"] == (1, 1)
    assert certificate.runs == 2 + len(ON_PROJECT) + 1 + 2 + 2
    assert not set(data["fail_to_pass"]) & set(data["pass_to_pass"])
    assert f"line {data['line']}" not in task.prompt
    assert all(data["gold"]["right"] not in task.prompt for _ in [0] if len(data["gold"]["right"]) > 12)
    text = await Trials(task, backend, Memo()).source(data["module"])
    assert text is not None
    assert restore(text, data["gold"]) not in task.world.files.values()
    assert restore(text, data["gold"]) != text


def run(body) -> None:
    async def work() -> None:
        async with make_backend("namespace") as backend:
            await body(backend)

    asyncio.run(work())


@pytest.mark.turns(6)
@pytest.mark.parametrize("language", LANGUAGES)
def test_three_tasks_of_a_real_project_are_whole_and_resolved_by_their_answers_and_by_no_cheat(
    language: str,
) -> None:
    """Of the cheats two for each language: a small project (`test_suite_cheats`) and the matrix play all."""

    async def body(backend: SandboxBackend) -> None:
        tasks = await made(language, backend)
        assert len(tasks) == 3 == len({task.id for task in tasks})
        for task in tasks:
            await check_carried(task, language, backend)
            grader = CodeRepairGrader(backend, memo=Memo())
            gold = await grader.grade(task, task.metadata["gold"]["patch"])
            assert (gold.reward, gold.channels["f2p"], gold.channels["p2p"]) == (1.0, 1.0, 1.0), (task.id, gold)
            nothing = await grader.grade(task, "")
            assert (nothing.reward, nothing.channels["resolved"]) == (0.0, 0.0), (task.id, nothing)
            assert nothing.channels["f2p"] == 0.0
        place = 2 * LANGUAGES.index(language)  # type: ignore[arg-type]
        cheats = [OF_SUITES[(place + step) % len(OF_SUITES)] for step in (0, 1)]
        found = await audit(tasks[:1], lambda task: CodeRepair(task, backend), cheats, idle=IDLE.script)
        assert not [attempt for attempt in found if attempt.gains or attempt.failed]

    run(body)


def test_an_agent_plays_a_task_in_javascript_with_the_full_tools() -> None:
    async def body(backend: SandboxBackend) -> None:
        task = (await made("javascript", backend))[0]
        with pytest.raises(ValueError, match="use tools='full'"):
            CodeRepair(task, backend, tools="compact")
        env = CodeRepair(task, backend, memo=Memo())
        await env.reset(seed=0)
        step = await env.step(Action.call("run_tests"))
        assert task.metadata["fail_to_pass"][0] in step.observation[0].content
        step = await env.step(Action.call("symbols", path="index.js", pattern="Router.on"))
        assert "Router.prototype.on = function on (method, path, opts, handler, store)" in step.text
        gold = task.metadata["gold"]
        text = await Trials(task, backend, Memo()).source(gold["path"])
        assert text is not None
        sandbox = await env._play.sandbox()
        await sandbox.write(gold["path"], restore(text, gold).encode())
        await env.step(Action.call("shell", command="rm -rf test && echo 'process.exit(0)' > suite/all.js"))
        step = await env.step(Action.call("submit"))
        assert step.reward == 1.0
        assert step.submission is not None
        assert "suite/all.js" not in step.submission
        await env.close()

    run(body)
