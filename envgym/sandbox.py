"""Where actions take effect: three small protocols over one life cycle.

Every sandbox has limits, no network unless the task asks, `snapshot` and `fork`. Backends live in leaves
and are found by name; this file holds the contract only. `envgym.testing.check_sandbox` makes it executable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self, runtime_checkable

from pydantic import BaseModel, ConfigDict

from envgym.task import World

__all__ = [
    "WARM_PYTHON",
    "BackendReport",
    "ExecResult",
    "Page",
    "Sandbox",
    "SandboxBackend",
    "SandboxSnapshot",
    "Screen",
    "Shell",
    "is_warm",
]

WARM_PYTHON = "@python"
"""``exec([WARM_PYTHON, "-m", "pytest", ...])`` runs a module in an interpreter that has `World.preload` already
imported, where the backend has one, and in a cold interpreter otherwise; the result is the same, only the
latency differs."""


def is_warm(argv: str | Sequence[str]) -> bool:
    """Whether a command asks for the warm interpreter."""
    return not isinstance(argv, str) and len(argv) > 0 and argv[0] == WARM_PYTHON


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What one command did.

    exit_code: the process's status, negative for a signal (-9), None when the deadline killed it.
    stdout, stderr: bytes as written, head and tail kept up to `Resources.output_bytes` each.
    lost_bytes: how many bytes of (stdout, stderr) were cut from their middle.
    cpu_s, peak_bytes: of the command's processes where the backend can tell, else None.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    wall_s: float
    timed_out: bool = False
    out_of_memory: bool = False
    lost_bytes: tuple[int, int] = (0, 0)
    cpu_s: float | None = None
    peak_bytes: int | None = None

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.exit_code == 0

    @property
    def text(self) -> str:
        """Standard output, then standard error, as text (invalid UTF-8 replaced)."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


class SandboxSnapshot(BaseModel):
    """A durable, refcounted handle of a sandbox's files and shell state; plain data, safe to store.

    restore: "exact" brings back the very state.
    partial: background processes were alive; they are not part of it, and files they held open may differ.
    digest: of the content that is in the writable layers (same writes, same digest).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    backend: str
    restore: Literal["exact"] = "exact"
    partial: bool = False
    digest: str = ""


@runtime_checkable
class Shell(Protocol):
    """Commands and files. Paths are absolute, or relative to the world's workdir."""

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float | None = None,
    ) -> ExecResult:
        """Run a command to its end, its deadline, or the sandbox's death.

        A string runs in the sandbox's one persistent shell: working directory, variables and functions
        survive to the next string command. A sequence is an argv, run as its own process in the workdir
        (not in the shell's current directory) with the world's environment. `timeout_s` None means
        `Resources.command_s`; at the deadline the command's whole process tree is killed and the result says
        so (the model's fault is data). Raises SandboxDied when the sandbox itself is gone.
        """
        ...

    async def read(self, path: str) -> bytes:
        """A file's content. Raises FileNotFoundError, IsADirectoryError, PermissionError like `open`."""
        ...

    async def write(self, path: str, content: bytes) -> None:
        """Write a file (parents made, mode 0644 unless it exists), as the sandbox's user."""
        ...

    async def put(self, source: str, target: str) -> None:
        """Copy a file or tree of the host into the world. Symlinks are copied as symlinks."""
        ...

    async def get(self, source: str, target: str) -> None:
        """Copy a file or tree of the world to the host; never writes outside `target`."""
        ...


@runtime_checkable
class Page(Protocol):
    """A web page as a place to act."""

    async def goto(self, url: str) -> None:
        """Load a URL and wait until it is loaded."""
        ...

    async def observe(self) -> str:
        """The page as text: its accessibility tree with references that `act` understands."""
        ...

    async def act(self, name: str, arguments: Mapping[str, str]) -> None:
        """Do something on the page, such as ``act("click", {"ref": "e7"})``."""
        ...


@runtime_checkable
class Screen(Protocol):
    """A display with pointer and keys."""

    async def image(self) -> bytes:
        """What is shown, as PNG."""
        ...

    async def pointer(self, x: int, y: int, *, button: int = 0) -> None:
        """Move to a pixel and press a button there (0: none)."""
        ...

    async def keys(self, text: str) -> None:
        """Type text."""
        ...


class Sandbox(Shell, Protocol):
    """One isolated place with a shell. An async context manager; `close` is idempotent and leaves nothing."""

    id: str
    backend: str
    world: World

    async def snapshot(self) -> SandboxSnapshot:
        """Freeze the state: what was written becomes a read-only layer; this sandbox goes on above it.

        The caller owns one reference; give it back with `SandboxBackend.release`.
        """
        ...

    async def fork(self) -> "Sandbox":
        """An independent sandbox in the same state; nothing done in one is seen by the other."""
        ...

    async def digest(self) -> str:
        """A digest of everything written since the world was made (paths, modes, contents, deletions)."""
        ...

    async def diff(self) -> dict[str, bytes | None]:
        """Files written since the world was made: absolute path -> content, None where deleted."""
        ...

    async def close(self) -> None:
        """End every process and remove every trace. Never raises for what is already gone."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class BackendReport(BaseModel):
    """What `envgym doctor` says of a backend: whether it works here, how strong it is, and what would fix it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: str
    works: bool
    isolates: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()


class SandboxBackend(Protocol):
    """Makes sandboxes of one kind on this host. An async context manager that owns all it made."""

    name: str

    async def create(self, world: World) -> Sandbox:
        """A fresh sandbox in the world's base state (image, trees, files, setup)."""
        ...

    async def restore(self, snapshot: SandboxSnapshot) -> Sandbox:
        """A fresh sandbox in a snapshot's state. Raises SnapshotGone."""
        ...

    async def retain(self, snapshot: SandboxSnapshot) -> None:
        """Take one more reference."""
        ...

    async def release(self, snapshot: SandboxSnapshot) -> None:
        """Give one reference back; the last one removes the layers nothing else uses."""
        ...

    def report(self) -> BackendReport:
        """Whether this backend works here. Never raises."""
        ...

    def reap(self) -> list[str]:
        """Remove what dead owners left (kill -9 included); returns a line per thing removed."""
        ...

    async def close(self) -> None:
        """Close every sandbox that is still open and every unreleased snapshot."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
