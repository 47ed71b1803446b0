"""Files and trees as a stream of bounded pieces, for `put` and `get`.

`pack` reads one side, `Unpacker` writes the other. The unpacker believes nothing: names are single components
walked with directory descriptors that refuse symlinks, so nothing lands outside its target.
"""

import os
import stat
from collections.abc import Iterator
from typing import Any

__all__ = ["Unpacker", "pack"]

_PIECE = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def pack(source: str) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield pieces of `source`: heads {path, kind, mode, ...} with a file's bytes. Raises OSError.

    `path` is a list of names below the source, [] for the source itself. Sockets, pipes and devices are left out.
    """
    yield from _pack(source, [])


def _pack(path: str, names: list[str]) -> Iterator[tuple[dict[str, Any], bytes]]:
    info = os.lstat(path) if names else os.stat(path)
    head: dict[str, Any] = {"path": names, "mode": stat.S_IMODE(info.st_mode)}
    if stat.S_ISLNK(info.st_mode):
        yield head | {"kind": "link", "target": os.readlink(path)}, b""
    elif stat.S_ISDIR(info.st_mode):
        yield head | {"kind": "directory"}, b""
        for name in sorted(os.listdir(path)):
            yield from _pack(os.path.join(path, name), [*names, name])
    elif stat.S_ISREG(info.st_mode):
        with open(path, "rb") as file:
            piece = file.read(_PIECE)
            yield head | {"kind": "file", "first": True}, piece
            while piece := file.read(_PIECE):
                yield head | {"kind": "file", "first": False}, piece


class Unpacker:
    """Writes the pieces of one `pack` at `target`. Raises OSError, and ValueError for a name that is not one."""

    def __init__(self, target: str) -> None:
        self.target = target

    def add(self, head: dict[str, Any], body: bytes) -> None:
        """Write one piece."""
        names = head["path"]
        for name in names:
            if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
                raise ValueError(f"{name!r} is not a file name")
        if not names:
            self._write(None, self.target, head, body)
            return
        parent = os.open(self.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names[:-1]:
                below = os.open(name, _DIRECTORY, dir_fd=parent)
                os.close(parent)
                parent = below
            self._write(parent, names[-1], head, body)
        finally:
            os.close(parent)

    def _write(self, parent: int | None, name: str, head: dict[str, Any], body: bytes) -> None:
        kind, mode = head["kind"], int(head["mode"]) & 0o777
        if kind == "directory":
            try:
                os.mkdir(name, mode | 0o700, dir_fd=parent)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=parent is None).st_mode):
                    raise
        elif kind == "link":
            if head.get("first", True) and _there(name, parent):
                os.unlink(name, dir_fd=parent)
            os.symlink(head["target"], name, dir_fd=parent)
        elif kind == "file":
            first = bool(head["first"])
            if first and parent is not None and _there(name, parent):
                os.unlink(name, dir_fd=parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if first else os.O_APPEND)
            fd = os.open(name, flags | (os.O_NOFOLLOW if parent is not None else 0), mode, dir_fd=parent)
            with open(fd, "wb") as file:
                file.write(body)
                if first:
                    os.fchmod(fd, mode)
        else:
            raise ValueError(f"{kind!r} is not a kind of file")


def _there(name: str, parent: int | None) -> bool:
    try:
        return not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode)
    except FileNotFoundError:
        return False
