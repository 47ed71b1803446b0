"""Players without a model, for tests and as a floor: an injector that breaks a line, solvers that try it back.

They know nothing of each other but what the world tells them. A solver has the `skill` to go on until a test run is
clean, or gives up at once; so the share of solvers that succeed lies where that option puts it.
"""

import re
from collections.abc import Iterator
from typing import Self

import numpy as np

from envgym.env import Step
from envgym.episode import Turn
from envgym.messages import Action
from envgym.policy import Reply
from envgym.task import Task
from envgym_environments.code_repair.self_play.prompts import INJECT, REPAIR

__all__ = ["ScriptedPlayer", "scripted_player"]

_SWAPS = (
    (" == ", " != "), (" < ", " > "), (" + ", " - "), (" += ", " -= "), (" and ", " or "),
    ("return True", "return False"), ("max(", "min("),
)  # fmt: skip
_BOTH = (*_SWAPS, *((wrong, right) for right, wrong in _SWAPS))
_STREAM = 0x55E1F


def _rows(text: str) -> list[str]:
    """The code of a view's numbered rows."""
    return [row[6:] for row in text.split("\n") if re.match(r" *\d+ ", row)]


class ScriptedPlayer:
    """Plays whichever role its first observation names. skill: how likely a solver is to try at all."""

    def __init__(self, seed: int, *, skill: float = 0.5, name: str = "agent") -> None:
        if not 0 <= skill <= 1:
            raise ValueError(f"skill is {skill}; it is a probability, from 0 to 1")
        self.name = name
        self._skill, self._seed = skill, seed
        self._rng = np.random.default_rng([seed, _STREAM])
        self._heard: list[Step] = []
        self._calls: Iterator[Action] | None = None

    async def act(self, step: Step) -> Reply:
        """The next call."""
        return Reply(self._next(step))

    def recall(self, step: Step, turn: Turn) -> None:
        """See `envgym.regain.Recalling`: what it said follows from what it heard."""
        if self._next(step) != turn.action:
            raise ValueError("a scripted player cannot have said this")

    def _next(self, step: Step) -> Action:
        first = step.text
        if self._calls is None or (first.startswith(INJECT) and "Answer anything" in first):
            self._calls = self._inject() if first.startswith(INJECT) and not self._calls else self._repair()
            if first.startswith(INJECT) and "Answer anything" in first:
                self._calls = iter((Action.say("done"),))
        self._heard.append(step)
        return next(self._calls, Action.call("submit"))

    @property
    def _last(self) -> str:
        return self._heard[-1].text

    def _inject(self) -> Iterator[Action]:
        """Break one line of the package so that a test fails, and rename the tests that do."""
        prompt = self._last
        package = re.findall(r"^The package's code is in (\S+)\. ", prompt, re.MULTILINE)[-1]
        yield Action.call("list_files", path=package)
        files = [name for name in self._last.split("\n") if name.endswith(".py")]
        for number in self._rng.permutation(len(files)):
            path = files[int(number)]
            yield Action.call("view", path=path)
            for old, new in self._edits(_rows(self._last), _SWAPS):
                yield Action.call("edit", path=path, old=old, new=new)
                if not self._last.startswith("edited"):
                    continue
                yield Action.call("run_tests")
                failing = re.findall(r"^(\S+)::(\w+)(?:\[.*)?$", self._last, re.MULTILINE)
                if not failing or " 0 failed" in self._last or "not confirmed" in self._last:
                    yield Action.call("undo")
                    continue
                for file, test in dict.fromkeys(failing):
                    yield Action.call("shell", command=f"sed -i 's/def {test}(/def once_{test}(/' {file}")
                yield Action.call("submit", test_files=" ".join(dict.fromkeys(file for file, _ in failing)))
                return

    def _repair(self) -> Iterator[Action]:
        """Put the tests back, then undo what may have been swapped, until they pass."""
        prompt = self._last
        if not prompt.startswith(REPAIR) or self._rng.random() >= self._skill:
            yield Action.call("edit", path="notes.py", old="", new="# gave up\n")
            return
        package = re.findall(r"^Repair the package's code in (\S+), so", prompt, re.MULTILINE)[-1]
        tests = dict.fromkeys(re.findall(r"^\+\+\+ b/(\S+)", prompt, re.MULTILINE))
        for file in tests:
            yield Action.call("shell", command=f"sed -i 's/def once_test_/def test_/' {file}")
        yield Action.call("list_files", path=package)
        files = [name for name in self._last.split("\n") if name.endswith(".py")]
        for path in files:
            yield Action.call("view", path=path)
            for old, new in self._edits(_rows(self._last), _BOTH):
                yield Action.call("edit", path=path, old=old, new=new)
                if not self._last.startswith("edited"):
                    continue
                yield Action.call("run_tests", selection=" ".join(tests))
                if " 0 failed" in self._last and not self._last.startswith("0 passed"):
                    return
                yield Action.call("undo")

    def _edits(self, rows: list[str], swaps: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
        """Single lines with one swap, in a random order."""
        found = [
            (row, row.replace(old, new, 1))
            for row in dict.fromkeys(rows)
            for old, new in swaps
            if old in row and not row.lstrip().startswith(("#", "def ", "class ", '"""'))
        ]
        return [found[int(place)] for place in self._rng.permutation(len(found))]

    def fork(self, *, seed: int) -> Self:
        """A player that draws from `seed` and heard the same."""
        other = type(self)(seed, skill=self._skill, name=self.name)
        for step in self._heard:
            other._next(step)
        return other

    async def close(self) -> None:
        """It holds nothing."""


def scripted_player(task: Task, *, seed: int, skill: float = 0.5) -> ScriptedPlayer:
    """Self-play: breaks a line and hides it from the tests; repairs by trying swaps, with probability `skill`."""
    return ScriptedPlayer(seed, skill=skill)
