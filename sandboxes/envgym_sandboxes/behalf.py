"""What an init does on behalf of its sandbox, with which rights and within which bounds: its own, or a command's.

In namespaces init has no more rights than a command, and groups keep the bounds; where nothing isolates there are
none. In both cases work is just done. Without namespaces a thread does it (`domain`), and init keeps the bounds
that nobody else does (`bounds`).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from envgym_sandboxes.bounds import Bounds, Captures, Loop
from envgym_sandboxes.domain import Domain

__all__ = ["Behalf", "Confined", "Same", "behalf"]


class Behalf(Protocol):
    """What init asks."""

    @property
    def listeners(self) -> tuple[int, ...]:
        """Descriptors to watch."""
        ...

    @property
    def enter(self) -> Callable[[], None] | None:
        """What a new process does before it becomes a command."""
        ...

    def answer(self) -> None:
        """A listener is readable."""
        ...

    def inside(self, work: Callable[[], None], *, writes: bool = False) -> None:
        """Do something with the rights of a command; returns or raises what it does. writes: it adds to files."""
        ...

    def begin(self) -> None:
        """A command is about to be run by a process that is there."""
        ...

    def ended(self, code: int, captures: Captures) -> tuple[int, bool]:
        """A command has ended: its status, and whether it was out of memory."""
        ...

    def next(self) -> float:
        """When to look, on the monotonic clock."""
        ...

    def expire(self, now: float) -> None:
        """Look, if it is time to."""
        ...


class Same:
    """Nothing is different for a command."""

    listeners: tuple[int, ...] = ()
    enter: Callable[[], None] | None = None

    def answer(self) -> None:
        """See `Behalf`."""

    def inside(self, work: Callable[[], None], *, writes: bool = False) -> None:
        """See `Behalf`."""
        work()

    def begin(self) -> None:
        """See `Behalf`."""

    def ended(self, code: int, captures: Captures) -> tuple[int, bool]:
        """See `Behalf`."""
        return code, False

    def next(self) -> float:
        """See `Behalf`."""
        return math.inf

    def expire(self, now: float) -> None:
        """See `Behalf`."""


class Confined:
    """A thread with fewer rights, and bounds that init keeps. spec: {domain, bounds}, see there."""

    def __init__(self, loop: Loop, spec: dict[str, Any]) -> None:
        self._domain = Domain(spec["domain"])
        self._bounds = Bounds(loop, spec["bounds"], self._domain.only_remove)
        self.listeners = (self._domain.listener,)
        self.enter: Callable[[], None] | None = self._domain.enter

    def answer(self) -> None:
        """See `Behalf`."""
        self._domain.answer()

    def inside(self, work: Callable[[], None], *, writes: bool = False) -> None:
        """See `Behalf`."""
        if writes:
            self._bounds.write(partial(self._domain.run, work))
        else:
            self._bounds.begin()
            self._domain.run(work)

    def begin(self) -> None:
        """See `Behalf`."""
        self._bounds.begin()

    def ended(self, code: int, captures: Captures) -> tuple[int, bool]:
        """See `Behalf`."""
        return self._bounds.ended(code, captures), self._bounds.ran_out_of_memory()

    def next(self) -> float:
        """See `Behalf`."""
        return self._bounds.next()

    def expire(self, now: float) -> None:
        """See `Behalf`."""
        self._bounds.expire(now)


def behalf(loop: Loop, spec: dict[str, Any]) -> Behalf:
    """For an init with this spec."""
    return Confined(loop, spec) if "domain" in spec else Same()
