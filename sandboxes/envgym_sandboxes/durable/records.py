"""What is written down of a durable snapshot: plain, checked values. Nothing here touches a disk."""

import hashlib
import json
import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envgym.sandbox import SandboxSnapshot

__all__ = ["Manifest", "ShellState", "decode_manifest", "encode_manifest", "is_digest"]

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_SCRIPT = 64 << 20


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 in hexadecimal."""
    return _DIGEST.fullmatch(text) is not None


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ShellState(_Frozen):
    """Where a shell goes on from: its directory, a script, and the layer whose paths are in it."""

    cwd: str = Field(max_length=1 << 16)
    layer: str = Field(max_length=256)
    script: str = Field(max_length=_MOST_SCRIPT)


class Manifest(_Frozen):
    """One snapshot: what restoring it needs, by the digests of what is stored.

    backend: who can restore it. references: who holds it. identity: of the image it stands on, which is not
    stored. world, shell: a `World` and a `ShellState`, None for a shell that was never used. base: layers that
    stand for the world's trees, files and set-up, topmost first. chain: layers above it, lowest first; each is a
    packed layer or a list of such things. created: seconds since 1970.
    """

    format: Literal[1] = 1
    backend: str = Field(max_length=64)
    created: float = Field(ge=0)
    references: int = Field(default=1, ge=1)
    partial: bool
    digest: str = Field(max_length=64)
    identity: dict[str, str]
    world: str
    shell: str | None
    base: tuple[str, ...] = Field(max_length=512)
    chain: tuple[str, ...] = Field(max_length=512)

    @property
    def stored(self) -> tuple[str, ...]:
        """The digests of all that it names."""
        return (self.world, *([self.shell] if self.shell else []), *self.base, *self.chain)

    def handle(self, name: str) -> SandboxSnapshot:
        """The snapshot that users hold."""
        return SandboxSnapshot(
            id=name, backend=self.backend, partial=self.partial, digest=self.digest, durable=True
        )


def encode_manifest(manifest: Manifest) -> bytes:
    """A manifest with its checksum."""
    text = manifest.model_dump_json()
    return json.dumps({"checksum": _checksum(text), "manifest": text}).encode() + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """What `encode_manifest` made. Raises ValueError."""
    try:
        raw: Any = json.loads(data)
        text = raw["manifest"]
        if raw["checksum"] != _checksum(text):
            raise ValueError("its checksum does not match")
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(f"it is no manifest: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from None
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it is no manifest: {error!r}") from None
    if strange := [name for name in manifest.stored if not is_digest(name)]:
        raise ValueError(f"it names {strange[0][:80]!r}, which is no digest")
    return manifest


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
