"""What a sandbox's processes and files hold, by the kernel's own counts, where no group or quota counts them.

Looked up in /proc and in the sandbox's own directory: true when it is read and no longer. Not seen: files that are
deleted and held by nothing but a message in a socket, or by a process that cannot be looked into.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from envgym_sandboxes.tree import live_processes, processes

__all__ = [
    "DEEPEST", "Files", "Memory", "descendants", "files", "memory", "private_bytes", "proportional_bytes",
]  # fmt: skip

DEEPEST = 1000
"""Levels that are counted: under Landlock each opening costs as much as it is deep."""
_BLOCK = 512
_TRIES = 3
_LISTED = 0o500
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Files:
    """disk_bytes: allocated, a file of several names once. complete: nothing was too deep or moved too often."""

    disk_bytes: int = 0
    inodes: int = 0
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Memory:
    """total_bytes: anonymous, swapped and shared memory of processes, files in memory that have no name included.

    private_bytes: the anonymous and swapped part, what forks share counted for each. deleted_bytes: of files on
    disk that have no name any more. largest: the process that holds most, None for none.
    """

    total_bytes: int = 0
    private_bytes: int = 0
    deleted_bytes: int = 0
    largest: int | None = None


def descendants(root: int, *, ended: bool = False) -> set[int]:
    """The living processes below one. ended: those too that nobody has waited for, which have a number still."""
    found: set[int] = set()
    level = {root}
    try:
        while level:
            level = {child for pid in level for child in _children(pid, must=pid == root)} - found
            found |= level
    except FileNotFoundError:  # a kernel that keeps no such list
        return (set(processes(root)) - {root}) if ended else set(live_processes(root))
    return found if ended else {pid for pid in found if not _ended(pid)}


def _ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in b"ZX"
    except OSError:
        return True


def _children(pid: int, must: bool) -> list[int]:
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        if must:
            raise
    return found


def memory(pids: Iterable[int], disk: int) -> Memory:
    """What processes hold. disk: the device (st_dev) of the sandbox's files; deleted ones of it count as disk."""
    held: dict[int, int] = {}
    private, mapped = 0, 0
    nameless: dict[tuple[int, int], int] = {}
    for pid in pids:
        sizes = _status(pid)
        held[pid] = own = sizes.get(b"RssAnon", 0) + sizes.get(b"VmSwap", 0)
        private += own
        mapped = max(mapped, sizes.get(b"RssShmem", 0))
        for file, size in _nameless(pid):
            if file not in nameless:
                nameless[file] = size
                held[pid] += size if file[0] != disk else 0
    deleted = sum(size for (device, _inode), size in nameless.items() if device == disk)
    in_files = max(mapped, sum(nameless.values()) - deleted)
    return Memory(private + in_files, private, deleted, max(held, key=lambda pid: held[pid], default=None))


def private_bytes(pid: int) -> int:
    """Anonymous and swapped memory of a process, what it shares with others counted in proportion."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            sizes = _sizes(file.read())
    except OSError:
        sizes = _status(pid)
        return sizes.get(b"RssAnon", 0) + sizes.get(b"VmSwap", 0)
    return sizes.get(b"Pss_Anon", 0) + sizes.get(b"SwapPss", 0)


def proportional_bytes(pid: int) -> int:
    """The proportional set size of a process: all that it holds, what it shares divided among those who do."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return _sizes(file.read()).get(b"Pss", 0)
    except OSError:
        return 0


def _status(pid: int) -> dict[bytes, int]:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return _sizes(file.read())
    except OSError:
        return {}


def _sizes(text: bytes) -> dict[bytes, int]:
    """The lines ``Name:   12 kB`` of a file of /proc, in bytes."""
    lines = (line.split() for line in text.splitlines() if line.endswith(b" kB"))
    return {words[0].rstrip(b":"): int(words[1]) * 1024 for words in lines if words[1].isdigit()}


def _nameless(pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    """The regular files without a name that a process has open."""
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                info = os.stat(f"/proc/{pid}/fd/{number}")
                if stat.S_ISREG(info.st_mode) and info.st_nlink == 0:
                    yield (info.st_dev, info.st_ino), info.st_blocks * _BLOCK


def files(root: str) -> Files:
    """What a directory holds. It is written to meanwhile, by somebody who may want to hide something.

    A directory that its owner may not list is made so while it is counted. Whoever moves directories while they are
    counted, again and again, has a tree that is not complete.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(_Moved):
            return _Count().of(root)
    return Files(complete=False)


class _Moved(Exception):
    """A directory is no longer where it was a moment ago."""


class _Count:
    """One walk, at one open directory at a time."""

    def __init__(self) -> None:
        self._size, self._inodes, self._complete = 0, 0, True
        self._several: set[int] = set()
        self._levels: list[_Level] = []

    def of(self, root: str) -> Files:
        """Count everything below a directory. Raises _Moved."""
        fd = os.open(root, _DIRECTORY)
        try:
            self._enter(fd, None)
            while self._levels:
                level = self._levels[-1]
                name = level.below.pop() if level.below else None
                if name is not None and len(self._levels) > DEEPEST:
                    self._complete = False
                    level.below.clear()
                elif name is None:
                    fd = self._leave(fd)
                elif (below := _opened(fd, name)) is not None:
                    os.close(fd)
                    fd = below[0]
                    self._enter(*below)
            return Files(self._size, self._inodes, self._complete)
        finally:
            for level in self._levels[-1:]:
                level.restore(fd)
            os.close(fd)

    def _enter(self, fd: int, mode: int | None) -> None:
        """Count what is in an open directory. mode: what to give back to it at the end."""
        info = os.fstat(fd)
        self._levels.append(level := _Level((info.st_dev, info.st_ino), mode))
        with os.scandir(fd) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    self._add(level, entry.name, entry.stat(follow_symlinks=False))

    def _add(self, level: "_Level", name: str, info: os.stat_result) -> None:
        self._inodes += 1
        if stat.S_ISDIR(info.st_mode):
            level.below.append(name)
        elif info.st_nlink > 1:
            if info.st_ino in self._several:
                return
            self._several.add(info.st_ino)
        self._size += info.st_blocks * _BLOCK

    def _leave(self, fd: int) -> int:
        """Go up: the open directory above, or the same at the top."""
        if len(self._levels) == 1:
            self._levels.pop()
            return fd
        above = os.open("..", _DIRECTORY, dir_fd=fd)  # before the way there may be closed again
        self._levels.pop().restore(fd)
        info = os.fstat(above)
        if (info.st_dev, info.st_ino) != self._levels[-1].identity:
            os.close(above)
            self._levels.clear()  # where they are now is not known, nor is whose mode was changed
            raise _Moved
        os.close(fd)
        return above


@dataclass(slots=True)
class _Level:
    """A directory on the way down, and those in it that are still to be entered."""

    identity: tuple[int, int]
    mode: int | None
    below: list[str] = field(default_factory=list)

    def restore(self, fd: int) -> None:
        """Give the directory back the mode that it had."""
        if self.mode is not None:
            os.fchmod(fd, self.mode)


def _opened(parent: int, name: str) -> tuple[int, int | None] | None:
    """A directory below an open one, and the mode that it had if that was changed; None when it is gone.

    First without any right, so that what is changed is what was looked at, and no link is followed.
    """
    try:
        found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return None
    try:
        mode = stat.S_IMODE(os.fstat(found).st_mode)
        here = f"/proc/self/fd/{found}"
        if mode & _LISTED == _LISTED:
            return os.open(here, _DIRECTORY & ~os.O_NOFOLLOW), None
        os.chmod(here, mode | _LISTED)
        return os.open(here, _DIRECTORY & ~os.O_NOFOLLOW), mode
    finally:
        os.close(found)
