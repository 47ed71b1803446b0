"""`corrupted`: plays a synthesized task's own way with one mistake in it, so that the difference is known.

As UI-Genie makes negatives for reward models: a way that works, changed in one place. Whether the result really
fails is not assumed: the environment plays it and says so. Hard ones differ at the end alone.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from envgym.env import Step
from envgym.messages import Action, ToolCall
from envgym.policy import Reply
from envgym.synthesis.explore import words_of
from envgym.synthesis.graph import ELEMENT_ARGUMENTS, elements_of
from envgym.task import Task
from envgym.wire import action_from_json

__all__ = ["Corrupted", "Mistake", "corrupted"]

Mistake = Literal["none", "missing", "early", "exchanged", "twice", "other"]
"""Nothing; an action left out; the last ones left out; two neighbours exchanged; one twice; another argument."""

_IDLE = Action.say("That was all.")


class Corrupted:
    """An agent of one mistake; see `envgym.policy.Agent`. After its last action it only says that it is done."""

    name = "agent"

    def __init__(self, way: Sequence[Action], mistake: Mistake, *, hard: bool, seed: int) -> None:
        self._rng = np.random.default_rng([seed, 0xC0])
        last = len(way) - 1
        at = last if hard else int(self._rng.integers(len(way)))
        self._way, self._other = _changed(tuple(way), mistake, at)
        self._turn = 0
        self._words: list[str] = []

    async def act(self, step: Step) -> Reply:
        """The next action of the way, as it was changed."""
        self._words = words_of(step, self._words)
        turn, self._turn = self._turn, self._turn + 1
        if turn >= len(self._way):
            return Reply(_IDLE)
        action = self._way[turn]
        return Reply(self._with_another(action, step) if turn == self._other else action)

    def _with_another(self, action: Action, step: Step) -> Action:
        """The same tool with one argument that is another: an element that is shown, or a word that was seen."""
        call = action.calls[0]
        texts = [name for name, value in call.arguments.items() if isinstance(value, str)]
        if not texts:
            return action
        name = texts[int(self._rng.integers(len(texts)))]
        shown = list(elements_of(step.text))
        among = shown if name in ELEMENT_ARGUMENTS or call.arguments[name] in shown else self._words
        among = [one for one in among if one != call.arguments[name]]
        if not among:
            return action
        value = among[int(self._rng.integers(len(among)))]
        changed = ToolCall(name=call.name, arguments=call.arguments | {name: value}, id=call.id)
        return Action(message=action.message.model_copy(update={"tool_calls": (changed, *action.calls[1:])}))

    def fork(self, *, seed: int) -> "Corrupted":
        """The same way from here on, with draws of its own."""
        other = object.__new__(Corrupted)
        other._rng = np.random.default_rng([seed, 0xC0])
        other._way, other._other, other._turn, other._words = self._way, self._other, self._turn, list(self._words)
        return other

    async def close(self) -> None:
        """It holds nothing."""


def _changed(way: tuple[Action, ...], mistake: Mistake, at: int) -> tuple[tuple[Action, ...], int]:
    """The way with a mistake at a place, and which of its actions gets another argument (-1: none)."""
    match mistake:
        case "missing":
            return way[:at] + way[at + 1 :], -1
        case "early":
            return way[:at], -1
        case "exchanged":
            first = max(at - 1, 0)
            return way[:first] + way[first : first + 2][::-1] + way[first + 2 :], -1
        case "twice":
            return way[: at + 1] + way[at:], -1
        case "other":
            return way, at
        case "none":
            return way, -1


def corrupted(
    task: Task, *, seed: int = 0, mistake: Mistake | None = None, hard: bool = False, tools: Sequence[Any] = ()
) -> Corrupted:
    """Plays a synthesized task's own way with one mistake in it.

    mistake: None draws one, "none" among them. hard: at the end of the way.

    Raises ValueError for a task that has no way of its own: `envgym synthesize` makes such, for `synthesized`.
    """
    if mistake is not None and mistake not in get_args(Mistake):
        raise ValueError(f"mistake is {mistake!r}; it must be one of {', '.join(get_args(Mistake))}, or None")
    made: Any = task.metadata.get("synthesized")
    if not isinstance(made, dict) or not made.get("reference"):
        raise ValueError(f"task {task.id!r} has no way of its own; `corrupted` plays tasks of `envgym synthesize`")
    kinds: tuple[Mistake, ...] = get_args(Mistake)
    drawn = kinds[int(np.random.default_rng([seed, 0xE4]).integers(len(kinds)))]
    way = [action_from_json(one) for one in made["reference"]]
    return Corrupted(way, mistake or drawn, hard=hard, seed=seed)
