"""An office of three drawers: a small world of typed tools with a state, a seed, and tasks whose end is known.

Its tasks ask for a state: things moved, renamed, counted. What is where is drawn from the seed, so an agent
must look before it acts.
"""

import json
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import JsonValue

from envgym.env import Step
from envgym.function_tool import FunctionTool, ToolRefused, tool
from envgym.messages import Action, Message, ToolCall, text_of
from envgym.task import Task
from envgym_environments.experts import expert_of

__all__ = ["DRAWERS", "Office", "expert", "office_task"]

Drawer = Literal["left", "middle", "right"]
DRAWERS: tuple[Drawer, ...] = ("left", "middle", "right")
_THINGS = ("stapler", "lamp", "map", "key", "ruler", "stamp", "candle", "envelope", "compass", "ribbon")


class Office:
    """The state, and the tools that act on it; satisfies `envgym_environments.tool.env.ToolWorld`."""

    def __init__(self, task: Task, seed: int) -> None:
        rng = np.random.default_rng([abs(seed), task.seed, 1])
        count = int(str(task.metadata.get("things", 4)))
        chosen = rng.choice(len(_THINGS), size=count, replace=False)
        self.drawers: dict[str, list[str]] = {name: [] for name in DRAWERS}
        places = [int(place) for place in rng.integers(3, size=count)]
        target = DRAWERS.index(str(task.metadata["target"]))
        if set(places) == {target}:  # something is left to do
            places[0] = (target + 1) % 3
        for thing, place in sorted((_THINGS[at], place) for at, place in zip(chosen, places, strict=True)):
            self.drawers[DRAWERS[place]].append(thing)
        self.notes: list[str] = []

    def tools(self) -> tuple[FunctionTool, ...]:
        """Look, move, write down."""
        return (tool(self.look), tool(self.move, serial=True), tool(self.note, serial=True))

    def look(self, drawer: Drawer) -> str:
        """Look into a drawer: the things in it."""
        return ", ".join(self.drawers[drawer]) or "nothing"

    def move(self, thing: str, source: Drawer, target: Drawer) -> str:
        """Move a thing from one drawer to another.

        Args:
            thing: its name, as seen.
            source: the drawer that it is in.
            target: where it shall be.
        """
        if thing not in self.drawers[source]:
            raise ToolRefused(f"there is no {thing[:40]} in the {source} drawer")
        self.drawers[source].remove(thing)
        self.drawers[target] = sorted([*self.drawers[target], thing])
        return f"the {thing} is in the {target} drawer"

    def note(self, text: str) -> str:
        """Write a note."""
        self.notes.append(text[:200])
        return f"{len(self.notes)} notes"

    def dump(self) -> JsonValue:
        """The whole state as JSON."""
        return {"drawers": {name: list(things) for name, things in self.drawers.items()}, "notes": list(self.notes)}

    def load(self, state: JsonValue) -> None:
        """Take on a state."""
        raw = json.loads(json.dumps(state))
        self.drawers, self.notes = raw["drawers"], raw["notes"]

    async def close(self) -> None:
        """It holds nothing."""

    def goal(self, task: Task) -> JsonValue:
        """The drawers at the end, where everything was done; asked of a fresh world."""
        target = str(task.metadata["target"])
        wanted = [thing for name in DRAWERS if name != target for thing in self.drawers[name]]
        kept = {name: [] if name != target else sorted([*self.drawers[target], *wanted]) for name in DRAWERS}
        return {"drawers": kept}  # type: ignore[dict-item]


def office_task(index: int, *, things: int = 4) -> Task:
    """Every fifth is of split "heldout". Difficulty is the number of things."""
    target = DRAWERS[index % 3]
    return Task(
        id=f"office/{things}-{index}",
        prompt=f"Put everything into the {target} drawer. When you are done, say so in a sentence without a call.",
        split="train" if index % 5 else "heldout",
        seed=index,
        metadata={"things": things, "target": target},
    )


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """Look into all drawers at once, move what was seen elsewhere at once, say so."""
    target, calls = str(task.metadata["target"]), []
    if len(seen) == 1:
        calls = [ToolCall(name="look", arguments={"drawer": name}, id=name) for name in DRAWERS]
    elif len(seen) == 2:
        for name, message in zip(DRAWERS, seen[1].observation, strict=True):
            for thing in text_of(message).split(", ") if name != target else ():
                if thing != "nothing":
                    there: dict[str, JsonValue] = {"thing": thing, "source": name, "target": target}
                    calls.append(ToolCall(name="move", arguments=there, id=thing))
    if not calls:
        return Action.say(f"Everything is in the {target} drawer.")
    return Action(message=Message(role="assistant", tool_calls=tuple(calls)))


expert = expert_of(_decide)
