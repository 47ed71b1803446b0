"""What the sandboxes of one host are charged in memory, learnt from what they really use.

What a world *may* use is nobody's measure: a thousand idle sandboxes of 1 GiB each fit into 24 GiB, a thousand that
take it do not. So:

1. A sandbox whose use has settled is charged what it uses, and at least its world's estimate.
2. The estimate of a world is what nine of ten of its settled sandboxes stay below.
3. Until eight of a world's have settled, each is charged what it may use: growth is seen before many have begun.
4. A new one is admitted if all charges stay within the bound, and
5. if the host, after all that was admitted since it was last looked at, keeps its reserve.
6. Where the backend cannot tell, each is charged what it may use, or what the pool was told.

Numbers only: who measures and who is ended is the pool's matter.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Ledger", "Seat"]

_PROOFS = 8
_KEPT = 64
_WORLDS = 256
_STILL_BYTES, _STILL_PART = 4 << 20, 0.1


@dataclass(slots=True, eq=False)
class Seat:
    """A sandbox's, or a start's, place on a host. may: the most that its world allows it, bytes."""

    share: str
    world: str
    may: int
    used: int | None = None
    peak: int = 0
    seen_at: float = 0.0
    settled: bool = False
    charge: int = 0


@dataclass(slots=True)
class _World:
    past: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT))
    estimate: int | None = None


class Ledger:
    """The seats of one host. guess: what an unknown world is charged, None for what it may use.

    total and available: of the host's memory, bytes; None before it was looked at.
    """

    def __init__(self, guess: int | None) -> None:
        self._guess = guess
        self._seats: dict[Seat, None] = {}
        self._worlds: OrderedDict[str, _World] = OrderedDict()
        self._by_share: Counter[str] = Counter()
        self._since = 0
        self.total: int | None = None
        self.available: int | None = None
        self.charged = 0

    @property
    def seats(self) -> list[Seat]:
        """All of them, oldest first."""
        return list(self._seats)

    def __len__(self) -> int:
        return len(self._seats)

    def of_share(self, share: str) -> int:
        """What a share's seats are charged, bytes."""
        return self._by_share[share]

    def count(self, share: str) -> int:
        """How many seats a share has."""
        return sum(seat.share == share for seat in self._seats)

    # -- charges -----------------------------------------------------------------------------------------------

    def price(self, world: str, may: int) -> int:
        """What one more sandbox of a world is charged, bytes."""
        known = self._worlds.get(world)
        if known is not None and known.estimate is not None:
            return min(known.estimate, may)
        return may if self._guess is None else min(self._guess, may)

    def sit(self, share: str, world: str, may: int) -> Seat:
        """One more seat."""
        seat = Seat(share, world, may)
        self._seats[seat] = None
        self._charge(seat, self.price(world, may))
        self._since += seat.charge
        return seat

    def note(self, seat: Seat, peak: int) -> None:
        """Something else than a look found what a sandbox used, bytes."""
        seat.peak = max(seat.peak, peak)

    def leave(self, seat: Seat) -> None:
        """One seat less; what its sandbox used is remembered."""
        if seat not in self._seats:
            return
        if seat.peak:
            self._world(seat.world).past.append(seat.peak)
        self._charge(seat, 0)
        del self._seats[seat]

    def move(self, seat: Seat, share: str) -> None:
        """A seat becomes another share's."""
        charge = seat.charge
        self._charge(seat, 0)
        seat.share = share
        self._charge(seat, charge)

    def _charge(self, seat: Seat, charge: int) -> None:
        self.charged += charge - seat.charge
        self._by_share[seat.share] += charge - seat.charge
        seat.charge = charge

    def _world(self, world: str) -> _World:
        known = self._worlds.setdefault(world, _World())
        self._worlds.move_to_end(world)
        while len(self._worlds) > _WORLDS:
            self._worlds.popitem(last=False)
        return known

    # -- what was seen -----------------------------------------------------------------------------------------

    def look(self, total: int, available: int, used: Mapping[Seat, int], now: float) -> None:
        """Take in what the host has and what some seats use, bytes, at `now` (seconds of any clock)."""
        self.total, self.available, self._since = total, available, 0
        for seat, size in used.items():
            if seat in self._seats:
                seat.peak = max(seat.peak, size)
                if seat.used is None or not _near(seat.used, size):
                    seat.settled, seat.seen_at = False, now
                    seat.used = size
                elif now - seat.seen_at >= 1.0:
                    seat.settled = True
                    seat.used = size
        self._learn()

    def _learn(self) -> None:
        """Estimates from what has settled, and charges from the estimates."""
        settled: dict[str, list[int]] = {}
        for seat in self._seats:
            if seat.settled and seat.used is not None:
                settled.setdefault(seat.world, []).append(seat.used)
        for name in {*settled, *self._worlds}:
            uses = sorted([*settled.get(name, []), *(self._worlds[name].past if name in self._worlds else ())])
            if len(uses) >= _PROOFS:
                self._world(name).estimate = uses[(9 * len(uses)) // 10]
        for seat in self._seats:
            known = self._worlds.get(seat.world)
            if seat.settled and (known is None or known.estimate is None):
                self._charge(seat, seat.used or 0)
            else:
                self._charge(seat, max(self.price(seat.world, seat.may), seat.used or 0))

    # -- room --------------------------------------------------------------------------------------------------

    def fits(self, price: int, bound: int, reserve: int) -> bool:
        """Whether one more sandbox may be charged `price`. Where there is none, it need only find the reserve."""
        if not self._seats:
            return self.available is None or self.available >= reserve
        if self.charged + price > bound:
            return False
        return self.available is None or self.available - self._since - price >= reserve

    def largest(self) -> Seat | None:
        """The seat that uses most; None when none is known to use anything."""
        known = [seat for seat in self._seats if seat.used]
        return max(known, key=lambda seat: seat.used or 0, default=None)


def _near(before: int, now: int) -> bool:
    return abs(now - before) <= max(_STILL_BYTES, _STILL_PART * before)
