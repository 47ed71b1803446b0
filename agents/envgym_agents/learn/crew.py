"""The processes that a sharded learner is divided over, as the process that trains sees them.

They are started here, on one host, or were by torchrun, on as many as it was told. They live as long as the run:
who started them being gone, they end; one of them being gone, the run ends with `LearnerDied` and the others too.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self

import torch

from envgym.errors import LearnerDied
from envgym_agents.learn.worker import BEGIN_S, LATE

__all__ = ["Crew", "crew_size", "launched", "lost"]

_LEAVE_S = 20.0
"""How long a process may take to end after it was told to, before it is killed."""


def launched() -> tuple[int, int] | None:
    """(rank, size) where torchrun has started this process as one of several, else None."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(name in os.environ for name in names) or os.environ["WORLD_SIZE"] == "1":
        return None
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def crew_size(processes: int) -> int:
    """How many processes learn, as configured. Raises ValueError where torchrun has started another number."""
    started = launched()
    if started is not None and started[1] != processes:
        raise ValueError(
            f"learner.processes = {processes}, and torchrun has started {started[1]}: make them equal, or start "
            "`envgym train` by itself"
        )
    return processes


def lost(rank: str, where: str, how: str, asked: str, told: str) -> str:
    """What `LearnerDied` says: which process, where it was, what became of it during what, and what to do."""
    tail = f": {told}" if told else ""
    return (
        f"process {rank} that the learner is divided over ({where}) {how} during {asked!r}{tail}; the last "
        "checkpoint is whole: go on from it with --resume, with as many processes or another number"
    )


class Crew:
    """A context manager of `size` processes that wait for requests.

    Under torchrun the other ranks are there already, and only this one's is started. threads: of torch in each.
    patience_s: how long they wait for each other before one that gives no answer is lost; begin_s: at the least,
    before one that is not there yet is.
    """

    def __init__(
        self, size: int, *, device: str = "cpu", threads: int | None = None, patience_s: float = 1800.0,
        begin_s: float = BEGIN_S,
    ) -> None:  # fmt: skip
        self.size, self._patience_s, self._begin_s = size, patience_s, begin_s
        self._device, self._threads = device, threads or max(1, torch.get_num_threads() // size)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: list[Connection] = []
        self._said: list[Any] = []
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._requests, theirs = Pipe()
        try:
            # where they meet: a file without a name, so that nothing is left of it, whatever ends us
            meeting = self._open.enter_context(tempfile.TemporaryFile())
            store = None if launched() else meeting.fileno()
            for rank in range(1 if launched() else self.size):
                self._start(store, rank, theirs if rank == 0 else None)
        except BaseException:
            self._end()
            raise
        finally:
            theirs.close()
        return self

    def _start(self, store: int | None, rank: int, requests: Connection | None) -> None:
        line, theirs = Pipe()
        self._lines.append(line)
        passed = [theirs, *([] if requests is None else [requests])]
        said = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # closed with the others
        self._said.append(said)
        values = [
            "-" if store is None else f"/proc/self/fd/{store}",
            rank,
            self.size,
            self._device,
            self._threads,
            self._patience_s,
            self._begin_s,
            *(one.fileno() for one in passed),
        ]
        try:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "envgym_agents.learn.worker", *map(str, values)],
                    pass_fds=[*(one.fileno() for one in passed), *([] if store is None else [store])],
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    start_new_session=True,  # an interrupt is for who trains, who then ends them
                )
            )
        finally:
            theirs.close()

    def ask(self, name: str, *values: Any, **named: Any) -> Any:
        """What a method of every process's learner returned on rank 0.

        Raises LearnerDied when one of them is gone or broke, and ValueError where the method raised one.
        """
        try:
            self._requests.send_bytes(pickle.dumps((name, values, named)))
            ready = wait([self._requests, *self._lines])
            kind, *found = pickle.loads(self._requests.recv_bytes()) if self._requests in ready else ("gone",)
        except (EOFError, OSError):
            kind, found = "gone", []
        if kind == "done":
            return found[0]
        if kind == "failed" and found[1] and not self._gone(1.0):
            raise ValueError(str(found[0]).removeprefix("ValueError: "))
        raise LearnerDied(self._what_happened(name, str(found[0]) if found else ""))

    def _gone(self, timeout_s: float) -> list[int]:
        """The ranks that were killed, of those that end within the time."""
        for process in self._processes:
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                continue
        return [rank for rank, one in enumerate(self._processes) if (one.returncode or 0) < 0]

    def _what_happened(self, asked: str, error: str) -> str:
        killed = self._gone(5.0)
        # who waited in vain has ended and said so; the first one is there where it has told the error
        ended = [rank for rank, one in enumerate(self._processes) if one.poll() is not None]
        if not killed and (late := self._late([error, *map(self._text, ended)])) is not None:
            rank, how = late
            self._processes[rank].kill()
            return lost(f"{rank} of the {self.size}", f"pid {self._processes[rank].pid}", how, asked, "")
        waited = "timed out" in error.lower() or any("timed out" in self._text(rank).lower() for rank in ended)
        silent = [rank for rank in range(len(self._processes)) if rank not in ended and (rank or not error)]
        if silent and not killed and waited:
            for rank in silent:  # it would not hear that it is to end
                self._processes[rank].kill()
            how = f"gave the others no answer in learner.patience_s = {self._patience_s:g} s"
            return lost(f"{silent[0]} of the {self.size}", f"pid {self._processes[silent[0]].pid}", how, asked, "")
        who = killed or [rank for rank, one in enumerate(self._processes) if one.returncode] or [0]
        rank = who[0]
        process = self._processes[rank]
        code = process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else "broke"
        told = "" if killed else error or " ".join(self._text(rank).splitlines()[-1:])
        return lost(f"{rank} of the {self.size}", f"pid {process.pid}", how, asked, told)

    def _late(self, said: Sequence[str]) -> tuple[int, str] | None:
        """Who was not there when the others were, of those that were started here, and how that is said."""
        for found in filter(None, map(LATE.search, said)):
            if (rank := int(found[1])) < len(self._processes):
                return rank, found[0][found[0].index("did not") :]
        return None

    def _text(self, rank: int) -> str:
        """What a process has said."""
        self._said[rank].seek(0)
        return str(self._said[rank].read().decode(errors="replace").strip())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                self._requests.send_bytes(b"")
                self._processes[0].wait(_LEAVE_S)
            except (OSError, subprocess.TimeoutExpired):
                pass  # it is ended below
        self._end()

    def _end(self) -> None:
        """Let go of every line, which ends them, and see that it did."""
        for line in (self._requests, *self._lines):
            line.close()
        for process in self._processes:
            try:
                process.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._open.close()

    @property
    def pids(self) -> Sequence[int]:
        """Of the processes that were started here, in the order of their ranks."""
        return [process.pid for process in self._processes]
