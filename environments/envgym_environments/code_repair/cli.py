"""The console entry ``envgym tasks``: make, certify, index, import, export, count and show code-repair tasks."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from envgym.progress import Bar
from envgym.registry import make_backend
from envgym.task import Task, evenly
from envgym_environments.code_repair.certifying import certified_each
from envgym_environments.code_repair.difficulty import difficulty
from envgym_environments.code_repair.factory import Plan, Verdict, Yield
from envgym_environments.code_repair.filtering.cli import filter_command, licences
from envgym_environments.code_repair.formats.cli import export_command, formats_command, import_command
from envgym_environments.code_repair.index import rebuild, write_index
from envgym_environments.code_repair.judge import Distance, Issue, Operators
from envgym_environments.code_repair.kinds.ml.recipe import ml_packages
from envgym_environments.code_repair.kinds.registry import KINDS
from envgym_environments.code_repair.local import Source, check_names, source_of, usable
from envgym_environments.code_repair.mirrors.cli import mirror, recipes_of
from envgym_environments.code_repair.mirrors.index import (
    are_mirrors,
    is_mirror_index,
    rebuild_mirrors,
    write_mirror_index,
)
from envgym_environments.code_repair.reach import reach_by_operator
from envgym_environments.code_repair.rewrite.candidates import REWRITES, Rewrite
from envgym_environments.code_repair.rewrite.cli import (
    Endpoint,
    KeyEnv,
    Model,
    WriterName,
    WriterOption,
    issues,
    writer_of,
)
from envgym_environments.code_repair.self_play.cli import SourceOption, harvest_command, repositories
from envgym_environments.code_repair.sources import Package, cache_root, packages
from envgym_environments.code_repair.suites.local import local_project
from envgym_environments.code_repair.suites.projects import Project, projects
from envgym_environments.code_repair.suites.suite import LANGUAGES
from envgym_environments.code_repair.taskset import (
    Built,
    build_tasks,
    default_path,
    load_tasks,
    load_yields,
    write_tasks,
)

__all__ = ["tasks_command", "yield_by_operator", "yield_by_package"]

tasks_command = typer.Typer(
    add_completion=False, rich_markup_mode=None, help="Build, import, export, count and show code-repair tasks."
)
tasks_command.command("import")(import_command)
tasks_command.command("export")(export_command)
tasks_command.command("formats")(formats_command)
tasks_command.command()(mirror)
tasks_command.command()(difficulty)
tasks_command.command("issues")(issues)
tasks_command.command("filter")(filter_command)
tasks_command.command("licences")(licences)
tasks_command.command("repositories")(repositories)
tasks_command.command("harvest")(harvest_command)

_Row = dict[str, int | str]
_UNBOUNDED = 400  # columns where no terminal bounds them

_File = Annotated[Path | None, typer.Option("--file", help="The task file (default: in the cache).")]
_Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


@tasks_command.command()
def build(  # noqa: PLR0913  # one parameter per option
    per_package: Annotated[int, typer.Option(min=1, help="Tasks to make of each package.")] = 100,
    repetitions: Annotated[int, typer.Option(min=2, help="Runs of a broken state that must agree.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Which bugs are tried, and in which order.")] = 0,
    package: Annotated[list[str] | None, typer.Option(help="Only these packages; repeatable.")] = None,
    language: Annotated[list[str] | None, typer.Option(help="Projects of this language; repeatable.")] = None,
    project: Annotated[list[str] | None, typer.Option(help="These projects, of any language; repeatable.")] = None,
    bugs: Annotated[int, typer.Option(min=1, max=5, help="Mistakes in one task.")] = 1,
    distance: Annotated[Distance, typer.Option(help="Where the mistakes of one task lie.")] = "file",
    issue: Annotated[Issue, typer.Option(help="How much the prompt says.")] = "full",
    kind: Annotated[str, typer.Option(help="What is asked; without it, repairs. See docs/code-repair.md.")] = "",
    operators: Annotated[Operators, typer.Option(help="small: bugs that the compact tools can undo.")] = "all",
    certify: Annotated[bool, typer.Option("--certify", help="Also run under other conditions.")] = False,
    source: SourceOption = None,
    recipe_file: Annotated[Path | None, typer.Option("--recipe", help="Another projects.toml.")] = None,
    rewrite: Annotated[list[str] | None, typer.Option(help=f"A model writes: {', '.join(REWRITES)}.")] = None,
    endpoint: Endpoint = None,
    model: Model = "",
    key_env: KeyEnv = "",
    writer: WriterName = None,
    writer_option: WriterOption = None,
    backend: Annotated[str, typer.Option(help="Where bugs are tried.")] = "auto",
    file: _File = None,
    as_json: _Json = False,
) -> None:
    """Fetch sources by hash, break them, keep what the tests prove, and write the task file."""
    chosen: list[Package | Project] = [*_chosen_projects(language or [], project or [], recipe_file)]
    recipe, sources = _recipe(kind), [source_of(text) for text in source or ()]
    wanted = package or ([] if chosen or sources else [one.name for one in recipe])
    asked = None
    if rewrite:
        asked = Rewrite(writer_of(endpoint, model, key_env, writer, writer_option), tuple(rewrite))
    _check_known("--package", wanted, [one.name for one in recipe], "the packages")
    _check_known("--kind", [kind] if kind else [], list(KINDS), "the kinds")
    if kind and rewrite:
        raise typer.BadParameter("a model rewrites repairs only", param_hint="--kind with --rewrite")
    _check_sources(kind, sources, language, [*wanted, *(one.name for one in chosen)])
    plan = Plan(
        per_package=per_package,
        repetitions=repetitions,
        seed=seed,
        bugs=bugs,
        distance=distance,
        issue=issue,
        certify=certify,
        operators=operators,
        kind=kind,
        rewrite=asked,
    )
    if chosen:
        _check_plain(plan)
    chosen += [one for one in recipe if one.name in wanted]

    with _naming(file or default_path(kind=kind)):
        built = asyncio.run(_built(chosen, sources, plan, backend, file))
    _tell(built, as_json)
    if built.failed:
        raise typer.Exit(1)


async def _built(
    chosen: Sequence[Package | Project], sources: Sequence[Source], plan: Plan, backend: str, file: Path | None
) -> Built:
    """What is chosen, and the sources as packages, built in a backend of this name."""
    async with make_backend(backend) as place:
        given = [await usable(one, place, tell=lambda line: typer.echo(line, err=True)) for one in sources]
        every = [*chosen, *given]
        with Bar(Console(stderr=True), "tasks", plan.per_package * len(every)) as bar:
            return await build_tasks(every, place, plan=plan, path=file, progress=bar.say, on_task=bar.update)


def _tell(built: Built, as_json: bool) -> None:
    if as_json:
        rows = {"operators": yield_by_operator(built.yields), "packages": yield_by_package(built.yields)}
        counts = {"file": str(built.path), "tasks": len(built.tasks), "failed": built.failed}
        typer.echo(json.dumps(counts | rows, indent=1))
    else:
        _show_yields(built.yields)
        typer.echo(f"{len(built.tasks)} tasks in {built.path}")


def _recipe(kind: str) -> Sequence[Package]:
    """The packages that a kind is made of."""
    return ml_packages() if kind == "ml" else packages()


def _check_sources(
    kind: str, sources: Sequence[Source], languages: Sequence[str] | None, others: Sequence[str]
) -> None:
    if kind == "ml" and sources:
        raise typer.BadParameter("its packages are built in", param_hint="--source with --kind ml")
    if languages and sources:
        raise typer.BadParameter(
            "a source is a Python project, and --language chooses projects of the recipe: describe a project of "
            "another language in a file of your own (--recipe), or build the two apart",
            param_hint="--source with --language",
        )
    try:
        check_names(sources, others)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--source") from error


def _check_plain(plan: Plan) -> None:
    """The compact tools and the other kinds of tasks know Python alone."""
    plain = Plan()
    for name in ("operators", "kind"):
        if (given := getattr(plan, name)) != getattr(plain, name):
            raise typer.BadParameter(
                f"is {given!r}, which knows Python packages alone; with --language and --project it can only be "
                f"{getattr(plain, name)!r}",
                param_hint=f"--{name}",
            )


def _chosen_projects(languages: Sequence[str], names: Sequence[str], path: Path | None) -> list[Project]:
    """The projects of these languages and of these names, in the recipe's order; all of another recipe."""
    recipe = projects(path)
    _check_known("--language", languages, LANGUAGES, "the languages")
    _check_known("--project", names, [one.name for one in recipe], "projects.toml")
    every = path is not None and not languages and not names
    chosen = [one for one in recipe if every or one.language in languages or one.name in names]
    beside, cache = Path.cwd() if path is None else path.parent, cache_root()
    return [local_project(one, beside=beside, cache=cache) if one.origin == "local" else one for one in chosen]


def _check_known(option: str, wanted: Sequence[str], known: Sequence[str], where: str) -> None:
    unknown = next((name for name in wanted if name not in known), None)
    if unknown is not None:
        raise typer.BadParameter(f"{unknown!r} is not in {where}; known: {', '.join(known)}", param_hint=option)


@tasks_command.command()
def index(
    out: Annotated[Path, typer.Argument(help="Where the index is written; compressed if it ends in .xz.")],
    file: _File = None,
) -> None:
    """Write what is needed to make the same tasks again, without any package's code."""
    tasks = load_tasks(file or default_path())
    with _naming(out):
        if are_mirrors(tasks):
            write_mirror_index(tasks, out, recipes_of(None))
        else:
            write_index(tasks, out)
    typer.echo(f"the index of {len(tasks)} tasks is in {out}")


@tasks_command.command(name="rebuild")
def rebuild_tasks(
    index: Annotated[
        Path, typer.Argument(help="What `tasks index` or `tasks mirror --index` wrote, also in .xz.", exists=True)
    ],
    file: _File = None,
) -> None:
    """Make the tasks of an index again, byte by byte: fetches the packages by hash, runs nothing."""
    place = file or default_path()
    again = rebuild_mirrors if is_mirror_index(index) else rebuild
    tasks = again(index, progress=lambda line: typer.echo(line, err=True))
    with _naming(place):
        digest = write_tasks(tasks, place)
    typer.echo(f"{len(tasks)} tasks in {place}, digest {digest}")


@tasks_command.command(name="certify")
def certify_tasks(
    file: _File = None,
    backend: Annotated[str, typer.Option(help="Where tasks are run.")] = "auto",
    most: Annotated[int | None, typer.Option(min=1, help="Only so many, evenly spread.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each state under each condition.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Where those go that do, with new certificates.")] = None,
    as_json: _Json = False,
) -> None:
    """Run tasks again under other conditions. Exit status 1 where one does not do what its lists say."""
    chosen = evenly(load_tasks(file or default_path()), most)
    journal = None if out is None else out.with_name(f"{out.name}.journal")

    async def work() -> list[Task | str]:
        async with (
            make_backend(backend) as place,
            aclosing(certified_each(chosen, place, runs=runs, journal=journal)) as each,
        ):
            return [one async for one in each]

    found = asyncio.run(work())
    wrong = {task.id: why for task, why in zip(chosen, found, strict=True) if isinstance(why, str)}
    count = len(chosen)
    if out is not None:
        with _naming(out):
            write_tasks([task for task in found if isinstance(task, Task)], out)
    if journal is not None:
        journal.unlink(missing_ok=True)
    if as_json:
        typer.echo(json.dumps({"tasks": count, "wrong": wrong}, indent=1))
    else:
        typer.echo(f"{count - len(wrong)} of {count} tasks do what their lists say under every condition")
        for name, why in wrong.items():
            typer.echo(f"{name}: {why}")
    if wrong:
        raise typer.Exit(1)


@tasks_command.command()
def stats(
    file: _File = None,
    fixes: Annotated[bool, typer.Option("--fixes", help="Also how often `suggest` lists the right fix.")] = False,
    as_json: _Json = False,
) -> None:
    """Tasks by package and split, and the yield of the build by operator and by package."""
    place = file or default_path()
    tasks = load_tasks(place)
    yields = load_yields(place)
    reach = reach_by_operator(task for task in tasks if not task.metadata.get("kind")) if fixes else None
    counts = Counter((task.split, str(task.metadata.get("package", ""))) for task in tasks)
    rows: list[_Row] = [
        {"split": split, "package": name, "tasks": count} for (split, name), count in counts.items()
    ]
    if as_json:
        shares = {} if reach is None else {"right_fix_listed": reach}
        built = {"operators": yield_by_operator(yields), "packages": yield_by_package(yields)}
        typer.echo(json.dumps({"tasks": rows, **built, **shares}, indent=1))
        return
    splits = Counter(task.split for task in tasks)
    typer.echo(f"{len(tasks)} tasks: {', '.join(f'{count} {name}' for name, count in splits.items())}")
    _show_table(rows)
    _show_yields(yields)
    if reach == {}:
        typer.echo(f"there is no task in {place} whose fixes could be counted; `envgym tasks build` says why")
    elif reach:
        by_operator = ", ".join(f"{name} {share:.0%}" for name, share in reach.items() if name != "all")
        typer.echo(f"the right fix is listed for its line in {reach['all']:.0%} of the tasks: {by_operator}")


@tasks_command.command()
def show(
    task_id: Annotated[str, typer.Argument(help="A task's id, or the end of one.")],
    file: _File = None,
    gold: Annotated[bool, typer.Option("--gold", help="Also print the answer.")] = False,
    as_json: _Json = False,
) -> None:
    """One task: its prompt, its tests, and with --gold the patch that repairs it. As JSON: the whole task."""
    task = _named(load_tasks(file or default_path()), task_id)
    if as_json:
        record = task.model_dump(mode="json")
        record["metadata"] = {key: value for key, value in task.metadata.items() if gold or key != "gold"}
        typer.echo(json.dumps(record, indent=1))
        return
    typer.echo(f"{task.id} ({task.split})\n\n{task.prompt}\n")
    for key in ("fail_to_pass", "pass_to_pass"):
        names = task.metadata.get(key)
        typer.echo(f"{key}: {len(names) if isinstance(names, list) else 0} tests")
    answer = task.metadata.get("gold")
    if gold and isinstance(answer, dict):
        typer.echo(f"\n{answer['patch']}")


def _named(tasks: Sequence[Task], task_id: str) -> Task:
    """The task with this id, or with this end of one. Raises BadParameter when there is none, or several."""
    found = [task for task in tasks if task.id.endswith(task_id)]
    exact = [task for task in found if task.id == task_id] or found
    if not found:
        raise typer.BadParameter(f"no task id ends with {task_id!r}", param_hint="ID")
    if len(exact) > 1:
        some = ", ".join(repr(task.id) for task in found[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise typer.BadParameter(f"{task_id!r} is the end of several task ids: {some}{more}", param_hint="ID")
    return exact[0]


@contextmanager
def _naming(place: Path) -> Iterator[None]:
    """A full disk does not say where; the task file does."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(place)) from error


def yield_by_operator(yields: Mapping[str, Yield]) -> list[_Row]:
    """One row per operator: candidates tried, the share that was valid, and how many got each verdict."""
    total: dict[str, Counter[str]] = {}
    for counts in yields.values():
        for name, verdicts in counts.verdicts.items():
            total.setdefault(name, Counter()).update(verdicts)
    return [
        {
            "operator": name,
            "tried": found.total(),
            "yield": f"{found[Verdict.VALID] / found.total():.0%}",
            **{str(verdict): found[verdict] for verdict in Verdict},
        }
        for name, found in sorted(total.items())
    ]


def yield_by_package(yields: Mapping[str, Yield]) -> list[_Row]:
    """One row per package: tried, valid, places left out, seconds, and tasks per hour of one process."""
    return [
        {
            "package": name,
            "tried": counts.tried,
            "valid": counts.valid,
            "tasks": counts.tasks,
            "uncovered": counts.uncovered,
            "crowded": counts.crowded,
            "foreign": counts.foreign,
            "seconds": round(counts.seconds),
            "per_hour": round(counts.tasks / counts.seconds * 3600) if counts.seconds else 0,
        }
        for name, counts in yields.items()
    ]


def _show_yields(yields: Mapping[str, Yield]) -> None:
    for rows in (yield_by_operator(yields), yield_by_package(yields)):
        _show_table(rows)


def _show_table(rows: Sequence[_Row]) -> None:
    if not rows:
        return
    table = Table(*rows[0], box=None)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(width=None if sys.stdout.isatty() else _UNBOUNDED).print(table)
