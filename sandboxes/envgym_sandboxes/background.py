"""Programs that go on beside the commands: started, looked at and signalled by name, without a deadline.

Used inside the sandbox by `init`, whose loop it lives in. What a program writes between two looks is kept like a
command's output: head and tail, the rest counted. How many run, and how many ended ones are remembered, is bounded,
because their output is kept in the sandbox's own memory. It reads no request that `init` has not decoded.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from envgym_sandboxes import protocol
from envgym_sandboxes.capture import Capture, drain
from envgym_sandboxes.command import Command
from envgym_sandboxes.deadlines import Since
from envgym_sandboxes.tree import kill_all, live_tree

__all__ = ["ENDED_KEPT", "MOST_RUNNING", "Background"]

MOST_RUNNING = 32
"""How many may run at once in one sandbox."""
ENDED_KEPT = 32
"""How many that have ended can still be looked at; the one that ended first is forgotten first."""


class Loop(Protocol):
    """What this needs of `init`."""

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back when `fd` is readable."""
        ...

    def remove(self, fd: int) -> None:
        """Stop watching `fd`."""
        ...

    def say(self, head: protocol.Head, body: bytes = b"") -> None:
        """Answer the host."""
        ...

    def launch(self, command: Command, head: protocol.Head, body: bytes) -> int:
        """Start a command's process; 0, or the status of one that cannot be run."""
        ...

    def on_child(self) -> None:
        """Reap what has ended."""
        ...

    def shown(self, output: bytes) -> bytes:
        """Output as the world names things."""
        ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A look that waits for something to see."""

    number: int
    name: str
    deadline: float


@dataclass(slots=True)
class _Process:
    """One process: its pipes that are still open, and its status once it has ended."""

    command: Command
    limit: int
    open: list[int] = field(default_factory=list)
    code: int | None = None

    @property
    def quiet(self) -> bool:
        """Whether a look would find nothing new."""
        return self.code is None and all(capture.empty for capture in self.command.captures)


class Background:
    """The background processes of one init. A request's name is a method `do_...`."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._running: dict[str, _Process] = {}
        self._ended: dict[str, _Process] = {}
        self._waiting: list[_Waiting] = []

    # -- requests ----------------------------------------------------------------------------------------------

    def do_start(self, head: protocol.Head, body: bytes) -> None:
        """Start a program. One that cannot be started has ended with the status that a shell would give."""
        name, command = head["name"], Command(head["id"], head["limit"], float("inf"), Since())
        process = _Process(command, head["limit"])
        if len(self._running) < MOST_RUNNING:
            code = self._loop.launch(command, head, body)
        else:
            code = 126
            text = f"{head['argv'][0]}: {MOST_RUNNING} background processes run already; no more may\n"
            command.captures[1].add(text.encode())
        if code:
            self._remember(name, process, code)
        else:
            self._running[name] = process
            for fd in command.pipes:
                process.open.append(fd)
                self._loop.add(fd, partial(self._on_output, name, process, fd))
        self._loop.say({"id": head["id"]})

    def do_poll(self, head: protocol.Head, _body: bytes) -> None:
        """Say what a process wrote since the last look, and whether it has ended; or wait for either."""
        process = self._running.get(head["name"])
        if process is not None and process.quiet and head["wait_s"] > 0:
            self._waiting.append(_Waiting(head["id"], head["name"], time.monotonic() + head["wait_s"]))
        else:
            self._loop.say(*self._status(head["id"], head["name"]))

    def do_signal(self, head: protocol.Head, _body: bytes) -> None:
        """Signal a process's group, as a terminal does; SIGKILL reaches its descendants in other groups too."""
        process = self._running.get(head["name"])
        if process is not None:
            pid = process.command.pid
            if head["signal"] == signal.SIGKILL:
                kill_all(lambda: live_tree(pid))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, head["signal"])
        self._loop.on_child()
        self._loop.say({"id": head["id"], "known": process is not None or head["name"] in self._ended})

    def do_collect(self, head: protocol.Head, _body: bytes) -> None:
        """Everything there is to know of all processes, because this init is about to end."""
        self._loop.on_child()
        answers = [self._status(0, name) for name in (*self._ended, *self._running)]
        statuses = [status | {"size": len(body)} for status, body in answers]
        self._loop.say({"id": head["id"], "statuses": statuses}, b"".join(body for _status, body in answers))

    # -- events ------------------------------------------------------------------------------------------------

    def pids(self) -> frozenset[int]:
        """The running ones. Each leads a session of its own, by which its descendants are known too."""
        return frozenset(process.command.pid for process in self._running.values())

    def ended(self, pid: int, code: int) -> None:
        """A process was reaped. What its descendants go on writing is read and dropped, like a command's."""
        for name, process in list(self._running.items()):
            if process.command.pid == pid:
                del self._running[name]
                for fd in list(process.open):
                    self._read(process, fd)
                for fd in process.open:
                    self._loop.add(fd, partial(self._drop, process, fd))
                self._remember(name, process, code)

    def next_deadline(self) -> float:
        """When the first look that waits has waited long enough."""
        return min((waiting.deadline for waiting in self._waiting), default=float("inf"))

    def expire(self, now: float) -> None:
        """Answer those that waited long enough."""
        self._answer(lambda waiting: waiting.deadline <= now)

    def cancel(self, number: int) -> None:
        """Nobody waits for this answer any more."""
        self._waiting = [waiting for waiting in self._waiting if waiting.number != number]

    # -- inside ------------------------------------------------------------------------------------------------

    def _on_output(self, name: str, process: _Process, fd: int) -> None:
        self._read(process, fd)
        if not process.quiet:
            self._answer(lambda waiting: waiting.name == name)

    def _read(self, process: _Process, fd: int) -> None:
        if not drain(fd, process.command.captures[process.command.pipes.index(fd)]):
            self._close(process, fd)

    def _drop(self, process: _Process, fd: int) -> None:
        if not drain(fd, None):
            self._close(process, fd)

    def _close(self, process: _Process, fd: int) -> None:
        process.open.remove(fd)
        self._loop.remove(fd)
        os.close(fd)

    def _remember(self, name: str, process: _Process, code: int) -> None:
        process.code = code
        self._ended[name] = process
        while len(self._ended) > ENDED_KEPT:
            del self._ended[next(iter(self._ended))]
        self._answer(lambda waiting: waiting.name == name)

    def _answer(self, due: Callable[[_Waiting], bool]) -> None:
        answered = [waiting for waiting in self._waiting if due(waiting)]
        self._waiting = [waiting for waiting in self._waiting if not due(waiting)]
        for waiting in answered:
            self._loop.say(*self._status(waiting.number, waiting.name))

    def _status(self, number: int, name: str) -> tuple[dict[str, Any], bytes]:
        """What a look finds; it is not found again."""
        process = self._ended.get(name) or self._running.get(name)
        if process is None:
            return {"id": number, "name": name, "known": False}, b""
        captures = process.command.captures
        process.command.captures = Capture(process.limit), Capture(process.limit)
        outputs = [self._loop.shown(capture.value()) for capture in captures]
        head = {"id": number, "name": name, "known": True, "code": process.code, "out": len(outputs[0])}
        return head | {"lost": [capture.lost for capture in captures]}, b"".join(outputs)
