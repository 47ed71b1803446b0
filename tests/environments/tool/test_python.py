"""`python`: the contracts in a real sandbox, persistence, forks, answers."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from envgym_environments.tool.python.play import PythonEnv, agrees
from envgym_environments.tool.python.world import SPEC, Topic, expert, python_tasks

from envgym.env import Step, StopReason
from envgym.messages import Action, ToolSpec
from envgym.registry import make, make_backend
from envgym.task import TaskSet
from envgym.testing import check_env, check_task, check_tasks

CELLS = (
    "x = [1]\nx",
    "x.append(2)\nlen(x)",
    "import random\nrandom.random()",
    "1 / 0",
    "open('f', 'a').write('a')",
)


def cells(step: Step, tools: Sequence[ToolSpec], rng: np.random.Generator) -> Action:
    return Action.call("python", code=CELLS[int(rng.integers(len(CELLS)))])


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(300)
@pytest.mark.parametrize("topic", ["maths", "data"])
def test_each_topic_meets_the_environment_contract(topic: Topic) -> None:
    async def run() -> None:
        async with make_backend("namespace") as backend:
            task = python_tasks(topic=topic)[3]
            await check_env(lambda: make(SPEC, task, backend=backend), policy=cells, turns=3, deadline_s=120)

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(300)
def test_tasks_of_both_topics_and_all_difficulties_are_solved_by_the_expert() -> None:
    async def run() -> None:
        async with make_backend("namespace") as backend:
            each = {
                (len(str(task.metadata["data"])) > 0, task.metadata["difficulty"]): task
                for task in python_tasks(200)
            }
            assert len(each) == 10, "two topics of five difficulties"
            tasks = TaskSet(list(each.values()))
            await check_task(tasks, lambda task: make(SPEC, task, backend=backend), expert, seeds=(0,))

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(300)
def test_variables_and_files_persist_and_a_fork_goes_its_own_way() -> None:
    async def run() -> None:
        async with make_backend("namespace") as backend:
            env = make(SPEC, 0, backend=backend, cells=3)
            assert isinstance(env, PythonEnv)
            await env.reset(seed=0)
            await env.step(Action.call("python", code="x = [1]; open('f', 'w').write('a'); f = object()"))
            fork = await env.fork()
            there = await fork.step(Action.call("python", code="x.append(2); x, open('f').read()"))
            here = await env.step(Action.call("python", code="x"))
            assert (there.text, here.text) == ("([1, 2], 'a')", "[1]")
            await env.close()
            again = await fork.step(Action.call("python", code="f"))
            assert again.text == "<object object at 0x...>"
            assert (
                await fork.step(Action.call("python", code="f"))
            ).text == "error: no cells are left; call answer"
            end = await fork.step(Action.call("answer", value=str(env.task.metadata["answer"])))
            assert (end.stop, end.reward) == (StopReason.GOAL, 1.0)
            await fork.close()

    asyncio.run(run())


def test_tasks_are_data_that_is_drawn_without_end() -> None:
    tasks = python_tasks(120)
    check_tasks(tasks, splits=("train", "heldout"))
    assert len({(task.prompt, str(task.metadata["data"])) for task in tasks}) > 115
    assert {task.metadata["difficulty"] for task in tasks.split("heldout")} == {1, 2, 3, 4, 5}
    assert python_tasks(None, seed=3)[10**6].metadata["answer"] != ""
    for wrong in ({"topic": "art"}, {"difficulty": 9}, {"count": 0}):
        with pytest.raises(ValueError, match="must be"):
            python_tasks(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "wanted", "right"),
    [
        (" 12 ", "12", True),
        ("12.0", "12", True),
        ("1,200", "1200", True),
        ("2/4", "1/2", True),
        ("0.5", "1/2", True),
        ("3.1415926", "3.141593", True),
        ("3.14", "3.141593", False),
        ("osaka", "Osaka", True),
        ("1/0", "0", False),
        ("13", "12", False),
        ("", "12", False),
        ("9" * 500, "12", False),
        ("1,2", "12", False),
        ("1 2", "12", False),
        ("1,20", "120", False),
        ("12,00", "1200", False),
        ("1,2,3", "123", False),
        ("1 1/2", "11/2", False),
        ("1 200", "1200", True),
        ("-1,234,567.5", "-1234567.5", True),
        ("- 3", "-3", True),
        ("2 / 4", "1/2", True),
        ("1, 2", "1,2", True),
        ("1, 20", "120", False),
    ],
)
def test_answers_are_compared_by_value(given: str, wanted: str, right: bool) -> None:
    assert agrees(given, wanted) is right
