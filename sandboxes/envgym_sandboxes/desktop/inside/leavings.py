"""Where programs may leave files beside their home, what was there at first, and how what they left is removed."""

import contextlib
import os
import shutil
from pathlib import Path

__all__ = ["contents", "entries", "grounds", "layers", "put_back", "remove"]

_SYSTEM = "/usr"
"""Not looked into: large, and no user may write to it."""
_INIT = b"envgym"


def layers() -> list[str]:
    """Where the file systems of this sandbox alone are mounted; none where the machine is not this sandbox's own.

    It is where the first process is a sandbox's init, which means that all processes are the sandbox's, and for a
    user without powers. A host has other users, whose files are nobody's to remove.
    """
    try:
        first = Path("/proc/1/cmdline").read_bytes().split(b"\0")[0].strip()
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return []
    if first != _INIT or os.getuid() == 0:
        return []
    split = (line.partition(" - ") for line in mounts)
    return [before.split()[4] for before, _, after in split if after.startswith("overlay ")]


def grounds(own: Path) -> dict[Path, set[Path]]:
    """Every directory of `layers` that this user may write to, and what is in each now; not `own` and below it."""
    found: dict[Path, set[Path]] = {}
    seen = {_identity(str(own))}  # a directory may be mounted at two places
    for top in layers():
        for name, folders, _files in os.walk(top):
            if _identity(name) in seen or name == _SYSTEM:
                folders.clear()
                continue
            seen.add(_identity(name))
            if os.access(name, os.W_OK):
                found[Path(name)] = entries(Path(name))
            folders[:] = [one for one in folders if not os.path.ismount(os.path.join(name, one))]
    return found


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def entries(folder: Path) -> set[Path]:
    """What is in a directory; nothing where it is gone."""
    try:
        return {Path(one.path) for one in os.scandir(folder)}
    except OSError:
        return set()


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file below a directory."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def put_back(folder: Path, first: dict[Path, bytes]) -> None:
    """Below a directory are these files again, with these contents, and no others."""
    for path in folder.rglob("*"):
        if path not in first and (path.is_symlink() or not path.is_dir()):
            remove(path)
    for path, content in first.items():
        if path.is_symlink() or not path.is_file() or path.read_bytes() != content:
            if path.exists() or path.is_symlink():
                remove(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def remove(path: Path) -> None:
    """Remove a file or a whole directory, also one that its owner has closed to itself."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=_opened)
    else:
        path.unlink(missing_ok=True)


def _opened(_function: object, path: str, _error: object) -> None:
    """A directory that its owner has closed to itself is opened, and removed."""
    for one in (os.path.dirname(path), path):
        with contextlib.suppress(OSError):
            os.chmod(one, 0o700)
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
