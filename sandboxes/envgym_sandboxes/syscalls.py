"""The Linux calls that Python 3.11 does not have, by ctypes: namespaces, mounts, capabilities.

Thin and literal: each raises OSError with the call's name. Policy (what is mounted where) lives in `root`.
"""

import ctypes
import fcntl
import os
import platform
import resource
import signal
import socket
import struct

__all__ = [
    "ARCH",
    "bind",
    "clone",
    "close_fds",
    "die_with_parent",
    "drop_capabilities",
    "loopback_up",
    "mount",
    "pivot_root",
    "prctl",
    "umount",
    "unshare",
    "write_id_maps",
]

ARCH = platform.machine()
_LIBC = ctypes.CDLL(None, use_errno=True)
_PYTHON = ctypes.PyDLL(None, use_errno=True)  # keeps the GIL: the child of `clone` must own it

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME, MS_NOATIME = 4096, 16384, 1 << 18, 1 << 21, 1024
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2

_LIBC.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)

_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_ST_RELATIME = 4096
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def _check(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces in `flags`."""
    _check(_LIBC.unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def clone(flags: int) -> int:
    """Fork into new namespaces: 0 in the child, the child's pid in the parent.

    A raw clone, because `unshare(CLONE_NEWPID)` can be called only once per process. The caller must have no
    other threads.
    """
    ctypes.pythonapi.PyOS_BeforeFork()
    arguments = [ctypes.c_long(value) for value in (_SYS_CLONE[ARCH], flags | signal.SIGCHLD, 0, 0, 0, 0)]
    pid = int(_PYTHON.syscall(*arguments))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    error = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, f"clone({flags:#x}): {os.strerror(error)}")
    return pid


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    """Mount something. Relative paths are of the current directory; `data` must be shorter than a page."""
    if len(data) >= 4096:
        raise ValueError(f"mount options of {len(data)} bytes; the kernel takes fewer than 4096")
    result = _LIBC.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _check(result, f"mount({kind or source!r} at {target!r})")


def bind(source: str, target: str, *, read_only: bool = False) -> None:
    """Make `source`, with all that is mounted below it, appear at `target`."""
    mount(source, target, "", MS_BIND | MS_REC)
    if not read_only:
        return
    attributes = struct.pack("QQQQ", MS_RDONLY | MS_NOSUID | MS_NODEV, 0, 0, 0)  # these have the same values there
    arguments = (ctypes.c_int(_AT_FDCWD), target.encode(), ctypes.c_uint(_AT_RECURSIVE), attributes, 32)
    if int(_LIBC.syscall(ctypes.c_long(_SYS_MOUNT_SETATTR), *arguments)) == 0:
        return
    # Before Linux 5.12. A less privileged mount namespace may add restrictions but not drop those that are there.
    have = os.statvfs(target).f_flag
    keep = have & (MS_NOEXEC | MS_NOATIME) | (MS_RELATIME if have & _ST_RELATIME else 0)
    mount("", target, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | keep)


def umount(target: str) -> None:
    """Detach a mount now; its memory goes when its last user does."""
    _check(_LIBC.umount2(target.encode(), MNT_DETACH), f"umount({target!r})")


def pivot_root(new: str) -> None:
    """Make `new` the root and let go of the old one."""
    os.chdir(new)
    number = ctypes.c_long(_SYS_PIVOT_ROOT[ARCH])
    _check(int(_LIBC.syscall(number, b".", b".")), f"pivot_root({new!r})")
    umount(".")  # the old root is stacked on top of the new one
    os.chdir("/")


def prctl(option: int, value: int = 0, pointer: object = None) -> None:
    """Set a property of this process."""
    _check(_LIBC.prctl(option, value, pointer, 0, 0), f"prctl({option})")


def die_with_parent() -> None:
    """SIGKILL for this process when its parent ends. Changing credentials clears it: call again after."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def write_id_maps(inside: int, uid: int, gid: int) -> None:
    """Map one user and group of the parent namespace to the id `inside`, after unshare(CLONE_NEWUSER)."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{inside} {uid} 1"), ("gid_map", f"{inside} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def drop_capabilities() -> None:
    """Give up every capability for good, bounding set included, and forbid gaining any by exec."""
    for capability in range(64):
        if _LIBC.prctl(PR_CAPBSET_DROP, capability, None, 0, 0) < 0:
            break  # past the last one that this kernel has
    header = struct.pack("II", 0x20080522, 0)
    _check(int(_LIBC.syscall(ctypes.c_long(_SYS_CAPSET[ARCH]), header, bytes(24))), "capset")
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def loopback_up() -> None:
    """Bring up `lo` of this network namespace, so that a server and its client inside can talk."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def close_fds(keep: set[int]) -> None:
    """Close every descriptor that is not in `keep`."""
    start = 0
    for fd in [*sorted(keep), resource.getrlimit(resource.RLIMIT_NOFILE)[0]]:
        if start < fd:  # closerange(0, 0) would close all there are
            os.closerange(start, fd)
        start = fd + 1
