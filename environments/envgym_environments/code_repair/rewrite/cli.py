"""Options that say who writes, and ``envgym tasks issues``."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from envgym.cli.options import key_values
from envgym.progress import Bar
from envgym_environments.code_repair.rewrite.issues import Told, write_issues
from envgym_environments.code_repair.rewrite.writer import Writer
from envgym_environments.code_repair.taskset import default_path, load_tasks, write_tasks

__all__ = ["Endpoint", "KeyEnv", "Model", "WriterName", "WriterOption", "issues", "writer_of"]

Endpoint = Annotated[str | None, typer.Option(help="Base URL of an OpenAI-compatible server that writes.")]
Model = Annotated[str, typer.Option(help="With --endpoint: what the server calls its model.")]
KeyEnv = Annotated[str, typer.Option(help="With --endpoint: the environment variable with its key.")]
WriterName = Annotated[str | None, typer.Option("--writer", help="Instead: a registered agent, such as lm.")]
WriterOption = Annotated[list[str] | None, typer.Option(help="name=value for --writer; repeatable.")]


def writer_of(
    endpoint: str | None, model: str, key_env: str, writer: str | None, options: list[str] | None
) -> Writer:
    """Who writes. Raises BadParameter unless exactly one is named."""
    if (endpoint is None) == (writer is None):
        raise typer.BadParameter("name who writes: --endpoint URL --model NAME, or --writer AGENT")
    if endpoint is None:
        assert writer is not None
        return Writer.named(writer, key_values(options or (), "--writer-option"))
    if not model:
        raise typer.BadParameter("is needed with --endpoint", param_hint="--model")
    return Writer.endpoint(endpoint, model, key_env=key_env)


def issues(  # noqa: PLR0913  # one parameter per option
    endpoint: Endpoint = None,
    model: Model = "",
    key_env: KeyEnv = "",
    writer: WriterName = None,
    writer_option: WriterOption = None,
    tries: Annotated[int, typer.Option(min=1, help="Texts to ask for before a task keeps its own.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Of the writer's draws.")] = 0,
    file: Annotated[Path | None, typer.Option("--file", help="The task file (default: in the cache).")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the tasks go (default: the same file).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Have a language model write the tasks' issues; one that tells the answer is refused."""
    who, place = writer_of(endpoint, model, key_env, writer, writer_option), file or default_path()
    tasks = load_tasks(place)

    async def work() -> Told:
        with Bar(Console(stderr=True), "issues", len(tasks)) as bar:
            return await write_issues(list(tasks), who, seed=seed, tries=tries, progress=bar.update)

    told = asyncio.run(work())
    write_tasks(told.tasks, out or place)
    if as_json:
        counts = {"file": str(out or place), "tasks": len(told.tasks), "written": told.written}
        typer.echo(json.dumps({**counts, "refused": dict(told.refused)}, indent=1))
        return
    refused = ", ".join(f"{count} {why}" for why, count in sorted(told.refused.items()))
    typer.echo(f"{told.written} of {len(told.tasks)} issues written{f'; refused: {refused}' * bool(refused)}")
