"""An imaginer without a model: it answers the questions of `envgym.synthesis.imagine` from lists of words.

Its people want a thing with properties that only they know; a good conversation asks for each before it offers
one, a poor one offers at once what it guesses. It is the floor under imaginers that know the world, and what tests
and first steps use where there is no model.
"""

import json
import re
from collections.abc import Sequence

import numpy as np

from envgym.env import Step
from envgym.messages import Action
from envgym.policy import Reply
from envgym.task import Task

__all__ = ["ScriptedImaginer", "scripted_imaginer"]

_THINGS = ("lamp", "tent", "bicycle", "jacket", "radio", "table", "camera", "kettle", "backpack", "guitar")
_WANTS = {
    "color": ("red", "green", "blue", "white", "black", "yellow"),
    "size": ("small", "large", "medium", "tiny"),
    "budget": ("cheap", "modest", "generous"),
    "age": ("new", "used", "antique"),
}
_PERSON = re.compile(r'^\{"person".*\}$', re.MULTILINE)
_COUNT = re.compile(r"Imagine (\d+) persons")


class ScriptedImaginer:
    """Draws from its seed; see the module."""

    def __init__(self, seed: int, *, name: str = "agent") -> None:
        self.name = name
        self._rng = np.random.default_rng([seed, 0x1A])

    async def act(self, step: Step) -> Reply:
        """The JSON, or the lines, that the question asks for."""
        text = step.text
        if found := _COUNT.search(text):
            return _say([self._person() for _ in range(int(found[1]))])
        if (line := _PERSON.search(text)) is None:
            return Reply(Action.say("I can imagine people and conversations only."))
        told = json.loads(line[0])
        if "manner" in told:
            opens = "agent" if "The agent speaks first" in text else "person"
            return _say(self._talk(told["person"], told["manner"] == "well", opens))
        return Reply(Action.say(_verdict(told["person"], text)))

    def _person(self) -> str:
        thing = self._pick(_THINGS)
        wants = ", ".join(f"{name}: {self._pick(values)}" for name, values in _WANTS.items())
        return f"somebody who wants a {thing} ({wants})"

    def _talk(self, person: str, well: bool, opens: str) -> list[dict[str, str]]:
        thing, wants = _wants_of(person)
        said = [("person", f"I am looking for a {thing}.")]
        if opens == "agent":
            said.insert(0, ("agent", "What are you looking for?"))
        if well:
            for name, value in wants.items():
                said += [("agent", f"Which {name} should the {thing} be of?"), ("person", f"I want it {value}.")]
            offer = wants
        else:
            offer = {name: self._pick(_WANTS[name]) for name in wants}
        said.append(("agent", f"I have a {' '.join(offer.values())} {thing} for you."))
        said.append(("person", "That is just what I want." if offer == wants else "No, that is not what I want."))
        return [{"by": by, "says": words} for by, words in said]

    def _pick(self, values: Sequence[str]) -> str:
        return values[int(self._rng.integers(len(values)))]

    def fork(self, *, seed: int) -> "ScriptedImaginer":
        """One that draws from another seed."""
        return ScriptedImaginer(seed, name=self.name)

    async def close(self) -> None:
        """It holds nothing."""


def _say(value: object) -> Reply:
    return Reply(Action.say(json.dumps(value)))


def _wants_of(person: str) -> tuple[str, dict[str, str]]:
    thing = re.search(r"wants an? (\w+)", person)
    pairs = re.findall(r"(\w+): (\w+)", person)
    return (thing[1] if thing else "thing"), dict(pairs)


def _verdict(person: str, text: str) -> str:
    """Whether the last offer is what the person wants; every other sentence is true of what it imagines itself."""
    thing, wants = _wants_of(person)
    offer = f"I have a {' '.join(wants.values())} {thing} for you."
    numbers = re.findall(r"^(\d+)\. ", text, re.MULTILINE)
    return "\n".join(f"{at}: {'yes' if at != '1' or offer in text else 'no'}" for at in numbers)


def scripted_imaginer(task: Task, *, seed: int) -> ScriptedImaginer:
    """Imagines people who look for a thing, and conversations with them (no model)."""
    return ScriptedImaginer(seed)
