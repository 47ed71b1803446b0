"""The console entries ``envgym tasks filter`` and ``envgym tasks licences``."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from envgym_environments.code_repair.filtering.filter import VIEWS, HeldOut, filter_tasks
from envgym_environments.code_repair.filtering.licences import files_of, problems_of
from envgym_environments.code_repair.formats import import_tasks
from envgym_environments.code_repair.taskset import default_path, is_task_file, load_tasks, write_tasks

__all__ = ["filter_command", "licences"]

_File = Annotated[Path | None, typer.Option("--file", help="The task file (default: in the cache).")]
_Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def _held_out(path: Path, format: str | None) -> HeldOut:
    """What a path holds: a task file, another tool's data set, or a text."""
    if not path.exists():
        raise typer.BadParameter(f"there is no {path}", param_hint="--against")
    if format is not None or path.is_dir():
        tasks, _ = import_tasks(path, format, leave_out=True)
        return HeldOut.of_tasks(path, tasks)
    return HeldOut.of_tasks(path, list(load_tasks(path))) if is_task_file(path) else HeldOut.of_text(path)


def filter_command(  # one parameter per option
    out: Annotated[Path, typer.Argument(help="Where the tasks that stay go; the report is beside it.")],
    file: _File = None,
    against: Annotated[
        list[Path] | None, typer.Option(help="Held out: a task file, a data set, or a text; repeatable.")
    ] = None,
    format: Annotated[str | None, typer.Option(help="The format of data sets held out (default: found).")] = None,
    threshold: Annotated[float, typer.Option(help="Least Jaccard index of shingles that is a duplicate.")] = 0.8,
    by: Annotated[list[str] | None, typer.Option(help=f"Views compared in the set ({', '.join(VIEWS)}).")] = None,
    as_json: _Json = False,
) -> None:
    """Leave out near-duplicates and what resembles held-out tasks or texts; write what went, and why."""
    if unknown := [one for one in by or () if one not in VIEWS]:
        raise typer.BadParameter(f"{unknown[0]!r} is no view; known: {', '.join(VIEWS)}", param_hint="--by")
    held_out = [_held_out(path, format) for path in against or ()]
    tasks = list(load_tasks(file or default_path()))
    found = filter_tasks(tasks, held_out, threshold=threshold, within=tuple(by or ("patch",)))
    write_tasks(found.kept, out)
    report = {"file": str((file or default_path()).name), **found.report()}
    place = out.with_suffix(".filter.json")
    place.write_text(json.dumps(report, indent=1) + "\n")
    if as_json:
        typer.echo(json.dumps(report, indent=1))
        return
    typer.echo(
        f"{len(found.kept)} of {len(tasks)} tasks in {out}; {report['duplicates']} were near-duplicates, "
        f"{report['contaminated']} resemble what is held out; the report is {place}"
    )


def licences(
    file: _File = None,
    files: Annotated[bool, typer.Option("--files", help="List every file of every package.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit status 1 where a file's origin is not known.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Where the tasks' files are from and under which licences; --check compares the trees with the record."""
    tasks = list(load_tasks(file or default_path()))
    first = {
        str(task.world.trees[0].source if task.world and task.world.trees else task.id): task for task in tasks
    }
    rows: list[tuple[str, Counter[str]]] = []
    wrong: dict[str, list[str]] = {}
    for task in first.values():
        known = task.metadata.get("sources")
        origin = str(known.get("origin", "")) if isinstance(known, dict) else ""
        rows.append(
            (origin or task.id, Counter(one.licence for one in files_of(task) if one.said_by != "the task"))
        )
        if found := problems_of(task):
            wrong[task.id] = found
        if files and not as_json:
            for one in files_of(task):
                typer.echo(f"{one.sha256[:12]}  {one.licence}  {one.path}  ({one.said_by})")
    if as_json:
        listed = {
            task.id: [[one.path, one.sha256, one.licence, one.said_by] for one in files_of(task)]
            for task in (first.values() if files else ())
        }
        typer.echo(json.dumps({"trees": dict(rows), "problems": wrong, "files": listed}, indent=1))
    else:
        for origin, counts in rows:
            told = ", ".join(f"{name} ({count} files)" for name, count in counts.items())
            typer.echo(f"{origin}: {told or 'no files'}")
        for name, found in wrong.items():
            typer.echo(f"{name}: {'; '.join(found)}", err=True)
    if check and wrong:
        raise typer.Exit(1)
