"""Open files after a fork: both sides hold the same ones, offset included, until one of them is given its own.

It changes this process only. What cannot be its own is told: pipes and sockets, which are cut off, and files that
no name leads to, or whose name cannot be found out where /proc is not shown.
"""

import fcntl
import os
import resource
import socket
import stat
from contextlib import suppress

__all__ = ["open_files", "separate"]

_dead: set[tuple[int, int]] = set()
"""What was cut off before, here or in the one that this was forked from: device and inode."""


def open_files() -> frozenset[int]:
    """This process's descriptors."""
    try:
        found = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        found = [*range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])]
    return frozenset(fd for fd in found if _status(fd) is not None)


def separate(keep: frozenset[int], old: str = "", new: str = "") -> list[str]:
    """Give this process open files of its own: same place, same offset; those below `old` become those below `new`.

    Pipes, sockets and the like become ones whose other side is gone: kept open here, their end would never be seen
    there. Returns what is cut off so, or stays shared. Descriptors in `keep` are left alone.
    """
    told: dict[str, None] = {}
    for fd in sorted(open_files() - keep):
        info = _status(fd)
        if (
            info is None or stat.S_ISDIR(info.st_mode) or stat.S_ISCHR(info.st_mode)
        ):  # nothing is kept in the latter
            continue
        path = _path(fd)
        if stat.S_ISREG(info.st_mode):
            if not _reopened(
                fd, info, path, new + path[len(old) :] if old and path.startswith(old + "/") else path
            ):
                told[f"open {path}"] = None
        elif (info.st_dev, info.st_ino) not in _dead:
            _cut_off(fd)
            told[f"open {path}"] = None
    return [*told]


def _status(fd: int) -> "os.stat_result | None":
    try:
        return os.fstat(fd)
    except OSError:
        return None


def _path(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return f"descriptor {fd}"


def _cut_off(fd: int) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    os.dup2(ours.fileno(), fd, inheritable=os.get_inheritable(fd))
    ours.close()
    info = os.fstat(fd)
    _dead.add((info.st_dev, info.st_ino))


def _reopened(fd: int, info: os.stat_result, path: str, new: str) -> bool:
    """Open it again under its new name; under its old one only if that still leads to the same file."""
    inheritable, flags = os.get_inheritable(fd), fcntl.fcntl(fd, fcntl.F_GETFL)
    with suppress(OSError):
        named = os.stat(new)
        if new != path or (named.st_dev, named.st_ino) == (info.st_dev, info.st_ino):
            fresh = os.open(new, flags & (os.O_ACCMODE | os.O_APPEND) | os.O_CLOEXEC)
            os.lseek(fresh, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(fresh, fd, inheritable=inheritable)
            os.close(fresh)
            return True
    return False
