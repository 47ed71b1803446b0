"""A language model breaks code and tells issues: through a script, and through a real server on the loopback."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from envgym_environments.code_repair.certify import certificate_of
from envgym_environments.code_repair.cli import tasks_command
from envgym_environments.code_repair.factory import Plan, Yield, make_tasks
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.index import write_index
from envgym_environments.code_repair.rewrite.candidates import Rewrite
from envgym_environments.code_repair.rewrite.issues import refusal, told_again
from envgym_environments.code_repair.rewrite.writer import Writer
from envgym_environments.code_repair.taskset import load_tasks, write_tasks
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from typer.testing import CliRunner

from envgym.env import Step
from envgym.messages import Action
from envgym.policy import Reply
from envgym.task import Task

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(1200)]

ANSWERS = {
    "total": "def total(values, start=0):\n    result = start\n    for value in values:\n"
    "        result += value or 1\n    return result",
    "clamp": "def clamp(value, low, high):\n    return max(low, min(value, high))",
}
ISSUE = """Sums are wrong when a value is missing

I call `total([1, None, 2])` in my program and expect 3, since missing values count for nothing, but I get another
number since the last update."""


def answer(question: str) -> str:
    """What the scripted writer says."""
    if question.startswith("Write an issue"):
        return ISSUE
    name = question.partition("The function ")[2].partition(" ")[0]
    return f"```python\n{ANSWERS.get(name, 'nothing')}\n```"


class Scripted:
    """An agent that says what a function says."""

    name = "agent"

    def __init__(self, says):
        self.says = says

    async def act(self, step: Step) -> Reply:
        return Reply(Action.say(self.says(step.text)))

    def fork(self, *, seed: int) -> "Scripted":
        return Scripted(self.says)

    async def close(self) -> None:
        pass


def scripted(says=answer) -> Writer:
    return Writer("script", lambda task, *, seed: Scripted(says))


@contextmanager
def serving(says=answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An OpenAI-compatible server on a free port of the loopback."""
    asked: list[dict[str, Any]] = []

    async def complete(request: Request) -> JSONResponse:
        body = await request.json()
        asked.append(body)
        said = {"role": "assistant", "content": says(body["messages"][-1]["content"])}
        return JSONResponse({"id": "x", "object": "chat.completion", "choices": [{"index": 0, "message": said}]})

    app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    ready = threading.Event()

    async def serve() -> None:
        config = server.config
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        ready.set()
        await server.main_loop()
        await server.shutdown()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1", asked
    finally:
        server.should_exit = True
        thread.join(60)


def made(small, cache, in_backend, writer, **plan):
    tasks, counts = list[Task](), Yield()

    async def body(backend) -> None:
        wanted = Plan(per_package=5, rewrite=Rewrite(writer, ("lm-modify",)), **plan)
        async for task in make_tasks(small, backend, wanted, counts=counts, cache=cache):
            tasks.append(task)
            grader = CodeRepairGrader(backend)
            assert (await grader.grade(task, "")).reward == 0.0
            assert (await grader.grade(task, str(task.metadata["gold"]["patch"]))).reward == 1.0

    in_backend(body)
    return tasks, counts


def test_a_models_functions_are_judged_as_operators_are_and_only_bugs_become_tasks(
    small, cache, in_backend
) -> None:
    tasks, counts = made(small, cache, in_backend, scripted())
    assert sorted(task.metadata["function"] for task in tasks) == ["clamp", "total"]
    assert {task.metadata["operator"] for task in tasks} == {"lm-modify"}
    assert tasks[0].metadata["written_by"] == "script"
    assert counts.verdicts["lm-modify"]["valid"] == 2
    with pytest.raises(ValueError, match="a language model wrote"):
        write_index(tasks, cache / "index", recipe=[small])


@pytest.mark.slow
def test_what_a_model_breaks_is_certified_as_everything_else(small, cache, in_backend) -> None:
    tasks, _ = made(small, cache, in_backend, scripted(), certify=True)
    assert len(tasks) == 2
    assert all(certificate_of(task) is not None for task in tasks)


@pytest.mark.slow
def test_an_answer_that_breaks_nothing_is_no_task(small, cache, in_backend) -> None:
    def honest(question: str) -> str:
        return answer(question).replace("value or 1", "value or 0").replace("def clamp", "def other")

    tasks, counts = made(small, cache, in_backend, scripted(honest))
    assert not tasks
    assert counts.verdicts["lm-modify"] == {"survived": 1, "no_such_function": 1}


def test_an_endpoint_writes_the_issues_of_a_task_file(small, cache, in_backend, monkeypatch, tmp_path) -> None:
    tasks, _ = made(small, cache, in_backend, scripted())
    place, out = tmp_path / "tasks.jsonl", tmp_path / "told.jsonl"
    write_tasks(tasks, place, cache=cache)
    monkeypatch.setenv("ENVGYM_CACHE", str(cache))
    with serving() as (url, asked):
        command = ["issues", "--endpoint", url, "--model", "m", "--file", str(place), "--out", str(out), "--json"]
        done = CliRunner().invoke(tasks_command, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["written"] == 2
    told = load_tasks(out, cache=cache)
    assert all(task.prompt.startswith("Sums are wrong") for task in told)
    assert [task.metadata["issue_by"] for task in told] == ["chat m"] * 2
    assert len(asked) == 2
    for body, task in zip(asked, tasks, strict=True):
        assert str(task.metadata["gold"]["right"]).split("\n")[-1] not in json.dumps(body), (
            "it never saw the answer"
        )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("short", "length"),
        ("x" * 5000, "length"),
        (ISSUE.replace("program", "program, and small.py never"), "names_the_place"),
        (f"{ISSUE} Write `result += value` instead.", "tells_the_answer"),
        (ISSUE, ""),
    ],
)
def test_an_issue_that_tells_the_place_or_the_answer_is_refused(text, why, broken) -> None:
    gold = {"bugs": [{"path": "src/small.py"}], "patch": "-        result -= value\n+        result += value\n"}
    assert refusal(broken.model_copy(update={"metadata": {**broken.metadata, "gold": gold}}), text) == why


def test_a_writer_is_told_why_and_asked_again_and_at_last_the_task_keeps_its_text(broken) -> None:
    gold = {"bugs": [{"path": "src/small.py"}], "patch": "-        result -= value\n+        result += value\n"}
    task = broken.model_copy(update={"metadata": {**broken.metadata, "gold": gold}})
    heard = []

    def learns(question: str) -> str:
        heard.append(question)
        return ISSUE if "cannot be used" in question else "no"

    told, why = asyncio.run(told_again(task, scripted(learns), seed=0))
    assert (why, len(heard)) == ("", 2)
    assert told.prompt.startswith(ISSUE)
    kept, why = asyncio.run(told_again(task, scripted(lambda question: "no"), seed=0))
    assert (kept, why) == (task, "length")


def test_a_build_that_names_no_writer_or_an_unknown_kind_is_refused() -> None:
    for options, said in (
        (["--rewrite", "lm-modify"], "name who writes"),
        (["--rewrite", "x", "--writer", "chat"], ""),
    ):
        done = CliRunner().invoke(tasks_command, ["build", *options])
        assert done.exit_code != 0
        assert said in done.output
