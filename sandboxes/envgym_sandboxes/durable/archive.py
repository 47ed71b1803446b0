"""A snapshot as one file: its manifest and everything that it names, for another host. The image is not in it.

Frames (see `protocol`) after a line that says what it is. Whoever reads one believes nothing: each thing must be
what its digest says, and of its form; all that the manifest names must be there, and nothing else; and what it
would take to unpack is bounded. What is read goes into a folder of the reader's own, and nowhere else.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from envgym.errors import StoreCorrupt
from envgym.task import World
from envgym_sandboxes import protocol
from envgym_sandboxes.durable.form import Piece, header, parse
from envgym_sandboxes.durable.objects import Objects
from envgym_sandboxes.durable.records import Manifest, ShellState, decode_manifest, encode_manifest, is_digest
from envgym_sandboxes.durable.store import Store
from envgym_sandboxes.new_file import part_of

__all__ = ["MOST_BYTES", "read", "take_in", "write"]

MOST_BYTES = 16 << 30
"""The most that the files of an imported snapshot may hold together."""
_MOST_ENTRIES = 1 << 24
_MOST_MANIFEST = 1 << 20
_CHUNK = 1 << 20


class _OtherFileError(ValueError):
    """What was given is not the kind of file that is read here."""


def write(objects: Objects, manifest: Manifest, path: Path) -> None:
    """Write a snapshot to a file, which appears complete or not at all. Raises StoreCorrupt, OSError."""
    with part_of(path) as part:
        order = objects.ordered(manifest.stored)
        with part.open("xb") as file:
            file.write(header("snapshot"))
            file.write(protocol.encode({"manifest": True}, encode_manifest(manifest)))
            for digest in order:
                _write_thing(file, objects, digest)
            file.write(protocol.encode({"end": len(order)}))
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)


def _write_thing(file: IO[bytes], objects: Objects, digest: str) -> None:
    total = hashlib.sha256()
    with objects.place(digest).open("rb") as source:
        file.write(protocol.encode({"thing": digest, "size": os.fstat(source.fileno()).st_size}))
        while piece := source.read(_CHUNK):
            total.update(piece)
            file.write(protocol.encode({"piece": True}, piece))
    if total.hexdigest() != digest:
        raise StoreCorrupt(f"{objects.place(digest)}: its content is not what its name says")


def read(path: Path, folder: Path, *, most_bytes: int = MOST_BYTES) -> tuple[Manifest, list[str]]:
    """Take a file apart into a folder, a file per thing by its digest; the manifest, and the digests in order.

    Raises StoreCorrupt, with the file and what is wrong with it; OSError.
    """
    try:
        with path.open("rb") as file:
            manifest, found = _take_apart(file, folder)
        objects = Objects(folder)
        wanted = objects.reach(manifest.stored)
        if wanted != found:
            odd = min(wanted ^ found)
            raise ValueError(f"{odd} is {'missing' if odd in wanted else 'in it, and nothing names it'}")
        _check(objects, manifest, most_bytes)
        return manifest, objects.ordered(found)
    except _OtherFileError as error:
        raise StoreCorrupt(f"{path} cannot be imported: {error}") from None
    except (ValueError, StoreCorrupt) as error:
        said = str(error).replace(f"{folder}/", "")
        raise StoreCorrupt(f"{path} cannot be imported: {said}; export the snapshot again") from None


def take_in(store: Store, path: Path, check: Callable[[Manifest, World], None]) -> tuple[str, Manifest]:
    """Keep what a file holds as a new snapshot; its name. check: raises where it cannot be restored.

    Raises as `read`, and leaves nothing then.
    """
    with store.making() as making:
        manifest, digests = read(path, making)
        check(manifest, World.model_validate_json(Objects(making).read("world", manifest.world)))
        manifest = manifest.model_copy(update={"references": 1})
        with store.sharing():
            for digest in digests:
                store.keep(making / digest, digest)
            return store.record(manifest), manifest


def _take_apart(file: IO[bytes], folder: Path) -> tuple[Manifest, set[str]]:
    _check_first_line(file.read(len(header("snapshot"))))
    manifest: Manifest | None = None
    found: set[str] = set()
    frames = _frames(file)
    for head, body in frames:
        if "end" in head:
            if head["end"] != len(found) or manifest is None:
                raise ValueError("it does not hold what it says")
            if _goes_on(frames):
                raise ValueError("it is too long: there is something after its end")
            return manifest, found
        if "manifest" in head:
            manifest = decode_manifest(body)
            continue
        digest = head.get("thing")
        if not isinstance(digest, str) or not is_digest(digest) or digest in found:
            raise ValueError(f"{str(digest)[:80]!r} is no digest, or there twice")
        _take_thing(frames, folder / digest, head.get("size"))
        found.add(digest)
    raise ValueError("it is cut off")


def _check_first_line(line: bytes) -> None:
    wanted = header("snapshot")
    kind = wanted.partition(b" ")[0] + b" "
    if line.startswith(kind) and line != wanted:
        raise _OtherFileError(
            f"it is of another form than {wanted.decode().strip()!r}, which is all that this version reads; export "
            "the snapshot again with this version"
        )
    if line != wanted:
        raise _OtherFileError(
            "it is no snapshot file; give one that `envgym snapshots export` or export_snapshot wrote"
        )


def _take_thing(frames: Iterator[tuple[dict[str, Any], bytes]], path: Path, size: Any) -> None:
    total, left = hashlib.sha256(), size
    if type(size) is not int or size < 0:
        raise ValueError(f"{path.name} has {str(size)[:80]} bytes")
    with path.open("xb") as file:
        while left:
            head, body = next(frames, ({}, b""))
            if "piece" not in head or not 0 < len(body) <= left:
                raise ValueError(f"{path.name} is cut off, or longer than it says")
            file.write(body)
            total.update(body)
            left -= len(body)
    if total.hexdigest() != path.name:
        raise ValueError(f"{path.name}: its content is not what its name says")


def _goes_on(frames: Iterator[object]) -> bool:
    try:
        return next(frames, None) is not None
    except ValueError:  # what follows is no frame, or not all of one
        return True


def _frames(file: IO[bytes]) -> Iterator[tuple[dict[str, Any], bytes]]:
    most = {"manifest": _MOST_MANIFEST, "piece": _CHUNK}

    def most_body(head: dict[str, Any]) -> int:
        return max((most[name] for name in most if name in head), default=0)

    decoder = protocol.Decoder(most_head=4096, most_body=most_body)
    try:
        while data := file.read(_CHUNK):
            yield from decoder.feed(data)
    except protocol.ProtocolError as error:
        raise ValueError(str(error)) from None
    if decoder.waiting:
        raise ValueError("it is cut off")


def _check(objects: Objects, manifest: Manifest, most_bytes: int) -> None:
    """Read all that a manifest names."""
    try:
        World.model_validate_json(objects.read("world", manifest.world))
        if manifest.shell is not None:
            ShellState.model_validate_json(objects.read("shell", manifest.shell))
    except ValidationError as error:
        raise ValueError(f"{error.title}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from None
    for digest in manifest.base:
        if objects.kind(digest) != "layer":
            raise ValueError(f"{digest} is no layer")
    for digest in manifest.chain:
        objects.check_layers(digest)
    layers = {digest for digest in objects.reach(manifest.stored) if objects.kind(digest) == "layer"}
    left, entries = most_bytes, _MOST_ENTRIES
    for digest in sorted(layers):
        for thing in parse(_chunks(objects.place(digest))):
            if isinstance(thing, Piece):
                left -= len(thing.content)
            else:
                entries -= 1
            if left < 0 or entries < 0:
                raise ValueError(f"its files hold more than {most_bytes} bytes, or are more than {_MOST_ENTRIES}")


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
