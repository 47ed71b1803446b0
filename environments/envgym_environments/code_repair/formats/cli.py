"""``envgym tasks import``, ``export`` and ``formats``: repair tasks from and to other tools' data sets."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from envgym.formats.report import dropped_table
from envgym.plain_text import visible
from envgym.registry import names
from envgym_environments.code_repair.formats import (
    Imported,
    export_records,
    import_records,
    import_tasks,
    task_format_named,
)
from envgym_environments.code_repair.record import RepairRecord
from envgym_environments.code_repair.taskset import is_task_file, load_tasks, write_tasks

__all__ = ["export_command", "formats_command", "import_command"]

_Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
_LeaveOut = Annotated[
    bool, typer.Option("--leave-out", help="Count broken tasks instead of stopping at the first.")
]


def formats_command(as_json: _Json = False) -> None:
    """The formats that tasks can be imported from and exported to."""
    rows = []
    for name in names("task_formats"):
        form = task_format_named(name)
        rows.append({"name": name, "kind": form.kind, "summary": form.summary})
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        typer.echo(f"{row['name']:{width}}  {row['summary']}")


def import_command(
    path: Annotated[Path, typer.Argument(help="A data set: a file of rows, or a folder of files or of tasks.")],
    form: Annotated[str | None, typer.Option("--format", help="Its format (default: found from it).")] = None,
    out: Annotated[Path | None, typer.Option(help="The task file to write (default: none; only look).")] = None,
    images: Annotated[Path | None, typer.Option(help="A folder of the images that its tasks name.")] = None,
    leave_out: _LeaveOut = False,
    as_json: _Json = False,
) -> None:
    """Look at a data set of another tool, and write its tasks that can be played into one task file."""
    tasks, done = import_tasks(path, form, images=images, leave_out=leave_out)
    if out is not None:
        if out.exists():
            raise FileExistsError(f"{out} exists already; remove it or choose another name")
        write_tasks(tasks, out)
    splits = Counter(task.split for task in tasks)
    languages = Counter(str(task.metadata.get("language", "")) for task in tasks)
    if as_json:
        left = [{"why": one.why, "times": one.times, "example": one.example} for one in done.left_out.values()]
        counts = {"format": done.format, "tasks": len(tasks), "splits": splits, "languages": languages}
        typer.echo(json.dumps({**counts, "file": None if out is None else str(out), "left_out": left}, indent=1))
        return
    said = ", ".join(f"{count} {name}" for name, count in [*splits.items(), *languages.items()] if name)
    typer.echo(f"{len(tasks)} tasks that can be played, of {path} as {done.format}: {said}")
    _show_left_out(done)
    if out is not None:
        typer.echo(f"written to {out}")


def _show_left_out(done: Imported) -> None:
    if not done.left_out:
        return
    table = Table("times", "because it", "first", title="LEFT OUT", title_style="bold red")
    for one in done.left_out.values():
        table.add_row(str(one.times), visible(one.why, 300), visible(one.example, 100))
    Console(stderr=True).print(table)


def export_command(
    source: Annotated[Path, typer.Argument(help="A task file, or a data set of any format.")],
    form: Annotated[str, typer.Option("--format", help="The format to write; see `envgym tasks formats`.")],
    out: Annotated[
        Path, typer.Option(help="What to write: a file of rows (.jsonl, .json, .parquet), or a folder.")
    ],
    extra: Annotated[
        bool, typer.Option(help="Keep what the format has no field for under the key 'envgym'.")
    ] = True,
    as_json: _Json = False,
) -> None:
    """Write tasks in another tool's format; what does not come back from it is listed."""
    done = export_records(_records(source), out, form, extra=extra)
    if as_json:
        typer.echo(json.dumps(done.to_json(), indent=1))
        return
    files = "1 file" if done.files == 1 else f"{done.files} files"
    typer.echo(f"{done.records} tasks as {done.format} in {files}: {done.target}")
    Console(stderr=bool(done.dropped)).print(dropped_table(done.dropped, "not in what was written"))


def _records(source: Path) -> Iterable[RepairRecord]:
    if is_task_file(source):
        tasks = load_tasks(source)
        for task in tasks:
            if (kind := task.metadata.get("kind")) not in (None, "class"):
                raise ValueError(
                    f"task {task.id!r} is of the kind {kind!r}, which is not decided by failing tests alone, so no "
                    "other tool's format can say it: export repairs and classes only"
                )
        return [RepairRecord.from_task(task) for task in tasks]
    return import_records(source).records
