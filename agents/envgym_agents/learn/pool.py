"""Several runs of one experiment seen as one: the evaluations of their folders pooled, each gain seed by seed.

A task's success is its mean over the runs, and tasks (or their clusters) are what is resampled: runs share their
tasks, so more runs make a task's rate surer and do not make more tasks.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.evaluate import Difference, Evaluation, evaluation
from envgym_agents.learn.folder import RunFolder
from envgym_agents.learn.report import AFTER, BEFORE, GREEDY, gains, table

__all__ = ["pooled", "report_runs"]


def _opened(path: Path) -> tuple[TrainConfig, RunFolder]:
    stored = path / "config.json"
    if not stored.exists():
        raise ValueError(f"{path} holds no run: there is no {stored.name}")
    config = TrainConfig.model_validate_json(stored.read_text())
    folder = RunFolder(path, config, resume=True)
    if missing := [name for name in (BEFORE, AFTER) if folder.done(f"evaluate-{name}") is None]:
        raise ValueError(
            f"the run in {path} is not finished: {missing[0]!r} was not evaluated; go on with --resume"
        )
    return config, folder


def pooled(folders: Sequence[RunFolder], config: TrainConfig) -> list[Evaluation]:
    """Each evaluation that all of the runs have, over the episodes of all of them."""
    found = []
    for name in [*config.evaluate.baselines, BEFORE, BEFORE + GREEDY, AFTER, AFTER + GREEDY]:
        stage = f"evaluate-{name}"
        if all(folder.done(stage) for folder in folders):
            known = [folder.done(stage) or {} for folder in folders]
            cluster_of = {task: cluster for one in known for task, cluster in one["cluster_of"].items()}
            episodes = [episode for folder in folders for episode in folder.read(stage)]
            found.append(evaluation(name, episodes, cluster=cluster_of.__getitem__))
    return found


def report_runs(paths: Sequence[Path], console: Console | None) -> dict[str, Any]:
    """The pooled table of some run folders, and what RL gained in each of them.

    Raises ValueError for no folder, the same folder twice, and one that holds no finished run.
    """
    if not paths:
        raise ValueError("no run folder is named; name at least one")
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError("a run folder is named twice; each run counts once")
    opened = [_opened(path) for path in paths]
    config, folders = opened[0][0], [folder for _, folder in opened]
    evaluations = pooled(folders, config)
    changes: dict[str, Difference] = dict(gains(evaluations, config))
    for path, (own, folder) in zip(paths, opened, strict=True):
        gain = next(iter(gains(pooled([folder], own), own).values()))
        changes[f"after - before RL, seed {own.seed} ({path.name})"] = gain
    summaries = [one.summary() for one in evaluations]
    if console is not None:
        console.print(
            table(summaries, changes, title=f"{config.env}: {len(paths)} runs, split {config.evaluate.split!r}")
        )
    return {"runs": [str(path) for path in paths], "evaluations": summaries,
            "differences": {name: asdict(change) for name, change in changes.items()}}  # fmt: skip
