"""Branch a data analysis where it matters: prepare once, try models from the same state, go on with the best.

The branches share all that was prepared, random split included, so that nothing but the choice differs; what a
branch does to the data, its siblings never see. It needs a sandbox backend (``envgym doctor``).
Run it: ``python examples/sandboxed_branches.py``
"""

import asyncio
import math
import random

from envgym import CellResult, Interpreter, World, make_backend, open_interpreter

PREPARE = """
import csv, random, statistics
rows = [(float(row["x"]), float(row["y"])) for row in csv.DictReader(open("readings.csv"))]
random.seed(0)
random.shuffle(rows)
train, held_out = rows[:150], rows[150:]
def error(predict):
    return statistics.median(abs(predict(x) - y) for x, y in held_out)
"""
MODELS = {
    "mean": "mean = statistics.fmean(y for _, y in train)\npredict = lambda x: mean",
    "line": "fit = statistics.linear_regression(*zip(*train))\npredict = lambda x: fit.slope * x + fit.intercept",
    "line without outliers": """
middle = statistics.median(y for _, y in train)
train[:] = [(x, y) for x, y in train if abs(y - middle) < 10]  # in place: only this branch loses them
fit = statistics.linear_regression(*zip(*train))
predict = lambda x: fit.slope * x + fit.intercept
""",
    "neighbours": """
predict = lambda x: statistics.fmean(y for _, y in sorted(train, key=lambda row: abs(row[0] - x))[:9])
""",
    "a mistake": "import os; train.clear(); os._exit(1)",
}


def readings(seed: int) -> str:
    """A wave on a slope, and some readings that went wrong."""
    rng = random.Random(seed)
    points = [(x / 20, math.sin(x / 20) * 3 + x / 50 + rng.gauss(0, 0.2)) for x in range(200)]
    points = [(x, y + (40 if rng.random() < 0.05 else 0)) for x, y in points]
    return "x,y\n" + "".join(f"{x},{y}\n" for x, y in points)


def checked(result: CellResult) -> CellResult:
    if result.error is not None:
        raise RuntimeError(result.text)
    return result


async def tried(base: Interpreter, model: str) -> tuple[Interpreter, float]:
    """A branch in which a model was fitted, and its error; a branch that fails is where it was, without a model."""
    branch = await base.fork()
    result = await branch.run(model)
    score = await branch.run("error(predict)")
    return branch, math.inf if result.error or score.value is None else float(score.value)


async def main() -> None:
    world = World(files={"/work/readings.csv": readings(seed=1)})
    async with (
        make_backend("auto") as backend,
        await backend.create(world) as sandbox,
        await open_interpreter(sandbox, preload=("statistics", "csv")) as base,
    ):
        checked(await base.run(PREPARE))
        found = await asyncio.gather(*(tried(base, model) for model in MODELS.values()))
        for name, (branch, score) in zip(MODELS, found, strict=True):
            left = checked(await branch.run("len(train)")).value
            print(f"{name:22} median error {score:6.2f}, {left} readings to learn from")
        best, _score = min(found, key=lambda one: one[1])
        report = "print(f'the best one goes on: at x = 5 it says {predict(5):.2f}')"
        print(checked(await best.run(report)).stdout, end="")
        for branch, _score in found:
            await branch.close()


if __name__ == "__main__":
    asyncio.run(main())
