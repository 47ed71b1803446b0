"""Machine-learning programs: one that is weak has to be improved, or one that lacks stages to be completed."""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from envgym.sandbox import Sandbox
from envgym_environments.code_repair.baseline import Baseline
from envgym_environments.code_repair.judge import Plan, Verdict
from envgym_environments.code_repair.kinds.classes import hollow
from envgym_environments.code_repair.kinds.contract import Draft, Place, Seen
from envgym_environments.code_repair.kinds.ml.data import LEVELS, draw, score_of_constant
from envgym_environments.code_repair.kinds.ml.judge import LEAST_GAP, TEST, TRAIN, ran
from envgym_environments.code_repair.kinds.ml.tree import program, tree_files
from envgym_environments.code_repair.runner import Layout

__all__ = ["MachineLearning"]

PROGRAM = "program.py"
_MISSING: Mapping[str, tuple[str, ...]] = {
    "improve": (),
    "predict": ("predict",),
    "learn": ("train", "predict"),
    "write": ("load", "train", "predict"),
}
"""What is asked -> functions whose bodies are gone."""
_PROOFS = 2


class MachineLearning:
    """See `contract.Kind`. A place is what is asked (its form), a family of data, a level and a seed."""

    name = "ml"

    def places(self, tree: Path, baseline: Baseline, plan: Plan) -> Sequence[Place]:
        """Everything that can be asked of a family, as often as tasks are wanted; none of other packages."""
        name = baseline.package.name
        if baseline.package.origin != "builtin":
            return []
        kinds = [(asked, level) for asked in _MISSING for level in LEVELS]
        times = -(-plan.per_package // len(kinds))
        rng = np.random.default_rng([plan.seed, int(baseline.package.sha256[:12], 16)])
        return [
            {
                "form": asked,
                "path": PROGRAM,
                "family": name.removeprefix("ml-"),
                "level": level,
                "data": int(rng.integers(2**32)),
            }
            for _ in range(times)
            for asked, level in kinds
        ]

    async def prove(
        self, base: Sandbox, baseline: Baseline, tree: Path, place: Place, plan: Plan
    ) -> Seen | Verdict:
        """The answer's program is better than the task's own and than one answer for all rows, each time."""
        family, scores = place["family"], list[tuple[float, float]]()
        for number in range(_PROOFS):
            drawing = draw(family, place["level"], place["data"] + number)
            found: list[float | None] = []
            for text in (program(family, "answer"), _task_text(place)):
                async with await base.fork() as fork:
                    await fork.write(PROGRAM, text.encode())
                    found.append((await ran(fork, drawing)).score)
            best, start = found
            floor = max(score_of_constant(drawing), start or 0.0)
            if best is None or best - floor < LEAST_GAP:
                return Verdict.NOT_RESTORED
            scores.append((round(floor, 4), round(best, 4)))
        return {
            "fail_to_pass": [],
            "pass_to_pass": [],
            "tests": len(baseline.tests),
            "floor": scores[0][0],
            "best": scores[0][1],
        }

    def draft(self, tree: Path, layout: Layout, place: Place, seen: Seen) -> Draft:
        """The program as it is, and tables to look at. Raises ValueError for a family that there is not."""
        family, level = str(place["family"]), int(place["level"])
        tree_files(f"ml-{family}")
        drawing = draw(family, level, place["data"])
        answer = program(family, "answer")
        return Draft(
            name=f"{family}-{place['form']}-{level}",
            prompt=_prompt(place, seen),
            before={PROGRAM: _task_text(place), TRAIN: drawing.train, TEST: drawing.test},
            answer={PROGRAM: answer},
            goal={"family": family, "level": level},
            writes=(PROGRAM,),
            size={
                "level": float(level),
                "missing": float(len(_MISSING[place["form"]])),
                "gap": float(seen["best"] - seen["floor"]),
            },
        )


def _task_text(place: Place) -> str:
    """The program that the agent gets."""
    missing = _MISSING[place["form"]]
    text = program(place["family"], "answer" if missing else "start")
    if not missing:
        return text
    if len(missing) == len(_MISSING["write"]):
        text = program(place["family"], "start")  # nothing of the answer's helpers is left to read
    tree = ast.parse(text)
    gone = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name in missing]
    emptied = hollow(text, ast.Module(body=list(gone), type_ignores=[]))
    assert emptied is not None, "no function of ours stands on one line"
    return emptied


def _prompt(place: Place, seen: Seen) -> str:
    missing = _MISSING[place["form"]]
    task = f"Write {', '.join(f'`{one}`' for one in missing)} of" if missing else "Improve"
    lines = [f"{task} {PROGRAM}, which learns from {TRAIN} to predict the column `target` of {TEST}."]
    measure = "share of variance that it explains" if place["family"] == "series" else "share of right predictions"
    if seen["issue"] != "symptom":
        lines.append(
            f"Its {measure} should be near to {seen['best']:.2f}; "
            f"{'the best constant reaches' if missing else 'it is now at most'} {seen['floor']:.2f}."
        )
    if seen["issue"] == "full":
        lines += [
            "",
            "`load(path)` gives features and targets (None where there are none), `train(features, targets)` a "
            "model, `predict(model, features)` one prediction a row, as the targets are written"
            f"{' but as numbers' if place['family'] == 'series' else ''}. They are called in that order.",
        ]
    lines += [
        "",
        "The program is judged, not what it predicts here: it is run on other tables of this kind, of which rule "
        "and rows are drawn anew, and what it predicts is compared with targets that it cannot see. Python's "
        f"standard library and numpy are there. Only {PROGRAM} and mlwork count; it may take a minute.",
    ]
    return "\n".join(lines)
