"""The console entries ``envgym tasks repositories`` and ``envgym tasks harvest``."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from envgym.registry import make_backend
from envgym.store import StoreReader
from envgym.task import Task
from envgym_environments.code_repair.local import check_names, source_of, usable
from envgym_environments.code_repair.mirrors.git import git_folder
from envgym_environments.code_repair.self_play.harvest import harvest
from envgym_environments.code_repair.self_play.repositories import (
    default_repositories,
    repository_tasks,
    self_play_tasks,
)
from envgym_environments.code_repair.sources import Package, packages
from envgym_environments.code_repair.taskset import write_tasks

__all__ = ["SourceOption", "harvest_command", "repositories"]


SourceOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH",
        help="A tree, repository or archive; PATH,package=FOLDER,tests=PATTERN,name=NAME says more. Repeatable.",
    ),
]


def _say(line: str) -> None:
    typer.echo(line, err=True)


def repositories(
    package: Annotated[list[str] | None, typer.Option(help="Packages of the recipe; repeatable.")] = None,
    source: SourceOption = None,
    backend: Annotated[str, typer.Option(help="Where their tests run.")] = "auto",
    file: Annotated[Path | None, typer.Option("--file", help="Where they go (default: in the cache).")] = None,
) -> None:
    """Write unbroken repositories, for `envgym collect self-play`: of the recipe, or any tree with tests."""
    recipe = {one.name: one for one in packages()}
    if unknown := next((name for name in package or () if name not in recipe), None):
        raise typer.BadParameter(f"{unknown!r} is not in packages.toml", param_hint="--package")
    wanted = [recipe[name] for name in package or (() if source else recipe)]
    sources = [source_of(text) for text in source or ()]
    try:
        check_names(sources, [one.name for one in wanted])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--source") from error

    async def work() -> tuple[list[Task], dict[str, str]]:
        async with make_backend(backend) as place:
            chosen: list[Package] = list(wanted)
            histories: dict[str, Path] = {}
            for one in sources:
                chosen.append(await usable(one, place, tell=_say))
                if git_folder(one.path) is not None:
                    histories[chosen[-1].slug] = one.path
            return await repository_tasks(chosen, place, progress=_say, histories=histories)

    tasks, failed = asyncio.run(work())
    where = file or default_repositories()
    write_tasks(tasks, where)
    typer.echo(f"{len(tasks)} repositories in {where}")
    if failed:
        raise typer.Exit(1)


def harvest_command(
    store: Annotated[Path, typer.Argument(help="A store of self-play episodes.", exists=True)],
    file: Annotated[Path, typer.Option("--file", help="Where the tasks go.")],
    repositories_file: Annotated[
        Path | None, typer.Option("--repositories", help="What was played (default: in the cache).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Make code-repair tasks of the consistent bugs of self-play; `envgym tasks certify` runs them again."""
    with StoreReader(store) as reader:
        tasks, left = harvest(reader, self_play_tasks(repositories_file))
    write_tasks(tasks, file)
    if as_json:
        typer.echo(json.dumps({"file": str(file), "tasks": len(tasks), "left_out": dict(left)}, indent=1))
        return
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(left.items()))
    typer.echo(f"{len(tasks)} tasks in {file}{f'; left out: {why}' * bool(why)}")
