"""A sandbox backend in memory, for the logic of whoever stands between backends and users: no process, no clock.

A sandbox is a dictionary of files. Starts wait where the test says, and the whole backend breaks when it says so.
It keeps the contract's life cycle (ends, snapshots, references) and isolates nothing, since nothing runs.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGTERM
from types import TracebackType
from typing import Self

from envgym import arguments
from envgym.arguments import AnyPath
from envgym.errors import InfrastructureFailure, SandboxDied, SnapshotGone
from envgym.sandbox import BackendReport, ExecResult, ProcessStatus, SandboxSnapshot
from envgym.task import World, checked_world

__all__ = ["FakeBackend", "FakeSandbox"]


class FakeSandbox:
    """Files by path. The command ["hold"] never ends; every other one ends at once and gives its stdin back."""

    def __init__(self, backend: "FakeBackend", name: str, world: World, files: Mapping[str, bytes]) -> None:
        self.id, self.backend, self.world = name, backend.name, world
        self.files = dict(files)
        self.held = 0
        self.processes: list[bytes] = []
        self._backend = backend
        self._dead: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def die(self) -> None:
        """End it, as a killed one ends: whatever is asked of it fails."""
        self._backend.open.pop(self.id, None)
        if not self._dead.done():
            self._dead.set_result(None)

    def _live(self) -> None:
        if self._dead.done():
            raise SandboxDied(f"sandbox {self.id} is gone")

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
        """See `Shell.exec`."""
        self._live()
        resources = self.world.resources
        given = arguments.program(command, resources, stdin=stdin, env=env, cwd=cwd)
        arguments.time_bound(timeout_s, resources)
        arguments.output_bound(output_bytes, resources)
        if given.command == ["hold"]:
            self.held += 1
            try:
                await asyncio.shield(self._dead)
            finally:
                self.held -= 1
            self._live()
        return ExecResult(exit_code=0, stdout=given.stdin, stderr=b"", wall_s=0.0)

    async def start(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: AnyPath | None = None,
    ) -> str:
        """See `Shell.start`. It ends at once and gives its stdin back."""
        self._live()
        given = arguments.program(argv, self.world.resources, stdin=stdin, env=env, cwd=cwd, argv_only=True)
        self.processes.append(given.stdin)
        return f"p{len(self.processes)}"

    async def poll(self, process: str, *, wait_s: float = 0.0) -> ProcessStatus:
        """See `Shell.poll`."""
        self._live()
        arguments.checked_seconds("wait_s", wait_s, none_at_all=True)
        names = [f"p{at + 1}" for at in range(len(self.processes))]
        if arguments.checked_text("process", process) not in names:
            raise ValueError(f"process {process!r} was never started here")
        number = names.index(process)
        output, self.processes[number] = self.processes[number], b""
        return ProcessStatus(False, 0, output, b"")

    async def signal(self, process: str, number: int = SIGTERM) -> None:
        """See `Shell.signal`."""
        arguments.checked_signal(number)
        await self.poll(process)

    async def read(self, path: AnyPath) -> bytes:
        """See `Shell.read`."""
        self._live()
        path = arguments.checked_path("path", path)
        if path == self.world.workdir:
            raise IsADirectoryError(21, "Is a directory", path)
        if path not in self.files:
            raise FileNotFoundError(2, "No such file", path)
        return self.files[path]

    async def write(self, path: AnyPath, content: bytes) -> None:
        """See `Shell.write`."""
        self._live()
        self.files[arguments.checked_path("path", path)] = arguments.checked_bytes("content", content)

    async def put(self, source: AnyPath, target: AnyPath) -> None:
        """See `Shell.put`; files only."""
        source = arguments.checked_path("source", source)
        await self.write(target, await asyncio.to_thread(Path(source).read_bytes))

    async def get(self, source: AnyPath, target: AnyPath) -> None:
        """See `Shell.get`; files only."""
        target = arguments.checked_path("target", target)
        await asyncio.to_thread(Path(target).write_bytes, await self.read(source))

    async def snapshot(self, *, durable: bool = False) -> SandboxSnapshot:
        """See `Sandbox.snapshot`; none is durable."""
        self._live()
        if durable:
            raise ValueError("durable snapshots: a fake has no disk to keep them on")
        return self._backend.hold(self)

    async def fork(self) -> "FakeSandbox":
        """See `Sandbox.fork`."""
        self._live()
        return await self._backend.begin(self.world, self.files)

    async def digest(self) -> str:
        """See `Sandbox.digest`."""
        self._live()
        return repr(sorted(self.files.items()))

    async def diff(self, since: SandboxSnapshot | None = None) -> dict[str, bytes | None]:
        """See `Sandbox.diff`."""
        self._live()
        old = {path: text.encode() for path, text in self.world.files.items()}
        if since is not None:
            old = self._backend.files_of(since, self.world)
        paths = sorted({*old, *self.files})
        return {path: self.files.get(path) for path in paths if old.get(path) != self.files.get(path)}

    async def close(self) -> None:
        """See `Sandbox.close`."""
        self.die()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()


class FakeBackend:
    """See `SandboxBackend`.

    start: awaited by every start, which fails with what it raises. open: the live sandboxes by name. starting and
    most_starting: how many starts are under way, and were at most. started: how many began.
    """

    def __init__(self, *, name: str = "fake", start: Callable[[World], Awaitable[None]] | None = None) -> None:
        self.name = name
        self.open: dict[str, FakeSandbox] = {}
        self.held: dict[str, tuple[World, dict[str, bytes], int]] = {}
        self.starting = self.most_starting = self.started = 0
        self.broken = ""
        self._start = start
        self._numbers = itertools.count(1)

    async def begin(self, world: World, files: Mapping[str, bytes]) -> FakeSandbox:
        """A started sandbox."""
        self._alive()
        self.starting += 1
        self.started += 1
        self.most_starting = max(self.starting, self.most_starting)
        try:
            if self._start is not None:
                await self._start(world)
        finally:
            self.starting -= 1
        self._alive()
        sandbox = FakeSandbox(self, f"{self.name}-{next(self._numbers)}", world, files)
        self.open[sandbox.id] = sandbox
        return sandbox

    def _alive(self) -> None:
        if self.broken:
            raise InfrastructureFailure(self.broken)

    def break_down(self, why: str = "the fake backend broke") -> None:
        """Everything in it dies, and whatever is asked of it fails."""
        self.broken = why
        for sandbox in list(self.open.values()):
            sandbox.die()
        self.held.clear()

    async def create(self, world: World) -> FakeSandbox:
        """See the contract."""
        files = checked_world(world).files
        return await self.begin(world, {path: text.encode() for path, text in files.items()})

    def hold(self, sandbox: FakeSandbox) -> SandboxSnapshot:
        """A handle of a sandbox's files, with one reference."""
        self._alive()
        name = f"{self.name}-s{next(self._numbers)}"
        self.held[name] = (sandbox.world, dict(sandbox.files), 1)
        return SandboxSnapshot(id=name, backend=self.name)

    def _held(self, snapshot: SandboxSnapshot) -> tuple[World, dict[str, bytes], int]:
        self._alive()
        if arguments.instance("snapshot", snapshot, SandboxSnapshot).id not in self.held:
            raise SnapshotGone(f"snapshot {snapshot.id!r} is not held by this {self.name} backend")
        return self.held[snapshot.id]

    def files_of(self, snapshot: SandboxSnapshot, world: World) -> dict[str, bytes]:
        """What a snapshot of a world holds."""
        if snapshot.backend != self.name:
            raise ValueError(f"snapshot {snapshot.id!r} is one of backend {snapshot.backend!r}, not {self.name!r}")
        there, files, _references = self._held(snapshot)
        if there != world:
            raise ValueError(f"snapshot {snapshot.id!r} is one of another world")
        return files

    async def restore(self, snapshot: SandboxSnapshot) -> FakeSandbox:
        """See the contract."""
        world, files, _references = self._held(snapshot)
        return await self.begin(world, files)

    async def retain(self, snapshot: SandboxSnapshot) -> None:
        """See the contract."""
        world, files, references = self._held(snapshot)
        self.held[snapshot.id] = (world, files, references + 1)

    async def release(self, snapshot: SandboxSnapshot) -> None:
        """See the contract."""
        world, files, references = self._held(snapshot)
        if references == 1:
            del self.held[snapshot.id]
        else:
            self.held[snapshot.id] = (world, files, references - 1)

    async def snapshots(self) -> list[SandboxSnapshot]:
        """See the contract."""
        return []

    async def export_snapshot(self, snapshot: SandboxSnapshot, path: str) -> None:
        """See the contract; a fake cannot."""
        raise ValueError(f"snapshot {snapshot.id!r} cannot be exported to {path}: a fake has nothing to export")

    async def import_snapshot(self, path: str) -> SandboxSnapshot:
        """See the contract; a fake cannot."""
        raise ValueError(f"{path} cannot be imported by a fake")

    def report(self) -> BackendReport:
        """See the contract. It isolates nothing."""
        return BackendReport(backend=self.name, works=not self.broken, missing=("everything: it is a fake",))

    def reap(self) -> list[str]:
        """See the contract. There is nothing that could be left."""
        return []

    async def close(self) -> None:
        """See the contract."""
        self.break_down(self.broken or f"this {self.name} backend is closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()
