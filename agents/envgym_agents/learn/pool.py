"""Several runs of one experiment seen as one: a table of rates over all of them, and what RL gained.

The runs share their tasks, so more runs make a task's rate surer and do not make more tasks: intervals of rates are
over tasks, those of gains over tasks and runs.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.evaluate import Evaluation, difference, evaluation, merged
from envgym_agents.learn.folder import DURATION, RunFolder, differing
from envgym_agents.learn.report import AFTER, BEFORE, STUDENT, difference_table, gains, table

__all__ = ["report_runs"]

_MAY_DIFFER = DURATION | {"seed", "concurrency"}


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


def _evaluation(folder: RunFolder, name: str) -> Evaluation:
    stage = f"evaluate-{name}"
    return evaluation(name, folder.read(stage), cluster=(folder.done(stage) or {})["cluster_of"].__getitem__)


def report_runs(paths: Sequence[Path], console: Console | None) -> dict[str, Any]:
    """The pooled table of some run folders, what RL gained over all of them, and in each.

    Raises ValueError for no folder, the same folder twice, one that holds no finished run, and runs of different
    experiments: all but the seed and what bounds a run's length must agree.
    """
    if not paths:
        raise ValueError("no run folder is named; name at least one")
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError("a run folder is named twice; each run counts once")
    opened = [_opened(path) for path in paths]
    config, folders = opened[0][0], [folder for _, folder in opened]
    for path, (own, _) in zip(paths, opened, strict=True):
        if changed := ", ".join(differing(config, own, may_differ=_MAY_DIFFER)):
            raise ValueError(f"{paths[0]} and {path} are different experiments; they differ in: {changed}")
    names = [
        name
        for name in (*config.evaluate.baselines, *STUDENT)
        if all(folder.done(f"evaluate-{name}") for folder in folders)
    ]
    runs = [[_evaluation(folder, name) for name in names] for folder in folders]
    pooled = [merged(name, [run[place] for run in runs]) for place, name in enumerate(names)]
    summaries = [one.summary(seed=config.seed, draws=config.evaluate.bootstrap) for one in pooled]
    changes = gains(runs, config)
    before, after = names.index(BEFORE), names.index(AFTER)
    for path, (own, _), run in zip(paths, opened, runs, strict=True):
        gain = difference(run[after], run[before], seed=own.seed, draws=own.evaluate.bootstrap)
        changes[f"{AFTER} - {BEFORE}, seed {own.seed} ({path.name})"] = gain
    if console is not None:
        title = f"{config.env}: {len(paths)} runs, split {config.evaluate.split!r}"
        console.print(table(summaries, title), difference_table(changes))
    return {"runs": [str(path) for path in paths], "evaluations": summaries,
            "differences": {name: asdict(change) for name, change in changes.items()}}  # fmt: skip
