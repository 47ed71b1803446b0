"""Episodes on disk, exactly: one checksummed line per episode, appended.

A line is ``<crc32 hex> <json>``; token ids and log-probabilities are base64 of little-endian int32 and float32,
so what is read equals what was written bit for bit. A line cut off by a crash is dropped when the
store is opened for appending and ends the reading; it never hides the lines before it. This is the first,
simple store: no index, no columns.
"""

import base64
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from envgym.env import Grade, StopReason
from envgym.episode import Episode, ForkPoint, Turn
from envgym.errors import Failure, StoreCorrupt
from envgym.policy import VersionRun
from envgym.wire import (
    dumps,
    messages_from_json,
    messages_to_json,
    snapshot_from_json,
    snapshot_to_json,
    step_from_json,
    step_to_json,
)

__all__ = ["SCHEMA", "Damage", "EpisodeWriter", "decode", "encode", "read_episodes", "scan_episodes"]

SCHEMA = 1
"""Version of the line format; a reader refuses what it does not know."""


_HEAD = b"00000000 {"
"""How a line begins, but for the digits of its checksum."""


def _begins_a_line(head: bytes) -> bool:
    """Whether a line of the store, or what a crash left of one, begins like this."""
    pairs = zip(head, _HEAD, strict=False)
    return all(chr(byte) in "0123456789abcdef" if want == _HEAD[0] else byte == want for byte, want in pairs)


def _not_a_line(head: bytes) -> str:
    return f"not a line of a file of episodes: it begins with {head[:16]!r}, not with a checksum"


def _pack(array: NDArray[Any], kind: str) -> str:
    return base64.b64encode(array.astype(kind).tobytes()).decode()


def _unpack(text: str, kind: str) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), kind).astype(kind.lstrip("<"))


def _turn_to_json(turn: Turn) -> dict[str, Any]:
    return {
        "actor": turn.actor,
        "messages": messages_to_json(turn.messages),
        "step": step_to_json(turn.step),
        "prompt_ids": _pack(turn.prompt_ids, "<i4"),
        "sampled_ids": _pack(turn.sampled_ids, "<i4"),
        "logprobs": _pack(turn.logprobs, "<f4"),
        "versions": [(run.start, run.version) for run in turn.versions],
        "segment": turn.segment,
        "position": turn.position,
        "allowed": turn.allowed,
        "snapshot": snapshot_to_json(turn.snapshot),
    }


def _turn_from_json(raw: dict[str, Any]) -> Turn:
    return Turn(
        actor=raw["actor"],
        messages=messages_from_json(raw["messages"]),
        step=step_from_json(raw["step"]),
        prompt_ids=_unpack(raw["prompt_ids"], "<i4"),
        sampled_ids=_unpack(raw["sampled_ids"], "<i4"),
        logprobs=_unpack(raw["logprobs"], "<f4"),
        versions=tuple(VersionRun(*run) for run in raw["versions"]),
        segment=raw["segment"],
        position=raw["position"],
        allowed=None if raw["allowed"] is None else tuple(raw["allowed"]),
        snapshot=snapshot_from_json(raw["snapshot"]),
    )


def encode(episode: Episode) -> bytes:
    """One line of the store. Raises TypeError when `Step.info` or `Step.cost` holds what JSON cannot."""
    record = {
        "schema": SCHEMA,
        "id": episode.id,
        "task_id": episode.task_id,
        "root": step_to_json(episode.root),
        "turns": [_turn_to_json(turn) for turn in episode.turns],
        "seed": episode.seed,
        "stop": episode.stop,
        "failure": None if episode.failure is None else episode.failure.model_dump(mode="json"),
        "parent": None
        if episode.parent is None
        else (episode.parent.episode, episode.parent.turn, episode.parent.token),
        "grades": [grade.model_dump() for grade in episode.grades],
        "provenance": list(episode.provenance),
        "wall_s": episode.wall_s,
    }
    body = dumps(record)
    return b"%08x " % zlib.crc32(body) + body + b"\n"


def decode(line: bytes) -> Episode:
    """The episode of one line. Raises StoreCorrupt when the checksum, the schema or the content is wrong."""
    if not _begins_a_line(line):
        raise StoreCorrupt(_not_a_line(line))
    checksum, _, body = line.rstrip(b"\n").partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        raise StoreCorrupt(f"checksum {checksum[:16]!r} does not match the {len(body)} bytes after it")
    raw = json.loads(body)
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema != SCHEMA:
        raise StoreCorrupt(f"schema {schema!r}; this version of envgym reads schema {SCHEMA}")
    try:
        return Episode(
            id=raw["id"],
            task_id=raw["task_id"],
            root=step_from_json(raw["root"]),
            turns=tuple(_turn_from_json(turn) for turn in raw["turns"]),
            seed=raw["seed"],
            stop=None if raw["stop"] is None else StopReason(raw["stop"]),
            failure=None if raw["failure"] is None else Failure.model_validate(raw["failure"]),
            parent=None if raw["parent"] is None else ForkPoint(*raw["parent"]),
            grades=tuple(Grade.model_validate(grade) for grade in raw["grades"]),
            provenance=tuple((key, value) for key, value in raw["provenance"]),
            wall_s=raw["wall_s"],
        )
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise StoreCorrupt(f"record with a valid checksum but a wrong shape: {error}") from error


class EpisodeWriter:
    """Appends episodes to one file; a context manager.

    Opening a file whose last line was cut off (a crash) removes that line only; one that begins like no file of
    episodes is refused (StoreCorrupt) and stays as it is. `append` writes one line with one `write` call; `sync`
    makes everything appended durable (fsync). An OSError names the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "ab+", buffering=0)  # noqa: SIM115  # closed by close()
        try:
            self._drop_torn_tail()
        except BaseException:
            self._file.close()
            raise

    def _drop_torn_tail(self) -> None:
        size = self._file.seek(0, os.SEEK_END)
        if size == 0:
            return
        self._file.seek(0)
        if not _begins_a_line(head := self._file.read(len(_HEAD))):
            raise StoreCorrupt(f"{self.path}: {_not_a_line(head)}; nothing is appended to it")
        end, keep = size, 0
        while end > 0:
            start = max(0, end - (1 << 16))
            self._file.seek(start)
            found = self._file.read(end - start).rfind(b"\n")
            if found >= 0:
                keep = start + found + 1
                break
            end = start
        self._file.truncate(keep)
        self._file.seek(0, os.SEEK_END)

    def append(self, episode: Episode) -> None:
        """Write one episode."""
        line = memoryview(encode(episode))
        with self._naming_the_file():
            while line:
                line = line[self._file.write(line) or 0 :]

    def sync(self) -> None:
        """Make what was appended durable."""
        with self._naming_the_file():
            os.fsync(self._file.fileno())

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        """A full disk does not say where; the file does."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that is no episode: where, and why. `torn`: a last line without its end, as a crash leaves it."""

    path: str | Path
    line: int
    byte: int
    why: str
    torn: bool = False

    def __str__(self) -> str:
        return f"{self.path}, line {self.line} (byte {self.byte}): {self.why}"


def scan_episodes(path: str | Path) -> Iterator[Episode | Damage]:
    """What every line of a file is, in order: an episode, or damage that hides no other line."""
    offset = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                try:
                    yield decode(line)
                except StoreCorrupt as error:
                    yield Damage(path, number, offset, str(error))
            elif _begins_a_line(line):
                yield Damage(path, number, offset, f"cut off after {len(line)} bytes: a torn write", torn=True)
            else:
                yield Damage(path, number, offset, _not_a_line(line))
            offset += len(line)


def read_episodes(path: str | Path) -> Iterator[Episode]:
    """The episodes of a file, in order, one in memory at a time.

    Raises StoreCorrupt, naming file, line and byte, at the first line that fails its checksum; what came before
    has been yielded. A last line without its newline is a torn write and ends the iteration quietly.
    """
    for found in scan_episodes(path):
        if isinstance(found, Episode):
            yield found
        elif not found.torn:
            raise StoreCorrupt(str(found))
