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
from envgym_environments.code_repair.cheats.script import idle

__all__ = ["CHEATS", "IDLE", "cheats"]

IDLE = Cheat("idle", "none", "submits at once", idle)


def _of_packages(cheat: Cheat) -> Cheat:
    """A cheat that knows a Python package's layout; it does nothing where commands run the tests."""

    def script(task: Task) -> Sequence[Action]:
        return idle(task) if "suite" in task.metadata else cheat.script(task)

    return replace(cheat, script=script)


CHEATS: tuple[Cheat, ...] = (
    *map(_of_packages, (*READING, *FILES, *FRAMEWORK, *PROCESSES, *DECEIT, *BLIND, *OF_KINDS)),
    *OF_SUITES,
)


def cheats() -> tuple[Cheat, ...]:
    """Doing nothing, then every cheat."""
    return (IDLE, *CHEATS)
