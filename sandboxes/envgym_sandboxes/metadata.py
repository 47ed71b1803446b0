"""What an owner may do to a file without opening it for writing, done on somebody's behalf: a row per system call.

A row says where the call names its file and what is to be done to the one that was opened for it. Which files may
be changed is decided elsewhere (`gate`).
"""

import ctypes
import errno
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envgym_sandboxes.caller import AT_FDCWD, Caller, check, signed

__all__ = ["CHANGES", "Change"]

_AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH = 0x100, 0x1000
_LONGEST_PATH, _LONGEST_NAME, _LARGEST_VALUE = 4096, 256, 1 << 16
_LIBC = ctypes.CDLL(None, use_errno=True)

Arguments = Sequence[int]
Deed = Callable[[bytes, Caller, Arguments], None]
"""Given a name of the opened file (one that follows no further link), the caller, and the call's arguments."""


@dataclass(frozen=True, slots=True)
class Change:
    """deed: what is done. path: which argument points at the path; None: argument 0 is a descriptor.

    directory: which argument is the descriptor that a path is relative to; None: the current directory.
    flags: which argument holds the AT_ flags. link: whether a symlink itself is meant.
    """

    deed: Deed
    path: int | None = None
    directory: int | None = None
    flags: int | None = None
    link: bool = False

    def file(self, caller: Caller, given: Arguments) -> int:
        """The file that is meant, as an O_PATH descriptor."""
        if self.path is None:
            return caller.descriptor(signed(given[0]))
        directory = AT_FDCWD if self.directory is None else signed(given[self.directory])
        if given[self.path] == 0 and self.directory is not None:  # as futimens calls utimensat
            return caller.descriptor(directory)
        name = caller.text(given[self.path], _LONGEST_PATH)
        flags = 0 if self.flags is None else given[self.flags]
        if not name and flags & _AT_EMPTY_PATH:
            return caller.descriptor(directory)
        return caller.file(directory, name, follow=not self.link and not flags & _AT_SYMLINK_NOFOLLOW)


def _chmod(mode: int) -> Deed:
    return lambda name, _caller, given: void(_LIBC.chmod(name, ctypes.c_uint(given[mode] & 0o7777)))


def _chown(user: int) -> Deed:
    def deed(name: bytes, _caller: Caller, given: Arguments) -> None:
        ids = [ctypes.c_uint(given[index] & 0xFFFFFFFF) for index in (user, user + 1)]
        void(_LIBC.chown(name, *ids))

    return deed


def _times(layout: str, pointer: int, as_specs: Callable[[Sequence[int]], Sequence[int]]) -> Deed:
    def deed(name: bytes, caller: Caller, given: Arguments) -> None:
        specs = None
        if given[pointer]:
            times = struct.unpack(layout, caller.memory(given[pointer], struct.calcsize(layout)))
            specs = struct.pack("qqqq", *as_specs(times))
        void(_LIBC.utimensat(ctypes.c_int(AT_FDCWD), name, specs, ctypes.c_int(0)))

    return deed


def _microseconds(times: Sequence[int]) -> Sequence[int]:
    if not all(0 <= part < 1_000_000 for part in times[1::2]):
        raise OSError(errno.EINVAL, "microseconds out of range")
    return times[0], times[1] * 1000, times[2], times[3] * 1000


def _set_attribute(name: bytes, caller: Caller, given: Arguments) -> None:
    _path, key, value, size, flags, *_rest = given
    if size > _LARGEST_VALUE:
        raise OSError(errno.E2BIG, "too large")
    attribute = caller.text(key, _LONGEST_NAME)
    content = caller.memory(value, size) if size else b""
    void(_LIBC.setxattr(name, attribute, content, ctypes.c_size_t(size), ctypes.c_int(signed(flags))))


def _remove_attribute(name: bytes, caller: Caller, given: Arguments) -> None:
    void(_LIBC.removexattr(name, caller.text(given[1], _LONGEST_NAME)))


def _truncate(name: bytes, _caller: Caller, given: Arguments) -> None:
    size = given[1] - (1 << 64) if given[1] >> 63 else given[1]
    void(_LIBC.truncate(name, ctypes.c_long(size)))


def void(result: int) -> None:
    """Raise OSError if a C function failed."""
    check(result)


CHANGES: dict[str, Change] = {
    "chmod": Change(_chmod(1), path=0),
    "fchmod": Change(_chmod(1)),
    "fchmodat": Change(_chmod(2), path=1, directory=0),
    "fchmodat2": Change(_chmod(2), path=1, directory=0, flags=3),
    "chown": Change(_chown(1), path=0),
    "lchown": Change(_chown(1), path=0, link=True),
    "fchown": Change(_chown(1)),
    "fchownat": Change(_chown(2), path=1, directory=0, flags=4),
    "utime": Change(_times("qq", 1, lambda times: (times[0], 0, times[1], 0)), path=0),
    "utimes": Change(_times("qqqq", 1, _microseconds), path=0),
    "futimesat": Change(_times("qqqq", 2, _microseconds), path=1, directory=0),
    "utimensat": Change(_times("qqqq", 2, lambda times: times), path=1, directory=0, flags=3),
    "setxattr": Change(_set_attribute, path=0),
    "lsetxattr": Change(_set_attribute, path=0, link=True),
    "fsetxattr": Change(_set_attribute),
    "removexattr": Change(_remove_attribute, path=0),
    "lremovexattr": Change(_remove_attribute, path=0, link=True),
    "fremovexattr": Change(_remove_attribute),
    "truncate": Change(_truncate, path=0),
}
