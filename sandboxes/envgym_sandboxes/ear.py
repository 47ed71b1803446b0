"""A thread that takes a question at once, and leaves the answer to who has the time.

A call that waits for an answer fails when its process gets a signal for which it has a handler (EINTR, which no
program expects of a fork), until its question has been taken; from then on nothing but its end interrupts it. So
this thread does nothing but wait in the kernel for the next question. The kernel is told to switch to it when there
is one, and that it never needs long: then it runs before anything else does, however many want the processor. What
is left is the time of that switch, some microseconds: docs/security.md says how often a signal falls into it.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import select
import signal
import struct
import threading
from collections.abc import Callable

from envgym_sandboxes.caller import check
from envgym_sandboxes.calls import NUMBERS
from envgym_sandboxes.syscalls import ARCH

__all__ = ["NOTICE", "hears", "listen", "receive"]

NOTICE = struct.Struct("=QIIiIQ6Q")
"""A question: its number, the thread that waits, flags, then the call: number, architecture, address, arguments."""
_RECEIVE, _SET_FLAGS = 0xC0502100, 0x40082104
_SYNC_WAKE_UP = 1
_OLDEST = (6, 12)
"""Linux from which on a thread may say how little it needs; since 6.11 it hears when nobody can ask any more."""
_SLICE_NS = 100_000
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
_COLUMN = {"x86_64": 0, "aarch64": 1}
_STACK = 128 << 10  # of several per sandbox, where each counts against the bound of memory
_LIBC = ctypes.CDLL(None, use_errno=True)
_PYTHON = ctypes.PyDLL(None, use_errno=True)  # keeps the GIL


def hears(release: str | None = None) -> bool:
    """Whether the kernel has what this needs; without it a question is taken when there is time.

    release: as `uname -r` tells it; None: of this one.
    """
    version = re.match(r"(\d+)\.(\d+)", os.uname().release if release is None else release)
    return version is not None and (int(version[1]), int(version[2])) >= _OLDEST


def receive(listener: int) -> bytes | None:
    """Take a question, or wait for one; None where who asked was killed meanwhile. Raises OSError."""
    notice = bytearray(NOTICE.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, notice)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):
            return None
        raise
    return bytes(notice)


def listen(listener: int, heard: Callable[[bytes | None], None], bell: int) -> None:
    """Start a thread that hands over each question, and None when there is nobody left who could ask.

    bell: an eventfd, to wake who answers. Raises RuntimeError, OSError when there is no room for a thread.
    """
    fcntl.ioctl(listener, _SET_FLAGS, _SYNC_WAKE_UP)
    before = threading.stack_size(_STACK)
    try:
        threading.Thread(target=_listen, args=(listener, heard, bell), daemon=True).start()
    finally:
        threading.stack_size(before)


def _listen(listener: int, heard: Callable[[bytes | None], None], bell: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # others take them
    with contextlib.suppress(OSError):  # refused by a filter of the host's: then it has its turn like all others
        _hurry()
    gone = select.poll()
    gone.register(listener, 0)
    while True:
        notice = receive(listener)
        if notice is None and not gone.poll(0):
            continue
        heard(notice)
        _ring(bell)
        if notice is None:
            return


def _ring(bell: int) -> None:
    """Wake who answers. It can go on when this thread lets go of the interpreter: to wait for the next question."""
    check(int(_PYTHON.eventfd_write(ctypes.c_int(bell), ctypes.c_uint64(1))))


def _hurry() -> None:
    """Ask for a small part of the processor's time, which the kernel gives sooner."""
    policy, nice = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    asked = _ATTRIBUTES.pack(_ATTRIBUTES.size, policy, 0, nice, 0, _SLICE_NS, 0, 0)
    number = NUMBERS["sched_setattr"][_COLUMN[ARCH]]
    assert number is not None
    check(int(_LIBC.syscall(ctypes.c_long(number), ctypes.c_int(0), asked, ctypes.c_uint(0))))
