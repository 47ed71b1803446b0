"""Base states of worlds: made once, shared by everyone who stands on them, forgotten when too many stand unused.

It counts holders and decides what goes; how a base is made and removed it is told.
"""

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from envgym.errors import EnvironmentFailure
from envgym.plain_text import visible
from envgym.task import World
from envgym_sandboxes.channel import Peer
from envgym_sandboxes.engine import Frozen
from envgym_sandboxes.exchange import run
from envgym_sandboxes.way_out import WayOut
from envgym_sandboxes.world_name import world_name

__all__ = ["Base", "Bases", "naming_image", "run_setup"]

_MOST_IDLE = 64


@dataclass(slots=True)
class Base:
    """A world's base: its stack (topmost first), and what every sandbox of it is started with.

    layers: those that are removed with it. image: how many of the lowest in the stack are the image's.
    leave: lets go of layers that it shares with other bases.
    """

    lowers: tuple[str, ...]
    layers: tuple[str, ...]
    spec: dict[str, Any]
    image: int = 0
    leave: Callable[[], Awaitable[None]] | None = None


class Bases:
    """The bases of one backend by world and origin, least recently used first out.

    make: the base of a state; at most one call per base at a time. drop: removes a base's layers.
    """

    def __init__(self, make: Callable[[Frozen], Awaitable[Base]], drop: Callable[[Base], Awaitable[None]]) -> None:
        self._make = make
        self._drop = drop
        self._tasks: OrderedDict[str, asyncio.Task[Base]] = OrderedDict()
        self._holders: Counter[str] = Counter()

    async def get(self, state: Frozen) -> Base:
        """The base of a state, made if nobody made it yet. What `make` raises is raised, and not kept."""
        key = _key(state)
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(self._made(state))
        self._tasks.move_to_end(key)
        try:
            return await asyncio.shield(task)
        except Exception:
            if self._tasks.get(key) is task:
                del self._tasks[key]
            raise

    async def hold(self, state: Frozen) -> None:
        """Keep a state's base until `leave`; whoever waits for it holds it already."""
        self._holders[_key(state)] += 1
        try:
            await self.get(state)
        except BaseException:
            self.leave(state)
            raise

    def leave(self, state: Frozen) -> None:
        """The end of one `hold`."""
        key = _key(state)
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]

    async def over(self) -> None:
        """Wait until none is being made."""
        while making := [task for task in self._tasks.values() if not task.done()]:
            await asyncio.wait(making)

    async def _made(self, state: Frozen) -> Base:
        base = await self._make(state)
        await self._forget()
        return base

    async def _forget(self) -> None:
        idle = [key for key, task in self._tasks.items() if key not in self._holders and _succeeded(task)]
        forgotten = [self._tasks.pop(key) for key in idle[: max(0, len(idle) - _MOST_IDLE)]]
        for task in forgotten:  # nobody can find them any more
            await self._drop(task.result())


def _key(state: Frozen) -> str:
    return " ".join([*state.origin, world_name(state.world)])


def _succeeded(task: "asyncio.Task[Base]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


@contextlib.contextmanager
def naming_image(world: World) -> Iterator[None]:
    """The error of a shell that is not there says in what it is not."""
    try:
        yield
    except FileNotFoundError as error:
        text = f"{error.strerror}; World.image is {world.image!r}"
        raise FileNotFoundError(error.errno, text, "/bin/bash") from error


async def run_setup(world: World, peer: Peer) -> None:
    """Run a world's setup commands in the sandbox at `peer`. Raises EnvironmentFailure for one that fails."""
    way_out = WayOut(world, "(setup)")
    way_out.serve(peer.streams)
    try:
        for command in world.setup:
            text = command.encode("utf-8", "surrogateescape")
            head = {"op": "shell", "size": len(text), "timeout_s": world.resources.command_s, "limit": 1 << 16}
            with naming_image(world):
                done = await run(peer, head, text, out_of_memory=lambda: False)
            if not done.ok:
                what = f"ended with status {done.exit_code}"
                if done.timed_out:
                    what = f"was not done within {world.resources.command_s:g} s, which is Resources.command_s"
                told = visible(done.text[-2000:]).strip() or "it wrote nothing"
                raise EnvironmentFailure(f"World.setup command {command!r} {what}: {told}")
    finally:
        await way_out.close()
