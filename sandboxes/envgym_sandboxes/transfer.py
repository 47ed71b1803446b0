"""Files and trees as a stream of bounded pieces, for `put` and `get`.

`pack` reads one side, `unpack` writes the other, `Arrival` writes what a sandbox sends. None believes what it
meets: names are single components walked with directory descriptors that refuse symlinks, so nothing lands outside
the target; only regular files are opened, and without waiting; bytes, entries and levels are bounded on both sides.
"""

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["PIECE", "Arrival", "Tally", "about", "check_size", "file_pieces", "pack", "unpack"]

Piece = tuple[dict[str, Any], bytes]
PIECE = 1 << 20
"""The most bytes of one piece."""
_DEEPEST = 256  # every level is an open directory here, and a frame of recursion for whoever walks it later
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe in a file's place would block


def check_size(what: str | None, size: int, most: int) -> None:
    """Raise OSError (EFBIG) when `what` is larger than one transfer may be."""
    if size > most:
        raise OSError(errno.EFBIG, f"{size} bytes or more; Resources.transfer_bytes allows {most} at once", what)


@contextlib.contextmanager
def about(path: str) -> Iterator[None]:
    """An OSError of one transfer names the file that it is about, if it does not name one below it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


@dataclass(slots=True)
class Tally:
    """What one transfer has moved. Counting raises OSError as soon as it is more than it may be.

    most_bytes: `Resources.transfer_bytes`. most_entries: `Resources.inodes`.
    """

    most_bytes: int
    most_entries: int
    bytes: int = 0
    entries: int = 0

    def entry(self, names: list[str]) -> None:
        """Count a file, directory or link."""
        self.entries += 1
        if len(names) > _DEEPEST:
            where = "/".join(names)[:80]
            raise OSError(
                errno.ENAMETOOLONG, f"{where}... is {len(names)} levels deep; at most {_DEEPEST} are copied"
            )
        if self.entries > self.most_entries:
            what = f"a tree of {self.entries} entries or more"
            raise OSError(errno.EFBIG, f"{what}; Resources.inodes allows {self.most_entries}")

    def content(self, names: list[str], size: int) -> None:
        """Count bytes; those of a whole file as soon as its size is known."""
        self.bytes += size
        check_size("/".join(names) or None, self.bytes, self.most_bytes)


def file_pieces(file: io.FileIO) -> Iterator[tuple[bytes, bool]]:
    """The content of a regular file in pieces, each with whether it is the last; an empty file is one.

    Raises OSError for what is no regular file: a pipe or device may never end.
    """
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file")
    piece = file.read(PIECE)
    while more := file.read(PIECE):
        yield piece, False
        piece = more
    yield piece, True


def pack(source: str, tally: Tally) -> Iterator[Piece]:
    """Yield pieces of `source`: heads {path, kind, mode, ...} with a file's bytes. Raises OSError.

    `path` is a list of names below the source, [] for the source itself. Sockets, pipes and devices are left out.
    """
    info = os.stat(source)
    if stat.S_ISDIR(info.st_mode):
        yield from _tree(os.open(source, _DIRECTORY & ~os.O_NOFOLLOW), tally)
    elif stat.S_ISREG(info.st_mode):
        yield from _file(os.open(source, _FILE & ~os.O_NOFOLLOW), [], tally)
    else:
        raise OSError(errno.EINVAL, "neither a regular file nor a directory", source)


def _tree(top: int, tally: Tally) -> Iterator[Piece]:
    """A directory and all below it, each directory before what is in it."""
    levels: list[tuple[int, list[str], list[str]]] = []  # descriptor, its path, names still to come
    try:
        tally.entry([])
        levels.append((top, [], sorted(os.listdir(top), reverse=True)))
        yield _head(os.fstat(top), [], "directory"), b""
        while levels:
            here, path, left = levels[-1]
            if not left:
                os.close(levels.pop()[0])
                continue
            names = [*path, left.pop()]
            info = os.lstat(names[-1], dir_fd=here)
            if stat.S_ISLNK(info.st_mode):
                tally.entry(names)
                yield _head(info, names, "link") | {"target": os.readlink(names[-1], dir_fd=here)}, b""
            elif stat.S_ISDIR(info.st_mode):
                tally.entry(names)
                yield _head(info, names, "directory"), b""
                below = os.open(names[-1], _DIRECTORY, dir_fd=here)
                levels.append((below, names, []))
                levels[-1][2].extend(sorted(os.listdir(below), reverse=True))
            elif stat.S_ISREG(info.st_mode):
                yield from _file(os.open(names[-1], _FILE, dir_fd=here), names, tally)
    finally:
        for fd, _path, _left in levels:
            os.close(fd)


def _head(info: os.stat_result, names: list[str], kind: str) -> dict[str, Any]:
    return {"path": names, "kind": kind, "mode": stat.S_IMODE(info.st_mode)}


def _file(fd: int, names: list[str], tally: Tally) -> Iterator[Piece]:
    with open(fd, "rb", buffering=0) as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return  # it was one before it was opened
        counted, came = info.st_size, 0
        tally.entry(names)
        tally.content(names, counted)  # before any of it is read
        for piece, last in file_pieces(file):
            yield _head(info, names, "file") | {"first": came == 0, "last": last}, piece
            came += len(piece)
            if came > counted:  # it has grown since
                tally.content(names, came - counted)
                counted = came


class Arrival:
    """Writes at `target` what a sandbox sends of its own.

    Raises ValueError for what no honest sender sends, and OSError as `Tally` and the file system do.
    """

    def __init__(self, target: str, tally: Tally) -> None:
        self._target = target
        self._tally = tally
        self._last: list[str] | None = None  # the file that more pieces may follow of
        self._is_tree: bool | None = None

    def add(self, head: object, body: bytes) -> None:
        """Check and write one piece."""
        names, kind, first = _checked(head)
        if (not names) != (self._is_tree is None) and first:
            raise ValueError("a transfer begins with its source, once")
        if self._is_tree is None:
            if kind == "link":
                raise ValueError("the source of a transfer is no link")
            self._is_tree = kind == "directory"
        elif names and not self._is_tree:
            raise ValueError("there is nothing below a file")
        if first:
            self._tally.entry(names)
        elif names != self._last:
            raise ValueError("a piece of a file follows the piece before it")
        self._tally.content(names, len(body))
        unpack(self._target, head, body)  # type: ignore[arg-type]  # checked above
        self._last = names if kind == "file" else None


def _checked(head: object) -> tuple[list[str], str, bool]:
    """Names, kind and whether it begins something. Raises ValueError."""
    if not isinstance(head, dict):
        raise ValueError("a piece without a head")
    kind, names, first = head.get("kind"), head.get("path"), head.get("first", True)
    if kind not in ("directory", "link", "file") or not isinstance(first, bool):
        raise ValueError(f"{kind!r} is not a kind of file")
    if (kind == "file") != (isinstance(head.get("last"), bool) and "first" in head):
        raise ValueError("a file has a first and a last piece, and nothing else has")
    if not isinstance(names, list):
        raise ValueError(f"{names!r} is not a path")
    for name in names:
        _check_name(name)
    if type(head.get("mode")) is not int or not 0 <= head["mode"] < 1 << 16:
        raise ValueError(f"{head.get('mode')!r} is not a mode")
    if kind == "link" and (not isinstance(head.get("target"), str) or "\0" in head["target"]):
        raise ValueError("a link needs a target")
    return names, kind, first


def _check_name(name: object) -> None:
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not a file name")


def unpack(target: str, head: dict[str, Any], body: bytes) -> None:
    """Write one piece at `target`. Raises OSError, and ValueError for a name that is not one."""
    names = head["path"]
    for name in names:
        _check_name(name)
    if not names:
        _write(None, target, head, body)
        return
    parent = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names[:-1]:
            below = os.open(name, _DIRECTORY, dir_fd=parent)
            os.close(parent)
            parent = below
        _write(parent, names[-1], head, body)
    finally:
        os.close(parent)


def _write(parent: int | None, name: str, head: dict[str, Any], body: bytes) -> None:
    kind = head["kind"]
    if kind == "directory":
        try:
            os.mkdir(name, int(head["mode"]) & 0o777 | 0o700, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=parent is None).st_mode):
                raise
    elif kind == "link":
        if _there(name, parent):
            os.unlink(name, dir_fd=parent)
        os.symlink(head["target"], name, dir_fd=parent)
    elif kind == "file":
        _write_file(parent, name, head, body)
    else:
        raise ValueError(f"{kind!r} is not a kind of file")


def _write_file(parent: int | None, name: str, head: dict[str, Any], body: bytes) -> None:
    """A piece of a file. It has its mode once it is whole: until then its owner must be able to write to it."""
    first, mode = bool(head["first"]), int(head["mode"]) & 0o777
    if first and parent is not None and _there(name, parent):
        os.unlink(name, dir_fd=parent)
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if parent is not None else 0)
    flags |= os.O_CREAT | os.O_TRUNC if first else os.O_APPEND
    fd = os.open(name, flags, mode | 0o200, dir_fd=parent)
    with open(fd, "wb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        view = memoryview(body)
        while view:
            view = view[file.write(view) :]
        if head["last"]:
            os.fchmod(fd, mode)


def _there(name: str, parent: int | None) -> bool:
    try:
        return not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode)
    except FileNotFoundError:
        return False
