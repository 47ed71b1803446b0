"""How many may be in flight where the other side says when it is too much: additive increase, halving when refused.

A `Window` only counts; it starts nothing. `stream` opens one over its episodes and an agent behind a shared
endpoint one over its requests (`enter`). The rule is that of TCP's congestion avoidance (Chiu and Jain 1989): it
converges to a fair share of a capacity that nobody knows.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

__all__ = ["Pass", "Window"]

_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0


class Pass:
    """One that is in flight. Who holds it sets `refused`: the other side pushed back, or it did not.

    None says nothing: it was given up, or failed for another reason. pause_s: what the other side asks to wait.
    """

    __slots__ = ("pause_s", "refused", "turn")

    def __init__(self, turn: int) -> None:
        self.turn, self.pause_s = turn, 0.0
        self.refused: bool | None = None


class Window:
    """At most `size` in flight, between 1 and `most`; it begins at `most`.

    What went well grows it by one per full window. What was refused halves it, once however many of those that
    were in flight together are refused, and nothing starts for a while: 0.1 s, twice as long with every further
    round that is refused, at most 10 s. One use of `enter` belongs to one event loop. Raises ValueError for a
    `most` below 1.
    """

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        if most < 1:
            raise ValueError(f"concurrency is {most}; it must be at least 1")
        self.most = most
        self._exact, self._turn, self._in_flight = float(most), 0, 0
        self._clock, self._pause_s, self._until = clock, _PAUSE_S, 0.0
        self._refused_since: float | None = None
        self._waiting: deque[asyncio.Event] = deque()

    @property
    def size(self) -> int:
        """How many may be in flight now."""
        return int(self._exact)

    @property
    def in_flight(self) -> int:
        """How many are."""
        return self._in_flight

    @property
    def pause_s(self) -> float:
        """Seconds until something may start again; 0.0 when it may."""
        return max(0.0, self._until - self._clock())

    @property
    def refused_s(self) -> float:
        """Seconds in which all that ended was refused; 0.0 after anything went well."""
        return 0.0 if self._refused_since is None else self._clock() - self._refused_since

    def start(self) -> Pass | None:
        """One more is in flight, or None when it has to wait."""
        if self._in_flight >= self.size or self.pause_s > 0:
            return None
        self._in_flight += 1
        return Pass(self._turn)

    def end(self, passed: Pass) -> None:
        """It is over, and how it went counts."""
        self._in_flight -= 1
        if passed.refused is False:
            self._exact = min(float(self.most), self._exact + 1 / self._exact)
            self._refused_since, self._pause_s = None, _PAUSE_S
        elif passed.refused:
            if self._refused_since is None:
                self._refused_since = self._clock()
            if passed.turn == self._turn:
                self._exact, self._turn = max(1.0, self._exact / 2), self._turn + 1
                self._until = self._clock() + self._pause_s
                self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)
            self._until = max(self._until, self._clock() + passed.pause_s)
        self._wake()

    def _wake(self) -> None:
        if self._waiting:
            self._waiting[0].set()

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[Pass]:
        """Wait for a place, first come first served, and hold it."""
        passed = await self._place()
        try:
            yield passed
        finally:
            self.end(passed)

    async def _place(self) -> Pass:
        mine = asyncio.Event()
        self._waiting.append(mine)
        try:
            while self._waiting[0] is not mine or (passed := self.start()) is None:
                mine.clear()
                first = self._waiting[0] is mine
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.pause_s or None if first else None):
                        await mine.wait()
            return passed
        finally:
            self._waiting.remove(mine)
            self._wake()
