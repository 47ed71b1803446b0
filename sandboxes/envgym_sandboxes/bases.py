"""Base states of worlds: made once, shared by everyone who stands on them, forgotten when too many stand unused.

It counts holders and decides what goes; how a base is made and removed it is told.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from envgym.task import World

__all__ = ["Base", "Bases"]

_MOST_IDLE = 64


@dataclass(slots=True)
class Base:
    """A world's own layers (topmost first), and what every sandbox of it is started with."""

    lowers: tuple[str, ...]
    layers: tuple[str, ...]
    spec: dict[str, Any]


class Bases:
    """The bases of one backend by world, least recently used first out.

    make: a world's base; at most one call per world at a time. drop: removes a base's layers.
    """

    def __init__(self, make: Callable[[World], Awaitable[Base]], drop: Callable[[Base], Awaitable[None]]) -> None:
        self._make = make
        self._drop = drop
        self._tasks: OrderedDict[str, asyncio.Task[Base]] = OrderedDict()
        self._holders: Counter[str] = Counter()

    async def get(self, world: World) -> Base:
        """A world's base, made if nobody made it yet. What `make` raises is raised, and not kept."""
        key = world.model_dump_json()
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(self._made(world))
        self._tasks.move_to_end(key)
        try:
            return await asyncio.shield(task)
        except Exception:
            if self._tasks.get(key) is task:
                del self._tasks[key]
            raise

    async def hold(self, world: World) -> None:
        """Keep a world's base until `leave`; whoever waits for it holds it already."""
        self._holders[world.model_dump_json()] += 1
        try:
            await self.get(world)
        except BaseException:
            self.leave(world)
            raise

    def leave(self, world: World) -> None:
        """The end of one `hold`."""
        key = world.model_dump_json()
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]

    async def _made(self, world: World) -> Base:
        base = await self._make(world)
        await self._forget()
        return base

    async def _forget(self) -> None:
        idle = [key for key, task in self._tasks.items() if key not in self._holders and _succeeded(task)]
        forgotten = [self._tasks.pop(key) for key in idle[: max(0, len(idle) - _MOST_IDLE)]]
        for task in forgotten:  # nobody can find them any more
            await self._drop(task.result())


def _succeeded(task: "asyncio.Task[Base]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
