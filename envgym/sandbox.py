"""Where actions take effect: `Shell` and the life cycle of a sandbox; `Page` and `Screen` have files of their own.

Every sandbox has limits, no network unless the task asks, `snapshot` and `fork`. Backends live in leaves
and are found by name; this file holds the contract only. `envgym.testing.check_sandbox` makes it executable.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from signal import SIGTERM
from types import TracebackType
from typing import Literal, Protocol, Self, runtime_checkable

from pydantic import BaseModel, ConfigDict

from envgym.arguments import AnyPath
from envgym.backend_report import BackendReport
from envgym.egress import EgressRecord
from envgym.task import World

__all__ = [
    "WARM_PYTHON",
    "BackendReport",
    "ExecResult",
    "MemoryUse",
    "MeteredBackend",
    "ProcessStatus",
    "Sandbox",
    "SandboxBackend",
    "SandboxSnapshot",
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
    timed_out: its time was up: that of the clock, or (`out_of_cpu` too) `Resources.command_cpu_s`.
    out_of_memory: the kernel killed for memory while it ran.
    stdout, stderr: bytes as written, head and tail kept up to `Resources.output_bytes` each.
    lost_bytes: how many bytes of (stdout, stderr) were cut from their middle; `truncated` says whether any were.
    cpu_s: processor seconds of an argv command's process and the children it waited for; of a string, of the shell
        and the children that it waited for while it ran; of a command with a budget, all that was charged to it.
        None where the backend cannot tell. What is left running in the background is in neither.
    peak_bytes: of an argv command, the largest resident set of one of its processes; of a string, the most memory
        that the whole sandbox held while it ran, what it keeps in files included, where a memory cgroup counts it
        and no other command ran. None where the backend cannot tell.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    wall_s: float
    timed_out: bool = False
    out_of_memory: bool = False
    out_of_cpu: bool = False
    lost_bytes: tuple[int, int] = (0, 0)
    cpu_s: float | None = None
    peak_bytes: int | None = None

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.exit_code == 0

    @property
    def truncated(self) -> tuple[bool, bool]:
        """Whether (stdout, stderr) are not whole."""
        return self.lost_bytes[0] > 0, self.lost_bytes[1] > 0

    @property
    def text(self) -> str:
        """Standard output, then standard error, as text (invalid UTF-8 replaced)."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What a look at a background process finds.

    running: whether it has not ended yet.
    exit_code: its status once it has ended, negative for a signal (-15); 127 when there was no such program.
    stdout, stderr: what was written since the last look, head and tail kept up to `Resources.output_bytes` each.
    lost_bytes: how many bytes of (stdout, stderr) were cut from their middle.
    """

    running: bool
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    lost_bytes: tuple[int, int] = (0, 0)


class SandboxSnapshot(BaseModel):
    """A refcounted handle of a sandbox's files and shell state; plain data, safe to store.

    It holds regular files with their holes, directories, symlinks and fifos, with modes, owners and times of last
    change; which names are hard links of one file; user extended attributes; what was deleted; and the shell's
    directory, variables, functions, aliases and options. It does not hold running processes, open descriptors and
    what was deleted but is still open, sockets, devices, the time of last access, nor /dev and /proc. Where a
    state is stacked on layers, a file that has several names and is written to after a snapshot becomes a file of
    its own under the name that was used.

    restore: "exact" brings back the very state.
    partial: background processes were alive; they are not part of it, and files they held open may differ.
    digest: see `Sandbox.digest`.
    durable: it is kept on this host's disk and outlives its process, however that ends, until it is released.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    backend: str
    restore: Literal["exact"] = "exact"
    partial: bool = False
    digest: str = ""
    durable: bool = False


@runtime_checkable
class Shell(Protocol):
    """Commands and files. Paths are absolute, or relative to the world's workdir.

    Wrong arguments cost nothing: `envgym.arguments` refuses them first, with TypeError or ValueError.
    """

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: AnyPath | None = None,
        timeout_s: float | None = None,
        output_bytes: int | None = None,
    ) -> ExecResult:
        """Run a command to its end, its deadline, or the sandbox's death.

        A string runs in the sandbox's one persistent shell: working directory, variables and functions
        survive to the next string command. A sequence is an argv, run as its own process in the workdir
        (not in the shell's current directory) with the world's environment. `timeout_s` None means
        `Resources.command_s`; at the deadline, or when it has used `Resources.command_cpu_s`, the command's whole
        process tree is killed, whatever it ignores and whatever sessions it made, and the result says so (the
        model's fault is data). `output_bytes` None means `Resources.output_bytes`; beyond it the middle of each
        output is cut. Raises SandboxDied when the sandbox itself is gone; ValueError for an empty argv, a bound
        that is not finite and positive, and an input longer than `Resources.file_bytes`.
        """
        ...

    async def start(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: AnyPath | None = None,
    ) -> str:
        """Start a program that goes on beside the commands; returns its name here, such as "p3".

        As `exec` with a sequence, but without a deadline: it ends by itself, by `signal`, or with the sandbox;
        the deadline of another command does not end it. One that cannot be started (no such program, too many
        running: a backend allows at least 8 at once) is the model's fault: it has a name and has ended with
        status 127 or 126 and a sentence on stderr. Processes are paused while a snapshot is taken, which is
        `partial` while any live, and are not part of it: a fork or a restored sandbox knows none of them.
        """
        ...

    async def poll(self, process: str, *, wait_s: float = 0.0) -> ProcessStatus:
        """What a background process wrote since the last look at it, and whether it has ended.

        wait_s: how long to wait until it has written something or ended; 0 looks at once. What was written is
        given once: a look that is cancelled just as it finds something takes it along.
        One that has ended can still be looked at, also after snapshots, until at least 16 others have ended
        later. Raises ValueError for one that was never started here or is forgotten.
        """
        ...

    async def signal(self, process: str, number: int = SIGTERM) -> None:
        """Send a signal to a background process and its process group; SIGKILL reaches all its descendants.

        Nothing happens to one that has ended. Raises ValueError as `poll` does, and for a number that is none.
        """
        ...

    async def read(self, path: AnyPath) -> bytes:
        """A file's content. Raises FileNotFoundError, IsADirectoryError, PermissionError like `open`.

        Of `read`, `write`, `put` and `get` alike: what is larger than `Resources.transfer_bytes` raises OSError
        (EFBIG) that names the bound, whatever the inside claims or sends. What a tree's transfer moved before it
        met the bound stays.
        """
        ...

    async def write(self, path: AnyPath, content: bytes) -> None:
        """Write a file (parents made, mode 0644 unless it exists), as the sandbox's user."""
        ...

    async def put(self, source: AnyPath, target: AnyPath) -> None:
        """Copy a file or tree of the host into the world. Symlinks are copied as symlinks.

        A tree of more than `Resources.inodes` entries raises OSError (EFBIG), one of more than 256 levels
        OSError (ENAMETOOLONG); so does `get`.
        """
        ...

    async def get(self, source: AnyPath, target: AnyPath) -> None:
        """Copy a file or tree of the world to the host; never writes outside `target`."""
        ...


class Sandbox(Shell, Protocol):
    """One isolated place with a shell. An async context manager; `close` is idempotent and leaves nothing."""

    id: str
    backend: str
    world: World

    async def snapshot(self, *, durable: bool = False) -> SandboxSnapshot:
        """Freeze the state: what was written becomes a read-only layer; this sandbox goes on above it.

        The caller owns one reference; give it back with `SandboxBackend.release`. durable: all of it but the image
        is also written to this host's disk, each layer once however many snapshots stand on it; any process of the
        same user can restore it by a backend of the same kind, also after this one was killed. Raises ValueError
        where a backend has no durable ones.
        """
        ...

    async def fork(self) -> "Sandbox":
        """An independent sandbox in the same state; nothing done in one is seen by the other."""
        ...

    async def digest(self) -> str:
        """A digest of all that differs from the world's base state, whatever was done to get there.

        It covers paths, kinds, permissions, contents, symlinks' targets, user extended attributes and deletions;
        not times, owners, nor which names are hard links of one file.
        """
        ...

    async def diff(self, since: SandboxSnapshot | None = None) -> dict[str, bytes | None]:
        """The files that differ from the world's base state, or from a snapshot's, in what `digest` covers.

        Absolute path -> content (of a symlink, its target); None for files and directories that are gone. What it
        costs is what was written in between, not how much there is. Raises ValueError for a snapshot of another
        backend or world, SnapshotGone, and OSError (EFBIG) when the contents are more than
        `Resources.transfer_bytes` together.
        """
        ...

    def forward(self, port: int) -> AbstractAsyncContextManager[tuple[str, int]]:
        """A listener on the host whose connections end at 127.0.0.1:`port` (or ::1) inside; gives (host, port).

        The host is 127.0.0.1 and the port a free one, open to programs of this process's user and of root alone.
        Bytes go both ways, each way with an end of its own, and neither side is read faster than the other takes.
        A connection that is refused inside is closed at once; a backend allows at least 16 at once and closes more
        than it allows. The listener ends with the context and with the sandbox. Snapshots leave it; they end a
        connection only if nothing inside is alive any more. Where the sandbox has no network of its own, "inside"
        is the host's loopback. Raises ValueError for what is no port, and (on entering at the latest) where
        nothing can listen inside; SandboxDied on entering.
        """
        ...

    async def egress_log(self) -> tuple[EgressRecord, ...]:
        """Every decision about a connection that programs here wanted under `World.egress`, oldest first.

        Also told to the logger "envgym.egress" at once. At least the last 1,000 are kept, gaps show in their
        numbers. A fork or a restored sandbox begins with none; decisions of setup commands are only logged.
        """
        ...

    async def close(self) -> None:
        """End every process and remove every trace. Never raises for what is already gone."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What a backend's host has, and what its sandboxes take of it, bytes.

    total, available: of the host, or of the part of it that the backend may use.
    used: sandbox id -> its processes and its files in memory, for those that were asked for and can be told.
    """

    total: int
    available: int
    used: Mapping[str, int]


@runtime_checkable
class MeteredBackend(Protocol):
    """A backend that can tell what its sandboxes use; pools admit by that instead of by what worlds allow."""

    async def memory(self, sandboxes: Collection[str]) -> MemoryUse:
        """The host's memory, and what these sandboxes use of it. Names that are not known are left out."""
        ...


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

    async def snapshots(self) -> list[SandboxSnapshot]:
        """The durable snapshots on this host that this kind of backend can restore, whoever took them."""
        ...

    async def export_snapshot(self, snapshot: SandboxSnapshot, path: str) -> None:
        """Write a snapshot, durable or not, to one file, which holds everything but the image.

        The file appears complete or not at all. Trees, files and what set-up did are in it. Raises SnapshotGone,
        OSError, and ValueError where a backend cannot.
        """
        ...

    async def import_snapshot(self, path: str) -> SandboxSnapshot:
        """A durable snapshot of what `export_snapshot` wrote, here or on another host.

        The file is believed nothing. Raises StoreCorrupt, with what is wrong, for one that is damaged or malicious,
        ValueError for one of another kind of backend, SandboxUnavailable when its image is another one here, and
        leaves nothing behind then.
        """
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
