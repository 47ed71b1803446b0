"""What happens comes later, by some turns: rewards, what is seen, or what an action does.

The last is the delayed effect of NeoRL-2 (Gao et al. 2025): the world gets an action turns after it was chosen.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from envgym.arguments import checked_count
from envgym.env import Step
from envgym.messages import Action, Message
from envgym.wire import action_from_json, action_to_json
from envgym.wrappers.twist import Seen, State, refused

__all__ = ["Delay"]

_NOTHING_YET = Message(role="user", content="(nothing to see yet)")


@dataclass(frozen=True, slots=True)
class Delay:
    """Rewards, or observations, come `turns` turns late; at the end all that is still due comes at once.

    What a late reward adds up to is what was earned. An episode that a bound of its player cuts off never hears of
    what was still due. Legal actions and the state key are those of the present.

    what="effect": the world gets each action `turns` turns late. For the first ones it is not asked; actions that
    are still due when it ends are never carried out.
    """

    turns: int = 1
    what: Literal["reward", "observation", "effect"] = "reward"
    name: str = "delay"
    draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        checked_count("delay.turns", self.turns, least=1)
        if self.what not in ("reward", "observation", "effect"):
            raise ValueError(f"delay.what is {self.what!r}; it must be 'reward', 'observation' or 'effect'")

    def begin(self, seen: Seen) -> tuple[State, Step]:
        """The first step is seen at once."""
        return {"due": []}, seen.last

    def act(self, state: State, action: Action, seen: Seen) -> tuple[State, Action | Step]:
        """Actions are not changed; a late one waits for its turn, and the one whose turn it is is carried out."""
        if self.what != "effect":
            return state, action
        due: list[Any] = [*state["due"], action_to_json(action)]  # type: ignore[misc]
        if len(due) <= self.turns:
            return {"due": due}, refused(seen.last, f"(noted: it takes effect {self.turns} turns later)")
        return {"due": due[1:]}, action_from_json(due[0])

    def see(self, state: State, action: Action, step: Step, seen: Seen) -> tuple[State, Step]:
        """The new joins what is due, and what has waited long enough is told."""
        if self.what == "effect":
            return state, step
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
