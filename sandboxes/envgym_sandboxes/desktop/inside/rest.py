"""When programs have come to rest: the kernel counts how often each was switched to.

No program needs to say anything for that, and no time is guessed: on a busy machine a program that has something to
do is runnable, however long it waits for a processor. Where all threads sleep in two looks and none was switched to
between them, there was an instant at which all slept, and only a clock can wake them. The kernel tells for how long
they asked poll(2) or epoll_wait(2): who sleeps until a timer of its own that is due very soon is not at rest. That
is so of a program's next frame, which shows what has changed, and for longer as it starts. Later timers are not
foreseen. Where a clock cannot be read, or a terminal is open, whose bytes a thread of the kernel hands on, nobody
may have been switched to for a while.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

__all__ = ["FRAME_MS", "NO_PROC", "START_MS", "Clocks", "clocks", "descendants", "settle", "threads"]

NO_PROC = "/proc cannot be read there"

_LOOK_S = 0.001
_BLIND_S = 0.008
"""For how long all must have slept where what may wake them is not seen."""
_WATCH_S = 0.001  # of one thread that is known to be at work, which costs a twentieth of a look at all
FRAME_MS = 25
"""A program's next frame is due within it: a frame of 16.7 ms and a half.

GDK counts from the last frame's smoothed time, a whole number of frames after those before it, which is up to half
a frame ahead of the real one. It was seen to ask for up to 20 ms.
"""
START_MS = 100
"""Of a program that starts: Gnumeric, for one, takes the focus back 50 ms after its window is there."""
_RESTING = "STtZXI"
_KNOWN = os.uname().machine == "x86_64"
_MS_AT = {"7": 3, "232": 4, "281": 4}
"""Of poll, epoll_wait and epoll_pwait: which word of a call tells for how many milliseconds."""
_CLOCK_AT = {"23": 5, "35": 1, "230": 3, "270": 5, "271": 3, "219": 0}
"""Of select, nanosleep, clock_nanosleep, pselect6 and ppoll: which word is the address of a time, which is unread.

Of restart_syscall, the rest of an interrupted sleep, nothing is told.
"""


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


def _at_terminal(pid: str) -> bool:
    """Whether a process belongs to a terminal."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[4]) != 0
    except OSError:
        return False


def threads(root: int) -> Iterator[str]:
    """The directory of every thread below a process."""
    for pid in descendants(root):
        with suppress(OSError):  # it has ended
            for thread in os.listdir(f"/proc/{pid}/task"):
                yield f"/proc/{pid}/task/{thread}"


def _look(root: int) -> tuple[str, dict[str, int]]:
    """The first thread found at work, "" for none; if none, of all how often each was switched to."""
    counts: dict[str, int] = {}
    for thread in threads(root):
        found = _switches(thread)
        if found is not None:
            if found[0] not in _RESTING:
                return thread, {}
            counts[thread] = found[1]
    return "", counts


def _switches(thread: str) -> tuple[str, int] | None:
    """State of a thread, and how often it was switched to and from; None where it has ended.

    By its place in the bytes, which is twice as fast as line by line: all threads are looked at several times a
    step.
    """
    try:
        with open(f"{thread}/status", "rb", buffering=0) as file:
            told = file.read()
        _, wanted, _, forced, *_ = told[told.index(b"\nvoluntary_ctxt_switches:") :].split(maxsplit=4)
        return chr(told[told.index(b"\nState:\t") + 8]), int(wanted) + int(forced)
    except (OSError, ValueError):  # of one that ends meanwhile the kernel may tell less
        return None


class Clocks(NamedTuple):
    """What may wake threads that all sleep. due: one that sleeps for at most so long; blind: some are not seen."""

    due: str = ""
    blind: bool = False


def clocks(sleeping: Iterable[str], soon_ms: int) -> Clocks:
    """Until when threads sleep, given by their directories in /proc. Where nobody may know, some are not seen."""
    blind = not _KNOWN
    for thread in sleeping:
        _, _, pid, _, number = thread.split("/")
        blind = blind or (pid == number and _at_terminal(pid))
        try:
            with open(f"{thread}/syscall") as file:
                words = file.read().split()
        except (ProcessLookupError, FileNotFoundError):  # it has ended
            continue
        except OSError:
            blind = True
            continue
        if words[0] in _MS_AT and 0 < int(words[_MS_AT[words[0]]], 16) <= soon_ms and _KNOWN:
            return Clocks(thread, blind)
        blind = blind or (words[0] in _CLOCK_AT and int(words[_CLOCK_AT[words[0]]], 16) != 0)
    return Clocks("", blind)


def _watch(thread: str, count: int | None, end: float) -> None:
    """Wait, at most until `end`, until one thread rests, or, if a count is given, has been switched to since."""
    while (now := _switches(thread)) is not None and time.monotonic() <= end:
        if now[0] in _RESTING and now[1] != count:
            break
        time.sleep(_WATCH_S)


def settle(root: int, within_s: float, *, soon_ms: int) -> bool:
    """Wait until all below a process rest, and none is due within `soon_ms`; False when they do not in time."""
    end = time.monotonic() + within_s
    last: dict[str, int] | None = None
    since = 0.0
    while True:
        busy, counts = _look(root)
        now = time.monotonic()
        due = ""
        if busy or counts != last:
            since = now
        else:
            due, blind = clocks(counts, soon_ms)
            quiet = not due and (not blind or now - since >= _BLIND_S)
            # a timer may be up before it is asked for: then somebody was switched to
            if quiet and _look(root) == ("", counts):
                return True
        if now > end:
            return False
        last = None if busy else counts
        if busy or due:
            _watch(busy or due, counts.get(due), end)
        else:
            time.sleep(_LOOK_S)
