"""When a command must end, and who ends with it: the one place where a running command is killed.

A command ends at its wall-clock deadline or when its budget of processor time is used up; then everything that
began since and belongs to nobody else is killed: its tree, and what that left behind in sessions and process groups
of its own. What was there before stays, with its children. Used inside the sandbox by `init`.
"""

import os
import signal
from collections.abc import Collection, Mapping
from typing import Protocol

from envgym_sandboxes.budget import Budget
from envgym_sandboxes.tree import Process, boot_ticks, kill_all, processes, signal_all

__all__ = ["Deadlines", "Since", "Timed"]


class Since:
    """The processes that there were at one moment."""

    __slots__ = ("_pids", "_ticks")

    def __init__(self) -> None:
        self._pids = frozenset(int(name) for name in os.listdir("/proc") if name.isdigit())
        self._ticks = boot_ticks()

    def had(self, process: Process) -> bool:
        """Whether it was there: a number may have been given away again since."""
        return process.pid in self._pids and process.start <= self._ticks


class Timed(Protocol):
    """A running command."""

    deadline: float
    timed_out: bool
    out_of_cpu: bool
    since: Since
    budget: Budget | None


class Running(Protocol):
    """What this needs of `init`."""

    def timed(self) -> list[tuple[Timed, int]]:
        """The running commands, each with the process that stands for it, the shell's among them."""
        ...

    def kept(self) -> set[int]:
        """The idle shell and the background processes. Each leads a session: its descendants are known by that."""
        ...

    def on_child(self) -> None:
        """Reap what has ended."""
        ...


class Deadlines:
    """Of all commands of one init."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._me = os.getpid()

    def next(self) -> float:
        """When to look again, on the monotonic clock; infinity when nothing runs."""
        moments = [float("inf")]
        for timed, _root in self._running.timed():
            if not timed.timed_out:
                moments += [timed.deadline] + ([timed.budget.next_look] if timed.budget else [])
        return min(moments)

    def expire(self, now: float) -> None:
        """Kill what outlived its deadline or its budget, with everything it started."""
        for timed, root in self._running.timed():
            if timed.timed_out:
                continue
            if timed.budget is not None and now >= timed.budget.next_look:
                timed.budget.root = root
                timed.out_of_cpu = timed.budget.look(self._others(root))
            if timed.out_of_cpu or now >= timed.deadline:
                timed.timed_out = True
                signal_all({root} - {0}, signal.SIGKILL)  # first: a shell would go on with the rest of the command
                self.kill(timed, root)

    def ended(self, pid: int, spent_s: float) -> None:
        """A process was waited for: whoever has a budget is told."""
        for timed, root in self._running.timed():
            if timed.budget is not None and pid != root:
                timed.budget.ended(pid, spent_s, self._others(root))

    def _others(self, root: int) -> set[int]:
        roots = {other for timed, other in self._running.timed() if not timed.timed_out}
        return (roots | self._running.kept()) - {root}

    def kill(self, timed: Timed, root: int) -> None:
        """Kill every process that began with a command and belongs to no other one.

        Double forks and new sessions are no escape: all of a sandbox's processes are descendants of the first one.
        """
        others = self._others(root)
        kill_all(lambda: _belonging(processes(self._me), self._me, timed.since, root, others))
        self._running.on_child()  # a zombie still answers `kill -0`


def _belonging(
    table: Mapping[int, Process], top: int, since: Since, root: int, others: Collection[int]
) -> set[int]:
    """Of the living: `root` and those not there before, and not below another command or what was there before."""

    def spared(process: Process) -> bool:
        at: Process | None = process
        while at is not None and at.pid not in (top, root):
            if at.pid in others or at.session in others or since.had(at):
                return True
            at = table.get(at.parent)
        return False

    return {pid for pid, process in table.items() if process.alive and pid != top and not spared(process)}
