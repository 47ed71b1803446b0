"""Several runs of one experiment seen as one: rates, what RL gained, and all that beside another's.

The runs share their tasks, so more runs make a task's rate surer and do not make more tasks: intervals of rates are
over tasks, those of gains over tasks and runs.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.evaluate import (
    Difference,
    Evaluation,
    difference,
    difference_over_runs,
    evaluation,
    merged,
)
from envgym_agents.learn.folder import DURATION, RunFolder, configuration_of, differing
from envgym_agents.learn.report import AFTER, BEFORE, GREEDY, STUDENT, difference_table, gains, table

__all__ = ["report_runs"]

_MAY_DIFFER = DURATION | {"seed", "concurrency"}


def _opened(path: Path) -> tuple[TrainConfig, RunFolder]:
    stored = path / "config.json"
    if not stored.exists():
        raise ValueError(f"{path} holds no run: there is no {stored.name}")
    config = configuration_of(stored)
    folder = RunFolder(path, config, resume=True)
    if missing := [name for name in (BEFORE, AFTER) if folder.done(f"evaluate-{name}") is None]:
        raise ValueError(
            f"the run in {path} is not finished: {missing[0]!r} was not evaluated; go on with --resume"
        )
    return config, folder


def _evaluation(folder: RunFolder, name: str) -> Evaluation:
    stage = f"evaluate-{name}"
    return evaluation(name, folder.read(stage), cluster=(folder.done(stage) or {})["cluster_of"].__getitem__)


def _experiment(paths: Sequence[Path]) -> list[tuple[TrainConfig, RunFolder]]:
    """Finished runs of one experiment. Raises ValueError when they are none."""
    if not paths:
        raise ValueError("no run folder is named; name at least one")
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError("a run folder is named twice; each run counts once")
    opened = [_opened(path) for path in paths]
    for path, (own, _) in zip(paths, opened, strict=True):
        if changed := ", ".join(differing(opened[0][0], own, may_differ=_MAY_DIFFER)):
            raise ValueError(f"{paths[0]} and {path} are different experiments; they differ in: {changed}")
    by_seed: dict[int, Path] = {}
    for path, (own, _) in zip(paths, opened, strict=True):
        if (other := by_seed.setdefault(own.seed, path)) != path:
            raise ValueError(
                f"{other} and {path} are both of seed {own.seed}, and would count as two: name one run of each seed"
            )
    return opened


def report_runs(paths: Sequence[Path], console: Console | None, *, against: Sequence[Path] = ()) -> dict[str, Any]:
    """The pooled table of some run folders, what RL gained over all of them, and in each.

    against: runs of another experiment with the same seeds: also how much better these are after RL, paired by task
    and seed. Raises ValueError for no folder, the same folder or seed twice, one that holds no finished run, runs
    of different experiments (all but the seed and what bounds a run's length must agree), and other seeds.
    """
    opened = _experiment(paths)
    config, folders = opened[0][0], [folder for _, folder in opened]
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
    report: dict[str, Any] = {"runs": [str(path) for path in paths], "evaluations": summaries}
    if against:
        others = _experiment(against)
        changes |= _compared(opened, others)
        changed = differing(config, others[0][0], may_differ=_MAY_DIFFER)
        report |= {"against": [str(path) for path in against], "differ": list(changed)}
    if console is not None:
        title = f"{config.env}: {len(paths)} runs, split {config.evaluate.split!r}"
        console.print(table(summaries, title), difference_table(changes))
        if against:
            console.print("the others differ in: " + ("; ".join(report["differ"]) or "nothing but seed and length"))
    return report | {"differences": {name: asdict(change) for name, change in changes.items()}}


def _compared(
    runs: Sequence[tuple[TrainConfig, RunFolder]], others: Sequence[tuple[TrainConfig, RunFolder]]
) -> dict[str, Difference]:
    """How much better the runs are after RL than the others of the same seed."""
    by_seed = [{config.seed: folder for config, folder in group} for group in (runs, others)]
    if by_seed[0].keys() != by_seed[1].keys() or any(len(group) > len(by_seed[0]) for group in (runs, others)):
        seeds = [sorted(config.seed for config, _ in group) for group in (runs, others)]
        raise ValueError(
            f"runs are compared by seed: these have {seeds[0]}, the others {seeds[1]}; name equal ones"
        )
    config = runs[0][0]
    found: dict[str, Difference] = {}
    for name in (AFTER, AFTER + GREEDY):
        if not all(folder.done(f"evaluate-{name}") for group in by_seed for folder in group.values()):
            continue
        pairs = [
            (_evaluation(folder, name), _evaluation(by_seed[1][seed], name)) for seed, folder in by_seed[0].items()
        ]
        for by_cluster, unit in ((False, "task"), (True, config.evaluate.cluster)):
            found[f"{name} - the others' {name}, by {unit}"] = difference_over_runs(
                pairs, seed=config.seed, draws=config.evaluate.bootstrap, by_cluster=by_cluster
            )
    return found
