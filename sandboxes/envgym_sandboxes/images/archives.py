"""Images as files: OCI layouts (directories or tars), what ``docker save`` writes, tars of root file systems.

Yields the layers of one image, lowest first, each checked against the digest that names it. It fetches nothing and
unpacks nothing.
"""

import contextlib
import hashlib
import json
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

__all__ = ["is_image", "layers"]

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_CHUNK = 1 << 20
_LONGEST_TEXT = 16 << 20
_ZSTD = b"\x28\xb5\x2f\xfd"


def is_image(path: Path) -> bool:
    """Whether a path holds an image, as opposed to an unpacked root file system."""
    return path.is_file() or (path / "oci-layout").is_file()


def layers(path: Path) -> Iterator[tarfile.TarFile]:
    """The layers of the image at `path`, lowest first. Raises ValueError for what is no image or is damaged.

    A directory must be an OCI layout. A file may be a tar of one, the output of ``docker save``, or (one layer) a
    root file system as a tar. Compressed layers are read; zstd needs the program of that name.
    """
    if path.is_dir():
        yield from _oci(_Folder(path))
        return
    try:
        archive = tarfile.open(path)  # noqa: SIM115  # closed below
    except tarfile.TarError as error:
        raise ValueError(f"{path} is no tar archive: {error}") from error
    with archive:
        inside = _Archive(archive)
        if inside.has("manifest.json"):
            yield from _saved(inside)
        elif inside.has("oci-layout"):
            yield from _oci(inside)
        else:
            yield archive


class _Folder:
    def __init__(self, top: Path) -> None:
        self.where = str(top)
        self._top = top

    def has(self, name: str) -> bool:
        return (self._top / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        return (self._top / name).open("rb")


class _Archive:
    """Files of a tar by their names; links inside it are followed inside it."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self.where = str(archive.name)
        self._archive = archive
        self._members: dict[str, tarfile.TarInfo] | None = None

    def _find(self, name: str) -> tarfile.TarInfo | None:
        if self._members is None:
            self._members = {member.name.removeprefix("./"): member for member in self._archive}
        return self._members.get(name)

    def has(self, name: str) -> bool:
        return self._find(name) is not None

    def open(self, name: str) -> IO[bytes]:
        member = self._find(name)
        found = self._archive.extractfile(member) if member else None
        if found is None:
            raise ValueError(f"{self.where} names {name!r} and does not hold it as a file")
        return found


_Place = _Folder | _Archive


def _json(place: _Place, name: str) -> Any:
    with place.open(name) as file:
        text = file.read(_LONGEST_TEXT)
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{place.where}: {name} is not JSON: {error}") from error


def _blob(digest: Any) -> str:
    """Where an OCI layout keeps what a digest names. A digest that is none could be a path to anywhere."""
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError(f"{digest!r} is not a sha256 digest")
    return f"blobs/sha256/{digest.partition(':')[2]}"


def _oci(place: _Place) -> Iterator[tarfile.TarFile]:
    with _shape(place):
        manifest = _json(place, "index.json")
        while "manifests" in manifest:
            manifest = _json(place, _blob(_ours(place, manifest["manifests"])["digest"]))
        found = [layer["digest"] for layer in manifest["layers"]]
    for digest in found:
        yield from _layer(place, _blob(digest), digest)


def _ours(place: _Place, manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """The one image that is for this machine."""
    fitting = [
        one
        for one in manifests
        if one.get("platform", {}).get("architecture", _ARCHITECTURE) == _ARCHITECTURE
        and one.get("platform", {}).get("os", "linux") == "linux"
    ]
    if len(fitting) != 1:
        raise ValueError(
            f"{place.where} holds {len(fitting)} images for linux/{_ARCHITECTURE} (of {len(manifests)}); "
            "it must hold one: save a single image"
        )
    return fitting[0]


def _saved(place: _Place) -> Iterator[tarfile.TarFile]:
    with _shape(place):
        images = _json(place, "manifest.json")
        if len(images) != 1:
            tags = ", ".join(str(tag) for one in images for tag in one.get("RepoTags") or ("untagged",))
            raise ValueError(f"{place.where} holds {len(images)} images ({tags}); save a single one")
        names = [str(name) for name in images[0]["Layers"]]
    for name in names:
        digest = f"sha256:{name.rpartition('/')[2]}" if name.startswith("blobs/sha256/") else None
        yield from _layer(place, name, digest)


@contextlib.contextmanager
def _shape(place: _Place) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError, FileNotFoundError) as error:
        raise ValueError(f"{place.where} is not a whole image: {type(error).__name__}: {error}") from error


def _layer(place: _Place, name: str, digest: str | None) -> Iterator[tarfile.TarFile]:
    if not place.has(name):
        raise ValueError(f"{place.where} is not a whole image: {name} is missing")
    with place.open(name) as file:
        if digest is not None and (found := _hash(file)) != digest:
            raise ValueError(f"{place.where} is damaged: {name} should have {digest} and has {found}")
        file.seek(0)
        with _plain(file) as plain, tarfile.open(fileobj=plain) as layer:
            yield layer


def _hash(file: IO[bytes]) -> str:
    total = hashlib.sha256()
    while piece := file.read(_CHUNK):
        total.update(piece)
    return f"sha256:{total.hexdigest()}"


@contextlib.contextmanager
def _plain(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """What `tarfile` can read; this Python has no zstd."""
    head = file.read(len(_ZSTD))
    file.seek(0)
    if head != _ZSTD:
        yield file
        return
    program = shutil.which("zstd")
    if program is None:
        raise ValueError("a layer is compressed with zstd: install zstd, or save the image with gzip layers")
    with tempfile.TemporaryFile() as whole:
        with subprocess.Popen([program, "-dc"], stdin=subprocess.PIPE, stdout=whole) as process:
            assert process.stdin is not None
            shutil.copyfileobj(file, process.stdin, _CHUNK)
            process.stdin.close()
        if process.returncode:
            raise ValueError(f"zstd ended with status {process.returncode}: a layer is damaged")
        whole.seek(0)
        yield whole
