"""The Linux calls that Python 3.11 does not have, by ctypes: namespaces, mounts, capabilities.

Thin and literal: each raises OSError with the call's name. Policy (what is mounted where) lives in `root`.
"""

import ctypes
import errno
import fcntl
import os
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
    "mount_overlay",
    "move_mount",
    "open_inside",
    "open_tree",
    "pivot_root",
    "prctl",
    "set_namespace",
    "umount",
    "unshare",
    "write_id_maps",
]

ARCH = os.uname().machine
_LIBC = ctypes.CDLL(None, use_errno=True)
_PYTHON = ctypes.PyDLL(None, use_errno=True)  # keeps the GIL: the child of `clone` must own it

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE, MS_RELATIME, MS_NOATIME = 4096, 8192, 16384, 1 << 18, 1 << 21, 1024
MNT_DETACH = 2

NO_CORE = (1, 1)
"""RLIMIT_CORE without core dumps. With 0 a core_pattern that is a pipe is still run, as root and outside."""

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2

_LIBC.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)

_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_FSOPEN, _SYS_FSCONFIG, _SYS_FSMOUNT = 428, 429, 430, 431, 432
_OPEN_TREE_CLONE, _CLOEXEC, _MOVE_EMPTY_PATH = 1, 0o2000000, 4
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_SYS_OPENAT2, _RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 437, 0x02, 0x10
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
    other threads: what Python does around a fork, most of it for threads, takes longer than the fork itself and is
    left out. What modules registered for the child (a new seed for `random`) happens at its own forks.
    """
    arguments = [ctypes.c_long(value) for value in (_SYS_CLONE[ARCH], flags | signal.SIGCHLD, 0, 0, 0, 0)]
    return _check(int(_PYTHON.syscall(*arguments)), f"clone({flags:#x})")


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


def _call(number: int, what: str, *arguments: object) -> int:
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _check(int(_LIBC.syscall(ctypes.c_long(number), *values)), what)


def mount_overlay(lowers: list[str], upper: str, work: str, options: list[str], spare: str) -> int:
    """An overlay that is mounted nowhere, without set-user-ids and devices, as a descriptor for `move_mount`.

    lowers: topmost first. options: ``name`` or ``name=value``. spare: an empty directory, which kernels before 6.5
    need: they take all layers in one string, for which only mount(2) has room.
    """
    context = _call(_SYS_FSOPEN, "fsopen(overlay)", b"overlay", 1)
    try:
        values = [("lowerdir+", lower) for lower in lowers] + [("upperdir", upper), ("workdir", work)]
        values += [(name, value) for name, _, value in (option.partition("=") for option in options)]
        for name, value in values:
            command, text = (_SET_STRING, value.encode()) if value else (_SET_FLAG, None)
            _call(_SYS_FSCONFIG, f"fsconfig({name}={value})", context, command, name.encode(), text, 0)
        _call(_SYS_FSCONFIG, f"overlay of {lowers} + {upper}", context, _CREATE, None, None, 0)
        return _call(_SYS_FSMOUNT, "fsmount(overlay)", context, 1, MS_NOSUID | MS_NODEV)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(context)
    return mount_overlay_whole(lowers, upper, work, options, spare)


def mount_overlay_whole(lowers: list[str], upper: str, work: str, options: list[str], spare: str) -> int:
    """The same by mount(2), whose options must be shorter than a page."""
    data = ",".join([f"lowerdir={':'.join(lowers)}", f"upperdir={upper}", f"workdir={work}", *options])
    mount("envgym", spare, "overlay", MS_NOSUID | MS_NODEV, data)
    try:
        return open_tree(spare)
    finally:
        umount(spare)


def open_tree(path: str) -> int:
    """What is at a path of a mount, as a mount of its own that is mounted nowhere, for `move_mount`."""
    flags = _OPEN_TREE_CLONE | _CLOEXEC
    return _call(_SYS_OPEN_TREE, f"open_tree({path!r})", _AT_FDCWD, path.encode(), flags)


def move_mount(fd: int, target: str) -> None:
    """Mount what `mount_overlay` or `open_tree` made at `target`."""
    what = f"move_mount({target!r})"
    _call(_SYS_MOVE_MOUNT, what, fd, b"", _AT_FDCWD, target.encode(), _MOVE_EMPTY_PATH)


def set_namespace(fd: int, kind: int) -> None:
    """Enter the namespace that a descriptor of /proc/PID/ns/... stands for."""
    _check(_LIBC.setns(ctypes.c_int(fd), ctypes.c_int(kind)), f"setns({kind:#x})")


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


def hide_arguments(shown: str) -> None:
    """Make this process's command line, which everybody may read, say `shown` and nothing of how it was started."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, shown.encode()[: end - start - 1], min(len(shown.encode()), end - start - 1))


def loopback_up() -> None:
    """Bring up `lo` of this network namespace, so that a server and its client inside can talk."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def open_inside(root: int, path: str) -> int:
    """Open a directory below another as if that one were the root: no "..", no link leads out. Linux 5.6."""
    how = struct.pack(
        "QQQ", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS
    )
    arguments = (ctypes.c_int(root), os.fsencode(path), how, ctypes.c_size_t(len(how)))
    return _check(int(_LIBC.syscall(ctypes.c_long(_SYS_OPENAT2), *arguments)), f"openat2({path!r})")


def close_fds(keep: set[int]) -> None:
    """Close every descriptor that is not in `keep`."""
    start = 0
    for fd in [*sorted(keep), resource.getrlimit(resource.RLIMIT_NOFILE)[0]]:
        if start < fd:  # closerange(0, 0) would close all there are
            os.closerange(start, fd)
        start = fd + 1
