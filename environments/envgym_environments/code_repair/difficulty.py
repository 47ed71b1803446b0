"""How hard a task is, graded by a solver's pass rate: the share of its attempts that resolved the task.

An attempt is a stored episode, whoever played it (``envgym collect code-repair --group 8 --out STORE``); nothing is
played here. One that the world broke is no attempt, one that was cut off without a submission resolved nothing. The
rate is kept with the task, with who tried; it is no part of what a certificate is bound to.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from envgym.episode import Episode
from envgym.store import StoreReader
from envgym.task import Task
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.taskset import default_path, load_tasks, write_tasks

__all__ = ["Band", "PassRate", "difficulty", "pass_rates", "rated", "with_rate"]

Band = Literal["unsolved", "hard", "medium", "easy"]
_BANDS: tuple[Band, ...] = ("unsolved", "hard", "medium", "easy")


@dataclass(frozen=True, slots=True)
class PassRate:
    """How often a task was resolved, of how many attempts, and by which agents it was tried."""

    resolved: int
    attempts: int
    solvers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.resolved <= self.attempts or self.attempts < 1:
            raise ValueError(
                f"PassRate has {self.resolved} resolved of {self.attempts} attempts; there must be at least one "
                "attempt, and no more resolved than attempts"
            )

    @property
    def rate(self) -> float:
        """The share."""
        return self.resolved / self.attempts

    @property
    def band(self) -> Band:
        """Unsolved at 0, easy from two thirds on, hard below one third."""
        if not self.resolved:
            return "unsolved"
        return "hard" if self.rate < 1 / 3 else "medium" if self.rate < 2 / 3 else "easy"


def pass_rates(episodes: Iterable[Episode]) -> dict[str, PassRate]:
    """Task id -> what became of its attempts."""
    resolved: Counter[str] = Counter()
    attempts: Counter[str] = Counter()
    solvers: dict[str, set[str]] = {}
    for episode in episodes:
        if episode.failure is not None:
            continue
        attempts[episode.task_id] += 1
        resolved[episode.task_id] += _succeeded(episode)
        told = dict(episode.provenance)
        if "agent" in told:
            solvers.setdefault(episode.task_id, set()).add(told["agent"])
    return {
        name: PassRate(resolved[name], count, tuple(sorted(solvers.get(name, ()))))
        for name, count in attempts.items()
    }


def _succeeded(episode: Episode) -> bool:
    """By the latest grade where it was graded again, else by its last step."""
    again = [grade for grade in episode.grades if grade.grader == CodeRepairGrader.name]
    if again:
        return again[-1].channels.get("success", 0.0) >= 1.0
    return bool(episode.turns) and episode.turns[-1].step.channels.get("success", 0.0) >= 1.0


def with_rate(task: Task, rate: PassRate) -> Task:
    """The task with its pass rate, in the place of an earlier one."""
    said: dict[str, Any] = {
        "resolved": rate.resolved, "attempts": rate.attempts, "solvers": list(rate.solvers), "band": rate.band,
    }  # fmt: skip
    return task.model_copy(update={"metadata": {**task.metadata, "pass_rate": said}})


def rated(
    tasks: Iterable[Task], rates: Mapping[str, PassRate], *, attempts: int, least: float, most: float
) -> tuple[list[Task], Counter[str]]:
    """The tasks whose rate lies within the bounds, with it, and how many do not, by reason.

    A task with fewer attempts stays as it is where every rate is wanted, and goes where bounds are given: nothing
    is known of it.
    """
    kept: list[Task] = []
    left: Counter[str] = Counter()
    for task in tasks:
        rate = rates.get(task.id)
        if rate is None or rate.attempts < attempts:
            if least > 0 or most < 1:
                left["too few attempts"] += 1
            else:
                kept.append(task)
        elif not least <= rate.rate <= most:
            left["too hard" if rate.rate < least else "too easy"] += 1
        else:
            kept.append(with_rate(task, rate))
    return kept, left


def difficulty(
    stores: Annotated[list[Path], typer.Argument(help="Stores of played episodes of these tasks.", exists=True)],
    file: Annotated[Path | None, typer.Option("--file", help="The task file (default: in the cache).")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the tasks go, with their rates.")] = None,
    attempts: Annotated[int, typer.Option(min=1, help="Fewer attempts of a task say nothing.")] = 1,
    least: Annotated[float, typer.Option(min=0, max=1, help="Lowest pass rate of a task that stays.")] = 0.0,
    most: Annotated[float, typer.Option(min=0, max=1, help="Highest pass rate of a task that stays.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Grade tasks by how often they were solved, by operator; with --out keep those within the bounds."""
    tasks = list(load_tasks(file or default_path()))
    rates: dict[str, PassRate] = pass_rates(episode for store in stores for episode in _episodes(store))
    known = {task.id: rates[task.id] for task in tasks if task.id in rates}
    rows = _by_operator(tasks, known)
    kept, left = rated(tasks, known, attempts=attempts, least=least, most=most)
    if out is not None:
        write_tasks(kept, out)
    if as_json:
        counts = {"tasks": len(tasks), "tried": len(known), "kept": len(kept), "left_out": dict(left)}
        typer.echo(json.dumps(counts | {"operators": rows}, indent=1))
        return
    for row in rows:
        bands = ", ".join(f"{row[band]} {band}" for band in _BANDS if row[band])
        typer.echo(f"{row['operator']}: {row['resolved']} of {row['attempts']} attempts ({bands})")
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(left.items()))
    where = f"{len(kept)} tasks in {out}; " if out is not None else ""
    typer.echo(f"{where}{len(known)} of {len(tasks)} tasks were tried{f'; left out: {why}' * bool(why)}")


def _episodes(store: Path) -> Iterable[Episode]:
    with StoreReader(store) as reader:
        yield from reader


def _by_operator(tasks: Sequence[Task], rates: Mapping[str, PassRate]) -> list[dict[str, Any]]:
    """One row for each operator (or kind) of which a task was tried."""
    found: dict[str, Counter[str]] = {}
    for task in tasks:
        if (rate := rates.get(task.id)) is not None:
            name = str(task.metadata.get("operator") or task.metadata.get("kind") or "?")
            row = found.setdefault(name, Counter(dict.fromkeys(("resolved", "attempts", *_BANDS), 0)))
            row.update({"resolved": rate.resolved, "attempts": rate.attempts, rate.band: 1})
    return [{"operator": name, **row} for name, row in sorted(found.items())]
