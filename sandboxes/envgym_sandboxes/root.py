"""What a sandbox's first process does to itself: new root, no network, no privileges, no way back.

Runs between `clone` and the first command, with a spec that the host wrote. The order is the security argument:
mounts first (they need privileges), then identity, then capabilities, then the system call filter.
"""

import os
import resource
import signal
import socket
from typing import Any, NoReturn

from envgym_sandboxes import fence, landlock, masks, seccomp, syscalls

__all__ = [
    "EARLY_NAMESPACES",
    "INSIDE_ID",
    "confine",
    "furnished",
    "give_up",
    "group_files",
    "join_cgroups",
    "limit",
    "mount_processes",
    "overlay",
    "prepare",
    "stay",
]

INSIDE_ID = 1000
"""The user and group that everything in a sandbox runs as, seen from the inside."""

EARLY_NAMESPACES = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
"""Those that a process is cloned into before it is known what for; the others it makes itself, on its own time."""
_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_OVERLAY = ["index=off", "metacopy=off", "xino=off", "redirect_dir=nofollow"]
_NEW, _SEEN = "/new", "/seen"
_MOST = {resource.RLIMIT_NOFILE: 4096, resource.RLIMIT_MEMLOCK: 1 << 16}
"""Bounds of every process, whatever the owner may. Locked memory cannot be swapped, and secret memory is counted by
nothing else where there is no group."""
_OWN_DATA = 32 << 20
"""What an init may hold of its own, and with it every process that is bounded by itself: it is an interpreter with
pieces of files on their way, and must outlive what it runs however little that may have."""


def furnish(top: str, binds: list[str], privileged: bool) -> None:
    """Make `top` the root of this mount namespace: an empty place, with devices and read-only `binds` in it.

    Every sandbox's namespace begins as a copy of it, so that starting one costs the same however many layers there
    are, and nothing of the host is there to be let go of.
    """
    os.mkdir(top)
    syscalls.mount("envgym", top, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755,size=1m")
    for name in ("proc", "dev", _NEW.strip("/"), _SEEN.strip("/")):
        os.mkdir(f"{top}/{name}")
    masks.make(top)
    if not privileged:  # may mount a new /proc only where one is to be seen
        syscalls.bind("/proc", top + _SEEN)
    for number, path in enumerate(binds):
        os.mkdir(f"{top}/{number}")
        syscalls.bind(path, f"{top}/{number}", read_only=True)
    syscalls.mount("envgym", f"{top}/dev", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, "mode=0755,size=64k")
    _make_devices(f"{top}/dev")
    for path in (f"{top}/dev", top):
        syscalls.mount("", path, "", syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY)
    syscalls.pivot_root(top)


def furnished(top: str, binds: list[str], privileged: bool) -> int:
    """A descriptor of a mount namespace that `furnish` was called in; it needs no process to live."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _furnish_for(theirs, top, binds, privileged)
    theirs.close()
    try:
        told = ours.recv(4096)
        if told != b"ok":
            raise OSError(1, f"the place where sandboxes begin could not be made: {told.decode() or 'it ended'}")
        return os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        ours.close()
        os.waitpid(pid, 0)


def _furnish_for(parent: socket.socket, top: str, binds: list[str], privileged: bool) -> NoReturn:
    """The whole life of the process that `furnished` takes the namespace from; it ends with its parent."""
    try:
        try:
            syscalls.unshare(syscalls.CLONE_NEWNS)
            furnish(top, binds, privileged)
            told = b"ok"
        except OSError as error:
            told = f"{error}".encode()
        parent.send(told)
        parent.recv(1)
    finally:
        os._exit(0)


def _make_devices(path: str) -> None:
    """A minimal /dev, made once and shared read-only by every sandbox.

    /dev/shm leads into /tmp, so that shared memory counts against the disk limit and is part of snapshots.
    """
    for node in _NODES:
        with open(f"{path}/{node}", "w"):
            pass
        syscalls.bind(f"/dev/{node}", f"{path}/{node}")
    os.mkdir(f"{path}/pts")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "shm": "/tmp"}
    links |= {"stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
    for name, target in links.items():
        os.symlink(target, f"{path}/{name}")


def group_files(groups: list[str]) -> list[int]:
    """Descriptors of the files by which a process joins control groups."""
    names = [f"{group}/tasks" for group in groups]
    names = [name if os.path.exists(name) else f"{os.path.dirname(name)}/cgroup.procs" for name in names]
    return [os.open(name, os.O_WRONLY | os.O_CLOEXEC) for name in names]


def meter_files(meters: dict[str, str]) -> list[int]:
    """Descriptors of the files that count what a sandbox uses; that of memory is written to, to count anew."""
    modes = [os.O_RDWR if os.access(file, os.W_OK) else os.O_RDONLY for file in meters.values()]
    return [os.open(file, mode | os.O_CLOEXEC) for file, mode in zip(meters.values(), modes, strict=True)]


def join_cgroups(files: list[int]) -> None:
    """Move this process into its groups, by descriptors of their files: the host's are not to be seen here.

    Version 1 lets a single thread move itself (`tasks`) without the lock that makes a whole process wait for every
    other fork and exit on the machine, milliseconds when it is busy.
    """
    for file in files:
        os.write(file, b"0")
        os.close(file)


def overlay(spec: dict[str, Any], spare: str) -> int:
    """The root of a sandbox, not mounted yet. For the one who sees the layers."""
    options = [*_OVERLAY, *([] if spec["privileged"] else ["userxattr"])]
    upper = spec["upper"]
    return syscalls.mount_overlay(spec["lowers"], f"{upper}/u", f"{upper}/w", options, spare)


def _mount_root(root: int, binds: list[str]) -> None:
    """Take the root and what was prepared, and move there.

    Not by pivot_root: letting go of the old root makes the kernel wait for every processor. The old root stays
    below, out of reach without the right to chroot, which is given up; it is an empty place.
    """
    syscalls.move_mount(root, _NEW)
    os.close(root)
    moves = [("/proc", "/proc"), ("/dev", "/dev"), *((f"/{number}", path) for number, path in enumerate(binds))]
    for source, target in moves:
        syscalls.mount(source, _NEW + target, "", syscalls.MS_MOVE)
    os.chdir(_NEW)
    syscalls.mount(".", "/", "", syscalls.MS_MOVE)
    os.chroot(".")
    os.chdir("/")


def limit(resources: dict[str, Any]) -> None:
    """Bound what every process from here on may use, each by itself."""
    resource.setrlimit(resource.RLIMIT_CORE, syscalls.NO_CORE)
    for kind, most in _MOST.items():
        resource.setrlimit(kind, (_lower(most, resource.getrlimit(kind)[1]),) * 2)
    if resources.get("file"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (resources["file"],) * 2)
    if resources.get("data"):
        resource.setrlimit(resource.RLIMIT_DATA, (resources["data"] + _OWN_DATA,) * 2)
        soft, hard = resource.getrlimit(resource.RLIMIT_STACK)  # which is no data
        resource.setrlimit(
            resource.RLIMIT_STACK, (_lower(resources["data"], soft), _lower(resources["data"], hard))
        )


def _lower(most: int, bound: int) -> int:
    return most if bound == resource.RLIM_INFINITY else min(most, bound)


def _become_nobody(uid: int, gid: int, privileged: bool) -> None:
    if privileged:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else /proc/self/uid_map belongs to root
    # A user namespace of its own: the process keeps no rights over the mounts made above.
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    syscalls.write_id_maps(INSIDE_ID, uid, gid)


def prepare(keep: set[int], furnished: int, *, privileged: bool, network: bool) -> None:
    """The part that needs no spec: the slow one. Raises OSError.

    furnished: a descriptor of the mount namespace that `furnish` made.
    """
    syscalls.die_with_parent()
    syscalls.close_fds(keep | {0, 1, 2, furnished})
    os.setsid()
    os.umask(0o022)
    if not network:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        syscalls.loopback_up()
    socket.sethostname("envgym")
    # Not ignored, or every program inside would begin so; the first process of a pid namespace gets from the
    # inside only signals that it has a handler for, and the interpreter has one for this.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    syscalls.set_namespace(furnished, syscalls.CLONE_NEWNS)
    os.close(furnished)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    mount_processes()
    if not privileged:
        syscalls.umount(_SEEN)
    landlock.rehearse()


def mount_processes(blank: str = "") -> None:
    """Mount /proc, without what `masks` hides, and terminals. blank: where `masks.make` was. Raises OSError."""
    confined = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("proc", "/proc", "proc", confined)
    masks.apply(blank)
    options = "newinstance,ptmxmode=0666,mode=0620"
    syscalls.mount("devpts", "/dev/pts", "devpts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, options)


def confine(spec: dict[str, Any], root: int, groups: list[int]) -> None:
    """Enter the sandbox that `spec` describes, after `prepare`. Raises OSError; the caller must then exit.

    root: what `overlay` made. groups: descriptors of the files that a process joins its cgroups by.
    """
    join_cgroups(groups)
    # After joining, so that a sandbox's group is the root that it sees.
    syscalls.unshare(syscalls.CLONE_NEWCGROUP)
    _mount_root(root, spec["binds"])
    give_up(spec)


def give_up(spec: dict[str, Any]) -> None:
    """Limits, identity, capabilities and the filter, in the place where it is to stay. Raises OSError."""
    limit(spec["limits"])
    _become_nobody(spec["uid"], spec["gid"], spec["privileged"])
    if spec["limits"].get("nproc"):  # in a namespace made under it, it would bound all sandboxes of a user together
        resource.setrlimit(resource.RLIMIT_NPROC, (spec["limits"]["nproc"],) * 2)
    syscalls.drop_capabilities()
    fence.enter(spec["writable"])
    seccomp.install()
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.die_with_parent()  # changing user cleared it


def stay(spec: dict[str, Any]) -> None:
    """What the local backend does instead of `confine`: rlimits, and adopt orphans."""
    syscalls.die_with_parent()
    os.setsid()
    os.umask(0o022)
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    limits = spec["limits"]
    resource.setrlimit(resource.RLIMIT_CORE, syscalls.NO_CORE)
    if limits.get("data"):
        resource.setrlimit(resource.RLIMIT_DATA, (limits["data"] + _OWN_DATA,) * 2)
    if limits.get("file"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file"],) * 2)
