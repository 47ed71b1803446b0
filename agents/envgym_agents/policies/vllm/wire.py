"""What is said between a policy and an engine, in one process or in two: a few frozen values, framed by length.

Token ids go in and come out; no text, no tokenizer, no model names. `Engine` is what has to be there to answer.
Both ends of a pipe import this module, so it imports nothing of torch or vLLM.
"""

import socket
import struct
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

__all__ = [
    "ALL", "Abort", "Asked", "Delta", "Engine", "EngineSettings", "Failed", "Generate", "Load", "Loaded", "Ready",
    "Said", "Sampled", "Tell", "Told", "receive", "send",
]  # fmt: skip

ALL = -1
"""The number of a `Failed` that is about the engine and so about every request."""

_HEAD = struct.Struct("!I")
_MOST_BYTES = 1 << 28


class EngineSettings(msgspec.Struct, frozen=True):
    """How an engine is made.

    folder: of the model, without a tokenizer. dtype: as vLLM names it. cache_gib: of keys and values on a CPU;
    gpu_share: of a GPU's memory, for everything. eager: no compilation. sequences: most that are computed at once.
    threads: of torch; 0: as many as there are.
    """

    folder: str
    max_length: int
    dtype: str = "float32"
    cache_gib: int = 1
    gpu_share: float = 0.5
    eager: bool = True
    sequences: int = 128
    threads: int = 0


class Generate(msgspec.Struct, frozen=True, tag=True):
    """Sample up to `max_tokens` after `ids`, the first of `allowed` where given. The answer is `Sampled`."""

    number: int
    ids: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop_ids: tuple[int, ...] = ()
    allowed: tuple[int, ...] | None = None


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End a request now; its `Sampled` then holds what there was. Of one that is unknown nothing is said."""

    number: int


class Load(msgspec.Struct, frozen=True, tag=True):
    """Take the weights in a safetensors file, in place; what is sampled from then on is of `version`."""

    number: int
    version: int
    file: str


class Tell(msgspec.Struct, frozen=True, tag=True):
    """Say how likely each of `ids` is after those before it, sampling nothing. The answer is `Told`."""

    number: int
    ids: tuple[int, ...]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine is there. name: and its version."""

    name: str
    pid: int


class Sampled(msgspec.Struct, frozen=True, tag=True):
    """All of a completion. runs: (start, version). cached: ids of the context that were not computed again."""

    number: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    runs: tuple[tuple[int, int], ...]
    finish: Literal["stop", "length", "abort"]
    cached: int = 0


class Told(msgspec.Struct, frozen=True, tag=True):
    """The log-probabilities of all ids but the first, in nats, of the model's own distribution."""

    number: int
    logprobs: tuple[float, ...]


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The weights are those of `version`."""

    number: int
    version: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """What was asked could not be done. refused: because it makes no sense; else the engine broke."""

    number: int
    text: str
    refused: bool = False


Asked = Generate | Abort | Load | Tell
Said = Ready | Sampled | Told | Loaded | Failed

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Asked | Said] = msgspec.msgpack.Decoder(Asked | Said)


class Delta(NamedTuple):
    """What one step of an engine gave a request: new ids, their log-probabilities, and how it ended, if it has.

    Of one that was only to tell (`Engine.tell`), the log-probabilities are those of its own ids, all at once.
    """

    key: str
    ids: Sequence[int]
    logprobs: Sequence[float]
    finish: Literal["stop", "length"] | None
    cached: int = 0


class Engine(Protocol):
    """Computes; knows of no versions and remembers no request that has ended."""

    name: str

    def add(self, key: str, request: Generate, salt: str) -> None:
        """Begin a request; cached prefixes of another salt are not read. Raises ValueError where it cannot be."""
        ...

    def tell(self, key: str, ids: Sequence[int]) -> None:
        """Begin to compute how likely the ids are. Raises ValueError where it cannot be."""
        ...

    def step(self) -> Sequence[Delta]:
        """Compute something of what has begun."""
        ...

    def abort(self, keys: Sequence[str]) -> None:
        """Forget requests."""
        ...

    def load(self, file: str) -> None:
        """Replace the weights in place; nothing has begun then. Raises ValueError for what does not fit."""
        ...


def send(end: socket.socket, message: Asked | Said) -> None:
    """Write one message. Raises OSError where nobody reads."""
    body = _ENCODER.encode(message)
    if len(body) > _MOST_BYTES:
        raise ValueError(f"a message of {len(body)} bytes; at most {_MOST_BYTES} are sent at a time")
    end.sendall(_HEAD.pack(len(body)) + body)


def receive(end: socket.socket) -> Asked | Said | None:
    """Read one message; None at the end. Raises OSError, and ValueError for what is no message."""
    head = _exactly(end, _HEAD.size)
    if head is None:
        return None
    (size,) = _HEAD.unpack(head)
    if size > _MOST_BYTES:
        raise ValueError(f"a message of {size} bytes was announced; at most {_MOST_BYTES} are read")
    body = _exactly(end, size)
    return None if body is None else _DECODER.decode(body)


def _exactly(end: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = end.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
