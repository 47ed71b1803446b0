"""`python`: tasks drawn without end, half of maths and half of data, and the environment's registration."""

import contextlib
import io
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

from envgym.env import Step
from envgym.messages import Action
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym_environments.experts import expert_of
from envgym_environments.played import draws, lazy_tasks
from envgym_environments.splits import of_split
from envgym_environments.tool.python.maths import MATHS
from envgym_environments.tool.python.play import PythonEnv
from envgym_environments.tool.python.tables import draw_table
from envgym_environments.words import pick

__all__ = ["SPEC", "expert", "python_tasks"]

Topic = Literal["maths", "data", "both"]


def python_tasks(
    count: int | None = 1000, *, topic: Topic = "both", difficulty: int | None = None, seed: int = 0
) -> TaskSet:
    """`count` tasks (None: without end). difficulty: 1 to 5, None takes all in turn; every fifth is held out.

    No training task asks what a held-out one asks. Raises ValueError for another topic, a difficulty out of bounds
    or a count below one.
    """
    if topic not in ("maths", "data", "both"):
        raise ValueError(f"topic is {topic!r}; it must be 'maths', 'data' or 'both'")
    if difficulty is not None and not 1 <= difficulty <= 5:
        raise ValueError(f"difficulty is {difficulty}; it must be 1 to 5, or None for all in turn")

    def make(index: int, split: str) -> Task:
        level = difficulty or 1 + (index + index // 5) % 5
        kind = topic if topic != "both" else ("maths", "data")[(index // 2 + index) % 2]
        question, program, data, answer = _drawn(kind, level, (seed, index), split)
        return Task(
            id=f"python/{seed}/{kind}/{level}/{index}",
            prompt=f"{question}\nCompute it with the tool python, then give the answer.",
            split=split,
            seed=index,
            metadata={"difficulty": level, "program": program, "data": data, "answer": answer},
        )

    return lazy_tasks(make, count)


@lru_cache(maxsize=4096)
def _drawn(kind: str, level: int, at: tuple[int, int], split: str) -> tuple[str, str, str, str]:
    rng = draws(*at, level, 0x97)
    if kind == "data":  # no two tables are alike
        question, program, data = draw_table(rng, level)
    else:
        drawn = of_split(split, lambda _: pick(rng, MATHS)(rng, level), lambda problem: problem[0])
        (question, program), data = drawn, ""
    return question, program, data, _printed(program, data)


def _printed(program: str, data: str) -> str:
    """The last line that one of our own programs prints."""
    printed = io.StringIO()
    opened: Callable[[str], io.StringIO] = lambda name: io.StringIO(data)  # noqa: E731
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "problem", "exec"), {"open": opened})
    return printed.getvalue().split("\n")[-2]


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """Run the task's own program, then say what it printed."""
    if len(seen) == 1:
        return Action.call("python", code=str(task.metadata["program"]))
    return Action.call("answer", value=seen[-1].text.strip().splitlines()[-1])


expert = expert_of(_decide)


def _make(task: Task, **options: Any) -> PythonEnv:
    return PythonEnv(task, **options)


SPEC = EnvSpec(
    name="python",
    tasks=python_tasks,
    make=_make,
    description="Maths and data problems with a Python interpreter whose state persists and forks.",
    sandbox=True,
)
