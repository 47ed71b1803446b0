"""How a pool starts sandboxes: who is next, where there is room, and what happens when a start fails.

Every create, fork and restore is a request that waits in the fair queue until a host has a free start and the
memory; then it has a seat there, and starts. A start that fails because its backend is dead waits again. Looking at
the hosts' memory, and ending what must end for it, is `watch`'s matter.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from envgym.errors import (
    DeadlineExceeded,
    EnvgymError,
    EnvironmentFailure,
    InfrastructureFailure,
    PoolFull,
    SandboxDied,
    SnapshotGone,
)
from envgym.sandbox import Sandbox, SandboxSnapshot
from envgym.task import World, checked_world
from envgym_sandboxes.home_loop import HomeLoop
from envgym_sandboxes.pool.ask import Ask, Turn, creating
from envgym_sandboxes.pool.bounds import PoolBounds
from envgym_sandboxes.pool.fair import FairQueue, Waiting
from envgym_sandboxes.pool.ledger import Seat
from envgym_sandboxes.pool.member import Member
from envgym_sandboxes.pool.sandbox import PoolSandbox
from envgym_sandboxes.pool.states import States
from envgym_sandboxes.pool.usage import usage_text
from envgym_sandboxes.pool.warm import WARM, Warm
from envgym_sandboxes.world_name import world_name

__all__ = ["Again", "Core"]

_LOG = logging.getLogger("envgym.sandboxes")
_ATTEMPTS = 3
_QUIET_S = 30.0
_OTHERS = (EnvironmentFailure, SnapshotGone, SandboxDied, PoolFull)
"""Failures of a start that are no sign of a dead backend."""


class Again(Exception):
    """The backend died under a start."""


class Core:
    """A pool without its views. Members have their bounds."""

    def __init__(self, members: list[Member], bounds: PoolBounds) -> None:
        self.members = {member.name: member for member in members}
        self.bounds = bounds
        self.queue: FairQueue[Turn] = FairQueue()
        self.queue.add(WARM, 1.0)
        self.warm = Warm(self)
        self.sandboxes: dict[PoolSandbox, None] = {}
        self.states = States(self.members)
        self.short: set[Member] = set()
        self.closed = False
        self.home = HomeLoop("this pool")
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.on_seat: Callable[[], None] = lambda: None
        self._tasks: set[asyncio.Task[Any]] = set()
        for member in members:
            member.changed = self.schedule

    # -- requests ----------------------------------------------------------------------------------------------

    async def create(self, share: str, world: World) -> PoolSandbox:
        """A fresh sandbox: a warm one that lives, or a new one."""
        self.check_open()
        ask = creating(checked_world(world), share)
        self.warm.asked(ask)
        if not self.queue.waiting(share) and (warm := await self.warm.take(ask)) is not None:
            return warm
        return await self.start(ask)

    async def fork(self, sandbox: PoolSandbox) -> PoolSandbox:
        """A fork, on the same host."""
        self.check_open()
        world = sandbox.world
        ask = Ask(lambda _m, _b: sandbox.inner.fork(), sandbox.seat.share, world, world_name(world))
        ask.place, ask.check = sandbox.member.name, sandbox.check
        return await self.start(ask)

    async def restore(self, share: str, snapshot: SandboxSnapshot) -> PoolSandbox:
        """A sandbox in a snapshot's state, where that is."""
        self.check_open()
        kept = self.states.kept(snapshot)
        kept.check()
        world = kept.world or World()  # a durable one may be of any; what it takes is seen once it runs
        return await self.start(Ask(kept.begin, share, world, world_name(world), kept.member.name, kept.check))

    async def start(self, ask: Ask) -> PoolSandbox:
        """Wait for a seat, and start on it. Raises PoolFull, or what the start raises."""
        failure: BaseException | None = None
        for _ in range(_ATTEMPTS):
            member, seat = await self._seat(ask)
            try:
                return await self.begin(member, seat, ask)
            except Again as again:
                failure = again.__cause__
        assert failure is not None
        raise failure

    def check_open(self) -> None:
        """Raise InfrastructureFailure when the pool is closed, RuntimeError in another event loop than its own."""
        self.home.check()
        if self.closed:
            raise InfrastructureFailure("this pool is closed")

    async def _seat(self, ask: Ask) -> tuple[Member, Seat]:
        self.check_open()
        if self.queue.waiting(ask.share) >= self.bounds.queue:
            raise PoolFull(f"{self.bounds.queue} requests of share {ask.share!r} wait already: {usage_text(self)}")
        turn = Turn(ask, asyncio.get_running_loop().create_future())
        waiting = self.queue.push(turn, ask.share, ask.place)
        self.schedule()
        self.on_seat()
        try:
            async with asyncio.timeout(self.bounds.wait_s) as timer:
                return await turn.granted
        except BaseException as error:
            if not turn.granted.done() or turn.granted.cancelled():
                self.queue.remove(waiting)
                self.schedule()  # others may have waited behind it
            elif turn.granted.exception() is None:
                self._give_back(*turn.granted.result())
            if isinstance(error, TimeoutError) and timer.expired():
                where = f" on {ask.place}" if ask.place else ""
                raise PoolFull(f"no room within {self.bounds.wait_s:g} s{where}: {usage_text(self)}") from None
            raise

    def _give_back(self, member: Member, seat: Seat) -> None:
        member.ledger.leave(seat)
        self._start_over(member)

    def _start_over(self, member: Member) -> None:
        member.starting -= 1
        if not any(one.starting for one in self.members.values()):
            self._quiet.set()
        self.schedule()

    # -- starts ------------------------------------------------------------------------------------------------

    async def begin(self, member: Member, seat: Seat, ask: Ask) -> PoolSandbox:
        """Start on a seat, which is given back if that fails. Raises what the start raises, or `Again`."""
        generation = member.generation
        sandbox: PoolSandbox | None = None
        try:
            inner = await self._started(member, ask)
            if member.generation != generation or self.closed:
                self.later(inner.close())
                self.check_open()
                raise InfrastructureFailure(f"backend {member.name} died during a start")
            if ask.fresh:
                member.started(ask.world)
            sandbox = PoolSandbox(self, member, inner, seat)
            self.sandboxes[sandbox] = None
            return sandbox
        except (ValueError, TypeError, *_OTHERS):
            raise
        except Exception as error:
            if await self._is_dead(member, generation, error, ask):
                raise Again from error
            raise
        finally:
            if sandbox is None:
                member.ledger.leave(seat)
            self._start_over(member)
            self.on_seat()

    async def _started(self, member: Member, ask: Ask) -> Sandbox:
        try:
            async with asyncio.timeout(self.bounds.start_s) as timer:
                return await ask.begin(member, await member.ready())
        except TimeoutError as error:
            if timer.expired():
                raise DeadlineExceeded("starting a sandbox", self.bounds.start_s) from error
            raise

    async def _is_dead(self, member: Member, generation: int, error: Exception, ask: Ask) -> bool:
        """Whether a start failed because its backend is dead, and may be tried again."""
        if self.closed:
            return False
        first = not member.proven
        if await member.lives(generation, error):
            return False
        others = [one for one in self.members.values() if not one.down]
        return not first or (bool(others) and not ask.place)

    # -- who is next -------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Serve who can be served now."""
        if self.closed:
            return
        self.short.clear()
        while (waiting := self.queue.next(self._fits, self._within)) is not None:
            turn, member = waiting.item, self.members[waiting.place]
            self.sit(member, turn)
        self._refuse_hopeless()
        for member in self.short:
            self.warm.drop(member)
        if not len(self.queue):
            self.warm.refill()

    def sit(self, member: Member, turn: Turn) -> None:
        """Give a turn its seat on a member that has room."""
        ask = turn.ask
        if turn.granted.done():
            return  # cancelled just now
        member.starting += 1
        self._quiet.clear()
        turn.granted.set_result((member, member.ledger.sit(ask.share, ask.key, ask.may)))

    def _fits(self, waiting: Waiting[Turn]) -> str | None:
        """Where a request can start now: of several hosts the one with most of its memory free."""
        ask = waiting.item.ask
        places = [self.members[waiting.place]] if waiting.place else list(self.members.values())
        free = [member for member in places if self.has_room(member, ask)]
        if not free:
            return None
        return max(free, key=lambda member: (member.room(), -member.starting, -len(member.ledger))).name

    def has_room(self, member: Member, ask: Ask) -> bool:
        """Whether a start may begin on a member now."""
        if member.down or member.starting >= self.bounds.most_starts:
            return False
        if self.bounds.sandboxes is not None and len(member.ledger) >= self.bounds.sandboxes:
            self.short.add(member)
            return False
        price = member.ledger.price(ask.key, ask.may)
        if member.ledger.fits(price + self._owed(member, ask, price), member.bound, member.reserve):
            return True
        self.short.add(member)
        return False

    def _within(self, waiting: Waiting[Turn]) -> bool:
        """Whether a share stays within its part of all memory with one more sandbox."""
        ask = waiting.item.ask
        price = max(member.ledger.price(ask.key, ask.may) for member in self.members.values())
        return self.held(ask.share) + price <= self._part(ask.share)

    def _part(self, share: str) -> float:
        """A share's part of all memory, bytes: by weight, among those who hold or wait."""
        users = {share, *(one for one in self.queue.shares if self.queue.waiting(one) or self.held(one))}
        weights = sum(self.queue.weight(one) for one in users)
        return self.queue.weight(share) / weights * sum(member.bound for member in self.members.values())

    def _owed(self, member: Member, ask: Ask, price: int) -> int:
        """What a share that is beyond its part must leave for those who wait within theirs, bytes."""
        waits = [share for share in self.queue.shares if share != ask.share and self.queue.waiting(share)]
        if not waits or self.held(ask.share) + price <= self._part(ask.share):
            return 0
        owed = 0
        for share in waits:
            head = self.queue.head(share).item.ask
            wanted = self.queue.waiting(share) * member.ledger.price(head.key, head.may)
            owed += max(0, min(wanted, int(self._part(share)) - self.held(share)))
        return owed

    def held(self, share: str) -> int:
        """What a share is charged on all hosts, bytes."""
        return sum(member.ledger.of_share(share) for member in self.members.values())

    def _refuse_hopeless(self) -> None:
        """Who waits for hosts that never worked, or to go on from what is gone, waits for nothing."""
        if not any(member.down for member in self.members.values()):
            return  # this is called at every start, however many wait
        for waiting in list(self.queue):
            places = [self.members[waiting.place]] if waiting.place else list(self.members.values())
            if all(member.down and not member.proven for member in places):
                self._refuse(waiting, places[0].error or InfrastructureFailure("no backend works"))
            elif places[0].down:
                try:
                    waiting.item.ask.check()
                except EnvgymError as error:
                    self._refuse(waiting, error)

    def _refuse(self, waiting: Waiting[Turn], error: Exception) -> None:
        self.queue.remove(waiting)
        if not waiting.item.granted.done():
            waiting.item.granted.set_exception(error)

    # -- ends -------------------------------------------------------------------------------------------------

    def gone(self, sandbox: PoolSandbox) -> None:
        """A sandbox has left its seat."""
        self.sandboxes.pop(sandbox, None)
        self.warm.shelf.remove(sandbox)
        self.schedule()

    async def leave(self, share: str) -> None:
        """End everything of a share, and refuse who waits for it."""
        for waiting in [one for one in self.queue if one.share == share]:
            self._refuse(waiting, InfrastructureFailure(f"share {share!r} of this pool is closed"))
        mine = [sandbox for sandbox in self.sandboxes if sandbox.seat.share == share]
        await asyncio.gather(*(sandbox.close() for sandbox in mine))
        await self.states.leave(share)

    def later(self, work: Any) -> None:
        """Do something that nobody waits for."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.warning("pool: what nobody waits for failed: %s: %s", type(error).__name__, error)

    async def close(self) -> None:
        """Refuse who waits, close every sandbox, and every backend that was made here."""
        self.home.check()
        self.closed = True
        for waiting in list(self.queue):
            self._refuse(waiting, InfrastructureFailure("this pool is closed"))
        await asyncio.gather(*(sandbox.close() for sandbox in list(self.sandboxes)), return_exceptions=True)
        await asyncio.gather(*(member.close() for member in self.members.values()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_QUIET_S):  # what began before finds out that all is closed
                await self._quiet.wait()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self.states.clear()
