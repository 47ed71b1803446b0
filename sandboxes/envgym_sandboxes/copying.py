"""Copies of trees and of stacked layers: what shows is copied, once, with all that a snapshot holds.

Kept are kinds, modes, owners, times, symlinks, hard links (names of one file in one layer stay names of one file),
holes, fifos, the names of sockets and the extended attributes that programs set. Devices are left out. What is
copied was written by hostile programs (see `walk`); where it is copied to is this process's own.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from envgym_sandboxes.contents import held
from envgym_sandboxes.walk import Cursor, Step, View, all_names, steps

__all__ = ["copy_tree", "merge"]

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def merge(sources: list[str], below: list[str], target: str, prefix: str, nice: int = 0) -> tuple[Any, bytes]:
    """Copy stacked layers (topmost first) into an empty one: over `below`, it shows what they show.

    A deletion is kept only where there is something below to be hidden. The result is the bytes that the layer's
    file system holds. nice: how far to stand back behind what somebody waits for.
    """
    os.nice(nice)
    view = tuple(Cursor(source, prefix) for source in sources)
    _Copy(target, f"{target}.links", _How(prefix)).run(view, tuple(Cursor(layer, prefix) for layer in below))
    info = os.statvfs(target)
    return (info.f_blocks - info.f_bfree) * info.f_frsize, b""


def copy_tree(
    source: str, target: str, owner: tuple[int, int] | None, side: str, *, public: bool, skip: frozenset[str]
) -> None:
    """Copy a directory's content over what a directory has; special files are left out.

    side: a place for a directory on the same file system, until the end. public: only what everybody may read.
    skip: names at the top that are left out.
    """
    cursor = Cursor(source, "")
    top = cursor.identity

    def names(views: tuple[View, ...]) -> set[str]:
        found = all_names(views) - (skip if cursor.identity == top else frozenset())
        return {name for name in found if not public or _is_public(cursor.stat(name))}

    _Copy(target, side, _How("", owner, tree=True)).run((cursor,), (), names)


def _is_public(info: os.stat_result | None) -> bool:
    return info is not None and bool(info.st_mode & 0o004)


@dataclass(frozen=True, slots=True)
class _How:
    """prefix: see `walk`. owner: of every copy of a tree; None: whoever copies. A layer's copies keep theirs."""

    prefix: str
    owner: tuple[int, int] | None = None
    tree: bool = False


class _Copy:
    """Makes one directory of a walk's steps. Names of one file stay names of one file."""

    def __init__(self, target: str, side: str, how: _How) -> None:
        self._how = how
        self._at = Cursor(target, "")
        self._levels: list[_Level] = []
        self._names_of: dict[tuple[int, int], str] = {}
        self._side = side  # one name of each file that has several
        os.mkdir(side)
        self._links = os.open(side, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def run(self, view: View, below: View, names: Callable[[tuple[View, ...]], set[str]] = all_names) -> None:
        """Copy what a view shows over what `below` shows; both are used up."""
        for step in steps((view, below), names):
            if step.kind == "entry":
                self._entry(step)
            elif step.name:
                self._leave(step, self._levels.pop())
            elif not self._how.tree:
                self._describe(self._at.fd, os.fstat(view[0].fd), view[0].attributes(view[0].fd))
        os.close(self._links)
        shutil.rmtree(self._side)
        for cursor in (self._at, *view, *below):
            cursor.close()

    def _entry(self, step: Step) -> None:
        new, old = step.seen
        hidden = bool(self._levels) and self._levels[-1].hidden
        over = old.info is not None and not hidden
        if new.directories:
            self._make(step.name, lambda: os.mkdir(step.name, 0o700, dir_fd=self._at.fd), directory=True)
            self._at.down(step.name)
        elif new.info is not None and new.cursor is not None:
            self._copy(step.name, new.info, new.cursor)
        elif new.hides and over:
            os.mknod(step.name, stat.S_IFCHR, 0, dir_fd=self._at.fd)
        if step.enters:
            self._levels.append(_Level(bool(new.directories), new.hides and over, hidden or new.hides))

    def _leave(self, step: Step, level: "_Level") -> None:
        new = step.seen[0]
        if not level.made or new.info is None or new.cursor is None:
            return
        if level.opaque and self._how.prefix:
            os.setxattr(self._at.fd, self._how.prefix + "opaque", b"y")
        made = os.dup(self._at.fd)
        try:
            self._at.up()  # first: its mode may be one that nobody comes back from
            self._describe(made, new.info, new.cursor.attributes(new.cursor.fd))
        finally:
            os.close(made)

    def _copy(self, name: str, info: os.stat_result, cursor: Cursor) -> None:
        """Anything but a directory."""
        kind, at = stat.S_IFMT(info.st_mode), self._at.fd
        if kind == stat.S_IFREG:
            self._file(name, cursor)
        elif kind == stat.S_IFLNK:
            with contextlib.suppress(FileNotFoundError):
                target = os.readlink(name, dir_fd=cursor.fd)
                self._make(name, lambda: os.symlink(target, name, dir_fd=at))
                self._own(name, info)
        elif kind in (stat.S_IFIFO, stat.S_IFSOCK) and not self._how.tree:
            self._make(name, lambda: os.mknod(name, kind | 0o600, dir_fd=at))
            self._own(name, info)
            os.chmod(name, stat.S_IMODE(info.st_mode), dir_fd=at)

    def _file(self, name: str, cursor: Cursor) -> None:
        source = cursor.open(name)
        if source is None:
            return
        try:
            info = os.fstat(source)
            known = self._names_of.get((info.st_dev, info.st_ino))
            if known is not None:
                self._make(name, lambda: os.link(known, name, src_dir_fd=self._links, dst_dir_fd=self._at.fd))
                return
            target = self._make(name, lambda: os.open(name, _NEW, 0o600, dir_fd=self._at.fd))
            try:
                for start, data in held(source):
                    os.pwrite(target, data, start)
                os.ftruncate(target, info.st_size)
                self._describe(target, info, cursor.attributes(source))
            finally:
                os.close(target)
            if info.st_nlink > 1:
                self._names_of[info.st_dev, info.st_ino] = first = str(len(self._names_of))
                os.link(name, first, src_dir_fd=self._at.fd, dst_dir_fd=self._links)
        finally:
            os.close(source)

    def _make(self, name: str, make: Callable[[], Any], *, directory: bool = False) -> Any:
        """Make something in the place of whatever a tree before it has there; directories of both are one."""
        try:
            return make()
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=self._at.fd).st_mode):
                os.unlink(name, dir_fd=self._at.fd)
            elif directory:
                return None
            else:
                shutil.rmtree(name, dir_fd=self._at.fd)
            return make()

    def _own(self, name: str, info: os.stat_result) -> None:
        """Owner and times of a link, pipe or socket."""
        if owner := self._owner(info):
            os.chown(name, *owner, dir_fd=self._at.fd, follow_symlinks=False)
        os.utime(name, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=self._at.fd, follow_symlinks=False)

    def _describe(self, fd: int, info: os.stat_result, attributes: list[tuple[str, bytes]]) -> None:
        """Owner, mode, attributes and times of an open copy; in this order, since a chown may clear modes."""
        if owner := self._owner(info):
            os.fchown(fd, *owner)
        os.fchmod(fd, stat.S_IMODE(info.st_mode) & (0o777 if self._how.tree else 0o7777))
        for name, value in attributes:
            if not self._how.tree:
                os.setxattr(fd, name, value)
            elif name.startswith("user.") and not name.startswith("user.overlay."):
                with contextlib.suppress(OSError):  # memory holds none before Linux 6.6
                    os.setxattr(fd, name, value)
        os.utime(fd, ns=(info.st_atime_ns, info.st_mtime_ns))

    def _owner(self, info: os.stat_result) -> tuple[int, int] | None:
        return self._how.owner if self._how.tree else (info.st_uid, info.st_gid)


@dataclass(frozen=True, slots=True)
class _Level:
    """A directory that is being walked.

    made: it is in the copy. opaque: it hides one. hidden: of what is below, nothing shows through.
    """

    made: bool
    opaque: bool
    hidden: bool
