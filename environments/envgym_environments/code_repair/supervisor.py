"""The process in the sandbox that stands above the tested ones: it alone holds the way out and the secrets.

It forks the tested process before it reads a secret, closes its memory and descriptors to processes of the same
user, takes what that one says over a pipe of its own, learns from the kernel how it ended, and kills what it left
behind. What it believes is `referee`'s business. Standard library only: it may have come as source.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from envgym_environments.code_repair.referee import Referee

__all__ = ["Tested", "close_memory", "kill_strays", "main"]

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_MOST_BYTES = 64 << 20
_LAST_S = 5.0
"""How long a process that said its last word may take to end."""
_MOST_UNSAID, _UNSAID_S = 1 << 16, 0.05
"""How much, and for how long, what is to be said is gathered: a write for each test costs as much as the test."""

Run = Callable[[dict[str, Any], socket.socket], NoReturn]


class Tested:
    """A forked process that waits for its stage; it was forked before there was a secret."""

    def __init__(self, run: Run, request: dict[str, Any], others: list["Tested"]) -> None:
        ours, theirs = socket.socketpair()
        self.sock: socket.socket = ours
        self.pid = os.fork()
        if self.pid == 0:
            for sock in (ours, *(one.sock for one in others)):
                sock.close()
            _begin(run, request, theirs)
        theirs.close()

    def go(self, stage: dict[str, Any]) -> None:
        """Let it begin."""
        self.sock.sendall(json.dumps(stage).encode() + b"\n")

    def end(self) -> int:
        """Kill it if it lives; its status, negative for a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """Its status, once it has ended."""
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        self.sock.close()
        return os.waitstatus_to_exitcode(status)

    def ended(self) -> bool:
        """Whether it has ended; it is not reaped."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _begin(run: Run, request: dict[str, Any], sock: socket.socket) -> NoReturn:
    """In the fork: let go of what is the supervisor's, wait for the stage, run it."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    given = _line(sock)
    if not given:
        os._exit(0)
    _prctl(_PR_SET_CHILD_SUBREAPER, 0)
    _prctl(_PR_SET_DUMPABLE, 1)  # else it could not read its own /proc files
    run(request | json.loads(given), sock)


def _line(sock: socket.socket) -> bytes:
    """One line, without reading beyond it; b"" at the end of the stream."""
    taken = bytearray()
    while not taken.endswith(b"\n"):
        some = sock.recv(1 << 16, socket.MSG_PEEK)
        if not some:
            return b""
        taken += sock.recv(some.find(b"\n") + 1 or len(some))
    return bytes(taken)


_LIBC = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def close_memory() -> None:
    """Close this process to others of the same user, and inherit what is left below it."""
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def main(request: dict[str, Any], run: Run) -> NoReturn:
    """Play a run. `request` is what the tested process may know; the rest is still to be read.

    run: ``run(request, socket)``, what the tested process does.
    """
    close_memory()
    tested = Tested(run, request, [])
    with open(0, "rb", closefd=False) as rest:
        secret: dict[str, Any] = json.loads(rest.read())
    play, status = _Play(secret["nonce"], tested), 1
    try:
        play.stage(secret["stage"])
        status = 0
    except Exception:  # what broke here is told, and no result is confirmed
        traceback.print_exc()
    finally:
        if tested.pid:
            tested.end()
        kill_strays(set())
        os._exit(status)


class _Play:
    """One run, by a process that waits for it; what is found goes out soon."""

    def __init__(self, nonce: str, tested: Tested) -> None:
        self.nonce = nonce.encode() + b" "
        self.tested = tested
        self._unsaid = b""
        self._flushed = 0.0

    def say(self, *events: list[Any]) -> None:
        """Send events to the host, soon."""
        self._unsaid += b"".join(self.nonce + json.dumps(event).encode() + b"\n" for event in events)
        if len(self._unsaid) > _MOST_UNSAID or time.monotonic() - self._flushed > _UNSAID_S:
            self.flush()

    def flush(self) -> None:
        """Send now what is still to be sent."""
        data, self._unsaid, self._flushed = memoryview(self._unsaid), b"", time.monotonic()
        while data:
            data = data[os.write(1, data) :]

    def stage(self, stage: dict[str, Any]) -> None:
        """Take what the process says until it has ended, and pass on what is believed."""
        try:
            self._stage(stage)
        finally:
            self.flush()

    def _stage(self, stage: dict[str, Any]) -> None:
        referee = Referee(graded=stage["graded"], must=stage["must"], twins=stage["twins"], words=stage["words"])
        tested, deadline = self.tested, None
        if stage["limit_s"]:
            deadline = time.monotonic() + stage["limit_s"]
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            tested.go({key: stage[key] for key in ("selection", "graded", "texts")})
        late = self._listen(tested, referee, deadline)
        referee.ended(tested.end() if late or not self._last(tested, referee) else tested.wait())
        kill_strays(set())
        self.say(*([["late"]] if late else []), *referee.events)
        self.say(*([["void", referee.void]] if referee.void else []), ["over"])

    def _listen(self, tested: Tested, referee: Referee, deadline: float | None) -> bool:
        """Until the process has ended, lied or said its last; whether its time was up."""
        poller, buffer, total = select.poll(), b"", 0
        poller.register(tested.sock, select.POLLIN)
        while not referee.done and not referee.broken:
            if deadline is not None and time.monotonic() > deadline:
                return True
            if not poller.poll(20):
                self.flush()
                if tested.ended() and not poller.poll(0):
                    return False
                continue
            try:
                data = tested.sock.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            total += len(data)
            if not data or total > _MOST_BYTES:
                return False
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                answer = None if referee.broken else referee.take(line)
                if answer is not None:
                    with contextlib.suppress(OSError):
                        tested.sock.sendall(answer)
            self.say(*referee.events)
            referee.events.clear()
        return False

    def _last(self, tested: Tested, referee: Referee) -> bool:
        """Whether a process that said its last word, or closed its pipe, has ended by itself in time."""
        until = time.monotonic() + (0 if referee.broken else _LAST_S)
        while not tested.ended():
            if time.monotonic() > until:
                return False
            select.poll().poll(1)  # `sleep` fails where libfaketime shifts the clock
        return True


def kill_strays(spared: set[int]) -> None:
    """Kill what ended processes left: it is all below this process now."""
    for _ in range(100):
        below = _below(os.getpid(), spared)
        if not below:
            return
        for pid in below:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in below:
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


def _below(top: int, spared: set[int]) -> set[int]:
    """Descendants of a process, zombies included, without those in `spared` and what is below them."""
    parents: dict[int, list[int]] = {}
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return set()
    for name in names:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            parents.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(name))
    found: set[int] = set()
    queue = [top]
    while queue:
        for child in parents.get(queue.pop(), ()):
            if child not in spared and child not in found:
                found.add(child)
                queue.append(child)
    return found
