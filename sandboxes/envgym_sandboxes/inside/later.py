"""Coroutines over a poll loop in thirty lines, so that a program inside a sandbox need not load asyncio to wait.

No cancellation, no timers, no threads: a `Later` is set once, and whoever awaits it goes on at once.
"""

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

__all__ = ["Later", "Turn", "start"]

T = TypeVar("T")


class Later(Generic[T]):
    """A value that will be there. Setting it again changes nothing."""

    def __init__(self) -> None:
        self._values: list[T] = []
        self._callbacks: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        """Whether it is there."""
        return bool(self._values)

    def set(self, value: T) -> None:
        """Give it its value."""
        if self.done:
            return
        self._values.append(value)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def __await__(self) -> Generator["Later[Any]", None, T]:
        while not self._values:
            yield self
        return self._values[0]

    def call_back(self, callback: Callable[[], None]) -> None:
        """Call when it is there."""
        if self.done:
            callback()
        else:
            self._callbacks.append(callback)


def start(coroutine: Coroutine["Later[Any]", None, None]) -> None:
    """Run it until it waits, and on from there when what it waits for is there."""
    try:
        waited = coroutine.send(None)
    except StopIteration:
        return
    waited.call_back(lambda: start(coroutine))


class Turn:
    """One after the other: ``async with turn``."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: list[Later[None]] = []

    async def __aenter__(self) -> None:
        if self._held:
            mine: Later[None] = Later()
            self._waiting.append(mine)
            await mine
        self._held = True

    async def __aexit__(self, *_: object) -> None:
        if self._waiting:
            self._waiting.pop(0).set(None)  # it stays held, by the next one
        else:
            self._held = False
