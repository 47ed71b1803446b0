"""Groups wait for a learner that trains only on what is fresh enough.

The guarantee is per token: whatever `take` gives out, no token that trains was sampled by a version older than
``version - bound``. It is kept by a sweep before every batch. Admission (`start`) only avoids waste: it gives leave
to play another group where that can still be used. ``bound=0`` is synchronous training. The queue knows one event
loop's tasks, no threads, and not how episodes are played or learned from.
Sources: a bound on staleness with admission control, AReaL (Fu et al. 2025, arXiv 2505.24298); there the inequality
is all there is and bounds the aggregate, here a sweep bounds every token.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable

from envgym.buffer.partial import Partial
from envgym.buffer.spoiled import Loss, Settled, Spoiled, Why, settle
from envgym.buffer.state import restored_parts, state_of
from envgym.buffer.versions import oldest_version
from envgym.buffer.waiting import Counts, Place, QueueState, Swept, Taken, Ticket
from envgym.episode import Episode, Group

__all__ = ["OnPolicyQueue"]


class OnPolicyQueue:
    """A queue of groups for batches of `batch`, none with a token that is more than `bound` versions old.

    version: the learner's, which `advance` moves; advance it before the new weights are published.
    spoiled: what becomes of a group with a failed or stale member (`Spoiled`); least: how many members must be left
    of one where members are dropped; refills: how often fresh members are asked for per group.

    Producer: ``ticket = await queue.start()``, play, ``await queue.put(group, ticket)`` (or `abandon` it).
    Learner: ``taken = await queue.take()``, update, ``queue.advance(version + 1)``. Every waiting call has a twin
    that does not wait (`try_start`, `try_put`, `try_take`). A cancelled wait loses nothing.
    """

    def __init__(
        self,
        batch: int,
        *,
        bound: int = 0,
        version: int = 0,
        spoiled: Spoiled = Spoiled.DROP_MEMBER,
        least: int = 2,
        refills: int = 2,
    ) -> None:
        lowest_of = {"batch": (batch, 1), "bound": (bound, 0), "least": (least, 1), "refills": (refills, 0)}
        for name, (value, lowest) in lowest_of.items():
            if value < lowest:
                raise ValueError(f"OnPolicyQueue: {name} is {value}; it must be at least {lowest}")
        self.batch, self.bound, self.version = batch, bound, version
        self.spoiled, self.least, self.refills = Spoiled(spoiled), least, refills
        self._places: dict[int, Place] = {}
        self._running: dict[int, Ticket] = {}
        self._refilling: dict[int, Ticket] = {}
        self._out: dict[int, Place] = {}
        self._doubted: set[int] = set()
        self._swept: list[Swept] = []
        self._counter: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._next = 0
        self._waiters: list[asyncio.Future[None]] = []

    # -- producers ---------------------------------------------------------------------------------------------

    def try_start(self) -> Ticket | None:
        """A ticket, if something may be played now. Refills come first: a group waits for them.

        A group started now trains after those before it, `batch` per version; it is let in where its tokens will
        then be at most `bound` versions old.
        """
        for place in self._in_order:
            if place.missing and not place.asked:
                place.asked = True
                first = place.group.episodes[0]
                ticket = Ticket(place.number, self.version, place.missing, place.group.task_id, first.group)
                self._refilling[place.number] = ticket
                return ticket
        if self._full:
            return None
        ticket = Ticket(self._number(), self.version)
        self._running[ticket.number] = ticket
        self._counter["started"] += 1
        return ticket

    async def start(self) -> Ticket:
        """A ticket, as soon as something may be played."""
        while (ticket := self.try_start()) is None:
            await self._change()
        return ticket

    def try_put(self, group: Group, ticket: Ticket | None = None) -> bool:
        """Hand a group in; False where there is no room, which never happens with a ticket.

        Of a refill ticket, `group` holds the fresh members only. Without a ticket the group is admitted as if it
        had just been started. Raises ValueError for a ticket that is not out, for fresh members that are more than
        were asked for or of another comparison, for a group without members, and for sampled tokens whose version
        is unknown; the ticket is still good then.
        """
        if not len(group):
            raise ValueError(f"group of task {group.task_id!r} has no members; abandon its ticket instead")
        if ticket is not None and ticket.missing:
            self._refill(group, ticket)
        else:
            if ticket is None and self._full:
                return False
            place = Place(self._next if ticket is None else ticket.number, group, len(group))
            if ticket is None:
                self._number()
                self._counter["unticketed"] += 1
            else:
                self._answered(self._running, ticket)
            self._counter["accepted"] += 1
            self._counter["members_accepted"] += len(group)
            self._places[place.number] = place
            self._settle(place)
        self._wake()
        return True

    async def put(self, group: Group, ticket: Ticket | None = None) -> None:
        """Hand a group in; waits until there is room for one without a ticket."""
        while not self.try_put(group, ticket):
            await self._change()

    def abandon(self, ticket: Ticket) -> None:
        """Give a ticket back unplayed. Of a refill, the group that waits for it is swept."""
        self._answered(self._refilling if ticket.missing else self._running, ticket)
        if not ticket.missing:
            self._counter["abandoned"] += 1
        elif (place := self._places.get(ticket.number)) is not None:
            self._drop(place, place.all_lost(Why.UNFILLED))
        self._wake()

    def doubt(self, ticket: Ticket) -> None:
        """Its group is not expected in time (as its task's last one was not): it holds no place from now on.

        So another one may begin beside it; if it comes in time after all, it trains like any other. Raises
        ValueError for a ticket of a whole group that is not out.
        """
        if self._running.get(ticket.number) != ticket:
            raise ValueError(f"{ticket} is not out as a whole group's: nothing is expected of it")
        self._doubted.add(ticket.number)
        self._wake()

    def usable(self, begun: Episode | Partial) -> bool:
        """Whether its oldest token is fresh enough today: a partial rollout that is not need not go on."""
        oldest = begun.oldest_version if isinstance(begun, Partial) else oldest_version(begun)
        return oldest is None or oldest >= self.allowed

    # -- the learner -------------------------------------------------------------------------------------------

    @property
    def allowed(self) -> int:
        """The oldest version whose tokens may train."""
        return self.version - self.bound

    @property
    def allowed_next(self) -> int:
        """The oldest version whose tokens the next batch may have: while one is out, none is taken before it."""
        return self.allowed + bool(self._out)

    def try_take(self, least: int | None = None) -> Taken | None:
        """A batch after a sweep, if there is one: the groups with the oldest tokens, in the order of their numbers.

        least: how many groups are enough (default: `batch`, which is the most that are taken). Raises RuntimeError
        while a batch is out: say `advance` when it has been learned from, or `put_back`.
        """
        if self._out:
            raise RuntimeError(
                f"groups {sorted(self._out)} are still out: call advance(version) after the update, or put_back()"
            )
        enough = self.batch if least is None else least
        if not 1 <= enough <= self.batch:
            raise ValueError(f"take: least is {enough}; it must be between 1 and batch ({self.batch})")
        self._sweep()
        ready = [place for place in self._places.values() if not place.missing]
        if len(ready) < enough:
            return None
        ready.sort(key=lambda place: (self.version if place.eldest is None else place.eldest, place.number))
        chosen = sorted(ready[: self.batch], key=lambda place: place.number)
        for place in chosen:
            self._out[place.number] = self._places.pop(place.number)
        self._wake()  # what this batch makes too old holds no place any more
        swept, self._swept = tuple(self._swept), []
        return Taken(
            self.version,
            tuple(place.group for place in chosen),
            tuple(place.masked for place in chosen),
            tuple(place.number for place in chosen),
            swept,
        )

    async def take(self, least: int | None = None) -> Taken:
        """A batch, as soon as there is one."""
        while (taken := self.try_take(least)) is None:
            await self._change()
        return taken

    def advance(self, version: int) -> None:
        """The learner's weights are now `version`: what was out has trained, and what is too old is swept."""
        if version < self.version:
            raise ValueError(
                f"advance: version is {version}, the queue is at {self.version}; versions only grow "
                "(after going back to a checkpoint, restore the queue's state too)"
            )
        for place in self._out.values():
            self._counter["trained"] += 1
            self._counter["members_trained"] += len(place.group)
            self._counter["masked"] += len(place.masked)
        self._out.clear()
        self.version = version
        self._sweep()
        self._wake()

    def put_back(self) -> None:
        """What is out waits again, as if it had not been taken."""
        self._places |= self._out
        self._out.clear()
        self._wake()

    @property
    def counts(self) -> Counts:
        """What became of everything."""
        places = [*self._places.values(), *self._out.values()]
        return Counts(
            **self._counter,
            waiting=len(places),
            out=len(self._out),
            mending=sum(place.missing > 0 for place in places),
            running=len(self._running),
            members_waiting=sum(len(place.group) for place in places),
            lost=dict(self._lost),
        )

    @property
    def tickets(self) -> tuple[Ticket, ...]:
        """Those that are out. After `restore` they are what must be played again, or abandoned."""
        return (*self._running.values(), *self._refilling.values())

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state(self) -> QueueState:
        """Everything, for a checkpoint. What is out with the learner is in it as waiting: its update is not."""
        places = sorted([*self._places.values(), *self._out.values()], key=lambda place: place.number)
        settings = {
            "batch": self.batch, "bound": self.bound, "version": self.version, "spoiled": self.spoiled.value,
            "least": self.least, "refills": self.refills,
        }  # fmt: skip
        counters = {
            "next": self._next, "counter": dict(self._counter), "lost": dict(self._lost),
            "doubted": sorted(self._doubted),
        }  # fmt: skip
        return state_of(settings, counters, places, self.tickets, self._swept)

    @classmethod
    def restore(cls, state: QueueState) -> "OnPolicyQueue":
        """A queue that goes on exactly as the saved one would. Raises ValueError for what is no state of one."""
        parts = restored_parts(state)
        queue = cls(**parts.settings)
        queue._next = parts.counters["next"]
        queue._counter, queue._lost = Counter(parts.counters["counter"]), Counter(parts.counters["lost"])
        queue._doubted = set(parts.counters["doubted"])
        queue._places = {place.number: place for place in parts.places}
        queue._running = {ticket.number: ticket for ticket in parts.tickets if not ticket.missing}
        queue._refilling = {ticket.number: ticket for ticket in parts.tickets if ticket.missing}
        queue._swept = list(parts.swept)
        return queue

    # -- inside ------------------------------------------------------------------------------------------------

    @property
    def _full(self) -> bool:
        """Whether a group started now would be too old when its turn comes.

        What may not train any more, or is not expected to, holds no place: it is not waited for, and of such groups
        up to a batch is left out.
        """
        allowed, doubted = self.allowed_next, self._doubted
        late = sum(one.version < allowed or one.number in doubted for one in self._running.values())
        late += sum(place.newest is not None and place.newest < allowed for place in self._places.values())
        before = len(self._places) + len(self._running) - min(late, self.batch)
        return bool(self._out) + before // self.batch > self.bound

    @property
    def _in_order(self) -> list[Place]:
        """By number, so that nothing that is reported or asked for depends on who came in first."""
        return sorted(self._places.values(), key=lambda place: place.number)

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def _answered(self, among: dict[int, Ticket], ticket: Ticket) -> None:
        if among.get(ticket.number) != ticket:
            raise ValueError(f"{ticket} is not out: it was answered or abandoned, or is another queue's")
        del among[ticket.number]
        self._doubted.discard(ticket.number)

    def _refill(self, fresh: Group, ticket: Ticket) -> None:
        if len(fresh) > ticket.missing:
            raise ValueError(
                f"group {ticket.number} asked for {ticket.missing} fresh members, and got {len(fresh)}"
            )
        others = {member.group for member in fresh} - {ticket.group}
        if others:
            raise ValueError(
                f"group {ticket.number} was played as {ticket.group!r}, and got fresh members of {sorted(others)}; "
                "play a refill with Ticket.group as the episodes' group"
            )
        place = self._places.get(ticket.number)
        whole = None
        if place is not None:
            whole = Place(
                place.number,
                Group(place.group.task_id, (*place.group, *fresh)),
                place.size,
                refills=place.refills + 1,
            )
        alone = Place(ticket.number, fresh, len(fresh))
        self._answered(self._refilling, ticket)
        self._counter["refilled"] += len(fresh)
        self._counter["members_accepted"] += len(fresh)
        if whole is None:
            self._report(alone, alone.all_lost(Why.LATE), whole=False)
        else:
            self._places[whole.number] = whole
            self._settle(whole)

    def _sweep(self) -> None:
        old = [place for place in self._in_order if place.eldest is not None and place.eldest < self.allowed]
        for place in old:
            self._settle(place)
        if old:
            self._wake()

    def _settle(self, place: Place) -> None:
        """Apply the policy to a group that came in, was refilled, or grew old."""
        done: Settled = settle(
            place.group, place.oldest, allowed=self.allowed, spoiled=self.spoiled, least=self.least
        )
        if done.group is None:
            self._drop(place, done.lost)
            return
        if done.lost:
            place.group = done.group
            gone = {loss.episode for loss in done.lost}
            place.oldest = {name: version for name, version in place.oldest.items() if name not in gone}
            self._report(place, done.lost, whole=False)
        place.masked = done.masked
        if self.spoiled is not Spoiled.REFILL:
            place.size = len(place.group)
        elif place.missing and place.refills >= self.refills and not place.asked:
            self._drop(place, place.all_lost(Why.UNFILLED))

    def _drop(self, place: Place, lost: tuple[Loss, ...]) -> None:
        del self._places[place.number]
        self._counter["swept"] += 1
        self._report(place, lost, whole=True)

    def _report(self, place: Place, lost: Iterable[Loss], *, whole: bool) -> None:
        lost = tuple(lost)
        self._counter["members_swept"] += len(lost)
        self._lost.update(loss.why.value for loss in lost)
        self._swept.append(Swept(place.number, place.group.task_id, lost, whole))

    async def _change(self) -> None:
        """Wait until something may have become possible."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
