"""The processes below one: listing them, stopping them, killing them without one slipping away.

It needs /proc and the standard library only, since it is also used where this package is not installed (`inside`).
Whom to spare is the caller's matter.
"""

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = [
    "Process",
    "ancestors",
    "boot_ticks",
    "collect",
    "kill_all",
    "live_processes",
    "live_tree",
    "processes",
    "session",
    "signal_all",
    "spent",
    "stopped",
    "strays",
]

_PATIENCE_S = 1.0
_TICKS = os.sysconf("SC_CLK_TCK")
_ROUNDS = 64


@dataclass(frozen=True, slots=True)
class Process:
    """A line of the kernel's table.

    start: clock ticks since boot. own_s: processor seconds of itself. spent_s: and of the children it waited for.
    """

    pid: int
    parent: int
    session: int
    start: int
    alive: bool
    own_s: float
    spent_s: float


def boot_ticks() -> int:
    """Now, as `Process.start` counts."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


def _process(pid: int, stat: bytes) -> Process:
    fields = stat.rpartition(b")")[2].split()
    own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    alive = fields[0] not in b"ZX"
    return Process(
        pid, int(fields[1]), int(fields[3]), int(fields[19]), alive, own / _TICKS, (own + waited) / _TICKS
    )


def processes(root: int) -> dict[int, Process]:
    """A process and all below it, zombies included, by pid."""
    table: dict[int, Process] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                table[int(name)] = _process(int(name), file.read())
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)
    found: dict[int, Process] = {}
    level = [root]
    while level:
        found |= {pid: table[pid] for pid in level if pid in table}
        level = [below for pid in level for below in children.get(pid, ()) if below not in found]
    return found


def live_processes(root: int) -> dict[int, int]:
    """The living descendants of a process, pid -> parent's pid. Zombies are not alive."""
    found = processes(root)
    return {pid: process.parent for pid, process in found.items() if process.alive and pid != root}


def ancestors(pid: int) -> list[int]:
    """The processes that one descends from, as far as they can be seen."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        while pid > 1 and pid not in found:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = _process(pid, file.read()).parent
            found.append(pid)
    return found


def live_tree(root: int) -> set[int]:
    """A process and its descendants, those that live."""
    return {pid for pid, process in processes(root).items() if process.alive}


def spent(stat: int) -> float:
    """Processor seconds of a process and the children it waited for, by its open /proc file; 0 when it is gone."""
    try:
        text = os.pread(stat, 1024, 0)
    except OSError:
        return 0.0
    return sum(map(int, text[text.rindex(b")") :].split(maxsplit=16)[12:16])) / _TICKS


def session(pid: int) -> int:
    """The session of a process, which it cannot choose; 0 when it is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def collect() -> dict[int, int]:
    """Wait for every child of this process that has ended: pid -> status."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
    return ended


def strays(root: int, known: set[int]) -> set[int]:
    """The living descendants of a process that are neither `known` nor below one of those."""
    found = live_processes(root)
    for pid in known:
        for below in (pid, *(live_processes(pid) if pid in found else ())):
            found.pop(below, None)
    return set(found)


def stopped(pids: Iterable[int]) -> frozenset[int]:
    """Those that a signal has stopped, or is about to: it may not have reached them yet."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
            fields = dict(
                line.split(b":", 1) for line in file if line.startswith((b"State:", b"SigPnd:", b"ShdPnd:"))
            )
            pending = int(fields.get(b"SigPnd", b"0"), 16) | int(fields.get(b"ShdPnd", b"0"), 16)
            if fields.get(b"State", b"X").split()[0] == b"T" or pending >> (signal.SIGSTOP - 1) & 1:
                found.add(pid)
    return frozenset(found)


def kill_all(choose: Callable[[], set[int]]) -> None:
    """Kill what `choose` finds among the living, again until it finds nothing new.

    They are stopped first, so that a fork bomb cannot outrun the listing. One that was in the middle of a fork when
    it was stopped leaves a child that no listing had seen: it is found once its parent has ended.
    """
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        stopped: set[int] = set()
        for _ in range(_ROUNDS):
            new = choose() - stopped - killed
            if not new:
                break
            signal_all(new, signal.SIGSTOP)
            stopped |= new
        if not stopped:
            return
        signal_all(stopped, signal.SIGKILL)
        _wait_ended(stopped)
        killed |= stopped


def _wait_ended(pids: Iterable[int]) -> None:
    """Wait for killed processes, so that nobody meets one that only has not noticed yet."""
    deadline = time.monotonic() + _PATIENCE_S
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            try:
                fd = os.pidfd_open(pid)
            except OSError as error:
                if error.errno != errno.ENOSYS:
                    raise
                _look_until_ended(pid, deadline)  # a kernel that has no such thing (gVisor's)
                continue
            select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            os.close(fd)


def _look_until_ended(pid: int, deadline: float) -> None:
    while time.monotonic() < deadline:
        with open(f"/proc/{pid}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[0] in b"ZX":
                return
        time.sleep(0.001)


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to every process that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
