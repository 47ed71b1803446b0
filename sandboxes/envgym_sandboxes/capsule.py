"""How the first process of a sandbox gets into a container that an engine runs, and who ends it there.

The container gives what an engine gives: an image as a read-only root, limits, a network or none, masks.
Inside it every life of a sandbox has namespaces of its own (processes, mounts, IPC, hostname), made here and gone
with it, so that a container serves one life after another and nothing of one is left for the next. It is entered as
an engine's own `exec` enters it, but once a life. Needs root on the engine's host.
"""

import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from envgym_sandboxes import masks, root, syscalls

__all__ = ["TOOLS", "begin", "confine", "furnish", "prepare"]

TOOLS = "/envgym"
"""Where a container shows what is needed to enter it; nothing inside sees it."""
_SPARE = "spare"
_QUEUES = "/dev/mqueue"


def furnish(folder: str) -> None:
    """Put into a folder, which containers show as `TOOLS`, what `prepare` and `confine` need."""
    masks.make(folder)
    os.mkdir(f"{folder}/{_SPARE}", 0o755)


def begin(processes: int, here: int, run: Callable[[OSError | None], NoReturn]) -> int:
    """Start a process that is the first of a pid namespace of its own, inside the one that `processes` stands for.

    here: this process's own pid namespace. run: what it does; it is told what went wrong where it is none. Returns
    the pid of the process that waits for it: that one ends when it has ended, and ends it on SIGTERM. Two, since
    only who is in a namespace can make one below it.
    """
    syscalls.set_namespace(processes, syscalls.CLONE_NEWPID)
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid:
            syscalls.set_namespace(here, syscalls.CLONE_NEWPID)
    if pid:
        return pid
    try:
        syscalls.die_with_parent()
        try:
            first = syscalls.clone(root.EARLY_NAMESPACES)
        except OSError as error:
            run(error)
        if first == 0:
            run(None)
        _watch(first)
    finally:
        os._exit(70)


def _watch(first: int) -> NoReturn:
    """Wait for the first process. The kernel ends all others of its namespace before it is seen to have ended."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGKILL))
    syscalls.close_fds({0, 1, 2})
    _pid, status = os.waitpid(first, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def prepare(namespaces: Sequence[int], groups: list[int], joined: Callable[[], None]) -> None:
    """Enter the container: what needs no spec. Raises OSError.

    namespaces: descriptors of its mount and network namespaces. groups: of the files by which a process joins its
    cgroups. joined: called when it has.
    """
    syscalls.die_with_parent()
    os.setsid()
    os.umask(0o022)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    root.join_cgroups(groups)
    joined()
    mounts, network = namespaces
    syscalls.set_namespace(network, syscalls.CLONE_NEWNET)
    syscalls.set_namespace(mounts, syscalls.CLONE_NEWNS)
    for fd in namespaces:
        os.close(fd)
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWCGROUP)
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    socket.sethostname("envgym")
    root.mount_processes(TOOLS)
    if os.path.ismount(_QUEUES):  # the container's, which others will use
        syscalls.umount(_QUEUES)


def confine(spec: dict[str, Any], overlay: int, _groups: list[int]) -> None:
    """Mount the workspace and give up everything else, after `prepare`. Raises OSError; the caller must then exit.

    overlay: what `root.overlay` made. spec["mounts"]: (directory of it, where it is to appear).
    """
    spare = f"{TOOLS}/{_SPARE}"
    syscalls.move_mount(overlay, spare)
    os.close(overlay)
    for source, target in spec["mounts"]:
        part = syscalls.open_tree(f"{spare}/{source}")
        syscalls.move_mount(part, target)
        os.close(part)
    syscalls.umount(spare)
    syscalls.umount(TOOLS)
    os.chdir("/")
    root.give_up(spec)
