"""What a run leaves for people: lines of metrics, a learning curve as PNG, and a table of success rates.

Everything shown is computed from what the run folder holds; nothing is measured here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.durable import write_json
from envgym_agents.learn.evaluate import Difference, Evaluation, difference, difference_over_runs
from envgym_agents.learn.folder import RunFolder

__all__ = [
    "AFTER",
    "BEFORE",
    "GREEDY",
    "STUDENT",
    "Metrics",
    "difference_table",
    "gains",
    "learning_curve",
    "read_metrics",
    "table",
    "warm_curve",
    "write_comparison",
    "write_report",
]

BEFORE, AFTER, GREEDY = "before RL", "after RL", ", greedy"
"""Names of the student's evaluations; the last one is put behind either of the others."""

STUDENT = (BEFORE, BEFORE + GREEDY, AFTER, AFTER + GREEDY)
"""All of them; whatever else was evaluated is another agent."""


class Metrics:
    """Appends one JSON object per line; holds no file open.

    The first line written, of step n, drops what the file says of step n and later: a run resumed from a
    checkpoint writes each step once, whatever it had written before it was killed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._begun = False

    def append(self, step: int, values: Mapping[str, Any]) -> None:
        """Write one line; floats are kept to 7 digits."""
        if not self._begun:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            kept = [line for line in read_metrics(self.path) if line["step"] < step]
            self.path.write_text("".join(json.dumps(line) + "\n" for line in kept))
            self._begun = True
        rounded = {name: float(f"{v:.7g}") if isinstance(v, float) else v for name, v in values.items()}
        with open(self.path, "a") as file:
            file.write(json.dumps({"step": step, **rounded}) + "\n")


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a last line cut off by a crash is left out, a missing file is empty."""
    if not Path(path).exists():
        return []
    lines = Path(path).read_text().split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def _smooth(values: Sequence[float], width: int) -> np.ndarray[Any, Any]:
    """A centred moving mean whose window shrinks at both ends."""
    array, half = np.asarray(values, float), width // 2
    return np.array([array[max(0, i - half) : i + half + 1].mean() for i in range(len(array))])


def learning_curve(
    path: str | Path,
    steps: Sequence[Mapping[str, Any]],
    *,
    points: Sequence[tuple[int, Mapping[str, Any]]] = (),
    baselines: Sequence[Mapping[str, Any]] = (),
    title: str = "",
) -> None:
    """Draw success over steps: training rollouts as a line, evaluations with 95 % bars, other agents as levels.

    points: (step, `Evaluation.summary`) of the learner; baselines: summaries of others.
    """
    figure = Figure(figsize=(8, 4.8), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_xlabel("RL step")
    axes.set_ylabel("success rate")
    axes.set_ylim(-0.02, 1.02)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.25)
    played = [line for line in steps if "success" in line]
    if played:
        x, y = [line["step"] for line in played], [line["success"] for line in played]
        axes.plot(x, y, color="#9ecae1", linewidth=0.8, label="training episodes, per step")
        axes.plot(x, _smooth(y, 9), color="#2171b5", linewidth=1.8, label="moving mean of 9 steps")
    if points:
        x = [step for step, _ in points]
        rates = np.array([summary["success"] for _, summary in points])
        errors = [
            np.clip([rate - s["low"] for rate, (_, s) in zip(rates, points, strict=True)], 0, 1),
            np.clip([s["high"] - rate for rate, (_, s) in zip(rates, points, strict=True)], 0, 1),
        ]
        axes.errorbar(
            x, rates, yerr=errors, fmt="o", color="#cb181d", capsize=3, markersize=4, label="held-out tasks, 95 %"
        )
    for index, summary in enumerate(baselines):
        colour = ("#636363", "#31a354", "#e6550d", "#756bb1")[index % 4]
        axes.axhline(summary["success"], color=colour, linestyle="--", linewidth=1, label=summary["name"])
    axes.legend(fontsize=8, loc="best")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def warm_curve(path: str | Path, curve: Sequence[Mapping[str, float]]) -> None:
    """Draw the warm start: training and validation loss over updates."""
    figure = Figure(figsize=(8, 4), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    x = [point["update"] for point in curve]
    axes.plot(x, [point["train_loss"] for point in curve], color="#9ecae1", label="training tasks")
    axes.plot(x, [point["loss"] for point in curve], color="#2171b5", marker=".", label="validation tasks")
    axes.set_xlabel("update")
    axes.set_ylabel("nats per expert token")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def table(summaries: Sequence[Mapping[str, Any]], title: str = "") -> Table:
    """Success rates with 95 % intervals, one row per agent, mean costs beside."""
    names = sorted({name for summary in summaries for name in summary["cost"]})
    shown = _columns(title, "agent", "success", "95 %", "tasks", "failures", *names)
    for summary in summaries:
        shown.add_row(
            summary["name"],
            f"{summary['success']:.1%}",
            f"{summary['low']:.1%} .. {summary['high']:.1%}",
            str(summary["tasks"]),
            str(summary["failures"]),
            *(f"{summary['cost'].get(name, 0.0):.3g}" for name in names),
        )
    return shown


def difference_table(differences: Mapping[str, Difference]) -> Table:
    """Paired differences with their 95 % intervals, one row each."""
    shown = _columns("", "difference", "points", "95 %", "units")
    for name, change in differences.items():
        interval = f"{change.low:+.1%} .. {change.high:+.1%}"
        shown.add_row(name, f"{change.mean:+.1%}", interval, str(change.units))
    return shown


def _columns(title: str, first: str, *others: str) -> Table:
    """An empty table in which no number is cut or wrapped: on a narrow terminal names are, and headings."""
    shown = Table(title=title, title_justify="left")
    shown.add_column(first, overflow="fold", ratio=1)
    for name in others:
        shown.add_column(name, justify="right", overflow="fold", min_width=16 if name == "95 %" else 5)
    return shown


def gains(runs: Sequence[Sequence[Evaluation]], config: TrainConfig) -> dict[str, Difference]:
    """What RL gained in one or more runs: on the start of RL, greedily too where played, and on every other agent.

    Every run holds evaluations of the same names, `BEFORE` and `AFTER` among them.
    """
    named = [{one.name: one for one in run} for run in runs]

    def change(after: str, before: str, by_cluster: bool = False) -> Difference:
        pairs = [(run[after], run[before]) for run in named]
        draws = config.evaluate.bootstrap
        return difference_over_runs(pairs, seed=config.seed, draws=draws, by_cluster=by_cluster)

    changes = {
        f"{AFTER} - {BEFORE}, by task": change(AFTER, BEFORE),
        f"{AFTER} - {BEFORE}, by {config.evaluate.cluster}": change(AFTER, BEFORE, by_cluster=True),
    }
    if AFTER + GREEDY in named[0]:
        changes[f"{AFTER} - {BEFORE}{GREEDY}, by task"] = change(AFTER + GREEDY, BEFORE + GREEDY)
    for other in named[0]:
        if other not in STUDENT:
            changes[f"{AFTER} - {other}, by task"] = change(AFTER, other)
    return changes


def write_report(
    folder: RunFolder, config: TrainConfig, evaluations: Sequence[Evaluation], console: Console | None
) -> dict[str, Any]:
    """Write report.json and the curves, print the tables; `BEFORE` and `AFTER` are among the evaluations."""
    changes = gains([evaluations], config)
    named = {one.name: one for one in evaluations}
    draws = config.evaluate.bootstrap
    summaries = {one.name: one.summary(seed=config.seed, draws=draws) for one in evaluations}
    steps = read_metrics(folder.path / "metrics.jsonl")
    quick = [(line["step"], folder.done(f"evaluate-step-{line['step']:05d}")) for line in steps]
    learning_curve(
        folder.path / "learning_curve.png",
        steps,
        points=[
            (0, summaries[BEFORE]),
            *((step, found) for step, found in quick if found is not None),
            (steps[-1]["step"] if steps else 0, summaries[AFTER]),
        ],
        baselines=[summaries[name] for name in config.evaluate.baselines],
        title=f"{config.env}, seed {config.seed}: held-out {named[BEFORE].rate:.1%} {BEFORE}, "
        f"{named[AFTER].rate:.1%} after",
    )
    if (warm := folder.done("warm_start")) is not None:
        warm_curve(folder.path / "warm_start.png", warm["curve"])
    report = {
        "evaluations": list(summaries.values()),
        "differences": {name: asdict(change) for name, change in changes.items()},
        "expert": folder.done("expert"),
        "warm_start": None
        if warm is None
        else {"updates": warm["update"], "best": warm["best"], "stop": warm["stop"]},
        "reinforce": folder.done("reinforce"),
    }
    write_json(folder.path / "report.json", report)
    if console is not None:
        title = f"{config.env}: held-out split {config.evaluate.split!r}"
        console.print(table(list(summaries.values()), title), difference_table(changes))
        console.print(_clusters(named[BEFORE], named[AFTER], config.evaluate.cluster))
    return report


def write_comparison(
    folder: RunFolder, config: TrainConfig, evaluations: Sequence[Evaluation], console: Console | None
) -> dict[str, Any]:
    """Write report.json and print the tables of some evaluations, each compared with the first."""
    first, draws = evaluations[0], config.evaluate.bootstrap
    changes = {
        f"{one.name} - {first.name}, by {unit}": difference(
            one, first, seed=config.seed, draws=draws, by_cluster=unit != "task"
        )
        for one in evaluations[1:]
        for unit in ("task", config.evaluate.cluster)
    }
    summaries = [one.summary(seed=config.seed, draws=draws) for one in evaluations]
    report = {
        "evaluations": summaries,
        "differences": {name: asdict(change) for name, change in changes.items()},
    }
    write_json(folder.path / "report.json", report)
    if console is not None:
        console.print(table(summaries, f"{config.env}: split {config.evaluate.split!r}"))
        console.print(difference_table(changes))
    return report


def _clusters(before: Evaluation, after: Evaluation, label: str) -> Table:
    shown = _columns("", label, "tasks", BEFORE, AFTER)
    later = after.by_cluster()
    for name, (rate, count) in before.by_cluster().items():
        shown.add_row(name, str(count), f"{rate:.0%}", f"{later.get(name, (float('nan'), 0))[0]:.0%}")
    return shown
