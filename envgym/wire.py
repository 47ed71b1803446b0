"""The one JSON form of messages, actions, steps and snapshots, for pipes and for programs.

Plain JSON values (dicts, lists, strings, numbers); writing them as ASCII (`dumps`) keeps every text exactly,
lone surrogates and NUL included, which models do produce. No schema version is here: the containers have one.
"""

import json
from typing import Any

from pydantic import TypeAdapter

from envgym.env import Snapshot, Step, StopReason
from envgym.messages import Action, Message

__all__ = [
    "action_from_json", "action_to_json", "dumps", "messages_from_json", "messages_to_json",
    "snapshot_from_json", "snapshot_to_json", "step_from_json", "step_to_json",
]  # fmt: skip

_MESSAGES = TypeAdapter(tuple[Message, ...])


def dumps(value: Any) -> bytes:
    """Compact ASCII JSON. Raises TypeError for what JSON cannot hold."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


def messages_to_json(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """Messages as JSON values."""
    # pydantic's own JSON mode is lossy for lone surrogates in keys; every field here is a JSON value already
    return [message.model_dump() for message in messages]


def messages_from_json(raw: Any) -> tuple[Message, ...]:
    """What `messages_to_json` made. Raises ValidationError (a ValueError) for anything else."""
    return _MESSAGES.validate_python(raw)


def action_to_json(action: Action) -> dict[str, Any]:
    """An action as JSON values."""
    return action.model_dump()


def action_from_json(raw: Any) -> Action:
    """What `action_to_json` made. Raises ValidationError."""
    return Action.model_validate(raw)


def snapshot_to_json(snapshot: Snapshot | None) -> dict[str, Any] | None:
    """A snapshot as JSON values."""
    return None if snapshot is None else snapshot.model_dump()


def snapshot_from_json(raw: Any) -> Snapshot | None:
    """What `snapshot_to_json` made. Raises ValidationError."""
    return None if raw is None else Snapshot.model_validate(raw)


def step_to_json(step: Step) -> dict[str, Any]:
    """A step as JSON values, without its images' bytes; `info` and `cost` must hold nothing else."""
    return {
        "observation": messages_to_json(step.observation),
        "reward": step.reward,
        "channels": dict(step.channels),
        "stop": step.stop,
        "state_key": step.state_key,
        "legal": step.legal,
        "submission": step.submission,
        "cost": dict(step.cost),
        "info": dict(step.info),
        "next_actor": step.next_actor,
    }


def step_from_json(raw: dict[str, Any]) -> Step:
    """What `step_to_json` made. Raises ValueError, TypeError or KeyError for anything else."""
    fields = dict(raw)
    fields["observation"] = messages_from_json(fields["observation"])
    fields["stop"] = None if fields["stop"] is None else StopReason(fields["stop"])
    fields["legal"] = None if fields["legal"] is None else tuple(fields["legal"])
    return Step(**fields)
