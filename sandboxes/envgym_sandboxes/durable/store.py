"""Durable snapshots on disk: immutable things named by their digests, and a manifest per snapshot that names them.

Whatever appears under its name is complete: it was written beside it, synced and renamed. References are counted in
manifests. What no manifest names is garbage and removed when the last one that named it goes, or by `collect`.
Processes share the store by a lock: many may add and read at once, one at a time counts and removes. A lock ends
with its process, and what a killed one left half written bears its name.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

from envgym.errors import SnapshotGone, StoreCorrupt
from envgym_sandboxes.durable.form import header
from envgym_sandboxes.durable.objects import Objects
from envgym_sandboxes.durable.records import Manifest, decode_manifest, encode_manifest
from envgym_sandboxes.removal import remove_tree
from envgym_sandboxes.state import is_dead, new_name

__all__ = ["Store", "default_place"]


def default_place() -> Path:
    """This user's store: ``$ENVGYM_CACHE/snapshots``, or ``envgym/snapshots`` in ``$XDG_CACHE_HOME`` or ~/.cache.

    Of a user without a home: in /var/tmp.
    """
    if cache := os.environ.get("ENVGYM_CACHE"):
        return Path(cache) / "snapshots"
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        home = Path(f"/var/tmp/envgym-{os.getuid()}")
    return home / "envgym" / "snapshots"


class Store:
    """The durable snapshots below one directory, which is made when the first is taken. Its calls block."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.objects = Objects(top / "objects")
        self._stamps: dict[str, tuple[tuple[int, int, int], frozenset[str]]] = {}

    # -- one at a time, or many --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def sharing(self) -> Iterator[None]:
        """While something is added or read: nothing is removed."""
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with self._locked(fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        with self.opened() as file:
            fcntl.flock(file, how)
            yield

    def opened(self) -> IO[bytes]:
        """The file that is locked; closing it ends the lock."""
        for name in ("objects", "snapshots", "making"):
            (self.top / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        return (self.top / "lock").open("ab")

    # -- things by their digests -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def making(self) -> Iterator[Path]:
        """A directory to write things in, that bears this process's name; it goes."""
        self.opened().close()
        path = self.top / "making" / new_name()
        path.mkdir(mode=0o700)
        try:
            yield path
        finally:
            remove_tree(path)

    def keep(self, path: Path, digest: str) -> None:
        """Give a file that was written here its name, for good. Call it while sharing."""
        if self.objects.has(digest):
            return
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.rename(self.objects.place(digest))
        _sync(self.top / "objects")

    def add(self, kind: str, content: bytes, making: Path) -> str:
        """Store something small; its digest. Call it while sharing."""
        data = header(kind) + zlib.compress(content, 1)
        digest = hashlib.sha256(data).hexdigest()
        if not self.objects.has(digest):
            path = making / digest
            path.write_bytes(data)
            self.keep(path, digest)
        return digest

    # -- snapshots ---------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The names of all snapshots."""
        folder = self.top / "snapshots"
        return sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []

    def find(self, name: str) -> Manifest:
        """A snapshot's manifest. Raises SnapshotGone, StoreCorrupt."""
        path = self._manifest(name)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise SnapshotGone(
                f"snapshot {name!r} is not in {self.top}: it was released, or never kept here"
            ) from None
        try:
            return decode_manifest(data)
        except ValueError as error:
            raise StoreCorrupt(f"{path}: {error}; remove it: what it named is lost") from None

    def record(self, manifest: Manifest) -> str:
        """Write a new snapshot down; its name. Call it while sharing, after all that it names was kept."""
        name = secrets.token_hex(12)
        self._write(name, manifest)
        return name

    def count(self, name: str, more: int) -> int:
        """Change the number of references; the last one removes the snapshot and what nobody else needs."""
        with self._alone():
            manifest = self.find(name)
            references = manifest.references + more
            if references > 0:
                self._write(name, manifest.model_copy(update={"references": references}))
                return references
            self._manifest(name).unlink()
            _sync(self.top / "snapshots")
            with contextlib.suppress(StoreCorrupt):  # who needs the broken one is told when he asks for it
                self._remove(self.objects.reach(manifest.stored) - self._named())
        return 0

    def collect(self) -> list[str]:
        """Remove what no snapshot names, and what killed processes left; a line per thing removed.

        Raises StoreCorrupt, and removes nothing that is complete, when a manifest cannot be read.
        """
        if not self.top.is_dir():
            return []
        with self._alone():
            removed = []
            for path in sorted((self.top / "making").iterdir()):
                if is_dead(path.name):
                    remove_tree(path)
                    removed.append(f"directory {path}")
            there = {path.name for path in (self.top / "objects").iterdir()}
            return removed + self._remove(there - self._named())

    def _remove(self, digests: Collection[str]) -> list[str]:
        here = [digest for digest in digests if self.objects.has(digest)]
        removed = []
        for digest in reversed(self._in_order(here)):  # a list is never there without its layers
            self.objects.place(digest).unlink()
            self.objects.forget(digest)
            removed.append(f"file {self.objects.place(digest)}")
        return removed

    def _in_order(self, digests: list[str]) -> list[str]:
        wanted = set(digests)
        try:
            return [digest for digest in self.objects.ordered(digests) if digest in wanted]
        except StoreCorrupt:  # what is broken goes first
            return sorted(digests)

    def _named(self) -> set[str]:
        """All that any manifest names."""
        found: set[str] = set()
        names = self.names()
        for name in names:
            info = self._manifest(name).stat()
            stamp = (info.st_ino, info.st_mtime_ns, info.st_size)
            if name not in self._stamps or self._stamps[name][0] != stamp:
                self._stamps[name] = (stamp, frozenset(self.objects.reach(self.find(name).stored)))
            found |= self._stamps[name][1]
        self._stamps = {name: self._stamps[name] for name in names}
        return found

    def _manifest(self, name: str) -> Path:
        if not (len(name) == 24 and all(letter in "0123456789abcdef" for letter in name)):
            raise SnapshotGone(f"{name!r} is not the name of a durable snapshot")
        return self.top / "snapshots" / f"{name}.json"

    def _write(self, name: str, manifest: Manifest) -> None:
        with self.making() as making:
            path = making / name
            with path.open("wb") as file:
                file.write(encode_manifest(manifest))
                file.flush()
                os.fsync(file.fileno())
            path.rename(self._manifest(name))
        _sync(self.top / "snapshots")


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
