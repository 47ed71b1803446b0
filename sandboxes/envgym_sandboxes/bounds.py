"""Bounds of a whole sandbox where no group and no quota keeps them: looked at while something runs, then enforced.

What the kernel counts for each process is added up a few times a second. Too much memory: the process that holds
most is killed. Too much written: all are, and files can then only be read and removed, until they are within their
bound again. So each bound can be exceeded for the time between two looks. That is the price of having no
privileges; `LandlockBackend.report` says it.
"""

import contextlib
import errno
import math
import os
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from envgym_sandboxes import holdings
from envgym_sandboxes.capture import Capture
from envgym_sandboxes.command import Command
from envgym_sandboxes.shell import Shell
from envgym_sandboxes.tree import kill_all

__all__ = ["Bounds", "Captures", "Loop"]

_FIRST_S, _OFTEN_S, _SELDOM_S, _GLANCE_S = 0.05, 0.1, 0.5, 0.01
"""A glance asks the file system alone, in microseconds: a burst fills a disk between two looks at all processes."""
_SHARE, _COUNT_SHARE, _HASTY_SHARE = 50, 20, 4
"""The time between two looks, or two counts of the files, as multiples of how long one takes; hasty: of counts that
glances ask for."""
_FILE_TOO_LARGE = 128 + signal.SIGXFSZ
"""The status of a command that wrote too much: what a shell says of a program ended by that signal."""


Captures = tuple[Capture, Capture]


class Loop(Protocol):
    """What this needs of `init`."""

    commands: dict[int, Command]
    shell: Shell

    def on_child(self) -> None:
        """Reap what has ended."""
        ...


class Bounds:
    """Of one sandbox. spec: {disk, inodes, root}, and {memory}, None where a group keeps it.

    only_remove: lets what is started from now on only read and remove files, or do everything again.
    """

    def __init__(self, loop: Loop, spec: dict[str, Any], only_remove: Callable[[bool], None]) -> None:
        self._loop = loop
        self._spec = spec
        self._only_remove = only_remove
        self._root: str = spec["root"]
        self._device = os.stat(self._root).st_dev
        self._me = os.getpid()
        self._next = self._look_at = math.inf
        self._glances_from = 0.0
        self._files = holdings.Files()
        self._deleted = 0
        self._size = 0
        self._used_first = _used(self._root)  # of the file system
        self._used_then = _Used(0, 0)  # when the files were counted, which they have yet to be
        self._count_at = 0.0
        self._blamed: list[Captures] = []  # of commands that end because of what was written
        self.full = False
        self.killed_for_memory = False

    # -- what happens ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Something is about to be started."""
        if self.full:
            self._count()
        self._look_at = min(self._look_at, time.monotonic() + _FIRST_S)
        self._next = min(self._next, self._look_at, time.monotonic() + _GLANCE_S)

    def ended(self, code: int, captures: Captures) -> int:
        """A command has ended by itself: the status that it is given."""
        if not self.full and self._may_be_over():
            self._count()
            if self.full:
                captures[1].add(_line(self._text()))
                self._blamed.append(captures)
        blamed = any(one is captures for one in self._blamed)
        self._blamed = [one for one in self._blamed if one is not captures]
        return code or (_FILE_TOO_LARGE if blamed else 0)

    def write(self, work: Callable[[], None]) -> None:
        """Do a file request that writes. Raises OSError: ENOSPC."""
        if self.full:
            self._count()
        if self.full:
            raise OSError(errno.ENOSPC, self._text())
        work()
        if self._may_be_over():
            self._count()

    def next(self) -> float:
        """When to look, on the monotonic clock; infinity when nothing runs."""
        return self._next

    def expire(self, now: float) -> None:
        """Look, if it is time to."""
        if now < self._next:
            return
        if now < self._look_at:
            if not self.full and now >= self._glances_from and self._may_be_over():
                self._count()
            self._next = min(self._look_at, time.monotonic() + _GLANCE_S)
            return
        began = time.monotonic()
        alive = self._look()
        ended = time.monotonic()
        busy = alive - ({self._loop.shell.pid} if self._loop.shell.running is None else set())
        wait_s = min(_SELDOM_S, max(_OFTEN_S, _SHARE * (ended - began)))
        self._look_at = ended + wait_s if busy else math.inf
        self._next = min(self._look_at, ended + _GLANCE_S) if busy else math.inf

    def ran_out_of_memory(self) -> bool:
        """Whether a process was killed for memory since the last call."""
        killed, self.killed_for_memory = self.killed_for_memory, False
        return killed

    # -- looks -------------------------------------------------------------------------------------------------

    def _look(self) -> set[int]:
        alive = holdings.descendants(self._me)
        held = holdings.memory(alive, self._device)
        self._deleted = held.deleted_bytes
        if self._spec["memory"] is not None and held.total_bytes > self._spec["memory"]:
            self._look_closer(alive, held)
        if not self.full and (self._may_be_over() or time.monotonic() >= self._count_at):
            self._count()
        return alive

    def _look_closer(self, alive: set[int], held: holdings.Memory) -> None:
        """What forks share was counted for each of them: count it in proportion, which takes longer."""
        exact = held.total_bytes - held.private_bytes + sum(map(holdings.private_bytes, alive))
        if exact > self._spec["memory"] and held.largest is not None:
            self.killed_for_memory = True
            self._tell(f"more than {self._spec['memory']} bytes of memory (Resources.memory_bytes)")
            with contextlib.suppress(ProcessLookupError):
                os.kill(held.largest, signal.SIGKILL)

    def _may_be_over(self) -> bool:
        """Whether the files should be counted, which takes long when there are many.

        What the file system gained as a whole bounds what this sandbox did, unless somebody else removed something
        meanwhile; so files are counted now and then in any case.
        """
        now, then = _used(self._root), self._used_then
        room: int = self._spec["disk"] - self._size
        number: int = self._spec["inodes"] - self._files.inodes
        return now.size - then.size > max(0, room) or now.inodes - then.inodes > max(0, number)

    def _count(self) -> None:
        """Count the files, and become full, or no longer."""
        began = time.monotonic()
        self._used_then = _used(self._root)
        self._files = files = holdings.files(self._root)
        self._deleted = holdings.memory(holdings.descendants(self._me), self._device).deleted_bytes
        ended = time.monotonic()
        self._count_at = ended + max(_OFTEN_S, _COUNT_SHARE * (ended - began))
        self._glances_from = ended + _HASTY_SHARE * (ended - began)
        self._size = files.disk_bytes + self._deleted
        if not files.complete:  # what the file system gained is what this sandbox did, or more
            self._size = max(self._size, self._used_then.size - self._used_first.size)
        full = self._size > self._spec["disk"] or files.inodes > self._spec["inodes"]
        if full != self.full:
            self.full = full
            self._only_remove(full)
            if full:
                self._end_all(self._text())
            else:  # the shell that only removes; another one goes on from its state
                kill_all(lambda: holdings.descendants(self._me) & {self._loop.shell.pid})
                self._loop.on_child()

    def _text(self) -> str:
        files = self._files
        if files.inodes > self._spec["inodes"]:
            return f"{files.inodes} files; the bound is {self._spec['inodes']} (Resources.inodes): remove some"
        return f"{self._size} bytes on disk; the bound is {self._spec['disk']} (Resources.disk_bytes): remove some"

    def _tell(self, text: str) -> None:
        """Write to the standard error of every running command."""
        for captures in self._running():
            captures[1].add(_line(text))

    def _running(self) -> list[Captures]:
        found = [command.captures for command in self._loop.commands.values()]
        return [*found, self._loop.shell.running.captures] if self._loop.shell.running else found

    def _end_all(self, text: str) -> None:
        self._tell(text)
        self._blamed += self._running()
        kill_all(lambda: holdings.descendants(self._me))
        self._loop.on_child()


def _line(text: str) -> bytes:
    return f"envgym: {text}\n".encode()


class _Used(NamedTuple):
    """What a file system holds, bytes and files. One that has no number of files tells 0 of them."""

    size: int
    inodes: int


def _used(path: str) -> _Used:
    info = os.statvfs(path)
    return _Used((info.f_blocks - info.f_bfree) * info.f_frsize, info.f_files - info.f_ffree)
