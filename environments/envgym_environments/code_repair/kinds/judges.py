"""What decides beside the tests, by kind; a kind that is not here is judged by its tests alone.

A judge gets the task's trials, the files that a submission changes, and the tests' own verdict as a function; it
gives channels, and whether they repeat. It runs inside the grader and never sees the agent.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from envgym_environments.code_repair.kinds.debugging import judge_debugging
from envgym_environments.code_repair.kinds.ml.judge import judge_program
from envgym_environments.code_repair.kinds.refactoring import judge_refactoring
from envgym_environments.code_repair.kinds.speed import judge_speed
from envgym_environments.code_repair.kinds.test_writing import judge_tests
from envgym_environments.code_repair.trials import Trials

__all__ = ["JUDGES", "Changed", "Judge", "TestsVerdict"]

Changed = Mapping[str, str | None]
"""Path -> new text (None: deleted) of the files of a submission that count."""
Found = tuple[dict[str, float], bool]
TestsVerdict = Callable[[Trials, Changed], Awaitable[Found]]


class Judge(Protocol):
    """Judges one submission."""

    async def __call__(self, trials: Trials, changed: Changed, verdict: TestsVerdict, /) -> Found:
        """The channels that are not 0, and whether a busier machine would give the same."""
        ...


JUDGES: dict[str, Judge] = {
    "tests": judge_tests,
    "refactor": judge_refactoring,
    "debug": judge_debugging,
    "speed": judge_speed,
    "ml": judge_program,
}
