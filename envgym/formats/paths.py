"""Conversations as paths: turns from a flat list of messages, and episodes of what a foreign file says of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from envgym.env import THE_AGENT, Grade, Step, StopReason
from envgym.episode import Episode, Turn
from envgym.formats.contract import Where
from envgym.messages import Message

__all__ = ["STOPS", "conversation", "ended", "foreign_episode", "foreign_info", "name_of", "stop_named"]

STOPS = (
    ("context", StopReason.CONTEXT_LIMIT), ("token", StopReason.TOKEN_LIMIT), ("cost", StopReason.TOKEN_LIMIT),
    ("time", StopReason.TIME_LIMIT), ("turn", StopReason.TURN_LIMIT), ("step", StopReason.TURN_LIMIT),
    ("length", StopReason.TOKEN_LIMIT), ("gave", StopReason.GAVE_UP), ("format", StopReason.GAVE_UP),
    ("forfeit", StopReason.GAVE_UP),
)  # fmt: skip
"""Words in other tools' reasons for an end, and ours."""


def stop_named(said: object) -> StopReason:
    """Our reason for an end of another tool's words; SUBMITTED where they say nothing that we know."""
    text = str(said or "").lower()
    if text in set(StopReason):
        return StopReason(text)
    return next((stop for word, stop in STOPS if word in text), StopReason.SUBMITTED)


def conversation(messages: Sequence[Message], acts: Sequence[bool]) -> tuple[Step, tuple[Turn, ...]]:
    """The first step and the turns of a flat conversation.

    acts: which messages are acts of the agent; those up to the next one are what the world answered.
    """
    starts = [k for k, act in enumerate(acts) if act]
    root = Step(observation=tuple(messages[: starts[0] if starts else len(messages)]))
    ends = [*starts[1:], len(messages)]
    turns = tuple(
        Turn(THE_AGENT, (messages[start],), Step(observation=tuple(messages[start + 1 : end])))
        for start, end in zip(starts, ends, strict=False)
    )
    return root, turns


def ended(turns: tuple[Turn, ...], stop: StopReason | None, reward: float | None = None) -> tuple[Turn, ...]:
    """Turns whose last step says how it ended and what it was worth."""
    if not turns:
        return turns
    last = turns[-1]
    step = replace(last.step, stop=stop, reward=last.step.reward if reward is None else reward)
    return (*turns[:-1], replace(last, step=step))


def name_of(where: Where) -> str:
    """A name for a record that has none: its file's, and its number in it."""
    number = where.record.rpartition(" ")[2]
    return f"{where.path.stem}-{number}" if number else where.path.stem


def foreign_episode(
    where: Where,
    root: Step,
    turns: tuple[Turn, ...],
    *,
    id: object = None,
    task_id: object = None,
    stop: StopReason = StopReason.SUBMITTED,
    grades: tuple[Grade, ...] = (),
) -> Episode:
    """An episode of what a record says by itself: its seed is unknown (0), its name the file's if it has none."""
    named = _name(id) or _name(task_id) or name_of(where)
    return Episode(
        id=named,
        task_id=_name(task_id) or named,
        root=root,
        turns=turns,
        seed=0,
        stop=stop,
        grades=grades,
    )


def foreign_info(tools: Any = None, **parts: Any) -> dict[str, Any]:
    """The info of a first step that keeps what a foreign record says besides: its tools, and the rest by part."""
    kept = {name: part for name, part in parts.items() if part}
    return {**({"tools": tools} if tools else {}), **({"foreign": kept} if kept else {})}


def _name(value: Any) -> str:
    return value if isinstance(value, str) else str(value) if type(value) is int else ""
