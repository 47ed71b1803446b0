"""An `OnPolicyQueue` as plain JSON beside its episodes, and back.

The JSON never holds an episode: it says how many of the episodes, in order, make up each group, so that whoever
stores the checkpoint stores episodes as it stores all others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from envgym.buffer.spoiled import Loss, Why
from envgym.buffer.waiting import Place, QueueState, Swept, Ticket
from envgym.episode import Group

__all__ = ["Parts", "restored_parts", "state_of"]

_SCHEMA = 2


@dataclass(frozen=True, slots=True)
class Parts:
    """What a state is made of."""

    settings: dict[str, Any]
    counters: dict[str, Any]
    places: tuple[Place, ...]
    tickets: tuple[Ticket, ...]
    swept: tuple[Swept, ...]


def state_of(
    settings: Mapping[str, Any],
    counters: Mapping[str, Any],
    places: Sequence[Place],
    tickets: Iterable[Ticket],
    swept: Iterable[Swept],
) -> QueueState:
    """Plain JSON and the episodes, in order."""
    facts = {
        "schema": _SCHEMA,
        "settings": dict(settings),
        "counters": dict(counters),
        "places": [
            {
                "number": place.number,
                "task_id": place.group.task_id,
                "members": len(place.group),
                "size": place.size,
                "masked": sorted(place.masked),
                "refills": place.refills,
                "asked": place.asked,
            }
            for place in places
        ],
        "tickets": [asdict(ticket) for ticket in tickets],
        "swept": [
            {
                "number": one.number,
                "task_id": one.task_id,
                "lost": [[loss.episode, loss.why.value, loss.oldest] for loss in one.lost],
                "whole": one.whole,
            }
            for one in swept
        ],
    }
    return QueueState(facts, tuple(member for place in places for member in place.group))


def restored_parts(state: QueueState) -> Parts:
    """What `state_of` put together. Raises ValueError for another schema, or another number of episodes."""
    facts = state.facts
    if facts.get("schema") != _SCHEMA:
        raise ValueError(f"state of a queue with schema {facts.get('schema')!r}; this version reads {_SCHEMA}")
    wanted = sum(raw["members"] for raw in facts["places"])
    if wanted != len(state.episodes):
        raise ValueError(f"the queue's state counts {wanted} episodes, and {len(state.episodes)} came with it")
    source = iter(state.episodes)
    places = tuple(
        Place(
            raw["number"],
            Group(raw["task_id"], tuple(next(source) for _ in range(raw["members"]))),
            raw["size"],
            frozenset(raw["masked"]),
            raw["refills"],
            raw["asked"],
        )
        for raw in facts["places"]
    )
    swept = tuple(
        Swept(
            raw["number"],
            raw["task_id"],
            tuple(Loss(name, Why(why), oldest) for name, why, oldest in raw["lost"]),
            raw["whole"],
        )
        for raw in facts["swept"]
    )
    return Parts(
        facts["settings"], facts["counters"], places, tuple(Ticket(**raw) for raw in facts["tickets"]), swept
    )
