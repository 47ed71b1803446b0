"""What a pool is asked for: a start, however it begins, and its turn."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import World
from envgym_sandboxes.pool.ledger import Seat
from envgym_sandboxes.pool.member import Member
from envgym_sandboxes.world_name import world_name

__all__ = ["Ask", "Turn", "creating"]


@dataclass(slots=True, eq=False)
class Ask:
    """A request: how it begins, for whom, of which world, and the only place that can serve it ("": any).

    check: raises when it can be served no more, since what it goes on from is gone. fresh: it makes a sandbox of
    the world itself, which can be made again to see whether a backend lives.
    """

    begin: Callable[[Member, SandboxBackend], Awaitable[Sandbox]]
    share: str
    world: World
    key: str
    place: str = ""
    check: Callable[[], None] = lambda: None
    fresh: bool = False

    @property
    def may(self) -> int:
        """The most memory that the world allows, bytes."""
        return self.world.resources.memory_bytes


@dataclass(slots=True, eq=False)
class Turn:
    """An ask that waits, and the future of its seat."""

    ask: Ask
    granted: "asyncio.Future[tuple[Member, Seat]]"


async def _create(world: World, _member: Member, backend: SandboxBackend) -> Sandbox:
    return await backend.create(world)


def creating(world: World, share: str) -> Ask:
    """To create a sandbox of a world."""
    return Ask(partial(_create, world), share, world, world_name(world), fresh=True)
