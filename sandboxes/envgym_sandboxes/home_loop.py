"""The event loop that something's futures belong to: used from another one, they would wait for ever.

So whoever comes from another loop is told at once, and nothing of what they came for is begun.
"""

import asyncio
from typing import Literal

__all__ = ["HomeLock", "HomeLoop"]


class HomeLoop:
    """The loop in which `check` was called first. what: whose it is, for the message."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Raise RuntimeError in another loop than the first."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            over = ", which is over" if self._loop.is_closed() else ""
            raise RuntimeError(
                f"{self._what} belongs to another event loop{over}: use it in the one that it was first used in, "
                "or make another one in this (each asyncio.run is a loop of its own)"
            )


class HomeLock(asyncio.Lock):
    """A lock of one loop: to take it in another one raises RuntimeError. It is made in the loop that it is for."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.home = HomeLoop(what)
        self.home.check()

    async def acquire(self) -> Literal[True]:
        """See `asyncio.Lock.acquire`."""
        self.home.check()
        return await super().acquire()
