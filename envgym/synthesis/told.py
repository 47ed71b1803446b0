"""What is said of what was found: the words of a task, the instruction of one step, how good a trail is.

As OS-Genesis makes tasks the other way round: first the instruction of each step, from what was seen before and
after it, then the task that those steps do, and a graded reward of the whole. A script says all three unless a
model is asked. Each question ends with what it is about as one line of JSON, so that a script can answer as well.
"""

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from envgym.messages import Message, ToolSpec, text_of
from envgym.synthesis.found import Found, Single

__all__ = ["Describe", "Instruct", "Rate", "Rates", "Told", "describe", "instruct", "learned", "rate"]

Describe = Callable[[Found, Sequence[ToolSpec]], Awaitable[str]]
"""The words of a task, for what was found; a model may write them (`describe`)."""
Instruct = Callable[[Single], Awaitable[str]]
"""The instruction that one step follows; a model may write it (`instruct`)."""
Rate = Callable[[Found], Awaitable[float]]
"""How good a trail was as a whole, in (0, 1]: how often its task is to be drawn (`rate`, `learned`)."""

_MOST_SEEN = 400
"""Characters of what was seen that a question tells."""


class Asks(Protocol):
    """As `envgym.rewards.Asker`."""

    async def ask(self, question: str, *, seed: int) -> str:
        """The answer."""
        ...


class Rates(Protocol):
    """A trained reward model that rates trails; `envgym.rewards.LearnedReward` says how one is opened."""

    def share(self, messages: Sequence[Message]) -> float | None:
        """What a conversation is worth, above 0 and at most 1; None for one in which nothing was answered."""
        ...


async def plain(found: Found, tools: Sequence[ToolSpec]) -> str:
    """What is to be seen at the end."""
    seen = " ".join(text_of(message) for message in found.last.observation)[:_MOST_SEEN]
    return f"Bring it about that the world says: {seen}"


async def straight(found: Found) -> float:
    """The share of a trail's actions that mattered."""
    return len(found.way) / found.walked


async def bare(single: Single) -> str:
    """What is to be called, with elements by what they are."""
    return f"Do this one step: {single.deed}."


@dataclass(frozen=True, slots=True)
class Told:
    """Who says what of what is found; a script says what is left out.

    words: writes prompts. rating: rates trails. least: a trail rated below it makes no task. steps: writes the
    instruction of each single step; None: there are no tasks of single steps.
    """

    words: Describe = plain
    rating: Rate = straight
    least: float = 0.0
    steps: Instruct | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.least <= 1.0:
            raise ValueError(f"least is {self.least}; ratings are above 0 and at most 1, so it must be in [0, 1]")


def _question(text: str, **about: Any) -> str:
    return f"{text}\n{json.dumps(about, ensure_ascii=False)}"


def _steps(found: Found) -> list[str]:
    return list(found.told) or found.schema.split(" > ")


def describe(asker: Asks, *, guide: str = "") -> Describe:
    """Prompts that a model writes: of the steps or their schema, and the end, never of the way itself.

    guide: what is wanted.
    """

    async def words(found: Found, tools: Sequence[ToolSpec]) -> str:
        listed = "\n".join(f"- {tool.name}: {tool.description[:200]}" for tool in tools)
        question = _question(
            f"Somebody has these tools:\n{listed}\nBelow are the steps in which a task is done, and what is seen "
            f"at its end.\n{guide}\nWrite the task as one request, without naming tools or steps. Answer with the "
            "request alone.",
            asked="task", steps=_steps(found), end=found.last.text[:_MOST_SEEN],
        )  # fmt: skip
        return (await asker.ask(question, seed=found.seed)).strip() or await plain(found, tools)

    return words


def instruct(asker: Asks) -> Instruct:
    """Instructions of single steps that a model writes, of what was seen before and after and what was done."""

    async def steps(single: Single) -> str:
        question = _question(
            "Below is what was seen, what was then done, and what was seen after it. Write the instruction that "
            "somebody followed who did this, as one sentence: what is to be done, to what, and with which text or "
            "number. Answer with the sentence alone.",
            asked="instruction", before=single.before.text[:_MOST_SEEN], done=single.deed,
            after=single.after.text[:_MOST_SEEN],
        )  # fmt: skip
        return (await asker.ask(question, seed=single.seed)).strip() or await bare(single)

    return steps


def rate(asker: Asks, *, least: float = 0.2) -> Rate:
    """Ratings that a model gives: 1 to 5 for how complete and coherent a way is, as a fifth each.

    As OS-Genesis weighs trails by a graded trajectory reward in the place of keeping or throwing them away
    (`Told.least` throws away). What is no number from 1 to 5 counts as `least`.
    """

    async def rating(found: Found) -> float:
        question = _question(
            "Below is what somebody did, step by step, without what led nowhere; after how many actions; and what "
            "was seen at the end. How complete and coherent is that as the way to do one task? Answer with one "
            "number, 1 (aimless) to 5.",
            asked="rating", steps=_steps(found), actions=found.walked, end=found.last.text[:_MOST_SEEN],
        )  # fmt: skip
        told = re.search(r"(?<![\d.,-])[1-5](?!\d)", await asker.ask(question, seed=found.seed))
        return int(told[0]) / 5 if told else least

    return rating


def learned(model: Rates) -> Rate:
    """Ratings of a trained reward model, as UI-Genie keeps what the model of the generation before rates well.

    It reads what it learned from: the way as a conversation, behind the words that a script gives the task.
    """

    async def rating(found: Found) -> float:
        asked = Message(role="user", content=await plain(found, ()))
        share = model.share((asked, *found.heard))
        if share is None:
            raise ValueError("a trail without an action cannot be rated")
        return share

    return rating
