"""What a command may use of the processor, and how that is measured without watching.

A command is charged with all that was used in its sandbox since it began and is not seen to be somebody else's: its
own tree, what that left to the first process, and what no process accounts for. So neither a double fork nor a
child that nobody waits for is free. A look at the process table costs some tens of microseconds; the next one is
when the budget could be used up at the earliest, by all processors at once, or after a second while others are busy
too. The table counts in ticks, mostly of 10 ms.
"""

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from envgym_sandboxes.tree import Process, processes

__all__ = ["Budget", "Meters"]

_SHORTEST_S, _LONGEST_S = 0.02, 1.0
_SPACE = 4096


class Meters:
    """The counters of a sandbox's groups, by descriptors that were opened where they could be seen.

    files: kind -> descriptor. "usage": nanoseconds (version 1), or a table with microseconds (2); "memory": the
    highest number of bytes since it was last written to. None is needed.
    """

    def __init__(self, files: Mapping[str, int]) -> None:
        self._files = dict(files)

    def cpu_s(self) -> float | None:
        """Processor seconds of the whole sandbox, ever; None where there is no counter."""
        if "usage" not in self._files:
            return None
        text = os.pread(self._files["usage"], _SPACE, 0)
        if text.startswith(b"usage_usec "):
            return int(text.split(maxsplit=2)[1]) / 1e6
        return int(text) / 1e9

    def forget_peak(self) -> None:
        """Let `peak_bytes` count from now on. A kernel that cannot (version 2, Linux < 6.12) is not asked again."""
        if "memory" in self._files:
            try:
                os.pwrite(self._files["memory"], b"0", 0)
            except OSError:
                os.close(self._files.pop("memory"))

    def peak_bytes(self) -> int | None:
        """The most memory that the whole sandbox held since `forget_peak`; None where there is no counter."""
        return int(os.pread(self._files["memory"], _SPACE, 0)) if "memory" in self._files else None


@dataclass(slots=True)
class _Other:
    """Somebody else's process: who started it, what it had used at the command's begin, and since."""

    start: int
    parent: int
    base_s: float
    since_s: float = 0.0


class Budget:
    """What one command may use, and has used. Made when it begins, before its first process runs.

    limit_s: processor seconds. cpus: how many processors there are for it. root: the process that stands for it, if
    that was there before (a shell); else it is set once there is one.
    """

    def __init__(self, limit_s: float, cpus: float, meters: Meters, root: int = 0) -> None:
        self.root = root
        self.used_s = 0.0
        self._limit_s = limit_s
        self._cpus = cpus
        self._meters = meters
        self._me = os.getpid()
        table = processes(self._me)
        self._began = self._total(table)
        self._others = {
            pid: _Other(process.start, process.parent, process.spent_s)
            for pid, process in table.items()
            if pid not in (self._me, root)
        }
        self._others_s = 0.0
        self._ended_s = 0.0
        self.next_look = time.monotonic() + limit_s / cpus

    def _total(self, table: Mapping[int, Process]) -> float:
        """All that was ever used, but by this process: what ended was waited for by somebody who is still there."""
        counted = self._meters.cpu_s()
        if counted is None:
            counted = sum(process.spent_s for process in table.values())
        return counted - table[self._me].own_s

    def look(self, roots: Collection[int]) -> bool:
        """Whether it is used up. roots: the processes that stand for other commands and background processes."""
        table = processes(self._me)
        others_s = self._used_by_others(table, roots)
        busy, self._others_s = others_s > self._others_s, others_s
        self.used_s = max(self.used_s, self._total(table) - self._began - others_s)
        wait_s = max(_SHORTEST_S, (self._limit_s - self.used_s) / self._cpus)
        self.next_look = time.monotonic() + (min(wait_s, _LONGEST_S) if busy else wait_s)
        return self.used_s >= self._limit_s

    def _used_by_others(self, table: Mapping[int, Process], roots: Collection[int]) -> float:
        theirs = {pid for pid in table if self._is_theirs(pid, table, roots)}
        for pid in theirs:
            process = table[pid]
            known = self._others.get(pid)
            if known is None or known.start != process.start:
                known = self._others[pid] = _Other(process.start, process.parent, 0.0)
            known.parent, known.since_s = process.parent, process.spent_s - known.base_s
        used = self._ended_s
        for pid, other in self._others.items():
            if pid not in theirs and other.parent in theirs:
                used -= other.base_s  # all it ever used is its parent's now
            else:
                used += other.since_s
        return used

    def _is_theirs(self, pid: int, table: Mapping[int, Process], roots: Collection[int]) -> bool:
        """Whether it is, or is below, another command or something that was there before."""
        at = table.get(pid)
        while at is not None and at.pid not in (self._me, self.root):
            known = self._others.get(at.pid)
            if at.pid in roots or (known is not None and known.start == at.start):
                return True
            at = table.get(at.parent)
        return False

    def ended(self, pid: int, spent_s: float, roots: Collection[int]) -> None:
        """The first process has waited for one: it is in no table any more, and what it used is known exactly."""
        known = self._others.pop(pid, None)
        if known is not None:
            self._ended_s += spent_s - known.base_s
        elif pid in roots:
            self._ended_s += spent_s
