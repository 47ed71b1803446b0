"""One inner backend of a pool: how it is made, whether it lives, and how it comes back.

A backend that fails to start a sandbox is doubted, by a world that it has started before. If that fails too and
none of its sandboxes answers, it is dead, all that was made of it with it, and another one is made; if one answers,
it only lacks what a start needs (a daemon that is away, descriptors), and is asked again. At first that is done at
once, and then ever later. What runs on it, and who waits for it, is the pool's matter; `changed` tells it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Protocol

from envgym.errors import EnvgymError, InfrastructureFailure
from envgym.sandbox import BackendReport, MeteredBackend, SandboxBackend
from envgym.task import World
from envgym_sandboxes.host_memory import host_memory
from envgym_sandboxes.pool.bounds import PoolBounds
from envgym_sandboxes.pool.ledger import Ledger

__all__ = ["Member", "Tenant"]

_LOG = logging.getLogger("envgym.sandboxes")
_FIRST_S, _LAST_S = 0.1, 30.0
_PROBE_S = 60.0
_CLOSE_S = 30.0
_WITNESSES = 3


class Tenant(Protocol):
    """What stands on a member and falls with it."""

    def fall(self, reason: str) -> None:
        """Its backend is dead."""
        ...

    async def alive(self) -> bool:
        """Whether it still answers."""
        ...


class Member:
    """`name` is the pool's for it.

    generation: counts the backends that it has lost. proven: whether one ever started something. error: why it is
    down, None while it is not. tenants: what stands on it.
    """

    def __init__(self, name: str, make: Callable[[], SandboxBackend], owned: bool, bounds: PoolBounds) -> None:
        self.name, self.make, self.bounds = name, make, bounds
        self.ledger = Ledger(bounds.estimate_bytes)
        self.tenants: dict[Tenant, None] = {}
        self.starting = 0
        self.generation = 0
        self.proven = False
        self.error: Exception | None = None
        self.changed: Callable[[], None] = lambda: None
        self._owned = owned
        self._good: World | None = None
        self._backend: SandboxBackend | None = None
        self._building: asyncio.Task[SandboxBackend] | None = None
        self._doubting: asyncio.Task[bool] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def down(self) -> bool:
        """Whether nothing can be started on it now."""
        return self.error is not None

    @property
    def backend(self) -> SandboxBackend | None:
        """The present one, if it is made."""
        return self._backend

    @property
    def bound(self) -> int:
        """What its sandboxes may be charged together, bytes."""
        if self.bounds.memory_bytes is not None:
            return self.bounds.memory_bytes
        return int(self.bounds.memory_share * self._total())

    @property
    def reserve(self) -> int:
        """What its host must keep available, bytes."""
        return int(self.bounds.reserve_share * self._total())

    def _total(self) -> int:
        return self.ledger.total if self.ledger.total is not None else host_memory()[0]

    def room(self) -> float:
        """The part of its bound that is free."""
        return 1 - self.ledger.charged / self.bound

    def report(self) -> BackendReport:
        """What the backend says of its host; it need not be made for that. Never raises."""
        try:
            return (self._backend or self.make()).report()
        except (EnvgymError, ImportError) as error:
            return BackendReport(backend=self.name, works=False, missing=(str(error),))

    def reap(self) -> list[str]:
        """What the backend found of dead owners; nothing where none works."""
        try:
            return (self._backend or self.make()).reap()
        except (EnvgymError, ImportError):
            return []

    async def ready(self) -> SandboxBackend:
        """The present backend, made when first needed. Raises InfrastructureFailure while it is down."""
        if self._backend is not None:
            return self._backend
        if self.error is not None:
            raise InfrastructureFailure(f"backend {self.name} is down: {self.error}")
        if self._building is None:
            self._building = self._task(self._build())
        return await asyncio.shield(self._building)

    async def _build(self) -> SandboxBackend:
        backend: SandboxBackend | None = None
        try:
            backend = self.make()
            if self._owned:
                await backend.__aenter__()
            if isinstance(backend, MeteredBackend):
                use = await backend.memory(())
                self.ledger.look(use.total, use.available, {}, 0.0)
            self._backend = backend
            return backend
        except BaseException as error:
            self._let_go(backend)
            if isinstance(error, Exception):
                self.fall(error)
            raise
        finally:
            self._building = None

    def started(self, world: World) -> None:
        """A sandbox of this world was started."""
        self.proven, self._good = True, world

    # -- doubt, death, return ----------------------------------------------------------------------------------

    async def lives(self, generation: int, error: Exception) -> bool:
        """Whether the backend of a generation can still start what it could; if not, it is down from now on."""
        if self.generation != generation or self.down:
            return False
        if self._good is None:
            self.fall(error)
            return False
        if self._doubting is None:
            self._doubting = self._task(self._probed())
        return await asyncio.shield(self._doubting)

    def suspect(self, error: Exception) -> None:
        """Look, without waiting, whether it lives: one of its sandboxes is gone."""
        if self._doubting is None and not self.down and self._good is not None:
            self._task(self.lives(self.generation, error))

    async def _probed(self) -> bool:
        try:
            await self._probe(self._backend)
        except Exception as error:
            if await self._has_witness():
                self._ail(error)
            else:
                self.fall(error)
            return False
        finally:
            self._doubting = None
        return True

    async def _probe(self, backend: SandboxBackend | None) -> None:
        if backend is not None and self._good is not None:
            async with asyncio.timeout(_PROBE_S):
                sandbox = await backend.create(self._good)
                await sandbox.close()

    async def _has_witness(self) -> bool:
        """Whether one of its oldest sandboxes answers."""
        for tenant in list(self.tenants)[:_WITNESSES]:
            if await tenant.alive():
                return True
        return False

    def _ail(self, error: Exception) -> None:
        """It starts nothing now, and what runs on it goes on."""
        if not self.down:
            _LOG.warning("pool: backend %s starts nothing now: %s: %s", self.name, type(error).__name__, error)
            self.error = error
            self._task(self._return())
            self.changed()

    def fall(self, error: Exception) -> None:
        """It is dead, and all that stands on it; another one is made."""
        if not self.down:
            self._lose(error)
            self._task(self._return())
            self.changed()

    def _lose(self, error: Exception) -> None:
        _LOG.warning("pool: backend %s is gone: %s: %s", self.name, type(error).__name__, error)
        self.error = error
        self.generation += 1
        tenants, self.tenants = list(self.tenants), {}
        for tenant in tenants:
            tenant.fall(f"its backend {self.name} died: {error}")
        backend, self._backend = self._backend, None
        self._let_go(backend)

    def _let_go(self, backend: SandboxBackend | None) -> None:
        """Close a backend that is given up; it may be unable to."""
        if backend is not None and self._owned:
            task = asyncio.create_task(_closed(backend))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _return(self) -> None:
        """Until it starts something again: the one that ails, or another one in the place of a dead one."""
        delay = _FIRST_S
        while self.error is not None:
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LAST_S)
            try:
                if self._backend is None:
                    self._backend = await self._another()
                else:
                    await self._probe(self._backend)
                self.error = None
            except Exception as error:
                self.error = error
                if self._backend is not None and not await self._has_witness():
                    self._lose(error)
                    self.changed()
        _LOG.warning("pool: backend %s is back", self.name)
        self.changed()

    async def _another(self) -> SandboxBackend:
        """A backend that starts what the last one did."""
        backend = self.make()
        try:
            if self._owned:
                await backend.__aenter__()
            await self._probe(backend)
        except BaseException:
            self._let_go(backend)
            raise
        return backend

    # -- the end -----------------------------------------------------------------------------------------------

    def _task(self, work: Any) -> Any:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # who waits is told; it may be that nobody does

    async def close(self) -> None:
        """Stop returning, and close the backend, and those given up, if they were made here."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._backend is not None and self._owned:
            await self._backend.close()
        await asyncio.gather(*self._closing, return_exceptions=True)


async def _closed(backend: SandboxBackend) -> None:
    """Close what is dead; it may be unable to."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_CLOSE_S):
            await backend.close()
