"""How many more processes and threads a sandbox may have, where no group counts them.

A number is handed out before each is made; how many have ended is looked up only when all numbers are out. One that
was handed out and has not been used yet cannot be seen then, so the latest ones count as well.
"""

import os
import time
from collections import deque

from envgym_sandboxes.holdings import descendants

__all__ = ["Room"]


_UNUSED_S = 0.02
"""How long a caller that was told to go on may take until what it makes is there."""


class Room:
    """most: processes and threads below this process at a time; None: as many as there are."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._out = 0
        self._latest: deque[float] = deque()
        self._me = os.getpid()

    def take(self) -> bool:
        """Whether there may be one more; it counts from now on."""
        if self._most is None:
            return True
        now = time.monotonic()
        while self._latest and self._latest[0] < now - _UNUSED_S:
            self._latest.popleft()
        if self._out >= self._most:
            self._out = len(self._latest) + sum(map(_threads, descendants(self._me, ended=True)))
        if self._out >= self._most:
            return False
        self._out += 1
        self._latest.append(now)
        return True


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0
