"""How much processor time a cell uses: its process and all below it, measured as seldom as can be.

What left its parent is not counted; where /proc is not shown, only the process itself is.
"""

import os
import time

from envgym_sandboxes.tree import processes

__all__ = ["Spending"]

_SHORTEST_S = 0.02  # the kernel's table counts in ticks of 10 ms


class Spending:
    """One cell's, from now on. `next_look` is the earliest time at which it could have used it all."""

    def __init__(self, pid: int, limit_s: float) -> None:
        self._pid = pid
        self._limit_s = limit_s
        self._cpus = len(os.sched_getaffinity(0))
        self._began = _spent(pid)
        self.next_look = time.monotonic() + limit_s / self._cpus

    def used_up(self) -> bool:
        """Whether nothing is left."""
        left = self._limit_s - (_spent(self._pid) - self._began)
        self.next_look = time.monotonic() + max(_SHORTEST_S, left / self._cpus)
        return left <= 0


def _spent(pid: int) -> float:
    try:
        return sum(process.spent_s for process in processes(pid).values())
    except PermissionError:
        return time.clock_gettime(
            ~pid << 3 | 2
        )  # CLOCK_PROCESS_CPUTIME_ID of another process, clock_getcpuclockid(3)
