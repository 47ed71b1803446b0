"""One thread that does one thing after the other, each within a deadline: what hangs there holds nobody else.

A thread cannot be ended from outside. One that is late is left: it is told to stop at its next instruction, and what it
comes to is nobody's any more; the next work has a new thread. Work that waits in the kernel stays until that is over.
"""

import asyncio
import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["Worker"]

T = TypeVar("T")


class _Stop(BaseException):
    """Raised in a thread that nobody waits for any more."""


class _Job:
    """One piece of work. done: it is over; left: nobody waits for it. The two are told under the lock."""

    def __init__(self, work: Callable[[], Any], left: Callable[[], object]) -> None:
        self._work, self._left = work, left
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self._loop.create_future()
        self._lock = threading.Lock()
        self._played = self._done = self._is_left = False
        self._answer: Any = None
        self._error: BaseException | None = None

    def play(self) -> bool:
        """Do it, and tell; whether somebody still waited. Where it was stopped between, it goes on."""
        if not self._played and not self._is_left:
            try:
                self._answer = self._work()
            except BaseException as raised:  # it is raised again where it is waited for
                self._error = raised
            self._played = True
        with self._lock:
            self._done = True
        if self._is_left:
            self._left()
            return False
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._tell)
        return True

    def _tell(self) -> None:
        if self.future.done():
            return
        if self._error is None:
            self.future.set_result(self._answer)
        else:
            self.future.set_exception(self._error)

    def leave(self, stop: Callable[[], object]) -> bool:
        """Wait no more; whether it was still going on. Its thread is told to stop while it cannot end."""
        with self._lock:
            self._is_left = not self._done
            if self._is_left:
                stop()
        return self._is_left


class Worker:
    """Its thread is begun with the first work. seconds: of each."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._jobs: SimpleQueue[_Job | None] | None = None
        self._thread: threading.Thread | None = None

    async def do(self, work: Callable[[], T], *, stop: Callable[[], object], left: Callable[[], object]) -> T:
        """What work gives, or raises. Raises TimeoutError where it is late.

        Where it is, or nobody waits any more: stop is called at once, and left in the thread when the work is over.
        """
        job = _Job(work, left)
        self._begun().put(job)
        try:
            async with asyncio.timeout(self.seconds):
                answer: T = await asyncio.shield(job.future)
        except (TimeoutError, asyncio.CancelledError):
            if not job.future.done() and job.leave(self._stop_thread):
                self.close()
                stop()
            raise
        return answer

    def _begun(self) -> "SimpleQueue[_Job | None]":
        if self._jobs is None:
            self._jobs = SimpleQueue()
            self._thread = threading.Thread(target=_work, args=(self._jobs,), name="envgym-site", daemon=True)
            self._thread.start()
        return self._jobs

    def _stop_thread(self) -> None:
        assert self._thread is not None, "work has a thread until it is over"
        assert self._thread.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(_Stop))

    def close(self) -> None:
        """The thread ends after what it does now. Idempotent."""
        jobs, self._jobs, self._thread = self._jobs, None, None
        if jobs is not None:
            jobs.put(None)


def _work(jobs: "SimpleQueue[_Job | None]") -> None:
    with suppress(_Stop):
        while (job := _next(jobs)) is not None:
            try:
                waited = job.play()
            except _Stop:  # just as the work was over
                waited = job.play()
            if not waited:
                return
            del job  # nothing is kept alive while there is nothing to do


def _next(jobs: "SimpleQueue[_Job | None]") -> _Job | None:
    try:
        return jobs.get()
    except _Stop:  # the work was left before it was begun
        return jobs.get()
