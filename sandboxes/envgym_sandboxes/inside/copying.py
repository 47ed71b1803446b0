"""Copies a branch's directory for a fork: files, directories and links, within a bound.

Whoever calls it sees to it that nothing writes meanwhile. Special files other than pipes are left out; hard links
become files of their own.
"""

import os
import shutil
import stat

__all__ = ["MOST_ENTRIES", "copy_tree"]

MOST_ENTRIES = 10_000


class _Room:
    """How much may still be copied."""

    def __init__(self, size: int) -> None:
        self.limit = size
        self.size = size
        self.entries = MOST_ENTRIES

    def take(self, size: int, top: str) -> None:
        """Count one entry. Raises OSError when there is no room for it."""
        self.size -= size
        self.entries -= 1
        if self.size < 0 or self.entries < 0:
            raise OSError(
                27,
                f"{top} holds more than {self.limit} bytes or {MOST_ENTRIES} entries, too much to copy for a "
                "branch; raise copy_bytes, or open the interpreter with files='shared'",
            )


def copy_tree(source: str, target: str, most_bytes: int) -> None:
    """Make `target` a copy of the directory `source`. Absolute links into it lead into the copy."""
    os.makedirs(target, mode=0o700, exist_ok=True)
    room = _Room(most_bytes)
    _copy(source, target, (source, target), room)


def _copy(source: str, target: str, tops: "tuple[str, str]", room: _Room) -> None:
    for entry in os.scandir(source):
        to = f"{target}/{entry.name}"
        info = entry.stat(follow_symlinks=False)
        if entry.path == tops[1]:  # a copy below its own source
            continue
        room.take(info.st_size if stat.S_ISREG(info.st_mode) else 0, tops[0])
        if stat.S_ISLNK(info.st_mode):
            link = os.readlink(entry.path)
            os.symlink(tops[1] + link[len(tops[0]) :] if f"{link}/".startswith(f"{tops[0]}/") else link, to)
        elif stat.S_ISDIR(info.st_mode):
            os.mkdir(to, 0o700)
            _copy(entry.path, to, tops, room)
            _copy_metadata(info, to)
        elif stat.S_ISREG(info.st_mode):
            shutil.copyfile(entry.path, to)
            _copy_metadata(info, to)
        elif stat.S_ISFIFO(info.st_mode):
            os.mkfifo(to, stat.S_IMODE(info.st_mode))


def _copy_metadata(info: os.stat_result, to: str) -> None:
    os.chmod(to, stat.S_IMODE(info.st_mode))
    os.utime(to, ns=(info.st_atime_ns, info.st_mtime_ns))
