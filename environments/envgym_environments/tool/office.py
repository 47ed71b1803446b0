"""An office of three drawers: a small world of typed tools with a state, a seed, and tasks whose end is known.

A task says which thing belongs into which drawer; of four things there are some 17,000 such tasks. What is where at
first is drawn from the episode's seed, so an agent must look before it acts.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import JsonValue

from envgym.env import Step
from envgym.function_tool import FunctionTool, ToolRefused, tool
from envgym.messages import Action, Message, ToolCall, text_of
from envgym.task import Task
from envgym_environments.experts import expert_of
from envgym_environments.played import draws
from envgym_environments.splits import of_split
from envgym_environments.words import pick, some

__all__ = ["DRAWERS", "Office", "expert", "office_task"]

Drawer = Literal["left", "middle", "right"]
DRAWERS: tuple[Drawer, ...] = ("left", "middle", "right")
_THINGS = ("stapler", "lamp", "map", "key", "ruler", "stamp", "candle", "envelope", "compass", "ribbon")


class Office:
    """The state, and the tools that act on it; satisfies `envgym_environments.tool.env.ToolWorld`."""

    uses_seed = True

    def __init__(self, task: Task, seed: int) -> None:
        rng = np.random.default_rng([abs(seed), task.seed, 1])
        wanted = _wanted(task)
        self.drawers: dict[str, list[str]] = {name: [] for name in DRAWERS}
        places = [DRAWERS[place] for place in rng.integers(3, size=len(wanted))]
        if places == list(wanted.values()):  # something is left to do
            places[0] = DRAWERS[(DRAWERS.index(places[0]) + 1) % 3]
        for thing, place in zip(wanted, places, strict=True):
            self.drawers[place].append(thing)
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
        return {"drawers": {name: list[JsonValue](_of_drawer(_wanted(task), name)) for name in DRAWERS}}


def _wanted(task: Task) -> dict[str, Drawer]:
    """Each thing, sorted, and the drawer that it belongs into."""
    pairs = (part.split(":") for part in str(task.metadata["wanted"]).split("|"))
    return {thing: DRAWERS[DRAWERS.index(name)] for thing, name in pairs}


def _of_drawer(wanted: Mapping[str, Drawer], name: str) -> list[str]:
    return [thing for thing, drawer in wanted.items() if drawer == name]


def office_task(index: int, *, things: int = 4, seed: int = 0) -> Task:
    """Every fifth is "heldout" and asks for what none of "train" asks. Difficulty is the number of things."""
    split = "train" if index % 5 else "heldout"
    rng = draws(seed, index, things, 0x0F)

    def draw(_number: int) -> dict[str, Drawer]:
        return {thing: pick(rng, DRAWERS) for thing in sorted(some(rng, _THINGS, things))}

    wanted = of_split(split, draw, lambda drawn: [f"{thing}:{name}" for thing, name in drawn.items()])
    parts = [
        f"the {' and the '.join(members)} into the {name} drawer"
        for name in DRAWERS
        if (members := _of_drawer(wanted, name))
    ]
    return Task(
        id=f"office/{seed}/{things}-{index}",
        prompt=f"Put {', '.join(parts)}. When you are done, say so in a sentence without a call.",
        split=split,
        seed=seed * 1_000_003 + index,
        metadata={"things": things, "wanted": "|".join(f"{thing}:{name}" for thing, name in wanted.items())},
    )


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """Look into all drawers at once, move what is not where it belongs at once, say so."""
    wanted, calls = _wanted(task), []
    if len(seen) == 1:
        calls = [ToolCall(name="look", arguments={"drawer": name}, id=name) for name in DRAWERS]
    elif len(seen) == 2:
        for name, message in zip(DRAWERS, seen[1].observation, strict=True):
            for thing in text_of(message).split(", "):
                if thing != "nothing" and wanted[thing] != name:
                    there: dict[str, JsonValue] = {"thing": thing, "source": name, "target": wanted[thing]}
                    calls.append(ToolCall(name="move", arguments=there, id=thing))
    if not calls:
        return Action.say("Everything is where it belongs.")
    return Action(message=Message(role="assistant", tool_calls=tuple(calls)))


expert = expert_of(_decide)
