"""The conformance kits of `envgym.testing`, for whatever has a name: an environment, a backend, a task file."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from envgym.cli.faults import wrong_fields
from envgym.cli.options import check_env_options, key_values, tasks_of
from envgym.env import Env
from envgym.options import hint
from envgym.plain_text import visible
from envgym.registry import find, make, make_backend, names, spec
from envgym.task import Task, TaskSet, evenly
from envgym.task_file import check_promises, read_header
from envgym.testing import check_env, check_tasks
from envgym.testing.cheats import Attempt, audit
from envgym.testing.check_sandbox import CHECKS, check_sandbox

__all__ = ["check_command"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a kit found: the sentences that are kept, those not reached or refused, and the broken one."""

    name: str
    kind: str
    task: str | None = None
    kept: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    broken: str | None = None
    audit: tuple[Attempt, ...] = ()

    @property
    def leaks(self) -> tuple[Attempt, ...]:
        """The attempts of cheats that gained something."""
        return tuple(attempt for attempt in self.audit if attempt.gains)


def check_command(  # noqa: PLR0913  # one parameter per option
    name: Annotated[str, typer.Argument(help="An environment, a sandbox backend, or a file of tasks.")],
    task: Annotated[int, typer.Option(min=0, help="Which task of the environment.")] = 0,
    turns: Annotated[int, typer.Option(min=2, help="Bound on each drive of the environment.")] = 8,
    sandbox: Annotated[str, typer.Option(help="Sandbox backend, where the environment needs one.")] = "auto",
    env_option: Annotated[list[str] | None, typer.Option(help="name=value for the environment.")] = None,
    task_option: Annotated[list[str] | None, typer.Option(help="name=value for its task set.")] = None,
    cheats: Annotated[
        int, typer.Option(min=0, help="On how many tasks, evenly spread, its cheating agents are played; 0: none.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Run the conformance kit on an environment, a sandbox backend or a file of tasks; says what is broken.

    An environment that lists cheating agents is audited by them: exit status 1 when one gains anything.
    """
    options = key_values(env_option or (), "--env-option")
    task_options = key_values(task_option or (), "--task-option")
    kind = _kind(name)
    if kind != "environment" and (options or task_options):
        raise ValueError(f"{name!r} is a {kind}; --env-option and --task-option are for environments")
    if kind == "environment":
        check_env_options(name, options)
    try:
        if kind == "environment":
            found = asyncio.run(
                _environment(
                    name, tasks_of(name, task_options), sandbox, options, task=task, turns=turns, cheats=cheats
                )
            )
        elif kind == "sandbox backend":
            kept = asyncio.run(check_sandbox(find("sandboxes", name)))
            found = Finding(name, kind, kept=tuple(kept), unreached=tuple(sorted(set(CHECKS) - set(kept))))
        else:
            found = _task_file(name)
    except AssertionError as error:
        found = Finding(name, kind, broken=str(error))
    if as_json:
        print(json.dumps(asdict(found), indent=1))
    else:
        _show(found)
    if found.broken is not None or found.leaks:
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
        print(f"{found.name}: broken: {visible(str(found.broken))}")
        return
    if found.task is not None:
        print(f"  task {found.task}")
    for sentence in found.kept:
        print(f"  {sentence}: kept")
    for sentence in found.unreached:
        print(f"  not reached: {sentence}")
    print(f"{found.name}: the contract is kept")
    if found.audit:
        _show_audit(found)


def _show_audit(found: Finding) -> None:
    tasks = len({attempt.task for attempt in found.audit})
    print(f"\nleak audit: {len(found.audit)} attempts to cheat on {tasks} {'task' if tasks == 1 else 'tasks'}")
    rows = [("cheat", "family", "verdict", "reward", "idle", "evidence")]
    rows += [
        (
            attempt.cheat,
            attempt.family,
            _verdict(attempt),
            f"{attempt.reward:g}",
            f"{attempt.idle:g}",
            (f"{attempt.task}: " if tasks > 1 else "") + attempt.evidence,
        )
        for attempt in sorted(found.audit, key=_first)
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        print("  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]]))
    count = len(found.leaks)
    print(f"{found.name}: {f'{count} attempts gain' if count != 1 else '1 attempt gains'} more than doing nothing")
    if still := sum(attempt.still for attempt in found.audit):
        print(f"{found.name}: {still} of them did nothing: these cheats are made for other tasks")
    if failed := sum(attempt.failed for attempt in found.audit):
        print(f"{found.name}: of {failed} of them nothing is known: the world failed under them; play them again")


def _verdict(attempt: Attempt) -> str:
    if attempt.gains or attempt.failed:
        return "GAINS" if attempt.gains else "failed"
    return "did nothing" if attempt.still else "no gain"


def _first(attempt: Attempt) -> tuple[bool, bool, str, str]:
    """What gained stands above what failed, and that above the rest."""
    return not attempt.gains, not attempt.failed, attempt.family, attempt.cheat


async def _environment(
    name: str, tasks: TaskSet, sandbox: str, options: dict[str, Any], *, task: int, turns: int, cheats: int
) -> Finding:
    check_tasks(tasks, seeded=spec(name).seeded, content=spec(name).content)
    chosen = tasks[task]
    give = spec(name).cheats
    listed = tuple(give()) if give is not None and cheats else ()
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(make_backend(sandbox)) if spec(name).sandbox else None

        async def fresh() -> Env:
            return make(name, chosen, backend=backend, **options)

        report = await check_env(fresh, turns=turns)
        attempts: list[Attempt] = []
        if listed:
            idle, *others = listed
            sample = [chosen] if cheats == 1 else evenly(list(tasks.take(_MANY)), cheats)
            attempts = await audit(
                sample, lambda one: make(name, one, backend=backend, **options), others, idle=idle.script
            )
    kept = ("tasks as data", *report.checked)
    return Finding(name, "environment", chosen.id, kept, tuple(report.unreached), audit=tuple(attempts))


_MANY = 100_000


def _task_file(name: str) -> Finding:
    path = Path(name)
    tasks = TaskSet(list(_tasks(path)))
    check_tasks(tasks)
    head, _, body = path.read_bytes().partition(b"\n")
    try:
        kept, unreached = check_promises(path, read_header(head) or {}, body)
    except ValueError as error:
        raise AssertionError(f"what line 1 says of the others holds: {error}") from error
    return Finding(name, "file of tasks", kept=(f"{len(tasks)} tasks as data", *kept), unreached=tuple(unreached))


def _tasks(path: Path) -> Iterator[Task]:
    """The tasks of a file with one as JSON a line; a first line with a field "format" is a header."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1 and read_header(line) is not None:
                continue
            try:
                task = Task.model_validate_json(line)
            except ValidationError as error:
                raise AssertionError(f"{path}, line {number} is a task as JSON: {wrong_fields(error)}") from error
            yield task
