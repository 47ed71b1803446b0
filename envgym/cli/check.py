"""The conformance kits of `envgym.testing`, for whatever has a name: an environment, a backend, a task file."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from envgym.cli.options import key_values
from envgym.env import Env
from envgym.registry import find, hint, make, make_backend, names, spec
from envgym.task import Task, TaskSet
from envgym.testing import check_env, check_tasks
from envgym.testing.check_sandbox import check_sandbox

__all__ = ["check_command"]


def check_command(
    name: Annotated[str, typer.Argument(help="An environment, a sandbox backend, or a file of tasks.")],
    task: Annotated[int, typer.Option(min=0, help="Which task of the environment.")] = 0,
    turns: Annotated[int, typer.Option(min=2, help="Bound on each drive of the environment.")] = 8,
    sandbox: Annotated[str, typer.Option(help="Sandbox backend, where the environment needs one.")] = "auto",
    env_option: Annotated[list[str] | None, typer.Option(help="name=value for the environment.")] = None,
) -> None:
    """Run the conformance kit on an environment, a sandbox backend or a file of tasks; says what is broken."""
    try:
        if name in names("environments"):
            options = key_values(env_option or (), "--env-option")
            lines = asyncio.run(_environment(name, task, turns, sandbox, options))
        elif name in names("sandboxes"):
            lines = [f"{passed}: kept" for passed in asyncio.run(check_sandbox(find("sandboxes", name)))]
        elif Path(name).is_file():
            lines = _task_file(Path(name))
        else:
            raise ValueError(_unknown(name))
    except AssertionError as error:
        print(f"{name}: broken: {error}")
        raise typer.Exit(1) from error
    for line in lines:
        print(f"  {line}")
    print(f"{name}: the contract is kept")


def _unknown(name: str) -> str:
    known = names("environments") + names("sandboxes")
    return f"{name!r} is no environment, sandbox backend or file; {hint(name, known)}"


async def _environment(name: str, task: int, turns: int, sandbox: str, options: dict[str, Any]) -> list[str]:
    found = spec(name)
    tasks = found.tasks()
    check_tasks(tasks)
    chosen = tasks[task]
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(make_backend(sandbox)) if found.sandbox else None

        async def fresh() -> Env:
            return make(name, chosen, backend=backend, **options)

        report = await check_env(fresh, turns=turns)
    return [f"task {chosen.id}", "tasks as data: kept", *(f"{sentence}: kept" for sentence in report.checked)] + [
        f"not reached: {sentence}" for sentence in report.unreached
    ]


def _task_file(path: Path) -> list[str]:
    tasks = TaskSet(list(_tasks(path)))
    check_tasks(tasks)
    return [f"{len(tasks)} tasks as data: kept"]


def _tasks(path: Path) -> Iterator[Task]:
    """The tasks of a file with one as JSON a line; a first line with a field "format" is a header."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                if number == 1 and "format" in json.loads(line):
                    continue
                yield Task.model_validate_json(line)
            except ValueError as error:
                raise AssertionError(f"line {number} is a task as JSON: {error}") from error
