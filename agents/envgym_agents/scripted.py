"""Agents without a model: a random one for any environment, and two for code repair with its legal calls listed.

They read the observation's text, `Step.legal` and the tools, nothing else. They are the floor (random, brute
force) and the teacher (expert) of learning experiments; none of them has seen a solution.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np

from envgym.env import Step
from envgym.messages import Action, ToolSpec
from envgym.policy import Reply
from envgym.task import Task
from envgym.testing.actions import sample_action

__all__ = ["BruteForce", "RandomAgent", "ScriptedExpert", "brute_force", "expert", "random_agent"]


def _reply(call: str) -> Reply:
    return Reply(action=Action.say(call))


_STREAM = 0xA6E47
"""An agent is given its world's seed; with another stream its draws tell nothing of what the world drew."""


class RandomAgent:
    """Uniform over the legal calls; where a step lists none, a random tool with arguments drawn from its schema.

    Raises ValueError at a step without legal calls when it was given no tools.
    """

    def __init__(self, seed: int, *, tools: Sequence[ToolSpec] = (), name: str = "agent") -> None:
        self.name = name
        self._tools = tuple(tools)
        self._rng = np.random.default_rng([seed, _STREAM])

    async def act(self, step: Step) -> Reply:
        """One call."""
        if step.legal:
            return _reply(step.legal[int(self._rng.integers(len(step.legal)))])
        if not self._tools:
            raise ValueError(
                "the step lists no legal calls, and this agent was given no tools to draw a call of: where answers "
                "are free words, choose another agent (an expert, lm, chat)"
            )
        return Reply(action=sample_action(step, self._tools, self._rng))

    def fork(self, *, seed: int) -> Self:
        """An agent that draws from `seed`."""
        return type(self)(seed, tools=self._tools, name=self.name)

    async def close(self) -> None:
        """It holds nothing."""


class BruteForce:
    """Every suggestion of every line, in the order listed, until the tests pass; the last guess goes untested."""

    def __init__(self, *, name: str = "agent") -> None:
        self.name = name

    async def act(self, step: Step) -> Reply:
        """The next call of the enumeration; the text tells only how the tests went."""
        legal = step.legal or ()
        if step.text.startswith("pass ") or (step.text.startswith("edited") and "test" not in legal):
            return _reply("submit")  # repaired, or the last guess: no test run is left to check it
        for call in ("localise", "test", "revert"):
            if call in legal:
                return _reply(call)
        return _reply(legal[0] if legal else "submit")

    def fork(self, *, seed: int) -> Self:
        """Itself again: what comes next depends on the step only."""
        return type(self)(name=self.name)

    async def close(self) -> None:
        """It holds nothing."""


class ScriptedExpert:
    """Localises, then tries fixes in a seeded random order until the tests pass; the last try goes untested.

    A line is drawn with a probability that falls by the factor `decay` with every place further down the list, a
    fix uniformly among those of its line. After a failing test the edit is taken back and another line is drawn;
    fixes that failed are not offered again. With probability `browse` it looks at another line before it tries
    anything on the one it has just read. When no test run is left, one more fix is drawn and submitted.
    It shows how to work, not what mistakes look like: that is left to be learned from outcomes.
    Raises ValueError for a `decay` outside (0, 1] or a `browse` outside [0, 1).
    """

    def __init__(self, seed: int, *, decay: float = 0.6, browse: float = 0.3, name: str = "agent") -> None:
        if not 0 < decay <= 1:
            raise ValueError(f"decay is {decay}; it must be in (0, 1]")
        if not 0 <= browse < 1:
            raise ValueError(f"browse is {browse}; it must be in [0, 1)")
        self.name = name
        self._decay = decay
        self._browse = browse
        self._rng = np.random.default_rng([seed, _STREAM])
        self._open: int | None = None
        self._drawn = False

    async def act(self, step: Step) -> Reply:
        """The next call."""
        legal = step.legal or ()
        if step.text.startswith("pass "):
            return _reply("submit")
        if step.text.startswith("edited"):
            return _reply("test" if "test" in legal else "submit")
        for call in ("localise", "revert"):
            if call in legal:
                return _reply(call)
        fixes = [call for call in legal if call.startswith("apply ")]
        lines = {int(call.split()[1]): call for call in legal if call.startswith("suggest ")}
        if self._open is not None and fixes and not self._drawn:
            lines[self._open] = ""  # the open line is not offered again, but may be drawn again
        if lines and (not self._drawn or self._rng.random() < self._browse):
            self._open, self._drawn = self._line(sorted(lines)), True
            if lines[self._open]:
                return _reply(lines[self._open])
        self._drawn = False
        return _reply(fixes[int(self._rng.integers(len(fixes)))] if fixes else "submit")

    def _line(self, numbers: list[int]) -> int:
        weights = np.array([self._decay ** (number - 1) for number in numbers])
        return numbers[int(self._rng.choice(len(numbers), p=weights / weights.sum()))]

    def fork(self, *, seed: int) -> Self:
        """The same agent with further draws from `seed`."""
        other = type(self)(seed, decay=self._decay, browse=self._browse, name=self.name)
        other._open, other._drawn = self._open, self._drawn
        return other

    async def close(self) -> None:
        """It holds nothing."""


def random_agent(task: Task, *, seed: int, tools: Sequence[ToolSpec] = ()) -> RandomAgent:
    """Takes a legal action at random; where none are listed, a call of a random tool."""
    return RandomAgent(seed, tools=tools)


def brute_force(task: Task, *, seed: int) -> BruteForce:
    """Code-repair, compact tools: tries every suggested fix, in the order listed."""
    return BruteForce()


def expert(task: Task, *, seed: int, decay: float = 0.6, browse: float = 0.3) -> ScriptedExpert:
    """Code-repair, compact tools: tries fixes of suspicious lines, the likeliest lines most often."""
    return ScriptedExpert(seed, decay=decay, browse=browse)
