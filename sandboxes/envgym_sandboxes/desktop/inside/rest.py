"""When programs have come to rest: the kernel counts how often each was switched to.

No program needs to say anything for that, and no time is guessed: on a busy machine a program that has something to
do is runnable, however long it waits for a processor. A program that sleeps until a timer of its own is due very
soon is not at rest either: the kernel tells what it asked poll(2) for. That is so of its next frame, which shows
what has changed (GTK paints at most every 17 ms), and for longer as it starts. Later timers are not foreseen.
"""

import os
import time
from contextlib import suppress

__all__ = ["FRAME_MS", "NO_PROC", "START_MS", "descendants", "due_soon", "settle"]

NO_PROC = "/proc cannot be read there"

_LOOK_S = 0.004
_LOOKS = 3  # this many must be alike
FRAME_MS = 20
"""Longer than the time between two frames."""
START_MS = 100
"""Of a program that starts: Gnumeric, for one, takes the focus back 50 ms after its window is there."""
_POLL = {"x86_64": "7"}.get(os.uname().machine)


def descendants(root: int, *, ended: bool = False) -> set[int]:
    """The living processes below one. ended: those too that nobody has waited for.

    A process whose first thread has ended is a zombie while its others still hold its connections: who must know
    that it is gone waits for it.
    """
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = _stat(int(name))
            if found is not None and (ended or found[0] != "Z"):
                parents[int(name)] = found[1]
    below = {root}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in below} - below
        below |= more
        grown = bool(more)
    return below - {root}


def _stat(pid: int) -> tuple[str, int] | None:
    """State and parent of a process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return words[0], int(words[1])


def _look(root: int) -> tuple[bool, dict[int, int]]:
    """Whether all threads below a process sleep, and how often each was switched to."""
    counts: dict[int, int] = {}
    resting = True
    for pid in descendants(root):
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            found = _switches(f"/proc/{pid}/task/{thread}/status")
            if found is not None:
                resting = resting and found[0] in "STtZXI"
                counts[int(thread)] = found[1]
    return resting, counts


def _switches(path: str) -> tuple[str, int] | None:
    """State of a thread, and how often it was switched to and from; None where it has ended.

    By its place in the bytes, which is twice as fast as line by line: all threads are looked at several times a
    step.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            told = file.read()
        _, wanted, _, forced, *_ = told[told.index(b"\nvoluntary_ctxt_switches:") :].split(maxsplit=4)
        return chr(told[told.index(b"\nState:\t") + 8]), int(wanted) + int(forced)
    except (OSError, ValueError):  # of one that ends meanwhile the kernel may tell less
        return None


def due_soon(root: int, soon_ms: int) -> bool:
    """Whether a thread below a process sleeps in poll(2) for at most so long; False where nobody may know."""
    for pid in descendants(root):
        with suppress(OSError):  # it has ended, or may not be looked at
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/syscall") as file:
                    words = file.read().split()
                if words[0] == _POLL and 0 < int(words[3], 16) <= soon_ms:
                    return True
    return False


def settle(root: int, within_s: float, *, soon_ms: int) -> bool:
    """Wait until all below a process rest, and none is `due_soon`; False when they do not in time."""
    end = time.monotonic() + within_s
    last: dict[int, int] | None = None
    alike = 0
    while True:
        resting, counts = _look(root)
        alike = alike + 1 if resting and counts == last else 0
        # a timer may be up before it is asked for: then somebody was switched to
        if alike >= _LOOKS - 1 and not due_soon(root, soon_ms) and _look(root) == (True, counts):
            return True
        if time.monotonic() > end:
            return False
        last = counts
        time.sleep(_LOOK_S)
