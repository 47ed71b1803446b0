"""A process that can start threads and no other process: what it costs is then all in its own account.

A child whose parent ignores SIGCHLD is reaped by the kernel, and its processor time enters nobody's account; so
measured code gets no children at all. A seccomp filter says so, which nothing can take off again. Linux on x86-64
and AArch64; standard library only.
"""

import ctypes
import errno
import os
import platform
import struct

__all__ = ["forbid_processes"]

_ARCHITECTURES = {
    "x86_64": (0xC000003E, 56, 435, (57, 58)),
    "aarch64": (0xC00000B7, 220, 435, ()),
}
"""uname -> (AUDIT_ARCH of linux/audit.h; the system calls clone and clone3; fork and vfork where there are any)."""

_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_CLONE_THREAD = 0x00010000
_X32 = 0x40000000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("rules", ctypes.c_void_p))


def _rule(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


def _rules() -> bytes:
    """Of a `struct seccomp_data`: the call's number at byte 0, the architecture at 4, the first argument at 16."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"work is measured on {' and '.join(_ARCHITECTURES)}, not on {machine!r}")
    architecture, clone, clone3, others = _ARCHITECTURES[machine]
    refuse = _rule(_RETURN, _ERRNO | errno.EPERM)
    rules = [_rule(_LOAD, 4), _rule(_EQUAL, architecture, 1, 0), refuse]
    rules += [_rule(_LOAD, 0), _rule(_AT_LEAST, _X32, 0, 1), refuse]
    for number in others:
        rules += [_rule(_EQUAL, number, 0, 1), refuse]
    # the C library takes this for an old kernel, and calls clone, whose flags a filter can see
    rules += [_rule(_EQUAL, clone3, 0, 1), _rule(_RETURN, _ERRNO | errno.ENOSYS)]
    rules += [_rule(_EQUAL, clone, 1, 0), _rule(_RETURN, _ALLOW)]
    rules += [_rule(_LOAD, 16), _rule(_AND, _CLONE_THREAD), _rule(_EQUAL, 0, 0, 1), refuse]
    return b"".join([*rules, _rule(_RETURN, _ALLOW)])


def forbid_processes() -> None:
    """From here on this process and its threads start no process. Raises OSError where that cannot be had."""
    libc = ctypes.CDLL(None, use_errno=True)
    rules = _rules()
    held = ctypes.create_string_buffer(rules, len(rules))
    program = _Program(len(rules) // 8, ctypes.addressof(held))
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"no filter of system calls: {os.strerror(number)}")
