"""The fork server's loop and its processes: the first one is a fork of it, all others of one another.

It is the parent of all of them, so that it alone reaps them and knows how each ended. It runs no cell itself.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable

from envgym_sandboxes.inside import branch
from envgym_sandboxes.inside.family import Failed, Settings
from envgym_sandboxes.inside.process import Process

__all__ = ["Server"]

_START_S = 30.0
_GATHER_S = 30.0  # how long the kernel may take with processes that were killed


class Server:
    """One poll loop, no threads."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.processes: set[Process] = set()
        self.poller = select.poll()
        self.watch: dict[int, Callable[[], None]] = {}
        self.wake_r, self.wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.ending = False
        self.knocked: Callable[[], None] = lambda: None
        signal.set_wakeup_fd(self.wake_w)
        for number in (signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
            signal.siginterrupt(
                number, False
            )  # a sandbox may take long to answer a call, and not every call is retried
        self.add(self.wake_r, self.on_signal)

    # -- the loop ----------------------------------------------------------------------------------------------

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back when `fd` is readable."""
        self.watch[fd] = callback
        self.poller.register(fd, select.POLLIN)

    def remove(self, fd: int) -> None:
        """Stop watching `fd`."""
        if self.watch.pop(fd, None):
            self.poller.unregister(fd)

    def loop(self) -> None:
        """Serve until the end."""
        while not self.ending:
            deadlines = [process.deadline for process in self.processes if process.deadline is not None]
            deadlines += [process.spending.next_look for process in self.processes if process.spending]
            wait_ms = max(0.0, (min(deadlines) - time.monotonic()) * 1000 + 1) if deadlines else None
            for fd, _event in self.poller.poll(wait_ms):
                if callback := self.watch.get(fd):
                    callback()
            for process in [*self.processes]:
                self.look_at_the_clock(process)

    @staticmethod
    def look_at_the_clock(process: Process) -> None:
        """Whether a process is late, or has used up its processor time."""
        now, spending = time.monotonic(), process.spending
        if spending is not None and now >= spending.next_look and spending.used_up():
            process.spending = None
            process.poor()
        if process.deadline is not None and now >= process.deadline:
            process.late()

    def on_signal(self) -> None:
        """A child has ended, or somebody knocked."""
        if signal.SIGUSR1 in os.read(self.wake_r, 4096):
            self.knocked()
        self.reap()

    def reap(self) -> None:
        """Reap, and end what the process left in its group before its id can be another's."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            known = [process for process in self.processes if process.pid == ended.si_pid]
            if known:
                with contextlib.suppress(OSError):
                    os.killpg(ended.si_pid, signal.SIGKILL)
            _pid, status, usage = os.wait4(ended.si_pid, 0)
            for process in known:
                self.processes.discard(process)
                process.ended(os.waitstatus_to_exitcode(status), usage)

    def gather(self) -> None:
        """Wait for the end of what was ended: until then it is something that is alive in the sandbox."""
        until = time.monotonic() + _GATHER_S
        self.reap()
        while any(process.pid for process in self.processes) and (left_s := until - time.monotonic()) > 0:
            if select.select([self.wake_r], [], [], left_s)[0]:
                os.read(self.wake_r, 4096)
            self.reap()

    # -- processes ---------------------------------------------------------------------------------------------

    async def root(self, cwd: str) -> Process:
        """See `Spawner`."""
        process = self.newborn()
        pid = os.fork()
        if pid == 0:
            try:
                self.leave(process.theirs)
                branch.live(process.theirs, cwd, self.settings.limit, self.settings.seed)
            finally:
                os._exit(branch.BROKEN)
        process.pid = pid
        process.given()
        if await process.expect(_START_S) is None:
            raise Failed("an interpreter process ended while it began")
        return process

    async def split(self, process: Process) -> Process:
        """See `Spawner`. The original answers on its own socket, the copy on the new one."""
        copy = self.newborn()
        hello = copy.expect(_START_S)
        answer = process.ask({"op": "split"}, _START_S, copy.theirs)
        copy.given()
        told = await answer
        if told is not None and not {"done", "failed"} & told.head.keys():  # a cell spoke in its name
            process.kill()
            told = await process.expect(_START_S)
        said = await hello if told is not None and "done" in told.head else None
        pid = said.head.get("hello") if said else None
        if not isinstance(pid, int) or not self.is_child(pid):
            copy.ended(-signal.SIGKILL, None)
            self.processes.discard(copy)
            why = told.head.get("failed", "its copy did not start") if told else "the process ended meanwhile"
            raise Failed(str(why))
        copy.pid = pid
        return copy

    def newborn(self) -> Process:
        """A process that is known from now on."""
        process = Process(self)
        self.processes.add(process)
        return process

    def is_child(self, pid: int) -> bool:
        """Whether a process that says who it is is one of ours, and no other known one."""
        if pid <= 1 or any(process.pid == pid for process in self.processes):
            return False
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except OSError:
            return False
        return True

    def leave(self, keep: list[int]) -> None:
        """In a fork: let go of what belongs to the server."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        start_fd = 3
        for fd in [*sorted(keep), os.sysconf("SC_OPEN_MAX")]:
            os.closerange(start_fd, fd)
            start_fd = fd + 1
