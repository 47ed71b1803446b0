"""What init answers the calls of its sandbox that a filter alone cannot judge: whose file, whose process?

A call that changes a file's mode, owner, times or attributes is *done by init instead*, on a file that it has
opened itself and found to lie in the sandbox's own directory: the caller cannot exchange it after it was looked at.
A call that names a process goes on if it is one of the sandbox's, and one that makes a process if there is
room for it. Everything else is refused.
"""

import contextlib
import errno
import fcntl
import os
import struct
from functools import partial

from envgym_sandboxes.caller import Caller, descends, signed
from envgym_sandboxes.ear import NOTICE
from envgym_sandboxes.metadata import CHANGES, Arguments
from envgym_sandboxes.outward import FORKS, name_of
from envgym_sandboxes.room import Room
from envgym_sandboxes.tree import live_processes

__all__ = ["Gate"]

_SEND, _VALID = 0xC0182101, 0x40082102
_ANSWER = struct.Struct("=QqiI")
_CONTINUE = 1
_OF_ARGUMENT_1 = ("setpriority", "ioprio_set")


class Gate:
    """Answers at one listening descriptor.

    root: the directory whose files are the sandbox's own. room: for its processes.
    """

    def __init__(self, listener: int, root: str, room: Room) -> None:
        self.listener = listener
        self._room = room
        self._root = os.path.realpath(root)
        self._me = os.getpid()

    def answer(self, notice: bytes) -> None:
        """Answer one call that waits. notice: what was received (`ear`)."""
        number, tid, _flags, call, _arch, _at, *given = NOTICE.unpack(notice)
        failed, flags = 0, 0
        try:
            if self._carry_out(name_of(call), Caller(tid, partial(self._waits, number)), given):
                flags = _CONTINUE
        except OSError as error:
            failed = error.errno or errno.EPERM
        with contextlib.suppress(FileNotFoundError):  # it was killed meanwhile
            fcntl.ioctl(self.listener, _SEND, _ANSWER.pack(number, 0, -failed, flags))

    def _waits(self, number: int) -> bool:
        try:
            fcntl.ioctl(self.listener, _VALID, struct.pack("=Q", number))
        except OSError:
            return False
        return True

    def _carry_out(self, name: str, caller: Caller, given: Arguments) -> bool:
        """Do a call, or say that the kernel may: True. Raises OSError, which is the caller's then."""
        if name in CHANGES:
            self._change(name, caller, given)
            return False
        if name in FORKS:
            if not self._room.take():
                raise OSError(errno.EAGAIN, "too many processes")
            return True
        target = signed(given[1 if name in _OF_ARGUMENT_1 else 0])
        if name == "kill" and target <= 0:
            return self._kill_many(target, signed(given[1]), caller)
        if not descends(target, self._me):
            raise PermissionError(errno.EPERM, "not of this sandbox")
        return True

    def _change(self, name: str, caller: Caller, given: Arguments) -> None:
        fd = CHANGES[name].file(caller, given)
        try:
            if not f"{os.readlink(f'/proc/self/fd/{fd}')}/".startswith(f"{self._root}/"):
                raise PermissionError(errno.EPERM, "not of this sandbox")
            CHANGES[name].deed(b"/proc/self/fd/%d" % fd, caller, given)
        finally:
            os.close(fd)

    def _kill_many(self, target: int, number: int, caller: Caller) -> bool:
        """A signal to a process group, or to all.

        Groups never reach across sessions, and every session in a sandbox was made there.
        """
        if target == 0:
            return True
        alive = live_processes(self._me)
        if target != -1:
            groups = set()
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    groups.add(os.getpgid(pid))
            if -target not in groups:
                raise ProcessLookupError(errno.ESRCH, "no such group in this sandbox")
            return True
        for pid in alive:
            if pid != caller.tid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        return False
