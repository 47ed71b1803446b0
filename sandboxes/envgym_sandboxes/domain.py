"""A thread of init that has no more rights than the sandbox's commands: it starts them, and does file requests.

Init itself must see /proc and be able to signal everything below it; what it starts must do neither. So this one
thread enters a Landlock domain nested in init's, and a filter, before it does anything; whatever it forks shares
them. Callers wait for each piece of work, so init still does one thing at a time. What is forked puts on a second
filter, one that asks init: a thread that asked could not be answered by a sibling that waits for the interpreter.
A thread gets no right back: for other rights there is another thread.
"""

import contextlib
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from envgym_sandboxes import ear, landlock, outward
from envgym_sandboxes.gate import Gate
from envgym_sandboxes.room import Room
from envgym_sandboxes.syscalls import ARCH

__all__ = ["Domain"]

T = TypeVar("T")
_MOST_EARS = 32
"""Threads that take questions, one for each command with all it starts; those of later ones wait for init."""


class Domain:
    """The thread, and the questions of what it forked. Raises OSError when it cannot confine itself.

    spec: {rules: [path, rights] each, network, version: a Landlock ABI, root: the sandbox's own directory, pids:
    how many processes there may be, None where a group counts them}.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._room = Room(spec["pids"])
        self._gates: dict[int, Gate] = {}
        self._asked = select.epoll()
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._asked.register(self._ours.fileno(), select.EPOLLIN)
        self._listening: set[int] = set()
        self._heard: deque[tuple[int, bytes | None]] = deque()
        self._bell = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._asked.register(self._bell, select.EPOLLIN)
        self._asking = outward.asking(ARCH, _rules(spec))
        self._hand = _Hand(spec, landlock.ALL)

    @property
    def listener(self) -> int:
        """The descriptor that is readable when there is something to `answer`."""
        return self._asked.fileno()

    def answer(self) -> None:
        """Answer calls that wait: one of each kind, since there may be more and more of them."""
        for fd, event in self._asked.poll(0):
            if fd == self._ours.fileno():
                self._take()
            elif fd == self._bell:
                os.eventfd_read(self._bell)
                self._answer(*self._heard.popleft())
            elif not event & select.EPOLLIN:
                self._asked.unregister(fd)
                self._answer(fd, None)
            elif notice := ear.receive(fd):
                self._answer(fd, notice)

    def _answer(self, fd: int, notice: bytes | None) -> None:
        """Answer what was asked at a listener; None: nothing is left that could ask."""
        if notice is not None:
            self._gates[fd].answer(notice)
            return
        del self._gates[fd]
        self._listening.discard(fd)
        os.close(fd)

    def _take(self) -> None:
        """Something that was forked will ask here."""
        _data, fds, _flags, _address = socket.recv_fds(self._ours, 1, 1)
        for fd in fds:
            os.set_inheritable(fd, False)
            self._gates[fd] = Gate(fd, self._spec["root"], self._room)
            if not self._listens(fd):
                self._asked.register(fd, select.EPOLLIN)
            self._room.take()

    def _listens(self, fd: int) -> bool:
        """Have questions taken at once, where there is room for a thread that does."""
        asked_of_forks = self._spec["pids"] is not None  # else none is asked for, and a group counts each thread
        if asked_of_forks and ear.hears() and len(self._listening) < _MOST_EARS:
            with contextlib.suppress(OSError, RuntimeError):
                ear.listen(fd, partial(self._hear, fd), self._bell)
                self._listening.add(fd)
                return True
        return False

    def _hear(self, fd: int, notice: bytes | None) -> None:
        """Called by other threads."""
        self._heard.append((fd, notice))

    def enter(self) -> None:
        """For what the thread forked, before it becomes a command: ask init from now on."""
        listener = outward.install(self._asking, listens=True)
        socket.send_fds(self._theirs, [b"l"], [listener])
        os.close(listener)

    def run(self, work: Callable[[], T]) -> T:
        """Do something with the rights of a command; returns or raises what it does."""
        result: T = self._hand.run(work)
        return result

    def only_remove(self, full: bool) -> None:
        """From now on let work read, execute and remove the sandbox's own files only, or everything again."""
        self._hand.end()
        self._hand = _Hand(self._spec, landlock.READ_EXECUTE | landlock.REMOVE if full else landlock.ALL)


def _rules(spec: dict[str, Any], *spared: int) -> outward.Rules:
    version = spec["version"]
    counted = spec["pids"] is not None
    return outward.Rules(spec["network"], version >= 6, version >= 3, counted=counted, spared=spared)


class _Hand:
    """One thread with given rights to the sandbox's own directory."""

    def __init__(self, spec: dict[str, Any], rights: int) -> None:
        self._work: Callable[[], Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._begin, self._done = threading.Semaphore(0), threading.Semaphore(0)
        # A warm interpreter is a fork of this thread and goes on as its main one.
        threading.Thread(name="MainThread", target=self._serve, args=(spec, rights), daemon=False).start()
        self._finish()

    def run(self, work: Callable[[], Any]) -> Any:
        """Let the thread do something; returns or raises what it does."""
        self._work = work
        self._begin.release()
        return self._finish()

    def end(self) -> None:
        """Let the thread end."""
        self._begin.release()

    def _finish(self) -> Any:
        self._done.acquire()
        result, error, self._result, self._error = self._result, self._error, None, None
        if error is not None:
            raise error
        return result

    def _serve(self, spec: dict[str, Any], rights: int) -> None:
        self._attempt(lambda: _confine(spec, rights))
        self._begin.acquire()
        while self._work is not None:
            work, self._work = self._work, None
            self._attempt(work)
            self._begin.acquire()

    def _attempt(self, work: Callable[[], Any]) -> None:
        try:
            self._result = work()
        except BaseException as error:
            self._error = error
        self._done.release()


def _confine(spec: dict[str, Any], rights: int) -> None:
    rules = (*((path, given) for path, given in spec["rules"]), (spec["root"], rights))
    landlock.restrict(landlock.Ruleset(rules, tcp=spec["network"]), version=spec["version"])
    spared = (os.getpid(), threading.get_native_id())
    outward.install(outward.refusing(ARCH, _rules(spec, *spared)), listens=False)
