"""Looks at the hosts' memory while a pool uses it, and acts when it is short.

The kernel tells nobody in time and everywhere, so it looks: every quarter of a second while somebody waits or
something grows, every second otherwise, and more often under pressure. Warm sandboxes go first; when half of the
reserve is gone too, the sandbox that uses most is ended, before the kernel ends something that others need.
"""

import asyncio
import contextlib
import itertools
import logging
import time

from envgym.errors import EnvgymError
from envgym.sandbox import MeteredBackend
from envgym_sandboxes.host_memory import host_memory
from envgym_sandboxes.pool.core import Core
from envgym_sandboxes.pool.ledger import Seat
from envgym_sandboxes.pool.member import Member
from envgym_sandboxes.pool.sandbox import PoolSandbox

__all__ = ["Watch"]

_LOG = logging.getLogger("envgym.sandboxes")
_CALM_S, _BUSY_S, _SHORT_S = 1.0, 0.25, 0.05
_MOST = 128
_LEAST_EVICTED = 64 << 20


class Watch:
    """Of one pool; runs while there are seats or somebody waits."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._turns = itertools.count()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        core.on_seat = self.begin

    def begin(self) -> None:
        """Look at every member that has a backend, from now on."""
        for member in self._core.members.values():
            task = self._tasks.get(member.name)
            if (task is None or task.done()) and not self._core.closed and self._busy(member):
                self._tasks[member.name] = asyncio.create_task(self._run(member))

    def _busy(self, member: Member) -> bool:
        return bool(len(member.ledger)) or bool(len(self._core.queue))

    async def _run(self, member: Member) -> None:
        while self._busy(member) and not self._core.closed:
            period = _CALM_S
            with contextlib.suppress(EnvgymError, OSError):  # a backend that cannot tell now is found out by starts
                period = await self._look(member)
            await asyncio.sleep(period)

    async def _look(self, member: Member) -> float:
        """One look; how long until the next."""
        backend = member.backend
        if backend is None:
            return _CALM_S
        by_name: dict[str, Seat] = {}
        for tenant in self._chosen(member):
            by_name[tenant.inner.id] = tenant.seat
        if isinstance(backend, MeteredBackend):
            use = await backend.memory(list(by_name))
            used = {by_name[name]: size for name, size in use.used.items() if name in by_name}
            member.ledger.look(use.total, use.available, used, time.monotonic())
        else:
            member.ledger.look(*host_memory(), {}, time.monotonic())
        self._core.schedule()
        return await self._relieve(member)

    def _chosen(self, member: Member) -> list[PoolSandbox]:
        """Whom to look at: those that have not settled, and a part of the others in turn."""
        there = [sandbox for sandbox in self._core.sandboxes if sandbox.member is member]
        growing = [sandbox for sandbox in there if not sandbox.seat.settled][:_MOST]
        settled = [sandbox for sandbox in there if sandbox.seat.settled]
        at = next(self._turns) * (_MOST // 2)
        return growing + [settled[(at + index) % len(settled)] for index in range(min(_MOST // 2, len(settled)))]

    async def _relieve(self, member: Member) -> float:
        ledger = member.ledger
        if ledger.available is None or ledger.available >= member.reserve:
            waits = len(self._core.queue) or any(not seat.settled for seat in ledger.seats)
            return _BUSY_S if waits else _CALM_S
        self._core.warm.drop(member)
        largest = ledger.largest()
        if ledger.available >= member.reserve // 2 or largest is None or (largest.used or 0) < _LEAST_EVICTED:
            return _BUSY_S
        for sandbox in list(self._core.sandboxes):
            if sandbox.seat is largest:
                reason = (
                    f"its pool ended it: its host had {ledger.available >> 20} MiB left, and it used most, "
                    f"{(largest.used or 0) >> 20} MiB"
                )
                _LOG.warning("pool: sandbox %s: %s", sandbox.id, reason)
                await sandbox.evict(reason)
        return _SHORT_S

    async def close(self) -> None:
        """Look no more."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
