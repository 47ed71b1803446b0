"""Does a tiny model learn on `sql` from its warm start? Success on databases that were never trained on, by seed.

    python benchmarks/sql_training.py --runs runs/sql --json benchmarks/results/sql_training.json

Each seed is one run of `envgym train --preset sql`: an expert's episodes on training databases, a transformer of
about a million parameters from scratch that imitates them for a while, 20 minutes of reinforcement learning on two
cores, and evaluation before and after on other databases. The bar: the mean gain, as it is sampled, is at least 20
points. A run that is finished in the folder is taken as it is, one that was stopped goes on. With --quick it is a
few updates of the smallest model: to see that it runs, its success means nothing.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from _harness import Row, finish, options, scratch_folder
from envgym_agents.learn.pool import report_runs

LEAST = 0.20
QUICK = (
    "task_options.count=100", "tasks=20", "threads=1", "model.size=tiny", "model.vocabulary=600",
    "warm_start.min_updates=3", "warm_start.max_updates=3", "warm_start.evaluate_every=3", "reinforce.steps=1",
    "reinforce.tasks=2", "reinforce.group=2", "turns=3", "evaluate.tasks=4",
)  # fmt: skip


def trained(place: Path, seed: int, quick: bool) -> Path:
    """The folder of one seed's finished run."""
    run = place / f"seed-{seed}"
    if not (run / "report.json").exists():
        said = [word for one in QUICK for word in ("--set", one)] if quick else []
        resume = ["--resume"] * (run / "config.json").exists()
        command = ["train", "--preset", "sql", "--seed", str(seed), "--out", str(run), *said, *resume]
        subprocess.run([sys.executable, "-c", "from envgym.cli import main; main()", *command], check=True)
    return run


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=Path, help="where runs are kept, and found again (default: nowhere)")
    parser.add_argument("--seeds", type=int, default=3)


def main() -> None:
    given = options(__doc__ or "", more=more)
    with scratch_folder() as scratch:
        place = given.runs or scratch
        place.mkdir(parents=True, exist_ok=True)
        runs = [trained(place, seed, given.quick) for seed in range(1 if given.quick else given.seeds)]
        minutes = [json.loads((run / "report.json").read_text())["reinforce"]["seconds"] / 60 for run in runs]
        report = report_runs(runs, None)
        rates = {one["name"]: one["success"] for one in report["evaluations"]}
        rows = []
        for when in ("", ", greedy"):
            before, after = rates[f"before RL{when}"], rates[f"after RL{when}"]
            rows.append(Row(f"success after RL{when}", after, before, "before RL", "share"))
        gain = rates["after RL"] - rates["before RL"]
        # what is missing to the bar: nothing where the gain is large enough
        bar = None if given.quick else 0.0
        rows.append(
            Row("missing to a gain of 0.20", max(0.0, LEAST - gain), gain, "gain", "share", bar, absolute=True)
        )
        notes = {"differences": report["differences"], "minutes": [round(one, 2) for one in minutes]}
        finish("sql_training", rows, given, seeds=len(runs), rates=rates, **notes)


if __name__ == "__main__":
    main()
