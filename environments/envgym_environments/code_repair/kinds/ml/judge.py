"""How a program is judged: it learns from tables that did not exist before, and its predictions are scored outside.

The sandbox never holds the targets that count. The program is called stage by stage, and each stage that did what
it should is a milestone, with the seconds it took. (Yang et al., "Reinforcement Learning for Machine Learning
Engineering Agents", arXiv 2509.01684: progress within a program gives partial credit, and actions of different
duration are weighed by it.)
"""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from envgym.errors import GraderFailure
from envgym.sandbox import Shell
from envgym_environments.code_repair.kinds.measured.play import Told, run_jobs
from envgym_environments.code_repair.kinds.measured.states import answer_of, changed
from envgym_environments.code_repair.kinds.ml.data import Drawing, draw, score_of, score_of_constant
from envgym_environments.code_repair.trials import Trials

__all__ = ["LEAST_GAP", "MILESTONES", "Ran", "judge_program", "ran", "share_of"]

TRAIN, TEST = "data/train.csv", "data/test.csv"
MILESTONES = ("started", "loaded", "trained", "predicted")
"""started: the program was imported. loaded: it gave the targets of the table. trained: what it learnt says more of
the rows it learnt from than one answer for all. predicted: it gave a prediction of the right kind for every row."""
_DRAWINGS, _MOST_DRAWN = 3, 5
LEAST_GAP = 0.05
"""How far above the floor an answer's score has to be for data to be of use."""
_LIMIT_S = 60.0
_LEAST_SHARE = 0.25
_SOLVED = 0.8

_SCRIPT = """
import importlib, os, sys

sys.path.insert(0, os.getcwd())


def plain(values):
    found = []
    for one in values:
        one = one.item() if hasattr(one, "item") else one
        found.append(one if type(one) in (str, int, float) else str(one))
    return found


program = importlib.import_module("program")
say("started")
features, targets = program.load(job["train"])
say("loaded", plain(targets))
model = program.train(features, targets)
say("trained", plain(program.predict(model, features)))
features, _ = program.load(job["test"])
say("predicted", plain(program.predict(model, features)))
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a program. reached: milestones, in order. seconds: of each that was reached. score: None for none.

    late: it was stopped. error: what it raised.
    """

    reached: tuple[str, ...]
    seconds: Mapping[str, float]
    score: float | None
    late: bool
    error: str = ""


async def ran(sandbox: Shell, drawing: Drawing) -> Ran:
    """Lay the tables over and run the sandbox's program on them."""
    await sandbox.write(TRAIN, drawing.train.encode())
    await sandbox.write(TEST, drawing.test.encode())
    job = {"train": TRAIN, "test": TEST}
    (told,) = await run_jobs(sandbox, _SCRIPT, [job], source_root=".", limit_s=_LIMIT_S, alone=False)
    return _ran(told, drawing)


def _ran(told: Told, drawing: Drawing) -> Ran:
    score = score_of(drawing.test_targets, _said(told, "predicted"), numeric=drawing.numeric)
    fitted = score_of(drawing.train_targets, _said(told, "trained"), numeric=drawing.numeric)
    constant = 0.0 if drawing.numeric else 1.0 / len(set(drawing.train_targets))
    held = {
        "started": told.first("started") is not None,
        "loaded": _loaded(drawing, _said(told, "loaded")),
        "trained": fitted is not None and fitted > constant,
        "predicted": score is not None,
    }
    reached: list[str] = []
    for name in MILESTONES:
        if not held[name]:
            break
        reached.append(name)
    ends = [0.0, *(told.seconds(name) or 0.0 for name in reached)]
    seconds = {name: max(0.0, ends[at + 1] - ends[at]) for at, name in enumerate(reached)}
    error = told.first("error")
    complete = tuple(reached) == MILESTONES and told.ok
    return Ran(tuple(reached), seconds, score if complete else None, told.late, str(error[0]) if error else "")


def _said(told: Told, name: str) -> Any:
    found = told.first(name)
    return found[0] if found else None


def _loaded(drawing: Drawing, said: Any) -> bool:
    """Whether it read the targets as they are, as texts or as numbers."""
    if not isinstance(said, list) or len(said) != len(drawing.train_targets):
        return False
    if not drawing.numeric:
        return tuple(said) == drawing.train_targets
    try:
        pairs = zip(said, drawing.train_targets, strict=True)
        return all(math.isclose(float(one), float(target), abs_tol=1e-6) for one, target in pairs)
    except (TypeError, ValueError, OverflowError):
        return False


def share_of(mine: float | None, floor: float, best: float) -> float:
    """How much of the way from the floor to the answer's score a score goes, from 0 to 1."""
    if mine is None or best <= floor:
        return 0.0
    return round(min(1.0, max(0.0, (mine - floor) / (best - floor))), 6)


async def judge_program(trials: Trials, files: Any, verdict: Any) -> tuple[dict[str, float], bool]:
    """See `judges.Judge`. reward = the mean share over three drawings of rule and data, 0 below a quarter.

    The floor of a share is the better of the task's own program and of one answer for all rows. milestones: the
    share of those that every run reached; seconds_NAME: how long each took, at most. resolved: a share of 0.8.
    """
    if not files:
        return {}, True
    shares, runs = list[float](), list[Ran]()
    answer = await answer_of(trials)
    for _ in range(_DRAWINGS):
        drawing, floor, best = await _apart(trials, answer)
        mine = await _state(trials, files, drawing)
        runs.append(mine)
        if mine.score is None:
            break
        shares.append(share_of(mine.score, floor, best))
    return _channels(shares, runs), False


async def _apart(trials: Trials, answer: Mapping[str, str | None]) -> tuple[Drawing, float, float]:
    """(a drawing, floor, the answer's score), drawn until there is something to learn. Raises GraderFailure."""
    goal: Any = trials.task.metadata["goal"]
    for _ in range(_MOST_DRAWN):
        drawing = draw(goal["family"], goal["level"], secrets.randbits(96))
        best, start = await _state(trials, answer, drawing), await _state(trials, {}, drawing)
        floor = max(score_of_constant(drawing), start.score or 0.0)
        if best.score is not None and best.score - floor >= LEAST_GAP:
            return drawing, floor, best.score
    raise GraderFailure(f"the answer of task {trials.task.id!r} is no better than nothing here: {best.error}")


async def _state(trials: Trials, files: Mapping[str, str | None], drawing: Drawing) -> Ran:
    async with changed(trials, files) as sandbox:
        return await ran(sandbox, drawing)


def _channels(shares: list[float], runs: list[Ran]) -> dict[str, float]:
    share = fmean(shares) if len(shares) == _DRAWINGS else 0.0
    reached = {name: float(all(name in run.reached for run in runs)) for name in MILESTONES}
    found = {f"milestone_{name}": value for name, value in reached.items()}
    found["milestones"] = fmean(reached.values())
    found |= {f"seconds_{name}": max(run.seconds.get(name, 0.0) for run in runs) for name in MILESTONES}
    found |= {"share": share, "timeout": float(any(run.late for run in runs))}
    found["reward"] = share if share >= _LEAST_SHARE else 0.0
    solved = float(share >= _SOLVED)
    return {**found, "resolved": solved, "success": solved, "f2p": solved, "p2p": solved}
