"""What happens is told later: rewards, or what is seen, by some turns (NeoRL-2's delayed effects)."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from envgym.arguments import checked_count
from envgym.env import Step
from envgym.messages import Action, Message
from envgym.wrappers.twist import Seen, State

__all__ = ["Delay"]

_NOTHING_YET = Message(role="user", content="(nothing to see yet)")


@dataclass(frozen=True, slots=True)
class Delay:
    """Rewards, or observations, come `turns` turns late; at the end all that is still due comes at once.

    What a late reward adds up to is what was earned. An episode that a bound of its player cuts off never hears of
    what was still due. Legal actions and the state key are those of the present.
    """

    turns: int = 1
    what: Literal["reward", "observation"] = "reward"
    name: str = "delay"

    def __post_init__(self) -> None:
        checked_count("delay.turns", self.turns, least=1)
        if self.what not in ("reward", "observation"):
            raise ValueError(f"delay.what is {self.what!r}; it must be 'reward' or 'observation'")

    def begin(self, seen: Seen) -> tuple[State, Step]:
        """The first step is seen at once."""
        return {"due": []}, seen.last

    def act(self, state: State, action: Action, seen: Seen) -> tuple[State, Action | Step]:
        """Actions are not changed."""
        return state, action

    def see(self, state: State, action: Action, step: Step, seen: Seen) -> tuple[State, Step]:
        """The new joins what is due, and what has waited long enough is told."""
        due: list[Any] = [*state["due"]]  # type: ignore[misc]
        if self.what == "reward":
            due.append(step.reward)
        else:
            due.append([message.model_dump(mode="json") for message in step.observation])
        ready = len(due) if step.stop is not None else max(0, len(due) - self.turns)
        told, due = due[:ready], due[ready:]
        if self.what == "reward":
            given = [reward for reward in told if reward is not None]
            return {"due": due}, replace(step, reward=math.fsum(given) if given else None)
        seen_now = tuple(Message.model_validate(message) for late in told for message in late)
        return {"due": due}, replace(step, observation=seen_now or (_NOTHING_YET,))
