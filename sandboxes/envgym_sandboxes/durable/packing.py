"""Layers to streams and back (see `form`), where the layers are: jobs that run in a fork of the zygote.

What is packed was written by hostile programs, and what is unpacked may be: names are single components, walked by
descriptors, and nothing is followed. Kept is what a snapshot holds; access control lists are not, since they name
users of this host, nor are devices.
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from errno import EBADMSG
from typing import Any

from envgym_sandboxes.compare import Content
from envgym_sandboxes.contents import held
from envgym_sandboxes.durable.form import Entry, Piece, Writer, parse
from envgym_sandboxes.removal import remove_tree
from envgym_sandboxes.walk import Cursor, Seen, Step, View, all_names, steps

__all__ = ["pack", "replace", "unpack", "unpack_whole"]

_ESCAPED = "user.overlay."
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_UNREAD = {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}


# -- packing -----------------------------------------------------------------------------------------------------


def pack(layer: str, below: str | None, owner: int, prefix: str, fds: list[int]) -> tuple[Any, bytes]:
    """Write a layer to a descriptor; says the digest of what was written, and how many bytes files hold.

    below: where layers are whole states, the one that this one is told as a difference to. owner: the sandbox's
    user. prefix: see `walk`.
    """
    total = hashlib.sha256()

    def write(data: bytes) -> None:
        total.update(data)
        view = memoryview(data)
        while view:
            view = view[os.write(fds[0], view) :]

    cursor = Cursor(layer, prefix)
    packing = _Pack(Writer(write), owner, cursor)
    if below is None:
        packing.run(((cursor,),), all_names)
    else:
        packing.run(((cursor,), (Cursor(below, prefix),)), _both_names)
    return {"digest": total.hexdigest(), "bytes": packing.bytes}, b""


def _both_names(views: tuple[View, ...]) -> set[str]:
    return {name for view in views for cursor in view for name in cursor.names()}


class _Pack:
    """Tells a walk's steps to a writer: all of the first view, or what it has other than the second."""

    def __init__(self, writer: Writer, owner: int, top: Cursor) -> None:
        self._writer = writer
        self._top = top
        self._owner = owner
        self._content = Content()
        self._first_names: dict[tuple[int, int], int] = {}
        self._pending: list[Entry] = []  # the directories we are in; of a difference, some are not told yet
        self._told = 0
        self._silent = 0  # how deep we are in what is gone
        self.bytes = 0

    def run(self, views: tuple[View, ...], names: Any) -> None:
        """Walk and tell."""
        top = self._top
        self._pending.append(self._entry("", "directory", os.fstat(top.fd), top.attributes(top.fd)))
        self._tell()
        for step in steps(views, names):
            if step.kind == "leave":
                self._leave()
            else:
                self._look(step)
        self._writer.end()

    def _leave(self) -> None:
        if self._silent:
            self._silent -= 1
            return
        self._pending.pop()
        self._told = min(self._told, len(self._pending))

    def _look(self, step: Step) -> None:
        now, then = step.seen[0], step.seen[1] if len(step.seen) > 1 else None
        if self._silent:
            self._silent += step.enters
            return
        if now.directories:
            self._directory(step.name, now)
            if then is None or not self._same(step.name, now, then):
                self._tell()
            return
        if now.info is None:
            if now.hides or (then is not None and then.info is not None):
                self._tell()
                self._writer.entry(Entry(len(self._pending), step.name, "gone"))
        elif then is None or not self._same(step.name, now, then):
            self._other(step.name, now)
        self._silent += step.enters

    def _same(self, name: str, now: Seen, then: Seen) -> bool:
        """Whether nothing needs to be told: names of one file are told together, or they would become two."""
        if now.info is None or then.info is None or not self._content.same(name, now, then):
            return False
        several = not now.directories and (now.info.st_nlink > 1 or then.info.st_nlink > 1)
        return not several and now.info.st_mtime_ns == then.info.st_mtime_ns

    def _tell(self) -> None:
        """Tell the directories we are in, as far as they were not told."""
        for entry in self._pending[self._told :]:
            self._writer.entry(entry)
        self._told = len(self._pending)

    def _directory(self, name: str, seen: Seen) -> None:
        assert seen.cursor is not None
        assert seen.info is not None
        fd = seen.cursor.open(name, directory=True)
        found = seen.cursor.attributes(fd) if fd is not None else []
        if fd is not None:
            os.close(fd)
        entry = self._entry(name, "directory", seen.info, found)
        entry.opaque = seen.hides
        self._pending.append(entry)

    def _other(self, name: str, seen: Seen) -> None:
        """Anything but a directory."""
        assert seen.cursor is not None
        assert seen.info is not None
        kind = stat.S_IFMT(seen.info.st_mode)
        if kind == stat.S_IFREG:
            fd = seen.cursor.open(name)
            if fd is not None:
                self._tell()
                self._file(name, fd, seen.cursor)
        elif kind == stat.S_IFLNK:
            self._tell()
            entry = self._entry(name, "link", seen.info, [])
            entry.target = os.readlink(name, dir_fd=seen.cursor.fd)
            self._writer.entry(entry)
        elif kind in _UNREAD:
            self._tell()
            self._writer.entry(self._entry(name, _UNREAD[kind], seen.info, []))

    def _file(self, name: str, fd: int, cursor: Cursor) -> None:
        try:
            info = os.fstat(fd)
            place = (info.st_dev, info.st_ino)
            if place in self._first_names:
                self._writer.entry(Entry(len(self._pending), name, "hard", first=self._first_names[place]))
                return
            entry = self._entry(name, "file", info, cursor.attributes(fd))
            entry.size, entry.many = info.st_size, info.st_nlink > 1
            if entry.many:
                self._first_names[place] = len(self._first_names)
            self._writer.entry(entry)
            for at, data in held(fd):
                if data.strip(b"\0"):
                    self._writer.piece(at, data)
                    self.bytes += len(data)
        finally:
            os.close(fd)

    def _entry(self, name: str, kind: str, info: os.stat_result, attributes: list[tuple[str, bytes]]) -> Entry:
        entry = Entry(len(self._pending), name, kind, stat.S_IMODE(info.st_mode), info.st_mtime_ns)
        entry.mine = info.st_uid == self._owner
        for key, value in attributes:
            if key.startswith("user."):
                entry.attributes[self._top.shown(key)] = value
        return entry


# -- unpacking ---------------------------------------------------------------------------------------------------


def unpack(
    layers: list[tuple[str, str]], owner: tuple[int, int], prefix: str, privileged: bool, fds: list[int]
) -> tuple[Any, bytes]:
    """Fill directories from streams: [directory, digest] each, files by these names in an open directory.

    With a prefix (see `walk`) they are empty, and become layers; without one they hold what is changed. Says the
    bytes that each takes. Raises OSError (EBADMSG) for a stream that is not what its name says, or not of the
    form.
    """
    sizes = []
    for target, digest in layers:
        try:
            stored = os.open(digest, os.O_RDONLY | os.O_CLOEXEC, dir_fd=fds[0])
        except FileNotFoundError:
            raise OSError(EBADMSG, f"{digest}: it is missing") from None
        with open(stored, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise OSError(EBADMSG, f"{digest}: its content is not what its name says")
            file.seek(0)
            try:
                _Unpack(target, _As(tuple(owner), prefix, privileged)).run(parse(_chunks(file)))
            except ValueError as error:
                raise OSError(EBADMSG, f"{digest}: {error}") from None
        info = os.statvfs(target)
        sizes.append((info.f_blocks - info.f_bfree) * info.f_frsize)
    return sizes, b""


def unpack_whole(file: Any, target: str, owner: tuple[int, int], side: str = "") -> None:
    """Fill an empty directory from an open file. side: a name for a directory, which is gone afterwards, beside it.

    Raises ValueError for what is not of the form, OSError.
    """
    _Unpack(target, _As(owner, "", os.geteuid() == 0), side).run(parse(_chunks(file)))


def replace(target: str, owner: tuple[int, int], fds: list[int]) -> tuple[Any, bytes]:
    """Put what an open file holds in the place of a directory's content. Raises OSError (EBADMSG)."""
    remove_tree(target)
    os.mkdir(target)
    with open(fds[0], "rb", closefd=False) as file:
        file.seek(0)
        try:
            unpack_whole(file, target, tuple(owner))  # type: ignore[arg-type]  # JSON has no tuples
        except ValueError as error:
            raise OSError(EBADMSG, f"what a sandbox says that it holds: {error}") from None
    return None, b""


def _chunks(file: Any) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


@dataclass(frozen=True, slots=True)
class _As:
    """owner: whom the sandbox's files belong to. privileged: whether others' can be given to root."""

    owner: tuple[int, ...]
    prefix: str
    privileged: bool


class _Unpack:
    """Makes files of entries and pieces that `parse` has found to be in order."""

    def __init__(self, target: str, how: _As, side: str = "") -> None:
        self._how = how
        self._at = Cursor(target, "")
        self._in: list[Entry] = []
        self._file: tuple[Entry, int] | None = None
        self._side = side or f"{target}.links"
        os.mkdir(self._side)
        self._links = os.open(self._side, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._many = 0

    def run(self, things: Iterator[Entry | Piece]) -> None:
        """Make all of them."""
        for thing in things:
            if isinstance(thing, Piece):
                assert self._file is not None
                view, at = memoryview(thing.content), thing.at
                while view:
                    written = os.pwrite(self._file[1], view, at)
                    view, at = view[written:], at + written
                continue
            self._end_file()
            while len(self._in) > thing.depth:
                self._up()
            self._make(thing)
        self._end_file()
        while self._in:
            self._up()
        os.close(self._links)
        shutil.rmtree(self._side)
        self._at.close()

    def _make(self, entry: Entry) -> None:
        name, at = entry.name, self._at.fd
        if entry.kind == "directory":
            self._directory(entry)
            return
        if not self._how.prefix:
            self._clear(name)
        if entry.kind == "file":
            self._file = entry, os.open(name, _NEW, 0o600, dir_fd=at)
            if entry.many:
                os.link(name, str(self._many), src_dir_fd=at, dst_dir_fd=self._links)
                self._many += 1
        elif entry.kind == "hard":
            os.link(str(entry.first), name, src_dir_fd=self._links, dst_dir_fd=at)
        elif entry.kind == "link":
            os.symlink(entry.target or ".", name, dir_fd=at)
            self._own(entry)
        elif entry.kind in _UNREAD.values():
            kind = next(number for number, word in _UNREAD.items() if word == entry.kind)
            os.mknod(name, kind | 0o600, dir_fd=at)
            os.chmod(name, entry.mode, dir_fd=at)
            self._own(entry)
        elif self._how.prefix:
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=at)

    def _directory(self, entry: Entry) -> None:
        if entry.depth:
            there = self._at.stat(entry.name)
            if there is not None and not stat.S_ISDIR(there.st_mode):
                self._clear(entry.name)
                there = None
            if there is None:
                os.mkdir(entry.name, 0o700, dir_fd=self._at.fd)
            if not self._at.down(entry.name):
                raise OSError(EBADMSG, f"{entry.name!r} is not a directory")
            os.fchmod(self._at.fd, 0o700)  # until it is filled
        self._in.append(entry)

    def _up(self) -> None:
        entry = self._in.pop()
        if entry.opaque and self._how.prefix:
            os.setxattr(self._at.fd, self._how.prefix + "opaque", b"y")
        made = os.dup(self._at.fd)
        try:
            if entry.depth:
                self._at.up()  # first: its mode may be one that nobody comes back from
            self._describe(made, entry)
        finally:
            os.close(made)

    def _clear(self, name: str) -> None:
        """Remove what is there."""
        there = self._at.stat(name)
        if there is None:
            return
        if stat.S_ISDIR(there.st_mode):
            remove_tree(f"/proc/self/fd/{self._at.fd}/{name}")
        else:
            os.unlink(name, dir_fd=self._at.fd)

    def _end_file(self) -> None:
        if self._file is None:
            return
        (entry, fd), self._file = self._file, None
        try:
            os.ftruncate(fd, entry.size)
            self._describe(fd, entry)
        finally:
            os.close(fd)

    def _ids(self, entry: Entry) -> tuple[int, ...]:
        return self._how.owner if entry.mine or not self._how.privileged else (0, 0)

    def _own(self, entry: Entry) -> None:
        """Owner and times of a link, pipe or socket."""
        user, group = self._ids(entry)
        os.chown(entry.name, user, group, dir_fd=self._at.fd, follow_symlinks=False)
        os.utime(entry.name, ns=(entry.time, entry.time), dir_fd=self._at.fd, follow_symlinks=False)

    def _describe(self, fd: int, entry: Entry) -> None:
        """Owner, mode, attributes and times of an open file or directory; a chown may clear modes."""
        user, group = self._ids(entry)
        os.fchown(fd, user, group)
        # Outside of a mount of its own, no file may lend another owner than the sandbox's to whoever runs it.
        os.fchmod(fd, entry.mode if self._how.prefix or entry.mine else entry.mode & 0o1777)
        for name, value in entry.attributes.items():
            stored = name
            if self._how.prefix == _ESCAPED and name.startswith(_ESCAPED):
                stored = f"{_ESCAPED}overlay.{name[len(_ESCAPED) :]}"
            os.setxattr(fd, stored, value)
        os.utime(fd, ns=(entry.time, entry.time))
