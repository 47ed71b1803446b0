"""Landlock: a process gives up rights to files, TCP ports, signals and abstract sockets, with all that it starts.

The three system calls, raw, and a frozen description of what stays allowed. Needs no privilege and no namespace.
Which path may be used for what is the caller's matter; this file knows what each version of the kernel can enforce.

What it cannot enforce, whatever the version: stat, chmod, chown, utime, extended attributes, locks, chdir, UDP and
unix sockets by path, System V IPC. Those need a system call filter or another user id.
"""

import ctypes
import errno
import os
import stat
import struct
from dataclasses import dataclass
from functools import cache

from envgym_sandboxes.syscalls import prctl

__all__ = [
    "ALL",
    "DEVICES",
    "EXECUTE",
    "IOCTL",
    "READ",
    "READ_EXECUTE",
    "REMOVE",
    "TRUNCATE",
    "WRITE_FILE",
    "Ruleset",
    "abi",
    "absence",
    "rehearse",
    "restrict",
]

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2
_PR_SET_NO_NEW_PRIVS = 38

EXECUTE, WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_REFER, TRUNCATE, IOCTL = 1 << 13, 1 << 14, 1 << 15
_FIRST = (1 << 13) - 1
"""Everything that ABI 1 knows: those above, and making files of each kind."""
DEVICES = 1 << 6 | 1 << 11
"""Making device nodes."""
READ = _READ_FILE | _READ_DIR
READ_EXECUTE = READ | EXECUTE
REMOVE = _REMOVE_DIR | _REMOVE_FILE | TRUNCATE
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
ALL = (_FIRST | _REFER | TRUNCATE) & ~(_MAKE_CHAR | _MAKE_BLOCK)
"""Everything but making devices, and ioctls of them."""
_OF_A_FILE = EXECUTE | WRITE_FILE | _READ_FILE | TRUNCATE | IOCTL
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT, _SCOPE_SIGNAL = 1, 2
_NO_LOGS = 1 | 4
"""Denials write no audit records: what is inside could fill the host's log with them."""

_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Ruleset:
    """What stays allowed. Everything else that this kernel's Landlock knows is denied.

    paths: (path, rights) pairs; a directory's rights hold for all below it. Rights that a plain file cannot have
        are left out for one. Whatever is in no pair can be neither opened, listed, executed nor changed.
    tcp: whether TCP ports may be bound and connected to (ABI 4).
    scoped: whether signals and abstract unix sockets end at this domain: they reach the process itself, what
        shares its domain and what is nested in it, and nothing outside (ABI 6).

    By ABI: 1 (Linux 5.13) files, but renames and links between directories are always denied, and truncation by
    path is not; 2 (5.19) renames and links are a right; 3 (6.2) truncation too; 4 (6.7) TCP; 5 (6.10) ioctls of
    devices; 6 (6.12) scopes; 7 (6.15) no audit records.
    """

    paths: tuple[tuple[str, int], ...]
    tcp: bool = False
    scoped: bool = True


def _call(number: int, *arguments: object) -> int:
    result = int(_LIBC.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"landlock (system call {number}): {os.strerror(error)}")
    return result


@cache
def _probe() -> tuple[int, int]:
    try:
        return _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)), 0
    except OSError as error:
        return 0, error.errno or 0


def abi() -> int:
    """The version of Landlock that this kernel offers to this process; 0 for none."""
    return _probe()[0]


def absence() -> str:
    """Why there is no Landlock here and what would give it; empty where there is."""
    version, error = _probe()
    if version:
        return ""
    if error == errno.EOPNOTSUPP:
        return "Landlock is built into this kernel but not switched on: add landlock to the lsm= boot parameter"
    if error == errno.EPERM:
        return (
            "Landlock is forbidden here by a system call filter, as a container's may be: allow "
            "landlock_create_ruleset, landlock_add_rule and landlock_restrict_self in its seccomp profile"
        )
    return "there is no Landlock here: it needs Linux 5.13 or later, and a seccomp profile that knows its calls"


def handled(version: int) -> tuple[int, int, int]:
    """The rights to (files, network, scopes) that an ABI knows."""
    files = _FIRST
    files |= _REFER if version >= 2 else 0
    files |= TRUNCATE if version >= 3 else 0
    files |= IOCTL if version >= 5 else 0
    network = _BIND_TCP | _CONNECT_TCP if version >= 4 else 0
    return files, network, _SCOPE_ABSTRACT | _SCOPE_SIGNAL if version >= 6 else 0


def restrict(ruleset: Ruleset, *, version: int | None = None) -> None:
    """Put the calling thread, and all it starts from now on, under `ruleset`. There is no way back.

    A process that is restricted already is restricted more. It sets no_new_privs. version: at most what `abi`
    says (the default); less behaves like an older kernel. Raises OSError: a path that is not there, no Landlock,
    or more than 16 restrictions on top of each other (E2BIG). The caller must have no other threads.
    """
    version = abi() if version is None else version
    if not 1 <= version <= abi():
        raise OSError(errno.EOPNOTSUPP, absence() or f"Landlock ABI {version} was asked for, {abi()} is there")
    files, network, scopes = handled(version)
    if ruleset.tcp:
        network = 0
    attributes = struct.pack("QQQ", files, network, scopes if ruleset.scoped else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    fd = _call(_CREATE, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path, rights in ruleset.paths:
            _allow(fd, path, rights & files)
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _call(_RESTRICT, ctypes.c_int(fd), ctypes.c_uint32(_NO_LOGS if version >= 7 else 0))
    finally:
        os.close(fd)


def rehearse() -> None:
    """Make a ruleset and let go of it: what a fork does for the first time costs it twice."""
    if abi():
        files, _network, _scopes = handled(abi())
        fd = _call(_CREATE, struct.pack("Q", files), ctypes.c_size_t(8), ctypes.c_uint32(0))
        try:
            _allow(fd, "/", READ)
        finally:
            os.close(fd)


def _allow(ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_A_FILE
        rule = struct.pack("=Qi", rights, fd)
        try:
            _call(_ADD, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}, for {path}") from None
    finally:
        os.close(fd)
