"""What a judge said of stored episodes and tasks, one JSON line each: feedback on spans, subgoals, timed goals.

A judge reads and writes text, so what it says may be unreadable: that is kept as its fault (`unread`), and nothing
is guessed in its place. Lines are only ever appended; a file that was begun goes on.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

__all__ = ["Goal", "Line", "Praise", "Reached", "SaidGoal", "SaidSpans", "SaidSubgoals", "Timed", "read_said"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Praise(_Frozen):
    """A reward for a part of what was said in a turn, and why. quote: the words it is for; "" is all of the turn.

    begin, end: which of the turn's sampled tokens these are.
    """

    turn: Annotated[int, Field(ge=0)]
    begin: Annotated[int, Field(ge=0)]
    end: Annotated[int, Field(ge=1)]
    reward: Annotated[FiniteFloat, Field(ge=-1, le=1)]
    quote: str = ""
    why: str = ""


class Reached(_Frozen):
    """A turn that reached a subgoal, by its number from 1."""

    turn: Annotated[int, Field(ge=0)]
    subgoal: Annotated[int, Field(ge=1)]


class Timed(_Frozen):
    """A stage of a goal: a text that the world must say, within so many turns after the stage before it."""

    name: Annotated[str, Field(min_length=1)]
    text: Annotated[str, Field(min_length=1)]
    within: Annotated[int, Field(ge=1)] | None = None
    reward: Annotated[FiniteFloat, Field(ge=0, le=1)] = 1.0


class Goal(_Frozen):
    """Stages in their order, and a text that the world must never say; "" where there is none."""

    stages: Annotated[tuple[Timed, ...], Field(min_length=1)]
    never: str = ""


class _Line(_Frozen):
    """What all lines say: who judged which task; unread: why parts of the answer say nothing, kept as data."""

    judge: str
    task: str
    unread: tuple[str, ...] = ()


class SaidSpans(_Line):
    """Feedback on an episode's own turns. whole: spans are whole turns, as nobody could spell their tokens."""

    kind: Literal["spans"] = "spans"
    episode: str
    whole: bool
    spans: tuple[Praise, ...] = ()


class SaidSubgoals(_Line):
    """The subgoals of a task, and which turns of an episode reached one."""

    kind: Literal["subgoals"] = "subgoals"
    episode: str
    subgoals: tuple[str, ...]
    reached: tuple[Reached, ...] = ()


class SaidGoal(_Line):
    """A timed goal of a task; None where the answer had none."""

    kind: Literal["goals"] = "goals"
    goal: Goal | None = None


Line = Annotated[SaidSpans | SaidSubgoals | SaidGoal, Field(discriminator="kind")]
_LINE: TypeAdapter[Any] = TypeAdapter(Line)


def read_said(path: Path) -> list[SaidSpans | SaidSubgoals | SaidGoal]:
    """The lines of a file. Raises ValueError for one that is not of this form, with its number."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            found.append(_LINE.validate_json(line))
        except ValidationError as error:
            raise ValueError(f"{path}:{number} is no line of feedback: {error.errors()[0]['msg']}") from None
    return found


def read_json(answer: str, opening: Literal["[", "{"]) -> Any:
    """The first whole JSON list (or object) in a text. Raises ValueError where there is none."""
    decoder = json.JSONDecoder()
    for place in _places(answer, opening):
        try:
            return decoder.raw_decode(answer, place)[0]
        except (json.JSONDecodeError, RecursionError):
            continue
    raise ValueError(f"the answer holds no JSON {'list' if opening == '[' else 'object'}: {answer[:80]!r}")


def _places(text: str, of: str, *, most: int = 64) -> Iterator[int]:
    """Where a character stands, the first so many times: each is a place to read from."""
    place = text.find(of)
    while place >= 0 and most:
        yield place
        place, most = text.find(of, place + 1), most - 1


def located(quote: str, pieces: Sequence[str]) -> tuple[int, int] | None:
    """Which pieces of a text hold the first place of a quote, the last not included; None where it is not there."""
    first = "".join(pieces).find(quote)
    if first < 0 or not quote:
        return None
    ends, at = [], 0
    for piece in pieces:
        at += len(piece)
        ends.append(at)
    begin = next(k for k, end in enumerate(ends) if end > first)
    return begin, 1 + next(k for k, end in enumerate(ends) if end >= first + len(quote))
