"""A thread that waits for init's answer to a system call: its memory, its files, and who is kin to whom.

Everything is looked up through /proc by the thread's number, which may be another thread's a moment later: what
matters is checked again after it was opened. Nothing here decides what is allowed.
"""

import ctypes
import errno
import os
import re
import struct
from collections.abc import Callable

__all__ = ["AT_FDCWD", "Caller", "check", "descends", "signed"]

AT_FDCWD = -100
_PAGE = 4096
_OF_A_DESCRIPTOR = re.compile(rb"/(?:proc/(?:self|thread-self|(\d+))/fd|dev/fd)/(\d+)")
_SYS_OPENAT2, _RESOLVE_NO_MAGICLINKS = 437, 2
_LIBC = ctypes.CDLL(None, use_errno=True)


def signed(value: int) -> int:
    """A register as the int that a call takes it for."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def check(result: int) -> int:
    """What a C function returned. Raises OSError of its errno."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


class Caller:
    """One caller. `waits` says whether it still does."""

    def __init__(self, tid: int, waits: Callable[[], bool]) -> None:
        self.tid = tid
        self._waits = waits

    def memory(self, address: int, size: int) -> bytes:
        """Exactly `size` bytes. Raises OSError: EFAULT."""
        data = self._read(address, size, None)
        if len(data) < size:
            raise OSError(errno.EFAULT, "not all of it is there")
        return data

    def text(self, address: int, longest: int) -> bytes:
        """A string without its NUL. Raises OSError: EFAULT, or ENAMETOOLONG for one of `longest` bytes or more."""
        data, end, _rest = self._read(address, longest, b"\0").partition(b"\0")
        if not end:
            raise OSError(errno.ENAMETOOLONG, "too long")
        return data

    def _read(self, address: int, size: int, until: bytes | None) -> bytes:
        data = b""
        fd = os.open(f"/proc/{self.tid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not self._waits():
                raise OSError(errno.ESRCH, "gone")
            while len(data) < size:  # page by page: a string may end just before one that is not there
                at = address + len(data)
                piece = os.pread(fd, min(size - len(data), _PAGE - at % _PAGE), at)
                data += piece
                if not piece or (until is not None and until in piece):
                    break
        except (OSError, OverflowError):
            raise OSError(errno.EFAULT, "not there") from None
        finally:
            os.close(fd)
        return data

    def file(self, directory: int, path: bytes, *, follow: bool) -> int:
        """A path as the caller sees it, opened without any right but to tell which file it is."""
        named = _OF_A_DESCRIPTOR.fullmatch(path)
        if named and (named[1] is None or int(named[1]) == self.tid):
            return self.descriptor(int(named[2]))
        where = "cwd" if directory == AT_FDCWD else f"fd/{directory}"
        flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
        base = os.open(f"/proc/{self.tid}/{where}", os.O_PATH | os.O_CLOEXEC)
        try:
            # Magic links in /proc would be init's own here.
            how = struct.pack("QQQ", flags, 0, _RESOLVE_NO_MAGICLINKS)
            number, size = ctypes.c_long(_SYS_OPENAT2), ctypes.c_size_t(len(how))
            return check(int(_LIBC.syscall(number, ctypes.c_int(base), path, how, size)))
        finally:
            os.close(base)

    def descriptor(self, number: int) -> int:
        """The file of one of its descriptors, opened likewise. Raises OSError: EBADF."""
        if number == AT_FDCWD:
            return os.open(f"/proc/{self.tid}/cwd", os.O_PATH | os.O_CLOEXEC)
        try:
            return os.open(f"/proc/{self.tid}/fd/{number}", os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            raise OSError(errno.EBADF, "no such descriptor") from None


def _kin(task: int) -> tuple[int, int]:
    """The process that a thread or process number belongs to, and that one's parent. Raises ProcessLookupError."""
    try:
        with open(f"/proc/{task}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, "no such process") from None
    return int(lines[b"Tgid"]), int(lines[b"PPid"])


def descends(task: int, root: int) -> bool:
    """Whether a process (or thread) is below `root`; `root` itself is not. Raises ProcessLookupError."""
    process, parent = _kin(task)
    while process != root and parent not in (0, root):
        process, parent = _kin(parent)
    return process != root and parent == root
