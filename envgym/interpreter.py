"""A Python interpreter whose variables persist from cell to cell and whose state can be forked.

The contract only: cells in, results out, and branches that share their past and nothing after. What an
implementation keeps apart between branches is said by `Interpreter.unforked` and by its documentation; it lives in
a leaf and is found by name (`envgym.open_interpreter`). `envgym.testing.check_interpreter` makes this file
executable.
"""

from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

__all__ = ["CellError", "CellResult", "CellState", "Interpreter", "InterpreterSnapshot", "Variable"]

CellState = Literal["kept", "rolled back", "lost"]
"""What became of the variables: as the cell left them; as they were before it, because its process ended; gone."""


@dataclass(frozen=True, slots=True)
class CellError:
    """Why a cell failed.

    type: the exception's class name, or "CellDied" when the cell's process ended before the cell did.
    message: the exception's text.
    traceback: the lines that a prompt shows. They begin at the cell, with its own source lines; the interpreter's
        frames are not among them.
    """

    type: str
    message: str
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CellResult:
    """What one cell did.

    stdout, stderr: what the cell and its child processes wrote, as text; where more than the bound was written, a
        mark stands for what is left out of the middle, and lost_bytes says how much of each that is.
    value: the repr of the cell's last expression as a prompt shows it; None when there is none or it is None.
    images: the figures that the cell left open, as PNG files, in order; they are closed afterwards.
    timed_out: its time was up: that of the clock, or (`out_of_cpu` too) `Resources.command_cpu_s`. There is an
        interrupt first (a KeyboardInterrupt in the cell, variables kept), and after a grace the end of the cell's
        process (state "rolled back").
    wall_s, cpu_s: of the cell; the latter with its ended child processes.
    notes: what else should be known, such as threads that go on running.
    """

    stdout: str
    stderr: str
    value: str | None = None
    error: CellError | None = None
    images: tuple[bytes, ...] = ()
    timed_out: bool = False
    out_of_cpu: bool = False
    state: CellState = "kept"
    wall_s: float = 0.0
    cpu_s: float = 0.0
    lost_bytes: tuple[int, int] = (0, 0)
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the cell ran to its end."""
        return self.error is None

    @property
    def text(self) -> str:
        """What a prompt would show: standard output, the value, standard error, the error, the notes."""
        error = "\n".join(self.error.traceback) if self.error else ""
        parts = (self.stdout, self.value or "", self.stderr, error, *self.notes)
        return "\n".join(part.removesuffix("\n") for part in parts if part)


@dataclass(frozen=True, slots=True)
class Variable:
    """One of the user's variables: its name, its type's name, and a short repr without memory addresses."""

    name: str
    type: str
    text: str


@dataclass(frozen=True, slots=True)
class InterpreterSnapshot:
    """A kept state. It brings back the very state, but lives only as long as an interpreter of its family is open.

    unforked: see `Interpreter.unforked`; what is named there is not part of it.
    """

    id: str
    restore: Literal["exact"] = "exact"
    unforked: tuple[str, ...] = ()


class Interpreter(Protocol):
    """One branch. An async context manager; `close` is idempotent. Calls on one branch run one after the other.

    directory: the absolute path, inside the sandbox, that relative file names of this branch mean.
    unforked: what this branch shares with the one that it was forked from, or lacks, because a fork cannot copy it
        (threads, child processes, open pipes and sockets, shared memory). Empty: the same cells give the
        same results in both, whatever is done in either (but for process ids, the clock and the directory's name).
    """

    @property
    def directory(self) -> str:
        """See the class."""
        ...

    @property
    def unforked(self) -> tuple[str, ...]:
        """See the class."""
        ...

    async def run(self, code: str, *, timeout_s: float | None = None) -> CellResult:
        """Run one cell of plain Python; top-level ``await`` is allowed, standard input is at its end.

        `timeout_s` None means `Resources.command_s`. Whatever the cell does to its own process (exit, a crash, no
        more memory) is data: the variables are then what they were before it. Raises SandboxDied when the sandbox
        is gone, ValueError for a deadline that is not positive.
        """
        ...

    async def fork(self) -> "Interpreter":
        """An independent interpreter in the same state, random number generators included.

        Raises ValueError when there are as many branches and snapshots as were allowed, InfrastructureFailure when
        no fork could be made.
        """
        ...

    async def snapshot(self) -> InterpreterSnapshot:
        """Keep the state. Give it back with `release`. Raises like `fork`."""
        ...

    async def restore(self, snapshot: InterpreterSnapshot) -> "Interpreter":
        """A new interpreter in a state kept by any branch of this family. Raises SnapshotGone, and like `fork`."""
        ...

    async def release(self, snapshot: InterpreterSnapshot) -> None:
        """Let go of a kept state. Raises SnapshotGone when it is not held."""
        ...

    async def names(self) -> tuple[Variable, ...]:
        """The user's variables by name, those with a leading underscore left out; looking changes nothing."""
        ...

    async def digest(self) -> str:
        """A digest of the variables for state keys: plain data by its content, other objects by type and repr."""
        ...

    async def close(self) -> None:
        """End this branch. Never raises for what is already gone."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
