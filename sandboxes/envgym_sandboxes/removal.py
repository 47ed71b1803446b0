"""Removes a tree whatever a hostile program made of it: any depth, any modes, links to anywhere.

It never follows a link and never leaves the tree. What somebody else removes meanwhile is as good as removed.
"""

import contextlib
import os
import stat
from collections.abc import Iterator

from envgym_sandboxes.walk import Cursor

__all__ = ["remove_tree"]

_RWX = 0o700


def remove_tree(top: str | os.PathLike[str]) -> None:
    """Remove a directory and all below it; nothing to do if there is none. Raises OSError."""
    _open_up(None, os.fspath(top))
    try:
        cursor = Cursor(os.fspath(top), "", follow=False)
    except FileNotFoundError:
        return
    try:
        _empty(cursor)
    finally:
        cursor.close()
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(top)


def _empty(cursor: Cursor) -> None:
    above: list[tuple[str, Iterator[str]]] = []
    name, names = "", iter(cursor.names())
    while True:
        entry = next(names, None)
        if entry is not None:
            if _is_left(cursor, entry):
                above.append((name, names))
                name, names = entry, iter(cursor.names())
            continue
        if not above:
            return
        cursor.up()
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=cursor.fd)
        name, names = above.pop()


def _is_left(cursor: Cursor, name: str) -> bool:
    """Remove one entry; True for a directory, which the cursor then is in."""
    info = cursor.stat(name)
    if info is None:
        return False
    if stat.S_ISDIR(info.st_mode):
        if info.st_mode & _RWX != _RWX:
            _open_up(cursor.fd, name)
        return cursor.down(name)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=cursor.fd)
    return False


def _open_up(at: int | None, name: str) -> None:
    """Let its owner into a directory, and into no other that takes its name meanwhile."""
    try:
        fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) & _RWX != _RWX:
            os.chmod(f"/proc/self/fd/{fd}", _RWX)
    finally:
        os.close(fd)
