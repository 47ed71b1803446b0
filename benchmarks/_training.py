"""Training runs with several seeds, and success before and after reinforcement learning, as rows.

A run that is finished in the folder is taken as it is, one that was stopped goes on.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _harness import Row, finish, options, scratch_folder
from envgym_agents.learn.pool import report_runs

__all__ = ["arms_beside", "envgym", "play_arms", "preset_learns", "settings"]

_PROCESSOR = "processor_s.json"


def envgym(*arguments: str) -> None:
    """The command, as a person would give it. Raises CalledProcessError."""
    subprocess.run([sys.executable, "-c", "from envgym.cli import main; main()", *arguments], check=True)


def settings(*given: str) -> list[str]:
    """Settings as the command takes them."""
    return [word for one in given for word in ("--set", one)]


def play_arms(place: Path, seeds: Sequence[int], arms: Mapping[str, Sequence[str]], common: Sequence[str]) -> None:
    """Train one run of each arm and seed, which differ in the settings of `[reinforce]` that an arm names."""
    for seed in seeds:
        for arm, given in arms.items():
            run = place / f"{arm}-{seed}"
            if not (run / "report.json").exists():
                said = settings(*(f"reinforce.{one}" for one in given))
                resume = ["--resume"] * (run / "config.json").exists()
                envgym("train", *common, *said, "--seed", str(seed), "--out", str(run), *resume)


def arms_beside(
    place: Path, seeds: Sequence[int], arms: Mapping[str, Sequence[str]], reference: str
) -> tuple[list[Row], dict[str, Any]]:
    """Success of every arm beside that of the reference, which is beside what it began with; and what each did."""
    runs = {arm: [place / f"{arm}-{seed}" for seed in seeds] for arm in arms}
    rows, found = [], dict[str, Any]()
    for arm in sorted(arms, key=lambda arm: arm != reference):
        report = report_runs(runs[arm], None, against=() if arm == reference else runs[reference])
        rates = _rates(report)
        stored = [json.loads((path / "report.json").read_text())["reinforce"] for path in runs[arm]]
        found[arm] = {
            "settings": arms[arm],
            "rates": {one["name"]: [one["success"], one["low"], one["high"]] for one in report["evaluations"]},
            "differences": report["differences"],
            "tokens": [one["tokens"] for one in stored],
            "minutes": [round(one["seconds"] / 60, 2) for one in stored],
        }
        for name in (name for name in ("after RL", "after RL, greedy") if name in rates):
            if arm == reference:
                beside, whose = rates[name.replace("after", "before")], "before RL"
            else:
                beside, whose = found[reference]["rates"][name][0], reference
            rows.append(Row(f"{arm}, {name}", rates[name], beside, whose, "share"))
    for arm, one in found.items():
        print(f"{arm}: {statistics.median(one['minutes']):.1f} minutes of RL a run")
        for name, change in one["differences"].items():
            print(f"  {name}: {change['mean']:+.3f} ({change['low']:+.3f} .. {change['high']:+.3f})")
    return rows, found


def _trained(preset: str, run: Path, seed: int, given: Sequence[str]) -> Path:
    """The folder of one seed's run, which is finished afterwards."""
    if not (run / "report.json").exists():
        resume = ["--resume"] * (run / "config.json").exists()
        begun = _processor_s()
        envgym("train", "--preset", preset, "--seed", str(seed), "--out", str(run), *settings(*given), *resume)
        if not resume:  # of one that was stopped this is a part
            (run / _PROCESSOR).write_text(json.dumps(_processor_s() - begun))
    return run


def _imitated(preset: str, learned: Path, seed: int, given: Sequence[str]) -> Path:
    """A run that imitates the same episodes on in RL's place, for as many updates as RL makes at most."""
    config = json.loads((learned / "config.json").read_text())
    own = config["reinforce"]
    updates = config["warm_start"]["max_updates"] + own["steps"] * own["epochs"] * own["minibatches"]
    bounds = [f"warm_start.{name}={updates}" for name in ("min_updates", "max_updates")]
    run = learned.with_name(f"{learned.name}-imitated")
    return _trained(preset, run, seed, (*given, *bounds, "reinforce.steps=0"))


def _processor_s() -> float:
    """Seconds of processors that the programs which ended were given."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _minutes(run: Path) -> float | None:
    """Minutes of processors of a run with all its stages, where this benchmark made it and saw its end."""
    said = run / _PROCESSOR
    return round(json.loads(said.read_text()) / 60, 2) if said.exists() else None


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=Path, help="where runs are kept, and found again (default: nowhere)")
    parser.add_argument("--seeds", type=int, default=3)


def _rates(report: dict[str, Any]) -> dict[str, float]:
    return {one["name"]: one["success"] for one in report["evaluations"]}


def _missing(least: float, gain: float, when: str, *, quick: bool) -> Row:
    """What is missing to the bar: nothing where the gain is large enough."""
    bar = None if quick else 0.0
    name = f"missing to a gain of {least:.2f}{when}"
    return Row(name, max(0.0, least - gain), gain, "gain", "share", bar, absolute=True)


def _time_row(runs: Sequence[Path], others: Sequence[Path], within_min: float | None) -> list[Row]:
    """The longest whole run, beside the longest that only imitates; none where a run's time is not known."""
    ours, theirs = ([_minutes(run) for run in some] for some in (runs, others))
    if None in ours or None in theirs:
        return []
    longest, beside = (max((one for one in some if one), default=0.0) for some in (ours, theirs))
    name = "processor time of a whole run, the longest"
    return [Row(name, longest, beside, "as much more imitation", "min", within_min, absolute=True)]


def preset_learns(
    name: str, preset: str, doc: str, *, quick: Sequence[str], least: float, imitate: bool = False,
    within_min: float | None = None,
) -> None:  # fmt: skip
    """The whole benchmark `name`. quick: settings of a run with --quick.

    least: the bar of the mean gain in success, as it is sampled and greedy too: a policy that has only become surer
    of itself gains nothing there. imitate: whether a run of each seed that imitates on instead, for as many updates
    as RL makes, stands beside it. within_min: the bar of the processor time of a whole run, minutes.
    """
    given = options(doc, more=_more)
    with scratch_folder() as scratch:
        place = given.runs or scratch
        place.mkdir(parents=True, exist_ok=True)
        own, seeds = (quick, range(1)) if given.quick else ((), range(given.seeds))
        runs = [_trained(preset, place / f"seed-{seed}", seed, own) for seed in seeds]
        others = [_imitated(preset, runs[seed], seed, own) for seed in seeds] if imitate else []
        report = report_runs(runs, None, against=others)
        rates, beside = _rates(report), _rates(report_runs(others, None)) if others else {}
        rows = []
        for when in ("", ", greedy"):
            after, before = rates[f"after RL{when}"], rates[f"before RL{when}"]
            rows.append(Row(f"success after RL{when}", after, before, "before RL", "share"))
            if others:
                more = beside[f"before RL{when}"]  # there RL is no step long
                rows.append(Row(f"success after RL{when}", after, more, "as much more imitation", "share"))
            rows.append(_missing(least, after - before, when, quick=given.quick))
        rows += _time_row(runs, others, None if given.quick else within_min)
        found = {run.name: json.loads((run / "report.json").read_text()) for run in (*runs, *others)}
        notes = {
            "differences": report["differences"],
            "by_run": {run: _rates(one) for run, one in found.items()},
            "minutes": {run: round(one["reinforce"]["seconds"] / 60, 2) for run, one in found.items()},
            "processor_minutes_of_whole_runs": {run.name: _minutes(run) for run in (*runs, *others)},
        }
        finish(name, rows, given, seeds=len(runs), rates=rates, imitated=beside, **notes)
