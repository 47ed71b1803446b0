"""The console entry ``envgym grounding``: folders of questions about screenshots, made and unpacked."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from envgym.task import Task
from envgym_environments.gui.grounding.android import unpack
from envgym_environments.gui.grounding.env import Question, WebQuestions, grounding_tasks
from envgym_environments.gui.grounding.folders import write_folder

__all__ = ["grounding_command"]

grounding_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Folders of questions about screenshots: unpack and write them.",
)
_Out = Annotated[Path, typer.Option(help="A new folder.")]


@grounding_command.command("unpack")
def unpack_command(
    records: Annotated[
        Path, typer.Argument(help="AndroidControl's files of records, in a folder, or one of them.")
    ],
    out: _Out,
    episodes: Annotated[int | None, typer.Option("-n", "--episodes", min=1, help="Only the first ones.")] = None,
    goals: Annotated[
        bool, typer.Option("--goals", help="Ask with the goal alone, not with each step's own words.")
    ] = False,
) -> None:
    """Unpack AndroidControl's release into a folder that --task-option path=FOLDER of `grounding` reads."""
    print(f"{unpack(records, out, most=episodes, goals=goals)} episodes in {out}")


@grounding_command.command("write")
def write_command(
    out: _Out,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many questions.")] = 20,
    kind: Annotated[
        str | None, typer.Option(help="named, ordinal, relation or predict; default: all in turn.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="miniwob or site; default: both in turn.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Fixes all that is drawn.")] = 0,
) -> None:
    """Render questions of `grounding` and write them in UI-R1's shape, for whoever trains on such folders."""
    tasks = grounding_tasks(count, kind=kind, source=source, seed=seed)
    print(f"{write_folder(out, asyncio.run(_asked(list(tasks))))} questions in {out}")


async def _asked(tasks: Sequence[Task]) -> list[tuple[Task, Question]]:
    questions = WebQuestions()
    try:
        return [(task, await questions.ask(task)) for task in tasks]
    finally:
        await questions.close()
