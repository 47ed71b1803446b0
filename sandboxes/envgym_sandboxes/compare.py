"""Two states of a sandbox beside each other: what differs, the files in it, and a digest that grows with it.

States are stacks of layers. Only where one has layers that the other has not are names looked at, so that a
comparison costs what was written, not what is there. A digest is of a sum over the paths that differ from the
world's base: where a state's sum is known, the next one's follows from what the layers between them wrote.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from errno import EFBIG
from typing import Any

from envgym_sandboxes.contents import content_digest
from envgym_sandboxes.walk import Cursor, Seen, View, shared, steps

__all__ = ["Content", "diff", "digest", "final"]

_BYTES = 2048
_EVEN = int.from_bytes(b"\xff\xff\0\0" * (_BYTES // 4), "little")
_ODD = _EVEN << 16
_ONES = int.from_bytes(b"\1\0" * (_BYTES // 2), "little")


def _add(left: int, right: int) -> int:
    """The sum of two vectors of 1,024 numbers modulo 2**16, each vector in one integer."""
    return ((left & _EVEN) + (right & _EVEN)) & _EVEN | ((left & _ODD) + (right & _ODD)) & _ODD


def _negative(value: int) -> int:
    return _add(value ^ (_EVEN | _ODD), _ONES)


def final(total: bytes | None) -> str:
    """The digest of a state with a sum; None stands for the world's base state."""
    return hashlib.sha256(total or bytes(_BYTES)).hexdigest()


def digest(new: list[str], old: list[str], base: list[str], total: str, prefix: str) -> tuple[Any, bytes]:
    """The digest and the sum of a state, from the sum of an older one (hexadecimal; empty for the base).

    States are directories stacked on each other, topmost first.
    """
    content, found = Content(), int.from_bytes(bytes.fromhex(total), "little")
    with _views(prefix, new, old, base) as views:
        for path, (now, then, first) in _differences(views, content):
            found = _add(found, _negative(content.term(path, then, first)))
            found = _add(found, content.term(path, now, first))
    summed = found.to_bytes(_BYTES, "little")
    return {"digest": final(summed), "total": summed.hex()}, b""


def diff(new: list[str], old: list[str], prefix: str, most: int) -> tuple[list[tuple[str, int]], bytes]:
    """Paths that differ: [path, size] each, -1 for deleted, with their contents; a symlink's is its target.

    Raises OSError (EFBIG) when the contents are more than `most` bytes.
    """
    index: list[tuple[str, int]] = []
    found: list[bytes] = []
    room = most
    with _views(prefix, new, old) as views:
        for path, (now, _then) in _differences(views, Content()):
            if now.info is None:
                index.append((path, -1))
                continue
            kind = stat.S_IFMT(now.info.st_mode)
            if kind not in (stat.S_IFREG, stat.S_IFLNK):
                continue
            room -= now.info.st_size
            if room < 0:
                raise OSError(
                    EFBIG,
                    f"what differs is more than the {most} bytes of Resources.transfer_bytes; {path!r} has "
                    f"{now.info.st_size}",
                )
            found.append(_read(now, path.rpartition("/")[2]))
            index.append((path, len(found[-1])))
    return index, b"".join(found)


@contextlib.contextmanager
def _views(prefix: str, *states: list[str]) -> Iterator[tuple[View, ...]]:
    views = tuple(tuple(Cursor(top, prefix) for top in state) for state in states)
    try:
        yield views
    finally:
        for cursor in (cursor for view in views for cursor in view):
            cursor.close()


def _names(views: tuple[View, ...]) -> set[str]:
    """The names that the first two views may show differently."""
    new, old = views[:2]
    both = shared(new, old)
    different = new[: len(new) - both] + old[: len(old) - both]
    return {name for cursor in different for name in cursor.names()}


def _differences(views: tuple[View, ...], content: "Content") -> Iterator[tuple[str, tuple[Seen, ...]]]:
    """The paths at which the first two views differ, with what every view shows there."""
    names = [""]
    for step in steps(views, _names):
        if step.kind == "leave":
            names.pop()
            continue
        if not content.same(step.name, *step.seen[:2]):
            yield "/".join([*names, step.name]), step.seen
        if step.enters:
            names.append(step.name)


class Content:
    """What entries are, compared by value. A file that has many names is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], str] = {}

    def same(self, name: str, one: Seen, other: Seen) -> bool:
        """Whether two entries are alike, but for times and owners and what a directory holds."""
        if one.info is None or other.info is None:
            return one.info is other.info
        if (one.info.st_dev, one.info.st_ino) == (other.info.st_dev, other.info.st_ino):
            return True
        if one.info.st_mode != other.info.st_mode:
            return False
        if stat.S_ISREG(one.info.st_mode) and one.info.st_size != other.info.st_size:
            return False
        return self._fingerprint(name, one) == self._fingerprint(name, other)

    def term(self, path: str, seen: Seen, base: Seen) -> int:
        """What a path adds to the sum of a state: nothing where it is as in the base.

        Such sums of vectors of hashes are as hard to forge as a hash (Bellare and Micciancio 1997; Lewi and
        others 2019).
        """
        name = path.rpartition("/")[2]
        if self.same(name, seen, base):
            return 0
        text = f"{path}\0{self._fingerprint(name, seen)}".encode("utf-8", "surrogateescape")
        return int.from_bytes(hashlib.shake_128(text).digest(_BYTES), "little")

    def _fingerprint(self, name: str, seen: Seen) -> str:
        """Kind, mode, content and extended attributes."""
        if seen.info is None or seen.cursor is None:
            return "-"
        kind, mode = stat.S_IFMT(seen.info.st_mode), f"{seen.info.st_mode:o}"
        if kind == stat.S_IFLNK:
            return f"{mode} {_target(seen, name)}"
        if kind not in (stat.S_IFREG, stat.S_IFDIR):
            return mode
        place = (seen.info.st_dev, seen.info.st_ino)
        if place in self._known:
            return self._known[place]
        fd = seen.cursor.open(name, directory=kind == stat.S_IFDIR)
        if fd is None:
            return ""
        try:
            found = f"{mode} {content_digest(fd) if kind == stat.S_IFREG else ''}"
            extended = [(seen.cursor.shown(key), value) for key, value in seen.cursor.attributes(fd)]
            found += "".join(f" {key}={value.hex()}" for key, value in sorted(extended))
        finally:
            os.close(fd)
        if seen.info.st_nlink > 1 and kind == stat.S_IFREG:
            self._known[place] = found
        return found


def _target(seen: Seen, name: str) -> str:
    assert seen.cursor is not None
    try:
        return os.readlink(name, dir_fd=seen.cursor.fd)
    except OSError:  # it is something else by now
        return ""


def _read(seen: Seen, name: str) -> bytes:
    """What a file holds or a link says."""
    assert seen.info is not None
    assert seen.cursor is not None
    if stat.S_ISLNK(seen.info.st_mode):
        return os.fsencode(_target(seen, name))
    fd = seen.cursor.open(name)
    if fd is None:
        return b""
    with open(fd, "rb") as file:
        return file.read(seen.info.st_size)
