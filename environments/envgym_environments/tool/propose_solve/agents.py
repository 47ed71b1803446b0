"""A player without a model: proposes programs that it knows, and solves those with the probability `skill`.

It is a floor and what tests play with. It runs nothing but the library's own programs.
"""

import re
from typing import Any

import numpy as np
from pydantic import JsonValue

from envgym.env import Step
from envgym.messages import Action
from envgym.policy import Reply
from envgym.task import Task
from envgym_environments.tool.propose_solve.library import LIBRARY, Sample
from envgym_environments.tool.propose_solve.programs import literal
from envgym_environments.tool.propose_solve.prompts import ASKED

__all__ = ["KnowingPlayer", "expert", "scripted_player"]

_STREAM = 0xA2A2


class KnowingPlayer:
    """Plays whichever role its observation names."""

    def __init__(self, seed: int, *, skill: float, name: str = "agent") -> None:
        if not 0 <= skill <= 1:
            raise ValueError(f"skill is {skill}; it is a probability, from 0 to 1")
        self.name = name
        self._skill, self._seed = skill, seed

    async def act(self, step: Step) -> Reply:
        """The one call that is asked for; it depends on what is seen and on the seed alone."""
        rng = np.random.default_rng([self._seed, _STREAM])
        text = step.text
        if text.startswith("You propose"):
            return Reply(self._propose(text, rng))
        if not text.startswith(tuple(ASKED.values())):
            return Reply(Action.say("done"))
        value = _solution(text) if rng.random() < self._skill else "None"
        return Reply(Action.call("answer", value=value))

    def _propose(self, text: str, rng: np.random.Generator) -> Action:
        known = LIBRARY[int(rng.integers(len(LIBRARY)))]
        if "task of induction" in text:
            asked = text.partition("\n\nYou earn")[0]
            shown = next((one for one in LIBRARY if one.program.strip() in asked), known)
            inputs: list[JsonValue] = [given[1:-1].rstrip(",") for given in shown.inputs]
            return Action.call("propose_inputs", inputs=inputs, message=shown.message)
        given = known.inputs[int(rng.integers(len(known.inputs)))]
        return Action.call("propose", program=known.program, input=given[1:-1].rstrip(","))

    def fork(self, *, seed: int) -> "KnowingPlayer":
        """A player that draws from `seed`."""
        return KnowingPlayer(seed, skill=self._skill, name=self.name)

    async def close(self) -> None:
        """It holds nothing."""


def _solution(text: str) -> str:
    """The right answer where the program is known; for an induction whichever known one fits the examples."""
    if text.startswith(ASKED["induction"]):
        rows = re.findall(r"^f(\(.*\)) -> (.*)$", text, re.MULTILINE)
        fits = [one for one in LIBRARY if rows and all(_gives(one, given) == literal(want) for given, want in rows)]
        return fits[0].program if fits else "None"
    one = next((one for one in LIBRARY if one.program in text), None)
    if one is None:
        return "None"
    what = text[text.index(one.program) + len(one.program) :].split("\n")
    shown = next(line for line in what if line.startswith(("input: ", "output: ")))
    if shown.startswith("input: "):
        return repr(_gives(one, shown.removeprefix("input: ")))
    wanted = literal(shown.removeprefix("output: "))
    found = next((given for given in one.inputs if _gives(one, given) == wanted), "()")
    return found[1:-1].rstrip(",")


def _gives(one: Sample, given: str) -> Any:
    names: dict[str, Any] = {}
    exec(compile(one.program, "library", "exec"), names)
    arguments: Any = literal(given)
    try:
        return names["f"](*arguments)
    except (TypeError, ValueError, AttributeError, IndexError, KeyError):  # another program's input
        return None


def scripted_player(task: Task, *, seed: int, skill: float = 0.5) -> KnowingPlayer:
    """Propose-solve: proposes a program of the small library, and solves those with probability `skill`."""
    return KnowingPlayer(seed, skill=skill)


def expert(task: Task, *, seed: int = 0) -> KnowingPlayer:
    """Propose-solve: as `scripted_player`, and every solver is right: of tasks over the small library.

    It knows no program of a file of triples. Its proposals are all solved, so that its proposer earns nothing: all
    that one episode can pay to all of its actors together is one for each solver.
    """
    return KnowingPlayer(seed, skill=1.0)
