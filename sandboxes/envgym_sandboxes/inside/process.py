"""A branch's process as the server sees it: a control socket, two output pipes, one question at a time.

Nothing that comes from it is believed: answers are bounded, a wrong one ends it, and its end is known from the
kernel.
"""

import contextlib
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from envgym_sandboxes import protocol
from envgym_sandboxes.capture import Capture, pipe
from envgym_sandboxes.inside.later import Later
from envgym_sandboxes.inside.spending import Spending
from envgym_sandboxes.tree import kill_all, live_processes, processes

__all__ = ["Answer", "Loop", "Process"]

_MOST_BYTES = 32 << 20  # of the images of one answer
_READS = 32  # of 64 kB each, before others have their turn
_LAST_S = 0.2  # how long a process that closed its socket may take to end
_GONE_S = 5.0  # how long the kernel may take to tell of a process that was killed


class Answer(NamedTuple):
    """What a process answered."""

    head: protocol.Head
    body: bytes


class Loop(Protocol):
    """What a process needs of the server's loop."""

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back when `fd` is readable."""
        ...

    def remove(self, fd: int) -> None:
        """Stop watching `fd`."""
        ...


class Process:
    """One process. `pid` is 0 until it is known; `status` is None until it has ended."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.sock, theirs = socket.socketpair()
        self.sock.setblocking(False)
        (self.out, out), (self.err, err) = pipe(), pipe()
        self.theirs = [theirs.detach(), out, err]
        self.pid = 0
        self.status: int | None = None
        self.cpu_s = 0.0
        self.captures: tuple[Capture, Capture] | None = None
        self.deadline: float | None = None
        self.spending: Spending | None = None
        self.late: Callable[[], None] = self.kill
        self.poor: Callable[[], None] = self.kill
        self._answer: Later[Answer | None] = Later()
        self._unheard = False
        self._decoder = protocol.Decoder(most_body=lambda _head: _MOST_BYTES)
        loop.add(self.sock.fileno(), self._on_control)
        loop.add(self.out, lambda: self._on_output(self.out, 0))
        loop.add(self.err, lambda: self._on_output(self.err, 1))

    def given(self) -> None:
        """Let go of the ends that are the process's."""
        for fd in self.theirs:
            os.close(fd)
        self.theirs = []

    # -- questions ---------------------------------------------------------------------------------------------

    def expect(self, patience_s: float) -> "Later[Answer | None]":
        """The next answer, or None when the process has ended; it is killed if it is late."""
        self._answer = Later()
        if self.status is not None:
            self._answer.set(None)
            return self._answer
        self.deadline, self.late = time.monotonic() + patience_s, self.kill
        return self._answer

    def ask(
        self, head: protocol.Head, patience_s: float, fds: "list[int] | None" = None, *, body: bytes = b""
    ) -> "Later[Answer | None]":
        """Send a request; see `expect`."""
        with contextlib.suppress(OSError):  # it has ended, which is noticed anyway
            socket.send_fds(self.sock, [protocol.encode(head, body)], fds or [])
        return self.expect(patience_s)

    # -- what it says ------------------------------------------------------------------------------------------

    def _on_control(self) -> None:
        try:
            data = self.sock.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._mute()
            return
        try:
            for head, body in self._decoder.feed(data):
                if self._answer.done:  # nobody asked
                    self.kill()
                if self._unheard:
                    return
                self.deadline = None
                self._answer.set(Answer(head, body))
        except protocol.ProtocolError:
            self._mute()

    def _mute(self) -> None:
        """It will not say more: it has ended, or has to."""
        self.loop.remove(self.sock.fileno())
        self.deadline, self.late = time.monotonic() + (_LAST_S if self.pid else 0), self.kill

    def _on_output(self, fd: int, which: int) -> None:
        for _ in range(_READS):
            try:
                data = os.read(fd, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self.loop.remove(fd)
                return
            if self.captures:
                self.captures[which].add(data)

    def drain(self) -> None:
        """Take what its pipes still hold; with no captures, throw it away."""
        if self.status is None:
            self._on_output(self.out, 0)
            self._on_output(self.err, 1)

    # -- the end -----------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """SIGINT to it and to what it started in its own process group."""
        if self.pid and self.status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGINT)

    def end_others(self, since: int) -> None:
        """Kill what began after `since`, ticks after boot, and is below it or of its session."""
        if self.pid and self.status is None:
            with contextlib.suppress(PermissionError):
                kill_all(lambda: self._others(since))

    def _others(self, since: int) -> set[int]:
        below = processes(self.pid)
        everybody = processes(os.getpid()).values()
        found = {one.pid for one in everybody if one.pid in below or one.session == self.pid}
        return {one.pid for one in everybody if one.pid in found and one.alive and one.start >= since} - {self.pid}

    def kill(self) -> None:
        """End it with all it started. That it has ended is known when the kernel says so."""
        if self.status is not None:
            return
        self._unheard = True  # what it said before is no answer any more
        self.loop.remove(self.sock.fileno())
        if self.pid:
            kill_all(lambda: {self.pid, *_below(self.pid)})
        self.deadline = time.monotonic() + (_GONE_S if self.pid else 0)
        self.late = lambda: self.ended(-signal.SIGKILL, None)

    def drop(self) -> None:
        """End one that never ran a cell, so that there is nothing below it."""
        if self.pid and self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def ended(self, status: int, usage: "resource.struct_rusage | None") -> None:
        """The kernel says that it has ended."""
        if self.status is not None:
            return
        self.drain()
        self.status, self.deadline = status, None
        self.cpu_s = usage.ru_utime + usage.ru_stime if usage else 0.0
        for fd in (self.sock.fileno(), self.out, self.err):
            self.loop.remove(fd)
        self.given()
        self.sock.close()
        os.close(self.out)
        os.close(self.err)
        self._answer.set(None)


def _below(pid: int) -> set[int]:
    """The descendants of a process; none are known where /proc is not shown."""
    try:
        return set(live_processes(pid))
    except PermissionError:
        return set()
