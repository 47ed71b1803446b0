"""What the log of a store is made of: one record each for how an episode began, a turn, its end, a later grade.

A payload is ``codec (1 byte), head length (4 bytes), head, arrays``: the head is msgpack, or ASCII JSON where
msgpack cannot hold it (a lone surrogate, an integer of over 64 bits); token ids and log-probabilities follow
as little-endian int32 and float32. What is decoded equals what was encoded bit for bit. Framing, checksums and
files are the log's matter. Records are not frozen, which would cost every turn a microsecond; nobody changes one.
Each says the attempt that it is of (None: it was written before records said so), since the one that begins an
attempt may be lost.
"""

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from pydantic import BaseModel, ValidationError

from envgym.env import Grade, Step, StopReason
from envgym.episode import Began, Episode, ForkPoint, Turn
from envgym.errors import Failure, StoreCorrupt
from envgym.messages import Message, ParseError
from envgym.policy import VersionRun
from envgym.wire import messages_from_json, snapshot_from_json, step_from_json

__all__ = [
    "CODECS", "HEAD", "Answered", "Began", "Ended", "Graded", "Record", "Said", "Turned", "decode", "encode",
    "regraded",
]  # fmt: skip

HEAD = struct.Struct("<BI")
_UNANSWERED = Step()
CODECS = _MSGPACK, _JSON = 1, 2


@dataclass(slots=True)
class Said:
    """An actor has spoken, and the world has not answered yet: the turn's `step` is empty."""

    episode: str
    index: int
    turn: Turn
    attempt: int | None = None


@dataclass(slots=True)
class Answered:
    """The world's answer to what was last said: that turn is complete."""

    episode: str
    index: int
    step: Step
    step_s: float
    attempt: int | None = None


@dataclass(slots=True)
class Turned:
    """A whole turn, where nobody was told in between. index: its number among the episode's own turns."""

    episode: str
    index: int
    turn: Turn
    attempt: int | None = None


@dataclass(slots=True)
class Ended:
    """An episode ended; its turns all came before. turns: how many it has."""

    episode: str
    turns: int
    stop: StopReason | None
    failure: Failure | None
    grades: tuple[Grade, ...] = ()
    wall_s: float = 0.0
    attempt: int | None = None

    @classmethod
    def of(cls, episode: Episode, attempt: int | None = None) -> "Ended":
        """How an episode ended."""
        return cls(
            episode.id, len(episode.turns), episode.stop, episode.failure, episode.grades, episode.wall_s, attempt
        )

    def episode_of(self, began: Began, turns: tuple[Turn, ...]) -> Episode:
        """The whole. Raises ValueError when the parts are not one episode's."""
        if len(turns) != self.turns:
            raise ValueError(f"episode {self.episode} has {self.turns} turns, and {len(turns)} are there")
        return Episode(
            id=began.id, task_id=began.task_id, root=began.root, turns=turns, seed=began.seed, stop=self.stop,
            failure=self.failure, parent=began.parent, grades=self.grades, group=began.group,
            provenance=began.provenance, wall_s=self.wall_s,
        )  # fmt: skip


@dataclass(slots=True)
class Graded:
    """A grade was given to an episode after its end."""

    episode: str
    grade: Grade


Record = Began | Said | Answered | Turned | Ended | Graded


# -- writing -----------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """What neither codec knows, as what both know."""
    if isinstance(value, BaseModel):
        return value.__dict__
    if isinstance(value, Step):
        return _step(value)
    raise TypeError(f"a record cannot hold {type(value).__name__} ({str(value)[:80]!r}); give plain JSON values")


_pack = msgspec.msgpack.Encoder(enc_hook=_plain).encode


_NOTHING: dict[str, Any] = {}


def _step(step: Step) -> dict[str, Any]:
    return {
        "observation": _messages(step.observation), "reward": step.reward,
        "channels": dict(step.channels) if step.channels else _NOTHING,
        "stop": step.stop, "state_key": step.state_key, "legal": step.legal, "submission": step.submission,
        "cost": dict(step.cost) if step.cost else _NOTHING, "info": dict(step.info) if step.info else _NOTHING,
        "next_actor": step.next_actor,
    }  # fmt: skip


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    # what `_plain` makes of each, without a call from C for every one
    return [message.__dict__ for message in messages]


def _began(record: Began) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    parent = record.parent
    head = {
        "k": "began", "id": record.id, "task_id": record.task_id, "root": _step(record.root), "seed": record.seed,
        "parent": None if parent is None else (parent.episode, parent.turn, parent.token),
        "group": record.group, "provenance": record.provenance, "attempt": record.attempt,
    }  # fmt: skip
    return head, ()


def _turned(record: Turned | Said) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    turn = record.turn
    prompt, sampled = turn.prompt_ids, turn.sampled_ids
    head: dict[str, Any] = {
        "k": "turned" if type(record) is Turned else "said",
        "episode": record.episode, "attempt": record.attempt, "index": record.index, "actor": turn.actor,
        "messages": _messages(turn.messages),
        # a said one has only what the actor spent
        "step": _step(turn.step) if type(record) is Turned or turn.step.cost or turn.step.info else None,
        "segment": turn.segment, "position": turn.position,
        "versions": [(run.start, run.version) for run in turn.versions], "allowed": turn.allowed,
        "snapshot": turn.snapshot, "error": turn.error, "act_s": turn.act_s, "step_s": turn.step_s,
        "ids": (len(prompt), len(sampled)),
    }  # fmt: skip
    if turn.roles:
        head["roles"] = turn.roles
    return head, (prompt.tobytes(), sampled.tobytes(), turn.logprobs.tobytes())


def _answered(record: Answered) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    head = {
        "k": "answered", "episode": record.episode, "index": record.index, "step": _step(record.step),
        "step_s": record.step_s, "attempt": record.attempt,
    }  # fmt: skip
    return head, ()


def _ended(record: Ended) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    head = {
        "k": "ended", "episode": record.episode, "turns": record.turns, "stop": record.stop,
        "failure": record.failure, "grades": record.grades, "wall_s": record.wall_s, "attempt": record.attempt,
    }  # fmt: skip
    return head, ()


def _graded(record: Graded) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    return {"k": "graded", "episode": record.episode, "grade": record.grade}, ()


_PARTS: dict[type, Callable[[Any], tuple[dict[str, Any], tuple[bytes, ...]]]] = {
    Began: _began, Said: _turned, Answered: _answered, Turned: _turned, Ended: _ended, Graded: _graded,
}  # fmt: skip


def encode(record: Record) -> bytes:
    """A record's payload. Raises TypeError when `Step.info` or `Step.cost` holds what JSON cannot."""
    head, arrays = _PARTS[type(record)](record)
    codec = _MSGPACK
    try:
        packed = _pack(head)
    except (UnicodeEncodeError, OverflowError):
        packed, codec = json.dumps(head, separators=(",", ":"), default=_plain).encode(), _JSON
    return b"".join((HEAD.pack(codec, len(packed)), packed, *arrays))


# -- reading -----------------------------------------------------------------------------------------------------


def _read_began(raw: dict[str, Any], _body: memoryview) -> Began:
    return Began(
        raw["id"],
        raw["task_id"],
        step_from_json(raw["root"]),
        raw["seed"],
        None if raw["parent"] is None else ForkPoint(*raw["parent"]),
        raw["group"],
        tuple((key, value) for key, value in raw["provenance"]),
        raw["attempt"],
    )


def _read_turned(raw: dict[str, Any], body: memoryview) -> Turned | Said:
    prompt, sampled = raw["ids"]
    if len(body) != 4 * (prompt + 2 * sampled):
        raise ValueError(f"{len(body)} bytes of tokens, and {prompt} + {sampled} ids are said")
    ids = np.frombuffer(body, "<i4", prompt + sampled).astype(np.int32)
    turn = Turn(
        actor=raw["actor"],
        messages=messages_from_json(raw["messages"]),
        step=_UNANSWERED if raw["step"] is None else step_from_json(raw["step"]),
        prompt_ids=ids[:prompt],
        sampled_ids=ids[prompt:],
        logprobs=np.frombuffer(body, "<f4", sampled, 4 * (prompt + sampled)).astype(np.float32),
        versions=tuple(VersionRun(*run) for run in raw["versions"]),
        segment=raw["segment"],
        position=raw["position"],
        allowed=None if raw["allowed"] is None else tuple(raw["allowed"]),
        snapshot=snapshot_from_json(raw["snapshot"]),
        error=None if raw["error"] is None else ParseError.model_validate(raw["error"]),
        act_s=raw["act_s"],
        step_s=raw["step_s"],
        roles=tuple((role, length) for role, length in raw.get("roles", ())),
    )
    return (Turned if raw["k"] == "turned" else Said)(raw["episode"], raw["index"], turn, raw.get("attempt"))


def _read_answered(raw: dict[str, Any], _body: memoryview) -> Answered:
    return Answered(raw["episode"], raw["index"], step_from_json(raw["step"]), raw["step_s"], raw.get("attempt"))


def _read_ended(raw: dict[str, Any], _body: memoryview) -> Ended:
    return Ended(
        raw["episode"],
        raw["turns"],
        None if raw["stop"] is None else StopReason(raw["stop"]),
        None if raw["failure"] is None else Failure.model_validate(raw["failure"]),
        tuple(Grade.model_validate(grade) for grade in raw["grades"]),
        raw["wall_s"],
        raw.get("attempt"),
    )


def _read_graded(raw: dict[str, Any], _body: memoryview) -> Graded:
    return Graded(raw["episode"], Grade.model_validate(raw["grade"]))


_READERS: dict[str, Callable[[dict[str, Any], memoryview], Record]] = {
    "began": _read_began, "said": _read_turned, "answered": _read_answered, "turned": _read_turned,
    "ended": _read_ended, "graded": _read_graded,
}  # fmt: skip


def decode(payload: bytes | memoryview) -> Record:
    """What `encode` made of a record. Raises StoreCorrupt for anything else."""
    view = memoryview(payload)
    try:
        codec, length = HEAD.unpack_from(view)
        head, body = view[HEAD.size : HEAD.size + length], view[HEAD.size + length :]
        raw = msgspec.msgpack.decode(head) if codec == _MSGPACK else json.loads(bytes(head))
        return _READERS[raw["k"]](raw, body)
    except (
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        struct.error,
        msgspec.DecodeError,
        ValidationError,
    ) as error:
        raise StoreCorrupt(f"record with a valid checksum but a wrong shape: {error}") from error


def regraded(episode: Episode, grades: tuple[Grade, ...]) -> Episode:
    """An episode with grades that were given after its end."""
    return replace(episode, grades=(*episode.grades, *grades)) if grades else episode
