"""What every service is made of: a desk with tools over a database, and a case: who calls, why, and what is right.

A database is plain JSON. A tool is a method of the desk, typed; what it may not do is `Refused`, which the agent
reads. `Case` is data, so that it fits in a task; the right end is told by `gold`, the calls that reach it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import msgspec
from pydantic import BaseModel, ValidationError

from envgym.messages import ToolCall, ToolSpec
from envgym.tools import arguments_model, tool_spec

__all__ = ["Act", "Case", "Desk", "Refused", "mistyped", "replayed", "specs_of"]


class Refused(Exception):  # nothing failed: the service says no
    """Why a tool does not do what it was asked."""


class Desk(Protocol):
    """The tools of one service over one database, which they change in place.

    reads, writes: the names of the tools; writes change the database.
    policy: what an agent must keep, in words.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    policy: str
    db: dict[str, Any]

    def owner(self, call: ToolCall) -> str | None:
        """Whose things a call writes: an id that a `reads` tool named before; None where it is nobody's."""
        ...

    def learned(self, call: ToolCall, text: str) -> str | None:
        """Who is known by a look and its answer; None where it says nothing of that."""
        ...


@dataclass(frozen=True, slots=True)
class Act:
    """A call that must have been made, whatever it did. compared: the arguments that count; None: all it has."""

    name: str
    arguments: dict[str, Any]
    compared: list[str] | None = None

    def is_done_by(self, call: ToolCall) -> bool:
        """Whether this call is that one; an argument that either lacks is equal where both do."""
        names = call.arguments.keys() if self.compared is None else self.compared
        return call.name == self.name and all(
            (name in call.arguments, call.arguments.get(name)) == (name in self.arguments, self.arguments.get(name))
            for name in names
        )


@dataclass(slots=True)
class Case:
    """One user and what they want.

    opening: the first words. wants: what is asked for afterwards, one by one. facts: what the user answers when a
    message names one of the words (separated by "|"). recalls: sentences by their words, of which the user says
    those that share the most with a question (see `scenario`). gold: the calls that change the database as it
    should be changed, none where nothing may be. looks: those that find out what has to be known.
    tell: texts of which each must be said to the user. owner: who calls. refuse: whether the request is against the
    policy, so that the user must be told no.
    before: calls that were made before the case begins. holds: questions to the desk that must be answered yes at
    the end; compared: whether the database must be what gold makes of it.
    instructions: the same for a user that is played by a model.
    basis: what counts, where the case says so, of DB, ENV_ASSERTION, COMMUNICATE, ACTION (tau2's words); None: the
    database, `holds`, `tell`, and that the policy was kept. acts: calls that must be made, of ACTION. judged:
    sentences that must be true of what the agent did, which only a judge can say.
    """

    opening: str
    owner: str
    facts: dict[str, str] = field(default_factory=dict)
    wants: list[str] = field(default_factory=list)
    gold: list[ToolCall] = field(default_factory=list)
    looks: list[ToolCall] = field(default_factory=list)
    tell: list[str] = field(default_factory=list)
    refuse: bool = False
    before: list[ToolCall] = field(default_factory=list)
    holds: list[ToolCall] = field(default_factory=list)
    compared: bool = True
    instructions: str = ""
    recalls: dict[str, str] = field(default_factory=dict)
    basis: list[str] | None = None
    acts: list[Act] = field(default_factory=list)
    judged: list[str] = field(default_factory=list)

    def counts(self, what: str) -> bool:
        """Whether one of these parts (separated by "|") is in the basis; without a basis everything counts."""
        return self.basis is None or not set(what.split("|")).isdisjoint(self.basis)


@cache
def specs_of(desk: type[Desk]) -> tuple[ToolSpec, ...]:
    """The specs of a desk's tools."""
    return tuple(tool_spec(getattr(desk, name)) for name in (*desk.reads, *desk.writes))


@cache
def _arguments_of(desk: type[Desk], name: str) -> type[BaseModel]:
    return arguments_model(getattr(desk, name))


def mistyped(desk: type[Desk], call: ToolCall) -> str | None:
    """Which argument of a checked call is not of its type, in what stands inside of it too; None: all are."""
    try:
        _arguments_of(desk, call.name).model_validate(call.arguments, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))[:80]}: {first['msg']}"
    return None


def replayed(desk: Callable[[dict[str, Any]], Desk], db: dict[str, Any], calls: list[ToolCall]) -> dict[str, Any]:
    """A copy of the database after some calls; one that is refused changes nothing, as for an agent."""
    made = desk(msgspec.json.decode(msgspec.json.encode(db)))
    for call in calls:
        if call.name in made.writes:
            try:
                getattr(made, call.name)(**call.arguments)
            except Refused:
                continue
    return made.db
