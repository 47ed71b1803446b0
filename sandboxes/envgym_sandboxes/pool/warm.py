"""How warm sandboxes are made, handed out and given up; the shelf says of which worlds."""

import asyncio
import logging
from typing import TYPE_CHECKING

from envgym_sandboxes.pool.ask import Ask, Turn, creating
from envgym_sandboxes.pool.member import Member
from envgym_sandboxes.pool.sandbox import PoolSandbox
from envgym_sandboxes.pool.shelf import Shelf

if TYPE_CHECKING:
    from envgym_sandboxes.pool.core import Core

__all__ = ["WARM", "Warm"]

_LOG = logging.getLogger("envgym.sandboxes")
WARM = "(warm)"
"""The share that warm sandboxes belong to until they are handed out."""


class Warm:
    """Of one pool."""

    def __init__(self, core: "Core") -> None:
        self._core = core
        self.shelf = Shelf(core.bounds.warm, core.bounds.warm_worlds)

    def asked(self, ask: Ask) -> None:
        """A world was asked for."""
        for gone in self.shelf.asked(ask.key, ask.world):
            self._core.later(gone.close())

    def drop(self, member: Member) -> None:
        """Give up all on a host whose memory is short."""
        for warm in self.shelf.drop(member):
            self._core.later(warm.close())

    async def take(self, ask: Ask) -> PoolSandbox | None:
        """A warm sandbox that lives, as the share's own."""
        while (sandbox := self.shelf.take(ask.key)) is not None:
            alive = await self._looked_at(sandbox)
            if alive and not self._core.closed:
                sandbox.member.ledger.move(sandbox.seat, ask.share)
                self._core.schedule()  # another one takes its place
                return sandbox
            self._core.later(sandbox.close())
        return None

    async def _looked_at(self, sandbox: PoolSandbox) -> bool:
        try:
            return await sandbox.alive() and sandbox in self._core.sandboxes
        except BaseException:
            self._core.later(sandbox.close())
            raise

    def refill(self) -> None:
        """Use idle starts, half of them at most, for what is likely to be asked for."""
        while (wanted := self.shelf.wanted()) is not None:
            key, world = wanted
            ask = creating(world, WARM)
            free = [one for one in self._core.members.values() if self._may_warm(one, ask)]
            if not free:
                return
            turn = Turn(ask, asyncio.get_running_loop().create_future())
            self.shelf.coming(key, 1)
            self._core.sit(max(free, key=lambda one: one.room()), turn)
            self._core.later(self._make_warm(turn))

    def _may_warm(self, member: Member, ask: Ask) -> bool:
        few = member.starting < max(1, self._core.bounds.most_starts // 2)
        return member.proven and few and self._core.has_room(member, ask)

    async def _make_warm(self, turn: Turn) -> None:
        key = turn.ask.key
        sandbox: PoolSandbox | None = None
        try:
            sandbox = await self._core.begin(*turn.granted.result(), turn.ask)
        except Exception as error:  # nobody asked for it; who does will be told
            _LOG.warning("pool: no warm sandbox was made: %s: %s", type(error).__name__, error)
        finally:
            self.shelf.coming(key, -1)
            if sandbox is None:
                for gone in self.shelf.forget(key):
                    self._core.later(gone.close())
        if sandbox is not None and (self._core.closed or not self.shelf.put(key, sandbox)):
            await sandbox.close()
        self._core.schedule()
