"""A graph of screens that grows while it is explored, and the value of a call in it.

As GUI-Bee explores (in-context Q over a graph of screens): a call that was made has the value of the screen that
it leads to; one that was not has what calls like it brought, wherever they were made, and hope for the rest. A
script takes the highest (`GraphExplorer`); an agent reads them beside what it sees, and chooses (`GraphReader`).
Elements are named by what they are, not by their refs, which change. Nothing here knows a browser or a display.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from envgym.env import Step
from envgym.messages import Action, Message, ToolCall, ToolSpec
from envgym.policy import Agent
from envgym.synthesis.explore import drawn_call, state_of, words_of
from envgym.synthesis.memory import Tried
from envgym.tools import parse_call

__all__ = ["ELEMENT_ARGUMENTS", "GraphExplorer", "GraphReader", "ScreenGraph", "elements_of", "screen_of"]

_REF = re.compile(r"(?:\[|\bref=|^\s*)(e\d+)\b\]?([^\n]*)", re.MULTILINE)
_VALUE = re.compile(r"\s*=\s*['\"].*$|\s*\(.*\)\s*$")
_MOST_ELEMENTS = 80
_SWEEPS = 30
_TOLD = 30
"""Calls whose values an agent reads, the highest first."""

ELEMENT_ARGUMENTS = ("ref", "target")
"""What tools call the element that they are about: pages say ref, displays target."""

Deed = frozenset[str]
"""What a call does, as words: its tool, with "()" behind it, and what it is done to."""


def elements_of(text: str) -> dict[str, str]:
    """Ref -> what the element is, for those that a text shows; without values, which change."""
    found: dict[str, str] = {}
    for ref, label in _REF.findall(text):
        found.setdefault(ref, _VALUE.sub("", label).strip())
        if len(found) >= _MOST_ELEMENTS:
            break
    return found


def screen_of(step: Step) -> frozenset[str]:
    """A screen: what its elements are; where none are shown, the state by itself."""
    return frozenset(elements_of(step.text).values()) or frozenset((state_of(step),))


@dataclass(slots=True)
class ScreenGraph:
    """Screens and what led from one to another. discount: of a screen one call further away, in [0, 1)."""

    discount: float = 0.8
    led: dict[tuple[frozenset[str], Deed], frozenset[str] | None] = field(default_factory=dict)
    """(screen, deed) -> the screen after it, None where it ended all."""
    gains: dict[Deed, list[float]] = field(default_factory=dict)
    """What a deed brought, each time: the share of what was then seen that nobody had seen before."""
    open: dict[frozenset[str], set[Deed]] = field(default_factory=dict)
    """What could be done on a screen, as far as it was looked at."""
    seen: set[str] = field(default_factory=set)
    ends: set[Deed] = field(default_factory=set)

    def arrive(self, screen: frozenset[str], deeds: Iterable[Deed]) -> None:
        """Somebody is there, and sees what can be done."""
        self.open.setdefault(screen, set()).update(deeds)
        self.seen |= screen

    def note(self, screen: frozenset[str], deed: Deed, after: frozenset[str] | None) -> float:
        """What became of a deed; returns its gain, 0.0 for an end."""
        gain = len(after - self.seen) / len(after) if after else 0.0
        self.led[screen, deed] = after
        if after is None:
            self.ends.add(deed)
        self.gains.setdefault(deed, []).append(gain)
        self.seen |= after or frozenset()
        return gain

    def hope(self, deed: Deed) -> float:
        """The expected gain of a deed: of deeds like it, by the share of words in common, and of its tool, once.

        A tool's is the mean of what it brought and of one 1.0. A deed that ended all is not hoped for anywhere.
        """
        if deed in self.ends:
            return 0.0
        by_tool = [gain for one in self.gains if _tools(one) & deed for gain in self.gains[one]]
        prior = (1.0 + sum(by_tool)) / (1.0 + len(by_tool))
        weights = {one: len(deed & one) / len(deed | one) for one in self.gains}
        told = sum(weight * sum(self.gains[one]) for one, weight in weights.items())
        known = sum(weight * len(self.gains[one]) for one, weight in weights.items())
        return (prior + told) / (1.0 + known)

    def values(self) -> dict[frozenset[str], float]:
        """The value of every screen: of its best deed, after so many sweeps of value iteration."""
        hopes = {screen: max(map(self.hope, self._untried(screen)), default=0.0) for screen in self.open}
        values = dict(hopes)
        for _ in range(_SWEEPS):
            before = dict(values)
            for (screen, _), after in self.led.items():
                if after is not None and screen in values:
                    values[screen] = max(values[screen], self.discount * values.get(after, 0.0))
            if values == before:
                break
        return values

    def _untried(self, screen: frozenset[str]) -> list[Deed]:
        return [deed for deed in self.open[screen] if (screen, deed) not in self.led]

    def worth(self, screen: frozenset[str], deed: Deed, values: dict[frozenset[str], float]) -> float:
        """Q: the hope of what was not tried here, else the discounted value of where it leads."""
        if (screen, deed) not in self.led:
            return self.hope(deed)
        after = self.led[screen, deed]
        return 0.0 if after is None else self.discount * values.get(after, 0.0)


@dataclass(slots=True)
class GraphExplorer:
    """Goes where the graph promises most; ties are drawn. One for a trail; the graph is that of all trails."""

    graph: ScreenGraph
    rng: np.random.Generator
    _last: tuple[frozenset[str], Deed] | None = None
    _words: list[str] = field(default_factory=list)

    async def choose(self, step: Step, tools: Sequence[ToolSpec], tried: Tried) -> Action:
        """The call of the highest worth."""
        calls, worth = self.look(step, tools)
        best = max(worth.values())
        among = sorted((deed for deed, value in worth.items() if value == best), key=sorted)
        deed = among[int(self.rng.integers(len(among)))]
        self.took(step, deed)
        return Action(message=Message(role="assistant", tool_calls=(calls[deed],)))

    def look(self, step: Step, tools: Sequence[ToolSpec]) -> tuple[dict[Deed, ToolCall], dict[Deed, float]]:
        """What can be done on a screen, one call of each deed, and what each is worth; notes what led there."""
        screen = screen_of(step)
        if self._last is not None:
            self.graph.note(*self._last, screen)
        self._words = words_of(step, self._words)
        calls = self._possible(step, tools)
        self.graph.arrive(screen, calls)
        values = self.graph.values()
        return calls, {deed: self.graph.worth(screen, deed, values) for deed in calls}

    def took(self, step: Step, deed: Deed | None) -> None:
        """What is done on a screen; None for what the graph has no name for."""
        self._last = None if deed is None else (screen_of(step), deed)

    def ended(self, step: Step) -> None:
        """The trail is over with this step."""
        if self._last is not None:
            self.graph.note(*self._last, None if step.stop is not None else screen_of(step))
            self._last = None

    async def close(self) -> None:
        """It holds nothing; the graph is that of all trails."""

    def _possible(self, step: Step, tools: Sequence[ToolSpec]) -> dict[Deed, ToolCall]:
        """Calls by what they do: one for each tool and element, what else they need drawn."""
        elements, found = elements_of(step.text), dict[Deed, ToolCall]()
        for spec in tools:
            name = _of_elements(spec)
            for ref, label in elements.items() if name else [("", "")]:
                call = drawn_call(spec, self._words, self.rng)
                if ref:
                    call = call.model_copy(update={"arguments": call.arguments | {name: ref}})
                found[_deed(spec.name, label)] = call
        return found


def _of_elements(spec: ToolSpec) -> str:
    """Which argument of a tool is an element's ref, "" for none."""
    properties: Any = spec.parameters.get("properties", {})
    return next((name for name in ELEMENT_ARGUMENTS if name in properties), "")


def _deed(tool: str, label: str) -> Deed:
    return frozenset((f"{tool}()", *re.findall(r"\w+", label)))


def _tools(deed: Deed) -> Deed:
    return frozenset(word for word in deed if word.endswith("()"))


@dataclass(slots=True)
class GraphReader:
    """An agent that explores and reads the graph's values in its context: Q without a step of learning (GUI-Bee).

    After what is seen stands what each call is worth here, the highest first; what the agent then does becomes part
    of the graph. walk: the bookkeeping of this trail.
    """

    agent: Agent
    walk: GraphExplorer

    async def choose(self, step: Step, tools: Sequence[ToolSpec], tried: Tried) -> Action:
        """What the agent does after it has read what each call is worth."""
        calls, worth = self.walk.look(step, tools)
        elements, names = elements_of(step.text), {spec.name: _of_elements(spec) for spec in tools}
        told = "\n".join(_told(calls[deed], worth[deed], names, elements) for deed in _best(worth))
        note = Message(
            role="user",
            content=f"There is no task: find out what can be done here. What calls are worth, from 0 to 1:\n{told}",
        )
        action = (await self.agent.act(replace(step, observation=(*step.observation, note)))).action
        call = action.calls[0] if action.calls else parse_call(action.text, tools)
        deed = None
        if isinstance(call, ToolCall) and call.name in names:
            deed = _deed(call.name, elements.get(str(call.arguments.get(names[call.name], "")), ""))
        self.walk.took(step, deed if deed in worth else None)
        return action

    def ended(self, step: Step) -> None:
        """The trail is over with this step."""
        self.walk.ended(step)

    async def close(self) -> None:
        """Close the agent, which is this reader's alone."""
        await self.agent.close()


def _best(worth: dict[Deed, float]) -> list[Deed]:
    return sorted(worth, key=lambda deed: (-worth[deed], sorted(deed)))[:_TOLD]


def _told(call: ToolCall, worth: float, names: dict[str, str], elements: dict[str, str]) -> str:
    """A call's worth, as a line: its tool, and the element that it is about."""
    ref = str(call.arguments.get(names[call.name], ""))
    return f"{worth:.2f} {call.name}" + (f" {ref} {elements[ref]}" if ref in elements else "")
