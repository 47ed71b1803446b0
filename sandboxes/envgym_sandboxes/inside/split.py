"""Forks a process that runs somebody's Python so that both sides are whole, and says what neither can have.

The child is a child of this process's parent, the server, so that a cell's own `os.wait` never meets it. Copied:
memory, random number generators. Not copied, and told: threads, child processes, shared memory. Open files are
`descriptors`' matter.
"""

import ctypes
import os
import platform
import signal
import sys
import threading
import warnings
from contextlib import suppress

__all__ = ["be_ordinary", "die_with_parent", "flush", "shared_memory", "sibling", "unforkable"]

_CLONE_PARENT, _CHILD_SETTID, _CHILD_CLEARTID = 0x8000, 0x01000000, 0x00200000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_GET_TID_ADDRESS = 1, 4, 40
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
_PYTHON = ctypes.PyDLL(None)  # keeps the GIL: the child must own it


def flush() -> None:
    """Write out what standard streams and C's buffers hold: a fork would copy it, and both would write it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a cell may have put anything there
            stream.flush()
    _PYTHON.fflush(None)


def be_ordinary() -> None:
    """In a fork of the server: let this process look at its own files in /proc, as any program can."""
    _PYTHON.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def die_with_parent() -> None:
    """SIGKILL for this process when its parent ends."""
    _PYTHON.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def sibling() -> int:
    """Fork. Returns a number that is 0 in the child only, whose parent is this process's parent.

    Python's `random` seeds itself anew in a child; it is set back, since a fork is the same state.
    """
    random = sys.modules.get("random")
    state = random.getstate() if random else None
    pid = _clone() if _alone() else -1
    if pid < 0:
        pid = _orphan()
    if pid == 0 and random:
        random.setstate(state)
    return pid


def _clone() -> int:
    """A raw clone(2); safe because nobody else can hold a lock of libc's. -1 where it cannot be made whole.

    libc keeps the thread's id in a place that the kernel knows, and trusts it: the child's must be written there.
    """
    address = ctypes.c_void_p()
    if _SYS_CLONE is None or _PYTHON.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) != 0:
        return -1
    if not address.value or ctypes.c_int.from_address(address.value).value != os.getpid():
        return -1
    flags = _CLONE_PARENT | _CHILD_SETTID | _CHILD_CLEARTID | signal.SIGCHLD
    tail = (address.value, 0) if _SYS_CLONE == 56 else (0, address.value)
    ctypes.pythonapi.PyOS_BeforeFork()
    _PYTHON.syscall.restype = ctypes.c_long
    pid = int(_PYTHON.syscall(*[ctypes.c_long(value) for value in (_SYS_CLONE, flags, 0, 0, *tail)]))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid


def _orphan() -> int:
    """Fork twice: the child's parent ends, and the server, which adopts orphans, is its parent from then on."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions warn of forks beside threads; `unforkable` tells of them
        middle = os.fork()
    if middle == 0:
        between = os.getpid()
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            os._exit(1)
        os.close(writing)
        os.read(reading, 1)  # until the one between ends: its files are closed first, its children given away then
        os.close(reading)
        while os.getppid() == between:
            os.sched_yield()
        return 0
    os.close(reading)
    os.close(writing)
    if os.waitpid(middle, 0)[1]:
        raise OSError(11, "Resource temporarily unavailable")
    return middle


def _alone() -> bool:
    """Whether this process has one thread only, libraries' own included; False where that cannot be seen."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def unforkable() -> list[str]:
    """What of this process a fork would lack. Called before the fork, while all of it is there."""
    mine = threading.current_thread()
    found = [f"thread {thread.name}" for thread in threading.enumerate() if thread is not mine]
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children") as file:
                found += [f"child process {pid}" for pid in file.read().split()]
    except OSError:  # not every kernel has it, not every sandbox shows it
        with suppress(ChildProcessError):
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            found.append("child processes")
    return found


def shared_memory() -> list[str]:
    """Mappings that a fork writes to together with its original. Where /proc is not shown, none is noticed."""
    try:
        with open("/proc/self/maps") as file:
            rows = [line.split(maxsplit=5) for line in file]
    except OSError:
        return []
    return [f"shared memory {row[5].strip() if len(row) > 5 else row[0]}" for row in rows if row[1][1::2] == "ws"]
