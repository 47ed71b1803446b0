"""The console entry ``envgym data``: what can be done with stored episodes without playing any.

Every command that makes a store makes all of it or nothing, and leaves what it reads as it is.
"""

import asyncio
import json
import sys
from collections.abc import Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from envgym.cli.data_feedback import feedback_command
from envgym.cli.data_files import credit_command, export_command, import_command, pack_command
from envgym.cli.data_parts import Json, Out, Source, Where, chosen_of, console, made, say, shares_of, warn_of_short
from envgym.cli.options import check_env_options, key_values, tasks_of
from envgym.plain_text import visible
from envgym.registry import check_backend, make, make_backend, spec
from envgym.store import Damage, StoreReader, StoreWriter

__all__ = ["data_command"]

data_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Look at, choose from, merge, grade, convert stored episodes.",
)


@data_command.command("stats")
def stats_command(source: Source, as_json: Json = False) -> None:
    """Count episodes, failures, turns, tokens, seconds and rewards, per environment and agent."""
    from envgym.data import reports_of, statistics

    with StoreReader(source) as reader:
        found = statistics(reader)
        damage = [*found.damage, *reader.damaged_images()]
        costing = any(one not in reader.kept for one in damage)
    reports = reports_of(source)
    if as_json:
        by = [{"environment": env, "agent": agent, **sums} for (env, agent), sums in found.by.items()]
        whole = {**found.all, "tasks": found.tasks, "unfinished": found.unfinished, "by": by}
        told = {"decontamination": [asdict(one) for one in reports]}
        print(json.dumps(whole | told | {"damage": [str(one) for one in damage]}))
    else:
        _show_statistics(found)
        for one in reports:
            print(f"decontamination: {visible(str(one))}")
    _tell_damage(damage, costing=costing)


def _show_statistics(found: Any) -> None:
    from rich.table import Table

    names = (
        "episodes",
        "failed",
        "forked",
        "turns",
        "prompt_tokens",
        "sampled_tokens",
        "mean_reward",
        "act_s",
        "step_s",
    )
    table = Table("environment", "agent", *(name.replace("_", " ") for name in names), box=None, pad_edge=False)
    rows = [*found.by.items(), *([(("all", ""), found.all)] if len(found.by) != 1 else [])]
    for (env, agent), sums in rows:
        values = ("-" if sums[name] is None else f"{sums[name]:.6g}" for name in names)
        table.add_row(visible(env), visible(agent), *values)
    console().print(table)
    print(f"{found.tasks} tasks, {found.unfinished} unfinished episodes")
    if found.all["cost"]:
        costs = ", ".join(f"{visible(name)} {value:,.6g}" for name, value in found.all["cost"].items())
        print(
            f"reported with the turns: {costs} (tokens of a server are in no column above: their ids are unknown)"
        )
    for stop, count in found.all["stops"].items():
        print(f"  {count:6}  {visible(stop)}")


def _tell_damage(damage: Iterable[Damage], *, costing: bool) -> None:
    """Say what is damaged; status 1 where that costs an episode or an image."""
    for one in damage:
        print(f"envgym: {visible(str(one))}", file=sys.stderr)
    if costing:
        raise typer.Exit(1)


@data_command.command("filter")
def filter_command(  # one parameter per option
    source: Source,
    out: Out,
    where: Where = None,
    repeats: Annotated[bool, typer.Option(help="Keep episodes that only repeat an earlier one.")] = True,
    held_out: Annotated[
        Path | None,
        typer.Option(
            help="A text file, a text per line: drop what shares 13 words with one; a report is put in the store."
        ),
    ] = None,
    damaged: Annotated[
        bool,
        typer.Option(
            help="Leave out what is damaged, instead of stopping there; what is unfinished comes along to go on."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy the episodes that are meant, and what they were forked from, to another store."""
    from envgym.data import copy, decontaminated, reporting, reports_of, rooted, take_on
    from envgym.data import repeats as found_repeats

    with StoreReader(source, leave_out=damaged) as reader, made(out) as writer:
        names, dropped, of = chosen_of(reader, where), dict[str, int](), len(reader)
        if damaged:
            whole = set(rooted(reader))
            lost = sum(one.episodes for one in reader.damage)
            dropped["damaged"], of = lost + len(reader) - len(whole), len(reader) + lost
            names = [name for name in names if name in whole]
            for one in reader.damage:
                print(f"envgym: left out: {visible(str(one))}", file=sys.stderr)
        if not repeats:
            again = set(found_repeats(reader[name] for name in names))
            names, dropped["repeats"] = [name for name in names if name not in again], len(again)
        reports = [*reports_of(source)] if not len(writer) else []
        if held_out is not None:
            names, report = decontaminated(reader, names, held_out)
            warn_of_short(report)
            dropped["contaminated"] = report.dropped
            reports.append(report)
            for name, words in report.leaks[:10]:
                print(f"contaminated: {visible(name)}: {visible(words)}", file=sys.stderr)
        with reporting(out, reports, empty=not len(writer)):
            copied = copy(reader, names, writer)
            if damaged:
                dropped["unfinished"] = take_on(reader, writer)
        say({"copied": copied, "of": of, **dropped, "out": str(out)}, as_json)


@data_command.command("sample")
def sample_command(
    source: Source,
    out: Out,
    count: Annotated[int, typer.Option("-n", "--episodes", min=1, help="How many.")],
    seed: Annotated[int, typer.Option(min=0, help="Fixes the draw.")] = 0,
    as_json: Json = False,
) -> None:
    """Copy episodes drawn without replacement, and what they were forked from, to another store."""
    from envgym.data import copy, reporting, reports_of, sample

    with StoreReader(source) as reader, made(out) as writer:
        names = sample(reader, count, np.random.default_rng(seed))
        reports = () if len(writer) else reports_of(source)
        with reporting(out, reports, empty=not len(writer)):
            copied = copy(reader, names, writer)
        say({"copied": copied, "of": len(reader), "out": str(out)}, as_json)


@data_command.command("split")
def split_command(
    source: Source,
    out: Out,
    shares: Annotated[list[str], typer.Argument(help="name=share each, such as train=0.9 test=0.1.")],
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another cut.")] = 0,
    as_json: Json = False,
) -> None:
    """Cut by task into stores OUT/NAME: a task is in one part only, in whichever store it is met."""
    from envgym.data import split_into

    given = shares_of(shares)
    with StoreReader(source) as reader:
        counts = split_into(reader, given, out, seed=seed)
    say({**counts, "out": str(out)}, as_json)


@data_command.command("merge")
def merge_command(
    sources: Annotated[list[Path], typer.Argument(help="Stores of episodes.", exists=True)],
    out: Out,
    rename: Annotated[bool, typer.Option(help="Put the store's number before every id.")] = False,
    as_json: Json = False,
) -> None:
    """Copy all episodes of several stores to one."""
    from envgym.data import merge

    with ExitStack() as stack:
        readers = [stack.enter_context(StoreReader(source)) for source in sources]
        writer = stack.enter_context(made(out))
        say({"copied": merge(readers, writer, rename=rename), "out": str(out)}, as_json)


@data_command.command("compact")
def compact_command(
    source: Source,
    hot: Annotated[bool, typer.Option(help="Fast to draw from, in the place of small.")] = False,
    as_json: Json = False,
) -> None:
    """Make one shard of all that has ended: Parquet with zstd, or with --hot mapped Arrow."""
    before = _bytes(source)
    with StoreWriter(source) as writer:
        writer.compact("hot" if hot else "cold")
    say({"episodes": len(StoreReader(source)), "bytes_before": before, "bytes": _bytes(source)}, as_json)


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@data_command.command("grade")
def grade_command(  # noqa: PLR0913  # one parameter per option
    source: Source,
    env: Annotated[str, typer.Option(help="The environment whose grader judges; its tasks are the episodes'.")],
    where: Where = None,
    sandbox: Annotated[str, typer.Option(help="Sandbox backend, where the environment needs one.")] = "auto",
    env_option: Annotated[list[str] | None, typer.Option(help="name=value for the environment.")] = None,
    task_option: Annotated[list[str] | None, typer.Option(help="name=value for its task set.")] = None,
    again: Annotated[bool, typer.Option(help="Also what this very grader has judged.")] = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Grades at a time.")] = 8,
    as_json: Json = False,
) -> None:
    """Grade again what was submitted, without playing it again; grades are appended."""
    given = key_values(env_option or (), "--env-option"), key_values(task_option or (), "--task-option")
    counts, failures = asyncio.run(_grade(source, where, _Graded(env, *given, sandbox), concurrency, again=again))
    say(counts | {"failed": len(failures)}, as_json)
    for line in failures[:10]:
        print(f"envgym: {visible(line)}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Graded:
    """Whose grader judges, of which tasks, and where."""

    env: str
    env_options: dict[str, Any]
    task_options: dict[str, Any]
    sandbox: str


async def _grade(
    source: Path, where: str | None, given: _Graded, concurrency: int, *, again: bool
) -> tuple[dict[str, int], list[str]]:
    from envgym.data import regrade

    env = given.env
    if given.sandbox != "auto":
        check_backend(given.sandbox, {})
    tasks = tasks_of(env, given.task_options)
    check_env_options(env, given.env_options)
    if tasks.infinite:
        raise ValueError(f"the tasks of {env!r} never end, so that an episode's cannot be found by its id")
    known = {task.id: task for task in tasks}
    counts, failures = {"graded": 0, "left": 0}, []
    with ExitStack() as stack:
        reader = stack.enter_context(StoreReader(source))
        names = chosen_of(reader, where)
        of_task = dict(zip(reader.ids, reader.table("episodes", ["task_id"]).column(0).to_pylist(), strict=True))
        if unknown := [name for name in names if of_task[name] not in known]:
            raise ValueError(
                f"episode {unknown[0]!r} is of task {of_task[unknown[0]]!r}, which {env!r} does not have"
            )
        writer = stack.enter_context(StoreWriter(source))
        async with make_backend(given.sandbox) if spec(env).sandbox else nullcontext() as backend:
            world = make(env, tasks[0], backend=backend, **given.env_options)
            try:
                grader = getattr(world, "grader", None)
                if grader is None:
                    raise ValueError(f"environment {env!r} has no grader of its own")
                judged = regrade(writer, names, grader, known.__getitem__, concurrency=concurrency, again=again)
                async for found in judged:
                    if found.failure is not None:
                        failures.append(f"{found.episode}: {found.failure.kind}: {found.failure.message}")
                    else:
                        counts["left" if found.grade is None else "graded"] += 1
            finally:
                await world.close()
    return counts, failures


@data_command.command("impact")
def impact_command(
    source: Source,
    file: Annotated[Path | None, typer.Option(help="A text file for the ids that are kept, one a line.")] = None,
    least: Annotated[float, typer.Option(help="The least score that is kept.")] = 0.2,
    channel: Annotated[str, typer.Option(help="A channel of the last step, in the place of the reward.")] = "",
    as_json: Json = False,
) -> None:
    """Rank the tasks of an RL run by how well each one's rewards went with the mean learning curve (LIMR).

    The file is a list of tasks for another run: envgym train --set tasks=FILE.
    """
    from envgym.data import learning_impact, reward_curves

    with StoreReader(source) as reader:
        curves = reward_curves((reader[name] for name in reader.ids), channel=channel)
    if not curves:
        raise ValueError(f"{source} holds no groups of episodes; name the store of an RL run (RUN/trajectories)")
    scores = dict(sorted(learning_impact(curves).items(), key=lambda one: (-one[1], one[0])))
    kept = [task for task, score in scores.items() if score >= least]
    if file is not None:
        file.write_text("".join(f"{task}\n" for task in kept))
    if as_json:
        print(json.dumps({"scores": scores, "kept": kept}))
        return
    for task, score in scores.items():
        print(f"{score:8.3f}  {visible(task)}  {' '.join(f'{value:.2f}' for value in curves[task])}")
    say({"tasks": len(scores), "kept": len(kept)}, as_json)


data_command.command("feedback")(feedback_command)
data_command.command("credit")(credit_command)
data_command.command("export")(export_command)
data_command.command("pack")(pack_command)
data_command.command("import")(import_command)
