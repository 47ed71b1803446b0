"""Walks over trees that hostile programs wrote, and may still be writing: by descriptors, one name at a time.

No path is ever put together, so that depth has no bound, no symlink is followed and nothing outside is reached;
the walk keeps its own stack. A layer is a directory in overlay's own format: a character device 0/0 says
"deleted", an opaque attribute on a directory says "nothing below shows through". What is done with what is found
is not decided here.
"""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from errno import ELOOP, ENOENT, ENOTDIR, ENOTSUP, ENXIO, ESTALE
from typing import Literal

__all__ = ["Cursor", "Seen", "Step", "View", "all_names", "overlay_prefix", "shared", "steps"]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CONTENT = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_USERS = "user.overlay."
_GONE = (ENOENT, ENOTDIR, ELOOP, ENXIO)


def overlay_prefix(privileged: bool) -> str:
    """What overlay's own attributes begin with. The other mode's are an agent's to set, and say nothing."""
    return "trusted.overlay." if privileged else _USERS


def _identity(fd: int) -> tuple[int, int]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


class Cursor:
    """One open directory of a tree, moved down by single names and up again. Only `top` itself is a path.

    prefix: see `overlay_prefix`; empty where the tree is no layer, and nothing in it means "deleted".
    """

    def __init__(self, top: str, prefix: str, *, follow: bool = True) -> None:
        self.fd = os.open(top, _DIRECTORY | (0 if follow else os.O_NOFOLLOW))
        self.prefix = prefix
        self._above: list[tuple[int, int]] = []
        self._opened_up: list[tuple[int, int, int]] = []  # depth, descriptor, mode to give back
        self._open_up()

    @property
    def identity(self) -> tuple[int, int]:
        """Which directory this is: the same for two cursors in the same one."""
        return _identity(self.fd)

    def names(self) -> list[str]:
        """What is in this directory, in no order."""
        return os.listdir(self.fd)

    def stat(self, name: str) -> os.stat_result | None:
        """What is known of an entry itself; None if there is none."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_whiteout(self, info: os.stat_result) -> bool:
        """Whether an entry says "deleted"."""
        return bool(self.prefix) and stat.S_ISCHR(info.st_mode) and info.st_rdev == 0

    def is_opaque(self, name: str) -> bool:
        """Whether a directory hides what is below it in other layers."""
        if not self.prefix:
            return False
        try:
            path = f"/proc/self/fd/{self.fd}/{name}"
            return os.getxattr(path, self.prefix + "opaque", follow_symlinks=False) == b"y"
        except OSError:
            return False

    def attributes(self, fd: int) -> list[tuple[str, bytes]]:
        """The extended attributes of an open file or directory that programs set: not overlay's own."""
        try:
            names = sorted(os.listxattr(fd))
        except OSError as error:
            if error.errno == ENOTSUP:
                return []
            raise
        own = f"{self.prefix}overlay."  # an overlay in a sandbox: its attributes are the sandbox's
        return [
            (name, os.getxattr(fd, name))
            for name in names
            if not self.prefix or not name.startswith(self.prefix) or name.startswith(own)
        ]

    def shown(self, attribute: str) -> str:
        """An attribute's name as programs in the sandbox see it: overlay keeps theirs apart by a longer one."""
        return attribute.replace(f"{_USERS}overlay.", _USERS, 1) if self.prefix == _USERS else attribute

    def open(self, name: str, *, directory: bool = False) -> int | None:
        """A descriptor of a regular file's content; None if there is none any more, or it is no such file now.

        directory: of a directory instead.
        """
        flags = _CONTENT | (os.O_DIRECTORY if directory else 0)
        try:
            fd = os.open(name, flags, dir_fd=self.fd)
        except PermissionError:
            fd = self._open_closed(name, flags)
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise
        if not directory and not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            return None
        return fd

    def down(self, name: str) -> bool:
        """Go into a directory; False if it is none any more."""
        try:
            fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.fd)
        except PermissionError:
            fd = self._open_closed(name, _DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise
        self._above.append(_identity(self.fd))
        os.close(self.fd)
        self.fd = fd
        self._open_up()
        return True

    def _open_up(self) -> None:
        """Make this directory accessible until it is left: its owner may have kept himself out."""
        try:
            os.close(os.open(".", _DIRECTORY, dir_fd=self.fd))
        except PermissionError:
            mode = stat.S_IMODE(os.fstat(self.fd).st_mode)
            os.fchmod(self.fd, mode | 0o500)
            self._opened_up.append((len(self._above), os.dup(self.fd), mode))

    def _give_back(self, depth: int) -> None:
        while self._opened_up and self._opened_up[-1][0] >= depth:
            _depth, fd, mode = self._opened_up.pop()
            os.fchmod(fd, mode)
            os.close(fd)

    def _open_closed(self, name: str, flags: int) -> int:
        """Open what its owner may not read: he may give himself the permission for a moment."""
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            mode = stat.S_IMODE(os.fstat(handle).st_mode)
            os.chmod(f"/proc/self/fd/{handle}", mode | 0o500)
            try:
                return os.open(name, flags, dir_fd=self.fd)
            finally:
                os.chmod(f"/proc/self/fd/{handle}", mode)
        finally:
            os.close(handle)

    def up(self) -> None:
        """Go back. Raises OSError when this directory was moved meanwhile: above it may be anything."""
        fd = os.open("..", _DIRECTORY, dir_fd=self.fd)
        self._give_back(len(self._above))
        if _identity(fd) != self._above.pop():
            os.close(fd)
            raise OSError(ESTALE, "a directory was moved while its tree was read")
        os.close(self.fd)
        self.fd = fd

    def close(self) -> None:
        """Let go."""
        self._give_back(0)
        os.close(self.fd)


View = tuple[Cursor, ...]
"""The real directories that one visible directory is made of, topmost first."""


@dataclass(slots=True)
class Seen:
    """What a view shows under a name: the topmost that has it, and those that make up a directory's content.

    info is None where it shows nothing. hides: whatever the view's base has under this name is hidden by it.
    """

    info: os.stat_result | None = None
    cursor: Cursor | None = None
    directories: View = ()
    hides: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One name in every view: "entry", with what each shows; a directory's entries follow until its "leave".

    Cursors stand where `name` is, but in the directory itself for "leave".
    """

    kind: Literal["entry", "leave"]
    name: str
    seen: tuple[Seen, ...]

    @property
    def enters(self) -> bool:
        """Whether entries of it and a "leave" follow."""
        return self.kind == "entry" and any(one.directories for one in self.seen)


def _look(view: View, name: str) -> Seen:
    seen = Seen()
    for cursor in view:
        info = cursor.stat(name)
        if info is None:
            continue
        if cursor.is_whiteout(info):
            seen.hides = True
            break
        if seen.info is None:
            seen.info, seen.cursor = info, cursor
        if not stat.S_ISDIR(info.st_mode):
            seen.hides = True
            break
        seen.directories += (cursor,)
        if cursor.is_opaque(name):
            seen.hides = True
            break
    return seen


def all_names(views: tuple[View, ...]) -> set[str]:
    """Every name in the first view, deleted or not."""
    return {name for cursor in views[0] for name in cursor.names()}


def shared(one: View, other: View) -> int:
    """How many of the lowest directories two views have in common."""
    count = 0
    for left, right in zip(reversed(one), reversed(other), strict=False):
        if left.identity != right.identity:
            break
        count += 1
    return count


def steps(views: tuple[View, ...], names: Callable[[tuple[View, ...]], set[str]] = all_names) -> Iterator[Step]:
    """Walk views together, all in the same place, in an order that depends on names only.

    names: which of the names in a place are looked at. The last step is the "leave" of the top itself.
    """
    top = tuple(Seen(directories=view) for view in views)
    levels = [(Step("leave", "", top), views, iter(sorted(names(views))))]
    while levels:
        leave, here, left = levels[-1]
        name = next(left, None)
        if name is None:
            yield leave
            levels.pop()
            for cursor in (cursor for view in here for cursor in view if levels):
                cursor.up()
            continue
        step = Step("entry", name, tuple(_look(view, name) for view in here))
        yield step
        if step.enters:
            below = tuple(tuple(one for one in seen.directories if one.down(name)) for seen in step.seen)
            levels.append((Step("leave", name, step.seen), below, iter(sorted(names(below)))))
