"""How exactly a task is asked for: the same problem, told in full, in brief, or only hinted at."""

import re
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from envgym.env import Step
from envgym.messages import Action
from envgym.task import Task
from envgym.wrappers.twist import Seen, State, retold

__all__ = ["Specificity", "instruction"]

_SENTENCE = re.compile(r".+?(?:[.!?](?=\s|\Z)|\n\s*\n|\Z)", re.DOTALL)
_EXACT = re.compile(r"""`[^`]*`|"[^"\n]*"|'[^'\s]*'|\b\d[\d.,:]*\b|(?<!\w)/[\w./-]+|\b[\w-]+\.\w{1,4}\b""")


def instruction(task: Task, level: str) -> str:
    """A task's prompt at a level.

    The task's own words for it are in ``metadata["instructions"][level]`` (RefactorBench, Gautam et al. 2025, arXiv
    2503.07832, has three such levels). Where it has none, "brief" is the first sentence, and "vague" that sentence
    with its names, numbers, paths and quotations left open.
    """
    own = task.metadata.get("instructions")
    if isinstance(own, dict) and isinstance(text := own.get(level), str):
        return text
    if level == "full" or not task.prompt.strip():
        return task.prompt
    found = _SENTENCE.match(task.prompt.strip())
    brief = found[0].strip() if found else task.prompt
    return brief if level == "brief" else _EXACT.sub("something", brief)


@dataclass(frozen=True, slots=True)
class Specificity:
    """The first observation asks at a `level`: "full", "brief", "vague", or a task's own.

    It changes the prompt where that stands in the first observation. Raises ValueError, where a task is begun,
    for a level that is neither one of these nor the task's, and for words of its own for a task whose prompt is
    empty, as there is nothing that they could take the place of.
    """

    level: Literal["full", "brief", "vague"] | str = "brief"
    name: str = "specificity"
    draws: ClassVar[bool] = False

    def begin(self, seen: Seen) -> tuple[State, Step]:
        """Ask in other words."""
        task, own = seen.task, seen.task.metadata.get("instructions")
        if self.level not in ("full", "brief", "vague") and self.level not in (
            own if isinstance(own, dict) else ()
        ):
            raise ValueError(f"specificity.level is {self.level!r}; task {task.id!r} has no such instructions")
        told = instruction(task, self.level)
        if told == task.prompt:
            return {}, seen.last
        if not task.prompt:
            raise ValueError(
                f"specificity.level is {self.level!r}, but the prompt of task {task.id!r} is empty, so no words "
                "can take its place; give the task a prompt, or leave the wrapper out"
            )
        observation = tuple(
            retold(one, lambda text: text.replace(task.prompt, told)) for one in seen.last.observation
        )
        return {}, replace(seen.last, observation=observation)

    def act(self, state: State, action: Action, seen: Seen) -> tuple[State, Action | Step]:
        """Actions are not changed."""
        return state, action

    def see(self, state: State, action: Action, step: Step, seen: Seen) -> tuple[State, Step]:
        """Later steps are not changed."""
        return state, step
