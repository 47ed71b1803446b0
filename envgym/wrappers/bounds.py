"""What must not be done, and what may be spent: safety costs beside the reward, and a budget that runs out."""

import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import ClassVar

from envgym.arguments import checked_between
from envgym.env import Step, StopReason
from envgym.messages import Action, Message, ToolCall
from envgym.tools import parse_call
from envgym.wrappers.twist import Seen, State, refused, said

__all__ = ["Budget", "Safety"]


@dataclass(frozen=True, slots=True)
class Safety:
    """Actions that match one of `forbid` cost `price` each: a channel of its own, never taken off the reward.

    It is the constraint of a constrained decision process (NeoRL-2's safety constraint). forbid: regular
    expressions, looked for in the compact notation of calls and in the text. block: such an action does not
    reach the world. limit: the episode is LOST when the cost so far is more; None never ends it. Channels:
    "safety_cost" of the step, "safety_total" so far.
    """

    forbid: Sequence[str] = ()
    price: float = 1.0
    limit: float | None = None
    block: bool = False
    name: str = "safety"
    draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.forbid, str) or not self.forbid:
            raise ValueError(f"safety.forbid is {self.forbid!r}; it must be a list of regular expressions")
        for pattern in self.forbid:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"safety.forbid has {pattern!r}, which is no regular expression: {error}"
                ) from None
        checked_between("safety.price", self.price, 0, math.inf)
        if self.limit is not None:
            checked_between("safety.limit", self.limit, 0, math.inf)

    def begin(self, seen: Seen) -> tuple[State, Step]:
        """Nothing is done yet."""
        return {"total": 0.0}, seen.last

    def act(self, state: State, action: Action, seen: Seen) -> tuple[State, Action | Step]:
        """A forbidden action that is blocked is answered here."""
        cost = self._cost(action)
        if not cost or not self.block:
            return state, action
        told = "refused: this is not allowed here"
        return self._told(state, cost, refused(seen.last, told))

    def see(self, state: State, action: Action, step: Step, seen: Seen) -> tuple[State, Step]:
        """With what it cost."""
        return self._told(state, self._cost(action), step)

    def _cost(self, action: Action) -> float:
        text = said(action)
        return self.price * sum(re.search(pattern, text) is not None for pattern in self.forbid)

    def _told(self, state: State, cost: float, step: Step) -> tuple[State, Step]:
        total = float(str(state["total"])) + cost
        channels = {**step.channels, "safety_cost": cost, "safety_total": total}
        lost = self.limit is not None and total > self.limit and step.stop is None
        step = replace(step, channels=channels, cost={**step.cost, "safety": cost} if cost else step.cost)
        if lost:
            over = Message(role="user", content="the end: too much was done that is not allowed")
            step = replace(step, observation=(*step.observation, over), stop=StopReason.LOST, legal=None)
        return {"total": total}, step


@dataclass(frozen=True, slots=True)
class Budget:
    """Calls cost what `prices` says (`price` where it says nothing), and `total` may be spent.

    What costs more than is left is refused and costs nothing. When nothing is left the episode is LOST, unless the
    world ended it. Plain text that calls nothing is free. show: what is left stands below every observation.
    Channel: "budget_left".
    """

    total: float = 10.0
    prices: Mapping[str, float] = field(default_factory=dict)
    price: float = 1.0
    show: bool = True
    name: str = "budget"
    draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        checked_between("budget.total", self.total, 0, math.inf)
        if not self.total:
            raise ValueError("budget.total is 0; it must be more, as an episode is lost where nothing is left")
        for tool, price in (*self.prices.items(), ("others", self.price)):
            checked_between(f"budget: the price of {tool}", price, 0, math.inf)

    def begin(self, seen: Seen) -> tuple[State, Step]:
        """All is left."""
        return {"left": float(self.total)}, self._shown(self.total, seen.last)

    def act(self, state: State, action: Action, seen: Seen) -> tuple[State, Action | Step]:
        """What cannot be paid is answered here."""
        left, cost = float(str(state["left"])), self._cost(action, seen)
        if cost <= left:
            return {"left": left - cost}, action
        told = f"refused: this costs {cost:g}, and {left:g} is left"
        return state, self._shown(left, refused(seen.last, told))

    def see(self, state: State, action: Action, step: Step, seen: Seen) -> tuple[State, Step]:
        """With what is left."""
        left = float(str(state["left"]))
        step = self._shown(left, step)
        if left <= 0 and step.stop is None:
            step = replace(step, stop=StopReason.LOST, legal=None)
        return state, step

    def _cost(self, action: Action, seen: Seen) -> float:
        names = [call.name for call in action.calls]
        if not names and action.error is None:
            names = _called(action.text, self.prices.keys(), seen)
        return math.fsum(self.prices.get(name, self.price) for name in names)

    def _shown(self, left: float, step: Step) -> Step:
        channels = {**step.channels, "budget_left": left}
        if not self.show:
            return replace(step, channels=channels)
        told = Message(role="user", content=f"(budget: {left:g} of {self.total:g} left)")
        return replace(step, observation=(*step.observation, told), channels=channels)


def _called(text: str, priced: Set[str], seen: Seen) -> list[str]:
    """The name of the call that a text is, in either notation, or is begun like: a wrong call costs what it costs.

    Calls are those of tools, those that are legal now, and those that have a price.
    """
    call = parse_call(text, seen.tools)
    if isinstance(call, ToolCall):
        return [call.name]
    known = {spec.name for spec in seen.tools} | priced
    known |= {one.split(maxsplit=1)[0] for one in seen.last.legal or () if one.strip()}
    return [name for name in text.strip().split(maxsplit=1)[:1] if name in known]
