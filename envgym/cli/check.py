"""The conformance kits of `envgym.testing`, for whatever has a name: an environment, a backend, a task file."""

import asyncio
import hashlib
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from envgym.cli.faults import wrong_fields
from envgym.cli.options import key_values
from envgym.env import Env
from envgym.registry import find, hint, make, make_backend, names, spec
from envgym.task import Task, TaskSet
from envgym.testing import check_env, check_tasks
from envgym.testing.check_sandbox import check_sandbox

__all__ = ["check_command"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a kit found: the sentences that are kept, those that no drive reached, and the one that is broken."""

    name: str
    kind: str
    task: str | None = None
    kept: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    broken: str | None = None


def check_command(
    name: Annotated[str, typer.Argument(help="An environment, a sandbox backend, or a file of tasks.")],
    task: Annotated[int, typer.Option(min=0, help="Which task of the environment.")] = 0,
    turns: Annotated[int, typer.Option(min=2, help="Bound on each drive of the environment.")] = 8,
    sandbox: Annotated[str, typer.Option(help="Sandbox backend, where the environment needs one.")] = "auto",
    env_option: Annotated[list[str] | None, typer.Option(help="name=value for the environment.")] = None,
    task_option: Annotated[list[str] | None, typer.Option(help="name=value for its task set.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Run the conformance kit on an environment, a sandbox backend or a file of tasks; says what is broken."""
    options = key_values(env_option or (), "--env-option")
    task_options = key_values(task_option or (), "--task-option")
    kind = _kind(name)
    if kind != "environment" and (options or task_options):
        raise ValueError(f"{name!r} is a {kind}; --env-option and --task-option are for environments")
    try:
        if kind == "environment":
            found = asyncio.run(_environment(name, spec(name).tasks(**task_options), task, turns, sandbox, options))
        elif kind == "sandbox backend":
            found = Finding(name, kind, kept=tuple(asyncio.run(check_sandbox(find("sandboxes", name)))))
        else:
            found = _task_file(name)
    except AssertionError as error:
        found = Finding(name, kind, broken=str(error))
    if as_json:
        print(json.dumps(asdict(found), indent=1))
    else:
        _show(found)
    if found.broken is not None:
        raise typer.Exit(1)


def _kind(name: str) -> str:
    if name in names("environments"):
        return "environment"
    if name in names("sandboxes"):
        return "sandbox backend"
    if Path(name).is_file():
        return "file of tasks"
    known = names("environments") + names("sandboxes")
    raise ValueError(f"{name!r} is no environment, sandbox backend or file; {hint(name, known)}")


def _show(found: Finding) -> None:
    if found.broken is not None:
        print(f"{found.name}: broken: {found.broken}")
        return
    if found.task is not None:
        print(f"  task {found.task}")
    for sentence in found.kept:
        print(f"  {sentence}: kept")
    for sentence in found.unreached:
        print(f"  not reached: {sentence}")
    print(f"{found.name}: the contract is kept")


async def _environment(
    name: str, tasks: TaskSet, task: int, turns: int, sandbox: str, options: dict[str, Any]
) -> Finding:
    check_tasks(tasks)
    chosen = tasks[task]
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(make_backend(sandbox)) if spec(name).sandbox else None

        async def fresh() -> Env:
            return make(name, chosen, backend=backend, **options)

        report = await check_env(fresh, turns=turns)
    kept = ("tasks as data", *report.checked)
    return Finding(name, "environment", chosen.id, kept, tuple(report.unreached))


def _task_file(name: str) -> Finding:
    path = Path(name)
    tasks = TaskSet(list(_tasks(path)))
    check_tasks(tasks)
    kept, unreached = _promises(path)
    return Finding(name, "file of tasks", kept=(f"{len(tasks)} tasks as data", *kept), unreached=unreached)


def _tasks(path: Path) -> Iterator[Task]:
    """The tasks of a file with one as JSON a line; a first line with a field "format" is a header."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1 and _header(line) is not None:
                continue
            try:
                task = Task.model_validate_json(line)
            except ValidationError as error:
                raise AssertionError(f"{path}, line {number} is a task as JSON: {wrong_fields(error)}") from error
            yield task


def _header(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:  # no JSON: it is refused as a task, with its line
        return None
    return found if isinstance(found, dict) and "format" in found else None


def _promises(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a header says of the lines after it, checked: "count" lines, and their "digest" (BLAKE2b, 128 bits).

    Returns the kept promises and those that cannot be checked: a digest of another length is another function's.
    """
    head, _, body = path.read_bytes().partition(b"\n")
    header, kept, unreached = _header(head) or {}, [], []
    if "count" in header:
        count = body.count(b"\n")
        assert header["count"] == count, (
            f"{path} holds as many tasks as its line 1 announces, count = {header['count']!r}; it holds {count}: "
            "it was cut, or changed by hand"
        )
        kept.append("the header's count")
    if "digest" in header:
        digest = hashlib.blake2b(body, digest_size=16).hexdigest()
        if len(str(header["digest"])) != len(digest):
            unreached.append("the header's digest (not BLAKE2b of 128 bits)")
            return tuple(kept), tuple(unreached)
        assert header["digest"] == digest, (
            f"{path} has the digest of its line 1, digest = {header['digest']!r}; it has {digest!r}: "
            "it was changed by hand"
        )
        kept.append("the header's digest")
    return tuple(kept), tuple(unreached)
