"""A sandbox of a pool: the inner one, with a seat on its host that it leaves when it ends.

It passes every call on. What it adds is the reason of its end: that its backend died, or that the pool ended it for
memory.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from signal import SIGTERM
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from envgym.arguments import AnyPath
from envgym.egress import EgressRecord
from envgym.errors import EnvgymError, SandboxDied
from envgym.sandbox import ExecResult, ProcessStatus, Sandbox, SandboxSnapshot
from envgym_sandboxes.pool.ledger import Seat
from envgym_sandboxes.pool.member import Member

if TYPE_CHECKING:
    from envgym_sandboxes.pool.core import Core

__all__ = ["PoolSandbox"]

_ALIVE_S = 5.0
T = TypeVar("T")


class PoolSandbox:
    """See `envgym.sandbox.Sandbox`. Made by a pool only."""

    backend = "pool"

    def __init__(self, core: "Core", member: Member, inner: Sandbox, seat: Seat) -> None:
        self.id, self.world = f"{member.name}/{inner.id}", inner.world
        self.inner, self.member, self.seat = inner, member, seat
        self.generation = member.generation
        self._core = core
        self._dead = ""
        self._closing: asyncio.Task[None] | None = None
        member.tenants[self] = None

    # -- its end -----------------------------------------------------------------------------------------------

    def fall(self, reason: str) -> None:
        """It is gone, and says why; its seat is free."""
        if not self._dead:
            self._dead = reason
            self._leave()

    def _leave(self) -> None:
        self.member.tenants.pop(self, None)
        self.member.ledger.leave(self.seat)
        self._core.gone(self)

    async def evict(self, reason: str) -> None:
        """End it for memory."""
        self.member.tenants.pop(self, None)
        self._dead = self._dead or reason
        await self.close()

    def check(self) -> None:
        """Raise SandboxDied when it is gone or closed, RuntimeError in another event loop than its pool's."""
        self._core.home.check()
        if self._dead:
            raise SandboxDied(f"sandbox {self.id} is gone: {self._dead}")
        if self._closing is not None:
            raise SandboxDied(f"sandbox {self.id} is closed")

    async def _call(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except SandboxDied as error:
            if self._dead:
                raise SandboxDied(f"sandbox {self.id} is gone: {self._dead}") from error
            if self._closing is None:
                self.member.suspect(error)
            raise

    async def alive(self) -> bool:
        """Whether it still answers; nothing in it changes by that."""
        try:
            async with asyncio.timeout(_ALIVE_S):
                await self.inner.read(self.world.workdir)
        except (EnvgymError, TimeoutError):
            return False
        except OSError:
            return True  # the workdir is a directory, said the sandbox
        return True

    async def close(self) -> None:
        """See `envgym.sandbox.Sandbox.close`. A caller who is cancelled does not stop it."""
        self._core.home.check()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            with contextlib.suppress(EnvgymError):
                await self.inner.close()
        finally:
            self._leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()

    # -- the contract ------------------------------------------------------------------------------------------

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
        """See `envgym.sandbox.Shell.exec`."""
        self.check()
        work = self.inner.exec(
            command, stdin=stdin, env=env, cwd=cwd, timeout_s=timeout_s, output_bytes=output_bytes
        )
        result = await self._call(work)
        if result.peak_bytes is not None and self.seat.used is None:
            self.member.ledger.note(self.seat, result.peak_bytes)
        return result

    async def start(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: AnyPath | None = None,
    ) -> str:
        """See `envgym.sandbox.Shell.start`."""
        self.check()
        return await self._call(self.inner.start(argv, stdin=stdin, env=env, cwd=cwd))

    async def poll(self, process: str, *, wait_s: float = 0.0) -> ProcessStatus:
        """See `envgym.sandbox.Shell.poll`."""
        self.check()
        return await self._call(self.inner.poll(process, wait_s=wait_s))

    async def signal(self, process: str, number: int = SIGTERM) -> None:
        """See `envgym.sandbox.Shell.signal`."""
        self.check()
        await self._call(self.inner.signal(process, number))

    async def read(self, path: AnyPath) -> bytes:
        """See `envgym.sandbox.Shell.read`."""
        self.check()
        return await self._call(self.inner.read(path))

    async def write(self, path: AnyPath, content: bytes) -> None:
        """See `envgym.sandbox.Shell.write`."""
        self.check()
        await self._call(self.inner.write(path, content))

    async def put(self, source: AnyPath, target: AnyPath) -> None:
        """See `envgym.sandbox.Shell.put`."""
        self.check()
        await self._call(self.inner.put(source, target))

    async def get(self, source: AnyPath, target: AnyPath) -> None:
        """See `envgym.sandbox.Shell.get`."""
        self.check()
        await self._call(self.inner.get(source, target))

    async def snapshot(self, *, durable: bool = False) -> SandboxSnapshot:
        """See `envgym.sandbox.Sandbox.snapshot`. A durable one is no share's; it is kept where the sandbox is."""
        self.check()
        return self._core.states.keep(self, await self._call(self.inner.snapshot(durable=durable)))

    async def fork(self) -> Sandbox:
        """See `envgym.sandbox.Sandbox.fork`. It waits for its turn as a create does, on the same host."""
        self.check()
        return await self._call(self._core.fork(self))

    async def digest(self) -> str:
        """See `envgym.sandbox.Sandbox.digest`."""
        self.check()
        return await self._call(self.inner.digest())

    async def diff(self, since: SandboxSnapshot | None = None) -> dict[str, bytes | None]:
        """See `envgym.sandbox.Sandbox.diff`."""
        self.check()
        if since is None:
            return await self._call(self.inner.diff())
        async with self._core.states.at_sandbox(since, self) as inner:
            return await self._call(self.inner.diff(inner))

    async def egress_log(self) -> tuple[EgressRecord, ...]:
        """See `envgym.sandbox.Sandbox.egress_log`."""
        self.check()
        return await self._call(self.inner.egress_log())

    def forward(self, port: int) -> AbstractAsyncContextManager[tuple[str, int]]:
        """See `envgym.sandbox.Sandbox.forward`."""
        return self._forwarded(self.inner.forward(port))

    @asynccontextmanager
    async def _forwarded(
        self, inner: AbstractAsyncContextManager[tuple[str, int]]
    ) -> AsyncIterator[tuple[str, int]]:
        self.check()
        async with inner as address:
            yield address
