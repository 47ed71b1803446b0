"""`ask`: a request that lacks what only the user knows: ask for just that, look up the rest, then act.

Every value is drawn from the episode's seed, so nothing can be remembered. Some values stand in the request,
some in the user's profile, the others must be asked for; a question for what is known already annoys, and
costs. After "Grounding Multimodal LLMs to Embodied Agents that Ask for Help" (Ask-to-Act), without pictures.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import JsonValue

from envgym.env import Step, StopReason
from envgym.messages import Action, ToolCall
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym.tools import tool_spec
from envgym_environments import words
from envgym_environments.experts import expert_of
from envgym_environments.played import Answer, Rules, draws, lazy_tasks, played
from envgym_environments.splits import of_split
from envgym_environments.words import pick, some

__all__ = ["SPEC", "Ask", "AskState", "ask_tasks", "expert"]

_COST = 0.2

_VALUES: dict[str, Callable[[np.random.Generator], str]] = {
    "name": words.person,
    "town": words.town,
    "day": lambda rng: words.date(rng, 1, 60),
    "hour": lambda rng: str(int(rng.integers(7, 23))),
    "people": lambda rng: str(int(rng.integers(1, 9))),
    "from": words.town,
    "to": words.town,
    "seat": lambda rng: pick(rng, ("window", "aisle", "middle")),
    "budget": lambda rng: str(50 * int(rng.integers(1, 30))),
    "item": words.product,
    "color": lambda rng: pick(rng, ("red", "blue", "black", "white", "green", "silver")),
    "size": lambda rng: pick(rng, ("XS", "S", "M", "L", "XL")),
    "diet": lambda rng: pick(rng, ("none", "vegan", "halal", "kosher", "no nuts", "no gluten")),
    "phone": lambda rng: f"555-{int(rng.integers(1000, 9999))}",
}
_REQUESTS = {
    "a table in a restaurant": ("name", "town", "day", "hour", "people", "diet", "phone"),
    "a flight": ("name", "from", "to", "day", "seat", "budget", "diet"),
    "a delivery of clothes": ("name", "town", "item", "color", "size", "budget", "phone"),
    "a taxi": ("name", "from", "to", "day", "hour", "people", "phone"),
    "a hotel room": ("name", "town", "day", "people", "budget", "phone", "diet"),
    "a gift": ("name", "town", "item", "color", "budget", "day", "phone"),
    "a birthday cake": ("name", "town", "day", "hour", "people", "diet", "budget"),
    "a bus tour": ("name", "from", "to", "day", "people", "seat", "diet"),
    "a haircut": ("name", "town", "day", "hour", "color", "budget", "phone"),
    "a move of house": ("name", "from", "to", "day", "hour", "budget", "phone"),
    "a parcel": ("name", "from", "to", "item", "size", "day", "phone"),
    "a rental car": ("name", "town", "day", "people", "color", "budget", "phone"),
    "a repair": ("name", "town", "item", "day", "hour", "budget", "phone"),
    "a uniform": ("name", "town", "item", "color", "size", "day", "budget"),
}


def ask(slot: str) -> None:
    """Ask the user for one slot of the form."""


def look_up(slot: str) -> None:
    """Look a slot up in the user's profile."""


def fill(slot: str, value: str) -> None:
    """Write a value into a slot of the form."""


def send() -> None:
    """Send the form. This ends the episode."""


@dataclass(slots=True)
class AskState:
    """truth: the right value of every slot. form: what was filled in. needless: questions for what was known."""

    truth: dict[str, str]
    form: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    needless: int = 0


class Ask(Rules[AskState]):
    """Rules of `ask`. Reward: 1.0 for a form that is right in all slots, less 0.2 for each needless question."""

    tools = (tool_spec(ask), tool_spec(look_up), tool_spec(fill), tool_spec(send))
    state = AskState
    uses_seed = True

    def __init__(self, task: Task) -> None:
        self.task = task
        data = task.metadata
        self._slots, self._said, self._profile = (
            tuple(str(data[name]).split("|")) if data[name] else () for name in ("slots", "said", "profile")
        )

    def begin(self, seed: int) -> tuple[AskState, str]:
        """The request, with the values that the user thought of saying."""
        rng = draws(seed, self.task.seed, 0xA5)
        state = AskState({slot: _VALUES[slot](rng) for slot in self._slots})
        says = ", ".join(f"{slot} {state.truth[slot]}" for slot in self._said)
        return state, (
            f"{self.task.prompt} I can tell you already: {says or 'nothing'}.\nThe form's slots: "
            f"{', '.join(self._slots)}."
        )

    def move(self, state: AskState, said: ToolCall | str) -> Answer:
        """One call."""
        assert isinstance(said, ToolCall)
        if said.name == "send":
            right = float(state.form == state.truth)
            reward = max(0.0, right - _COST * state.needless)
            parts = sum(state.form.get(slot) == value for slot, value in state.truth.items()) / len(state.truth)
            channels = {"reward": reward, "right": right, "slots": parts, "needless": float(state.needless)}
            return Answer("sent", reward, StopReason.GOAL if right else StopReason.SUBMITTED, channels)
        slot = str(said.arguments["slot"])
        if slot not in state.truth:
            return Answer(f"error: no slot {slot[:40]!r}; the slots are: {', '.join(self._slots)}")
        if said.name == "fill":
            state.form[slot] = str(said.arguments["value"]).encode("utf-8", "replace").decode()[:200]
            return Answer(f"{slot}: {state.form[slot]}")
        if said.name == "look_up":
            return Answer(
                f"{slot}: {state.truth[slot]}" if slot in self._profile else f"{slot}: not in the profile"
            )
        if slot in self._said or slot in self._profile or slot in state.asked:
            state.needless += 1
            return Answer(f"You could know that: {state.truth[slot]}.")
        state.asked.append(slot)
        return Answer(f"It is {state.truth[slot]}.")

    def key(self, state: AskState) -> str:
        """The form and what was asked."""
        return f"{sorted(state.form.items())}/{sorted(state.asked)}/{state.needless}"


def _request(rng: np.random.Generator, missing: int) -> tuple[str, dict[str, JsonValue]]:
    """What is ordered; the form's slots, those that are said at once, those of the profile, joined by "|"."""
    what = pick(rng, sorted(_REQUESTS))
    slots = some(rng, _REQUESTS[what], int(rng.integers(missing + 1, 8)))
    known = slots[int(rng.integers(1, missing + 1)) :]
    profile = known[: int(rng.integers(len(known) + 1))]
    # sorted: in which order slots are drawn changes nothing that is asked
    parts = {"slots": sorted(slots), "said": sorted(known[len(profile) :]), "profile": sorted(profile)}
    return what, {name: "|".join(part) for name, part in parts.items()}


def ask_tasks(count: int | None = 500, *, missing: int = 2, seed: int = 0) -> TaskSet:
    """`count` requests (None: without end) that lack 1 to `missing` slots.

    Raises ValueError for a count below one and for `missing` outside 1 to 5.
    """
    if not 1 <= missing <= 5:
        raise ValueError(f"missing is {missing}; it must be 1 to 5")

    def make(index: int, split: str) -> Task:
        rng = draws(seed, index, missing)
        what, parts = of_split(split, lambda _: _request(rng, missing), lambda one: [one[0], one[1]])
        return Task(
            id=f"ask/{seed}/{index}",
            prompt=f"Please order {what} for me.",
            split=split,
            seed=seed * 1_000_003 + index,
            metadata=parts,
        )

    return lazy_tasks(make, count)


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """Fill in what was said, look up the rest, ask for what is not there; it sees no value before it asks."""
    said, _, slots = seen[0].text.partition("already: ")[2].partition(".\nThe form's slots: ")
    known = {part.split(" ", 1)[0]: part.split(" ", 1)[1] for part in said.split(", ") if " " in part}
    answers = iter([step.text for step in seen[1:]])
    for slot in slots.rstrip(".").split(", "):
        if slot not in known:
            if (text := next(answers, None)) is None:
                return Action.call("look_up", slot=slot)
            if text.endswith("not in the profile"):
                if (text := next(answers, None)) is None:
                    return Action.call("ask", slot=slot)
                text = f"{slot}: {text.removeprefix('It is ').removesuffix('.')}"
            known[slot] = text.partition(": ")[2]
        if next(answers, None) is None:
            return Action.call("fill", slot=slot, value=known[slot])
    return Action.call("send")


expert = expert_of(_decide)

SPEC = EnvSpec(
    name="ask",
    tasks=ask_tasks,
    make=played(Ask),
    description="A request that lacks what only the user knows: ask for just that, then act.",
    in_process=True,
)
