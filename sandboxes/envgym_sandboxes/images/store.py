"""Where images are kept: a directory per digest, and names that lead to digests.

A directory appears in one step, complete, or not at all; what a killed process left half done is removed by the
next one. Nothing here is ever written to again, so many sandboxes stand on one copy.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from envgym.errors import SandboxUnavailable, StoreCorrupt
from envgym_sandboxes import syscalls
from envgym_sandboxes.images import archives
from envgym_sandboxes.images.recipes import recipes
from envgym_sandboxes.images.rootfs import Rootfs, content_digest
from envgym_sandboxes.state import is_dead, new_name

__all__ = ["Image", "OtherDigest", "Store", "default_store"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ESCAPED = re.compile(r"\\([0-7]{3})")
"""How the kernel writes blanks in mountinfo."""
_LOG = logging.getLogger("envgym")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Image:
    """A root file system on this host. digest, size_bytes: None where it is a directory that nobody vouches for."""

    name: str
    root: str
    digest: str | None = None
    size_bytes: int | None = None


class OtherDigest(Exception):
    """What was made is not what was expected; `args[0]` is its digest."""


def default_store() -> "Store":
    """The store of this user: ``$ENVGYM_CACHE/images``, or ``envgym/images`` in ``$XDG_CACHE_HOME`` or ~/.cache."""
    cache = os.environ.get("ENVGYM_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Store((Path(cache) if cache else home / "envgym") / "images")


class Store:
    """The images below one directory, which is made when the first image is added. Readable by its owner only."""

    def __init__(self, top: Path) -> None:
        self.top = top

    # -- finding -----------------------------------------------------------------------------------------------

    def names(self) -> dict[str, str]:
        """Name -> digest of everything that has a name here."""
        folder = self.top / "names"
        return {path.name: path.read_text() for path in sorted(folder.iterdir())} if folder.is_dir() else {}

    def find(self, reference: str) -> Image:
        """The image of a name or digest. Raises SandboxUnavailable with what to do when it is not here."""
        digest = reference if _DIGEST.fullmatch(reference) else self.names().get(reference)
        if digest is not None and (self._place(digest) / "image.json").is_file():
            told = json.loads((self._place(digest) / "image.json").read_text())
            return Image(reference, str(self._place(digest) / "rootfs"), digest, told["size_bytes"])
        if reference in recipes():
            raise SandboxUnavailable(
                f"image {reference!r} is not built on this machine; run: envgym images build {reference}"
            )
        known = ", ".join(sorted({*recipes(), *self.names()}))
        raise ValueError(
            f"image {reference!r} is not known here (known: {known}); a file or directory is named by its absolute "
            "path, and `envgym images import` gives one a name"
        )

    def resolve(self, reference: str) -> Image:
        """The image of a name, a digest or an absolute path; files and OCI layouts are unpacked once."""
        if not reference.startswith("/"):
            return self.find(reference)
        path = Path(reference)
        if not path.exists():
            raise ValueError(f"{reference} is not there: an image is a root file system, an OCI layout or a tar")
        if not archives.is_image(path):
            return Image(reference, reference)
        known = self.top / "files" / _fingerprint(path)
        if known.is_file():
            with contextlib.suppress(SandboxUnavailable, ValueError):
                return self.find(known.read_text())
        image = self.add(archives.layers(path), source=reference)
        assert image.digest is not None
        self._write(known, image.digest)
        return image

    def _place(self, digest: str) -> Path:
        return self.top / digest.replace(":", "-")

    # -- adding ------------------------------------------------------------------------------------------------

    def add(
        self,
        layers: Iterable[tarfile.TarFile],
        *,
        source: str,
        name: str | None = None,
        expected: str | None = None,
    ) -> Image:
        """Unpack layers (lowest first) and keep what they make, under `name` if one is given.

        expected: the digest that it must have; with another one nothing is kept, and OtherDigest is raised.
        Raises ValueError for archives that are damaged or lead out, and for a name that is none.
        """
        if name is not None:
            self._check(name)
        with self.scratch() as place:
            top = place / "rootfs"
            top.mkdir(mode=0o755)
            with Rootfs(str(top)) as rootfs:
                for layer in layers:
                    rootfs.add(layer)
                rootfs.finish()
            digest, size = content_digest(str(top))
            if expected is not None and digest != expected:
                raise OtherDigest(digest)
            (place / "image.json").write_text(json.dumps({"size_bytes": size, "source": source}))
            with contextlib.suppress(OSError):  # somebody else was first, with the same content
                place.rename(self._place(digest))
        if name is not None:
            self.name(name, digest)
        return Image(name or digest, str(self._place(digest) / "rootfs"), digest, size)

    def name(self, name: str, digest: str) -> None:
        """Let a name lead to a digest that is here."""
        self._check(name)
        self._write(self.top / "names" / name, digest)

    def _check(self, name: str) -> None:
        if name == "host" or not _NAME.fullmatch(name):
            raise ValueError(f"image name {name!r} must be letters, digits, '.', '_' and '-', and not 'host'")

    def _write(self, path: Path, text: str) -> None:
        with self.scratch() as place:
            (place / "text").write_text(text)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            (place / "text").rename(path)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory to prepare something in; it is named after its maker, and goes."""
        self.top.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self.top.glob("making-*"):
            if is_dead(path.name.removeprefix("making-")):
                _remove(path)
        place = self.top / f"making-{new_name()}"
        place.mkdir(mode=0o700)
        try:
            yield place
        finally:
            _remove(place)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """One process at a time makes an image; the others find it made."""
        self._check(name)
        self.top.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.top / f"lock-{name}").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    # -- checking ----------------------------------------------------------------------------------------------

    def verify(self, reference: str) -> Image:
        """The image, after reading all of it. Raises StoreCorrupt when its content has changed."""
        image = self.find(reference)
        found, _size = content_digest(image.root)
        if found != image.digest:
            raise StoreCorrupt(
                f"image {reference!r} at {image.root} should have {image.digest} and has {found}; "
                f"remove {Path(image.root).parent} and build or import it again"
            )
        return image


def _remove(place: Path) -> None:
    """Remove a directory, but nothing of what is mounted in it.

    A builder that was killed leaves the host's own directories bound there (/dev/shm), and whoever walked into them
    would empty the host's. What cannot be taken off stays, with the directory, and the log "envgym" says so.
    """
    with contextlib.suppress(OSError):
        for mount in reversed(_mounts_in(place)):
            syscalls.umount(mount)
    if left := _mounts_in(place):
        _LOG.warning("%s stays: %s is mounted in it; unmount that and remove the directory", place, left[0])
        return
    shutil.rmtree(place, ignore_errors=True)


def _mounts_in(place: Path) -> list[str]:
    """What is mounted below a directory, in the order of mounting."""
    inside = f"{place.resolve()}/"
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    targets = (_ESCAPED.sub(lambda found: chr(int(found[1], 8)), line.split(" ")[4]) for line in lines)
    return [target for target in targets if target.startswith(inside)]


def _fingerprint(path: Path) -> str:
    """What tells one file from another without reading it; of an OCI layout, its index."""
    info = (path / "index.json" if path.is_dir() else path).stat()
    told = f"{path.resolve()}\0{info.st_ino}\0{info.st_size}\0{info.st_mtime_ns}"
    return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()
