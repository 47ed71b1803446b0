"""Things by their digests in one folder: packed layers, lists of them, worlds, states of shells. It only reads.

A thing is a line that says its kind, and what follows, compressed. Small ones are checked whenever they are read;
packed layers where they are unpacked.
"""

import hashlib
import json
from collections.abc import Collection
from pathlib import Path

from envgym.errors import StoreCorrupt
from envgym_sandboxes.durable.form import header, unzip
from envgym_sandboxes.durable.records import is_digest

__all__ = ["Objects"]

_KINDS = ("layer", "list", "world", "shell")
_MOST_PLAIN = 1 << 30
_MOST_LAYERS = 1 << 16
_ADVICE = "release the snapshots that need it (`envgym snapshots list`, `release`), or import them again"


class Objects:
    """The things in a folder. Raises StoreCorrupt, with file and fix, for one that is not as it should be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lists: dict[str, tuple[str, ...]] = {}

    def place(self, digest: str) -> Path:
        """Where a thing is or would be."""
        return self.folder / digest

    def has(self, digest: str) -> bool:
        """Whether a thing is there. What a list names is there as long as the list."""
        return self.place(digest).exists()

    def kind(self, digest: str) -> str:
        """What kind of thing is stored under a digest."""
        with self._reading(digest).open("rb") as file:
            first = file.readline(64)
        for kind in _KINDS:
            if first == header(kind):
                return kind
        raise StoreCorrupt(f"{self.place(digest)} is of no kind that is known: {first!r}; {_ADVICE}")

    def read(self, kind: str, digest: str) -> bytes:
        """Something small, checked."""
        path = self._reading(digest)
        data = path.read_bytes()
        try:
            if hashlib.sha256(data).hexdigest() != digest:
                raise ValueError("its content is not what its name says")
            found = bytearray()
            for piece in unzip([data], kind):
                found += piece
                if len(found) > _MOST_PLAIN:
                    raise ValueError(f"it holds more than {_MOST_PLAIN} bytes")
            return bytes(found)
        except ValueError as error:
            raise StoreCorrupt(f"{path}: {error}; {_ADVICE}") from None

    def read_list(self, digest: str) -> tuple[str, ...]:
        """The digests of a list's layers, lowest first."""
        if digest not in self._lists:
            try:
                names = json.loads(self.read("list", digest))
            except (ValueError, RecursionError) as error:
                raise StoreCorrupt(f"{self.place(digest)}: {error}; {_ADVICE}") from None
            if not (isinstance(names, list) and all(isinstance(name, str) and is_digest(name) for name in names)):
                raise StoreCorrupt(f"{self.place(digest)} is not a list of digests; {_ADVICE}")
            self._lists[digest] = tuple(names)
        return self._lists[digest]

    def check_layers(self, digest: str) -> None:
        """Raise unless a thing is a packed layer, or a list of such things that stands for no more than may be."""
        stands_for: dict[str, int] = {}
        for name in self.ordered([digest]):
            kind = self.kind(name)
            if kind not in ("layer", "list"):
                raise StoreCorrupt(f"{self.place(name)} is a {kind}, and stands for a layer; {_ADVICE}")
            stands_for[name] = sum(stands_for[one] for one in self.read_list(name)) if kind == "list" else 1
            if stands_for[name] > _MOST_LAYERS:
                raise StoreCorrupt(f"{self.place(name)} stands for more than {_MOST_LAYERS} layers; {_ADVICE}")

    def reach(self, digests: Collection[str]) -> set[str]:
        """Some things and all that they stand for, whether or not they are there."""
        found: set[str] = set()
        left = list(digests)
        while left:
            digest = left.pop()
            if digest not in found:
                found.add(digest)
                if self.has(digest) and self.kind(digest) == "list":
                    left += self.read_list(digest)
        return found

    def ordered(self, digests: Collection[str]) -> list[str]:
        """Things and all that they stand for, each after what it names: added so, none ever lacks a layer."""
        found: dict[str, None] = {}
        left = sorted(digests)
        while left:
            digest = left[-1]
            inner = self.read_list(digest) if self.kind(digest) == "list" else ()
            wanting = [one for one in inner if one not in found]
            if wanting:
                left += wanting
            else:
                found[left.pop()] = None
        return list(found)

    def forget(self, digest: str) -> None:
        """Take note that a thing is gone."""
        self._lists.pop(digest, None)

    def _reading(self, digest: str) -> Path:
        path = self.place(digest)
        if not path.exists():
            raise StoreCorrupt(f"{path} is missing, and a snapshot names it; {_ADVICE}")
        return path
