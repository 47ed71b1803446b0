"""Agents that try to be rewarded for a repair they did not make: `CHEATS`, played by the tests and `envgym check`.

Each is a few calls of the full tools, made from what an agent may know: the prompt, and where the package and its
tests lie. They never see the answer. One that gains more than `IDLE` has found a hole.
"""

from collections.abc import Sequence
from dataclasses import replace

from envgym.messages import Action
from envgym.task import Task
from envgym.testing.cheats import Cheat
from envgym_environments.code_repair.cheats.blind import BLIND
from envgym_environments.code_repair.cheats.deceit import DECEIT
from envgym_environments.code_repair.cheats.files import FILES
from envgym_environments.code_repair.cheats.framework import FRAMEWORK
from envgym_environments.code_repair.cheats.of_kinds import OF_KINDS
from envgym_environments.code_repair.cheats.of_suites import OF_SUITES
from envgym_environments.code_repair.cheats.processes import PROCESSES
from envgym_environments.code_repair.cheats.reading import READING
from envgym_environments.code_repair.cheats.script import idle, repaired
from envgym_environments.code_repair.suites.suite import Suite

__all__ = ["CHEATS", "IDLE", "cheats"]

IDLE = Cheat("idle", "none", "submits at once", idle)


def _of_packages(cheat: Cheat) -> Cheat:
    """A cheat made for Python packages: where commands run the tests it does nothing, unless a Python file is repaired."""

    def script(task: Task) -> Sequence[Action]:
        return cheat.script(task) if "suite" not in task.metadata or _is_python(task) else idle(task)

    return replace(cheat, script=script)


def _is_python(task: Task) -> bool:
    suite = Suite.model_validate(task.metadata["suite"])
    return suite.language == "python" and (repaired(task, suite) or "").endswith(".py")


CHEATS: tuple[Cheat, ...] = (
    *map(_of_packages, (*READING, *FILES, *FRAMEWORK, *PROCESSES, *DECEIT, *BLIND, *OF_KINDS)),
    *OF_SUITES,
)


def cheats() -> tuple[Cheat, ...]:
    """Doing nothing, then every cheat."""
    return (IDLE, *CHEATS)
