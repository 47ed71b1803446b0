"""What a sandbox's first process does to itself: new root, no network, no privileges, no way back.

Runs between `clone` and the first command, with a spec that the host wrote. The order is the security argument:
mounts first (they need privileges), then identity, then capabilities, then the system call filter.
"""

import os
import resource
import signal
import socket
from typing import Any

from envgym_sandboxes import seccomp, syscalls

__all__ = ["EARLY_NAMESPACES", "INSIDE_ID", "confine", "make_devices", "prepare"]

INSIDE_ID = 1000
"""The user and group that everything in a sandbox runs as, seen from the inside."""

EARLY_NAMESPACES = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
"""Those that a process can be cloned into before it is known what for; with CLONE_NEWNET, the slow part."""
_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_OVERLAY = "index=off,metacopy=off,xino=off"


def make_devices(path: str) -> None:
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


def _join_cgroups(directories: list[str]) -> None:
    """Move this process into its groups, which the host made.

    Version 1 lets a single thread move itself (`tasks`) without the lock that makes a whole process wait for every
    other fork and exit on the machine, milliseconds when it is busy.
    """
    for directory in directories:
        single = f"{directory}/tasks"
        with open(single if os.path.exists(single) else f"{directory}/cgroup.procs", "w") as file:
            file.write("0")


def _mount_root(spec: dict[str, Any]) -> None:
    os.chdir(spec["state"])  # layers are named relative to it, which keeps the mount options short
    options = f"lowerdir={':'.join(spec['lowers'])},upperdir={spec['upper']}/u,workdir={spec['upper']}/w,{_OVERLAY}"
    if not spec["privileged"]:
        options += ",userxattr"
    syscalls.mount("envgym", "root", "overlay", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
    confined = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("proc", "root/proc", "proc", confined)
    syscalls.bind("dev", "root/dev")
    syscalls.mount(
        "devpts",
        "root/dev/pts",
        "devpts",
        syscalls.MS_NOSUID | syscalls.MS_NOEXEC,
        "newinstance,ptmxmode=0666,mode=0620",
    )
    for source, target in spec["binds"]:  # made read-only once, by the zygote
        syscalls.bind(source, "root" + target)
    syscalls.pivot_root("root")


def _limit(resources: dict[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    files = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if resources.get("nproc"):
        resource.setrlimit(resource.RLIMIT_NPROC, (resources["nproc"],) * 2)
    if resources.get("data"):
        resource.setrlimit(resource.RLIMIT_DATA, (resources["data"],) * 2)


def _become_nobody(uid: int, gid: int, privileged: bool) -> None:
    if privileged:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else /proc/self/uid_map belongs to root
    # A user namespace of its own: the process keeps no rights over the mounts made above.
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    syscalls.write_id_maps(INSIDE_ID, uid, gid)


def prepare(keep: set[int], network: bool) -> None:
    """The part that needs no spec. Raises OSError."""
    syscalls.die_with_parent()
    syscalls.close_fds(keep | {0, 1, 2})
    os.setsid()
    os.umask(0o022)
    if not network:
        syscalls.loopback_up()
    socket.sethostname("envgym")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def confine(spec: dict[str, Any]) -> None:
    """Enter the sandbox that `spec` describes, after `prepare`. Raises OSError; the caller must then exit."""
    _join_cgroups(spec["cgroups"])
    # After joining, so that a sandbox's group is the root that it sees.
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWCGROUP)
    _mount_root(spec)
    _limit(spec["limits"])
    _become_nobody(spec["uid"], spec["gid"], spec["privileged"])
    syscalls.drop_capabilities()
    seccomp.install()
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.die_with_parent()  # changing user cleared it
