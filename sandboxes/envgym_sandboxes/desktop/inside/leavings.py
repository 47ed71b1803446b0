"""Where programs may leave files beside their home, what was there at first, and how what they left is removed."""

import contextlib
import os
import shutil
from pathlib import Path

__all__ = ["contents", "entries", "grounds", "put_back", "remove"]

_ELSEWHERE = frozenset(("/proc", "/sys", "/usr", "/dev/pts", "/dev/mqueue"))
"""Not files of this sandbox, or the system's own, which no user may write to."""


def grounds(own: Path) -> dict[Path, set[Path]]:
    """Every directory that this user may write to, and what is in each now; not `own` and what is below it."""
    found: dict[Path, set[Path]] = {}
    for name, folders, _files in os.walk("/"):
        if os.access(name, os.W_OK):
            found[Path(name)] = entries(Path(name))
        folders[:] = [one for one in folders if not _other(os.path.join(name, one), str(own))]
    return found


def _other(path: str, own: str) -> bool:
    """Whether a directory is not looked into: it is another's matter, or cannot be written to as a whole."""
    if path == own or path in _ELSEWHERE:
        return True
    try:
        return path != "/dev" and bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return True


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
