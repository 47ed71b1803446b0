"""Runs of a preset with several seeds, and success before and after reinforcement learning, as rows.

A run that is finished in the folder is taken as it is, one that was stopped goes on.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from _harness import Row, finish, options, scratch_folder
from envgym_agents.learn.pool import report_runs

__all__ = ["preset_learns"]

_PROCESSOR = "processor_s.json"


def _trained(preset: str, place: Path, seed: int, settings: Sequence[str]) -> Path:
    """The folder of one seed's finished run."""
    run = place / f"seed-{seed}"
    if not (run / "report.json").exists():
        said = [word for one in settings for word in ("--set", one)]
        resume = ["--resume"] * (run / "config.json").exists()
        command = ["train", "--preset", preset, "--seed", str(seed), "--out", str(run), *said, *resume]
        begun = _processor_s()
        subprocess.run([sys.executable, "-c", "from envgym.cli import main; main()", *command], check=True)
        (run / _PROCESSOR).write_text(json.dumps(_processor_s() - begun))
    return run


def _processor_s() -> float:
    """Seconds of processors that the programs which ended were given."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _minutes(run: Path) -> float | None:
    """Minutes of processors of a run with all its stages, where this benchmark made it and saw its end."""
    said = run / _PROCESSOR
    return round(json.loads(said.read_text()) / 60, 2) if said.exists() else None


def _of_seed(run: Path, seed: int) -> list[Row]:
    """What one seed's success was before and after: as it is sampled, and greedily."""
    report = json.loads((run / "report.json").read_text())
    rates = {one["name"]: one["success"] for one in report["evaluations"]}
    return [
        Row(f"seed {seed}{when}", rates[f"after RL{when}"], rates[f"before RL{when}"], "before RL", "share")
        for when in ("", ", greedy")
    ]


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=Path, help="where runs are kept, and found again (default: nowhere)")
    parser.add_argument("--seeds", type=int, default=3)


def _missing(when: str, gain: float, least: float, *, quick: bool) -> Row:
    """What is missing to the bar: nothing where the gain is large enough."""
    bar = None if quick else 0.0
    name = f"missing to a gain of {least:.2f}{when}"
    return Row(name, max(0.0, least - gain), gain, "gain", "share", bar, absolute=True)


def preset_learns(
    name: str, preset: str, doc: str, *, quick: Sequence[str], least: float, surer: bool = False
) -> None:
    """The whole benchmark `name`. least: the bar of the mean gain; quick: settings of a run with --quick.

    surer: whether the greedy policy must gain as much, which one that has only become surer of itself does not.
    """
    given = options(doc, more=_more)
    with scratch_folder() as scratch:
        place = given.runs or scratch
        place.mkdir(parents=True, exist_ok=True)
        settings = quick if given.quick else ()
        runs = [_trained(preset, place, seed, settings) for seed in range(1 if given.quick else given.seeds)]
        minutes = [json.loads((run / "report.json").read_text())["reinforce"]["seconds"] / 60 for run in runs]
        report = report_runs(runs, None)
        rates = {one["name"]: one["success"] for one in report["evaluations"]}
        rows = [row for seed, run in enumerate(runs) for row in _of_seed(run, seed)]
        for when in ("", ", greedy"):
            before, after = rates[f"before RL{when}"], rates[f"after RL{when}"]
            rows.append(Row(f"success after RL{when}", after, before, "before RL", "share"))
            if not when or surer:
                rows.append(_missing(when, after - before, least, quick=given.quick))
        notes = {
            "differences": report["differences"],
            "minutes": [round(one, 2) for one in minutes],
            "processor_minutes_of_whole_runs": [_minutes(run) for run in runs],
        }
        finish(name, rows, given, seeds=len(runs), rates=rates, **notes)
