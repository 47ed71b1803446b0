"""Containers that wait for somebody to live in them: started ahead, used again, bounded in number.

It decides when a container is started and when it is removed. Containers are equal when their kinds are.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable

from envgym.errors import EnvgymError
from envgym_sandboxes.docker_engine.container import Container, Kind, Maker

__all__ = ["Stock"]

_MOST_IDLE = 16


class Stock:
    """Idle containers by kind, most recently used last.

    warm: how many are kept ready of a kind once it was asked for. rested: is told of every container that is idle.
    """

    def __init__(self, maker: Maker, warm: int, rested: Callable[[Container], None]) -> None:
        self._maker = maker
        self._warm = warm
        self._rested = rested
        self._numbers = itertools.count(1)
        self._idle: list[Container] = []
        self._starting: dict[Kind, list[asyncio.Task[Container]]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    async def take(self, kind: Kind) -> Container:
        """A running container that nobody lives in. Raises what keeps one from starting."""
        while True:
            container = self._ready(kind)
            if container is None:
                starting = self._starting.get(kind)
                task = starting.pop(0) if starting else self._start(kind)
                container = await self._arrived(kind, task)
            if container.dead is None:
                self._replenish(kind)
                return container
            self.discard(container)

    def _ready(self, kind: Kind) -> Container | None:
        for index in range(len(self._idle) - 1, -1, -1):
            if self._idle[index].kind == kind:
                return self._idle.pop(index)
        return None

    async def _arrived(self, kind: Kind, task: "asyncio.Task[Container]") -> Container:
        """Wait for a start. Whoever stops waiting leaves it to others."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                self._starting.setdefault(kind, []).append(task)
                self._kept(task)
            raise

    def _start(self, kind: Kind) -> "asyncio.Task[Container]":
        return asyncio.create_task(Container(self._maker, kind, next(self._numbers)).start())

    def _replenish(self, kind: Kind) -> None:
        """Start what is missing of a kind's warm ones."""
        starting = self._starting.setdefault(kind, [])
        missing = self._warm - len(starting) - sum(container.kind == kind for container in self._idle)
        for _ in range(missing if not self._closed else 0):
            starting.append(self._start(kind))
            self._kept(starting[-1])

    def _kept(self, task: "asyncio.Task[Container]") -> None:
        """Put a container that nobody waits for any more with the idle ones when it has started."""

        def arrived(done: "asyncio.Task[Container]") -> None:
            for tasks in self._starting.values():
                if done in tasks:
                    tasks.remove(done)
                    break
            else:
                return  # somebody took it
            if not done.cancelled() and done.exception() is None:  # whoever needs one next meets the reason
                self.give(done.result())

        task.add_done_callback(arrived)

    def give(self, container: Container) -> None:
        """Keep a container for the next one, or remove it."""
        if self._closed or not container.reusable():
            self.discard(container)
            return
        self._idle.append(container)
        self._rested(container)
        while len(self._idle) > _MOST_IDLE:
            self.discard(self._idle.pop(0))

    def discard(self, container: Container) -> None:
        """Remove a container without waiting for it."""
        task = asyncio.create_task(container.remove())
        self._leaving.add(task)
        task.add_done_callback(self._left)

    def _left(self, task: "asyncio.Task[None]") -> None:
        self._leaving.discard(task)
        if not task.cancelled():
            task.exception()  # the engine is gone; what it still has is reaped by whoever comes next

    async def close(self) -> None:
        """Remove every idle container, and wait for those that are being started or removed."""
        self._closed = True
        starting = [task for tasks in self._starting.values() for task in tasks]
        if starting:
            await asyncio.wait(starting)
        for container in self._idle:
            self.discard(container)
        self._idle.clear()
        while self._leaving:
            with contextlib.suppress(EnvgymError):
                await asyncio.wait(self._leaving)
