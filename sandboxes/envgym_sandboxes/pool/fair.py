"""Who is next: weighted fair queueing of starts between shares, first come first served within each.

A share that comes late begins at the present and not with the past's credit; each grant moves it on by one over its
weight. So one with a thousand requests and one with two alternate until the two are served. Where memory decides, a
head that does not fit is overtaken by others within their part of the memory only, and only so often: nobody
starves. Pure bookkeeping: it knows neither clocks nor sandboxes.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["FairQueue", "Waiting"]

MOST_OVERTAKEN = 64

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Waiting(Generic[T]):
    """One request. place: the only place that can serve it, "" for any."""

    item: T
    share: str
    place: str
    number: int
    overtaken: int = 0
    waits: bool = True


@dataclass(slots=True)
class _Share(Generic[T]):
    weight: float
    tag: float = 0.0
    queues: dict[str, deque[Waiting[T]]] = field(default_factory=dict)

    def heads(self) -> list[Waiting[T]]:
        """The first of each place, longest waiting first."""
        return sorted((queue[0] for queue in self.queues.values()), key=lambda waiting: waiting.number)


class FairQueue(Generic[T]):
    """Requests of shares that were added with a weight."""

    def __init__(self) -> None:
        self._shares: dict[str, _Share[T]] = {}
        self._now = 0.0
        self._numbers = 0

    def add(self, share: str, weight: float) -> None:
        """Know a share. Raises ValueError for a weight that is not positive, or not the one it has."""
        if weight <= 0:
            raise ValueError(f"share {share!r}: weight is {weight}; it must be positive")
        known = self._shares.setdefault(share, _Share(weight))
        if known.weight != weight:
            raise ValueError(f"share {share!r} has the weight {known.weight:g}; it cannot become {weight:g}")

    def weight(self, share: str) -> float:
        """A share's weight."""
        return self._shares[share].weight

    @property
    def shares(self) -> list[str]:
        """All that were added."""
        return list(self._shares)

    def waiting(self, share: str) -> int:
        """How many of a share's requests wait."""
        return sum(len(queue) for queue in self._shares[share].queues.values())

    def head(self, share: str) -> Waiting[T]:
        """Who waits longest of a share that has somebody waiting."""
        return self._shares[share].heads()[0]

    def __len__(self) -> int:
        return sum(self.waiting(share) for share in self._shares)

    def __iter__(self) -> Iterator[Waiting[T]]:
        for share in self._shares.values():
            for queue in share.queues.values():
                yield from queue

    def push(self, item: T, share: str, place: str = "") -> Waiting[T]:
        """Wait behind the others of the share (and of the place)."""
        here = self._shares[share]
        if not here.queues:
            here.tag = max(here.tag, self._now)
        self._numbers += 1
        waiting = Waiting(item, share, place, self._numbers)
        here.queues.setdefault(place, deque()).append(waiting)
        return waiting

    def remove(self, waiting: Waiting[T]) -> None:
        """Wait no longer, unserved; one that does not wait any more is left as it is."""
        if waiting.waits:
            self._take(waiting)

    def _take(self, waiting: Waiting[T]) -> None:
        queues = self._shares[waiting.share].queues
        waiting.waits = False
        queues[waiting.place].remove(waiting)
        if not queues[waiting.place]:
            del queues[waiting.place]

    def next(
        self, fits: Callable[[Waiting[T]], str | None], within: Callable[[Waiting[T]], bool]
    ) -> Waiting[T] | None:
        """Take the next request that can be served now, with its `place` set; None when there is none.

        fits: where there is room for a request, None where nowhere. within: whether its share stays within its part
        of the memory with it.
        """
        blocked: list[Waiting[T]] = []
        for waiting in self._in_order():
            place = fits(waiting)
            if place is None:
                blocked.append(waiting)
                continue
            passed = [one for one in blocked if one.place in ("", place)]
            if any(one.overtaken >= MOST_OVERTAKEN for one in passed) or (passed and not within(waiting)):
                continue
            for one in passed:
                one.overtaken += 1
            self._take(waiting)
            share = self._shares[waiting.share]
            self._now = max(self._now, share.tag)
            share.tag += 1 / share.weight
            waiting.place = place
            return waiting
        return None

    def _in_order(self) -> list[Waiting[T]]:
        heads = [(share.tag, head) for share in self._shares.values() for head in share.heads()]
        return [head for _tag, head in sorted(heads, key=lambda pair: (pair[0], pair[1].number))]
