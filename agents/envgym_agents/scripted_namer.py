"""A namer without a model: it answers the questions of `envgym.synthesis.told` from the data that they end with.

It says steps one after the other, and rates a trail by the share of its actions that mattered. It is the floor
under namers that understand what they see, and what tests and first steps use where there is no model.
"""

import json
from typing import Any

from envgym.env import Step
from envgym.messages import Action
from envgym.policy import Reply
from envgym.task import Task

__all__ = ["ScriptedNamer", "scripted_namer"]


class ScriptedNamer:
    """See the module."""

    def __init__(self, *, name: str = "agent") -> None:
        self.name = name

    async def act(self, step: Step) -> Reply:
        """One sentence, or one number."""
        try:
            about = json.loads(step.text.rsplit("\n", 1)[-1])
            return Reply(Action.say(_answer(about)))
        except (ValueError, LookupError, TypeError):
            return Reply(Action.say("I can name what was found only."))

    def fork(self, *, seed: int) -> "ScriptedNamer":
        """Itself again: an answer depends on the question only."""
        return ScriptedNamer(name=self.name)

    async def close(self) -> None:
        """It holds nothing."""


def _answer(about: dict[str, Any]) -> str:
    match about["asked"]:
        case "task":
            return f"Please {', then '.join(one.removeprefix('Please ').rstrip('.') for one in about['steps'])}."
        case "instruction":
            return f"Please {about['done']}."
        case _:
            share = len(about["steps"]) / about["actions"]
            return str(min(max(round(5 * share), 1), 5))


def scripted_namer(task: Task, *, seed: int) -> ScriptedNamer:
    """Names steps and tasks by what was called, and rates trails by what mattered (no model)."""
    del seed  # nothing is drawn
    return ScriptedNamer()
