"""What of an image must be the same where a snapshot is restored: the image itself is not part of a snapshot."""

import hashlib
import platform
from pathlib import Path

from envgym.errors import SandboxUnavailable
from envgym_sandboxes.images.store import Image

__all__ = ["check_identity", "identity_of"]

_PACKAGES = ("var/lib/dpkg/status", "lib/apk/db/installed", "var/lib/rpm/rpmdb.sqlite")


def identity_of(image: Image) -> dict[str, str]:
    """What tells an image from another: its digest where it has one, else its release and what is installed.

    Of the host: its release, machine and interpreter. It reads files.
    """
    found = {"image": image.name}
    if image.digest is not None:
        return found | {"digest": image.digest}
    root = Path(image.root)
    found |= {"machine": platform.machine(), "release": _release(root)}
    if image.name == "host":
        return found | {"python": platform.python_version()}
    installed = hashlib.sha256()
    for path in (root / name for name in _PACKAGES):
        if path.is_file():
            installed.update(path.read_bytes())
    return found | {"packages": installed.hexdigest()}


def _release(root: Path) -> str:
    for path in (root / "etc/os-release", root / "usr/lib/os-release"):
        if path.is_file():
            lines = [line.partition("=") for line in path.read_text(errors="replace").splitlines()]
            told = {name: value.strip('"') for name, _, value in lines}
            return " ".join(filter(None, [told.get("ID"), told.get("VERSION_ID")])) or "unknown"
    return "unknown"


def check_identity(stored: dict[str, str], here: dict[str, str], what: str) -> None:
    """Raise SandboxUnavailable, with what differs, unless an image is the one that a snapshot stands on."""
    if stored == here:
        return
    names = [name for name in {**stored, **here} if stored.get(name) != here.get(name)]
    said = ", ".join(f"{name} {stored.get(name)!r} there and {here.get(name)!r} here" for name in names)
    raise SandboxUnavailable(
        f"{what} stands on image {stored.get('image')!r}, which is not part of it, and this host has another: "
        f"{said}; restore it on a host that has the same (`envgym images` builds and imports images by digest)"
    )
