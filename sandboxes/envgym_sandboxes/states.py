"""The frozen states of one backend: which layers they stand on, how those are made, merged and let go.

It puts `layers`, `bases` and `snapshots` together and asks the backend for nothing but jobs and room for layers.
What runs above a state is not its matter.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from envgym.sandbox import SandboxSnapshot
from envgym_sandboxes.bases import Base, Bases
from envgym_sandboxes.durable.keeping import Keeping
from envgym_sandboxes.durable.store import Store
from envgym_sandboxes.engine import Frozen
from envgym_sandboxes.ground import Ground
from envgym_sandboxes.layers import Chain, Layers
from envgym_sandboxes.snapshots import Snapshots

__all__ = ["States"]

_BACKGROUND = 10


class States:
    """See `engine.Freezer`. prepare: makes the base of a state. store: of durable snapshots."""

    def __init__(self, ground: Ground, prepare: Callable[[Frozen], Awaitable[Base]], store: Store) -> None:
        self._ground = ground
        self.layers = Layers(self._merge, ground.drop)
        self.bases = Bases(prepare, self.forget)
        self.keeping = Keeping(ground, self.layers, self.bases, store)
        self.snapshots = Snapshots(ground, self.layers, self.bases, self.keeping)

    async def forget(self, base: Base) -> None:
        """Remove what a base has for itself, and let go of what it shares."""
        await self._ground.drop(base.layers)
        if base.leave is not None:
            await base.leave()

    def use(self, chain: Chain) -> None:
        """See `Freezer.use`."""
        self.layers.use(chain)

    async def unuse(self, chain: Chain) -> None:
        """See `Freezer.unuse`."""
        await self.layers.unuse(chain)

    async def freeze(self, frozen: Frozen, upper: str) -> Chain:
        """See `Freezer.freeze`."""
        self.layers.add(upper, users=1)
        if self._ground.whole:  # the one before is not needed below it
            await self.layers.unuse(frozen.chain)
            return (upper,)
        whole = (*frozen.chain, upper)
        chain = await self.layers.bounded(whole, frozen)
        self.layers.use(chain)
        await self.layers.unuse(whole)
        return chain

    def settled(self, upper: str, answer: "asyncio.Future[Any]") -> None:
        """Take note of how much a layer holds that was made a frozen one."""
        if not answer.cancelled() and answer.exception() is None and upper in self.layers.known:
            self.layers.known[upper].size = int(answer.result())

    def tidy(self, frozen: Frozen) -> None:
        """See `Freezer.tidy`."""
        if not self._ground.whole:
            self.layers.tidy(frozen.chain, frozen)

    async def copy(self, frozen: Frozen, upper: str) -> str:
        """See `Freezer.copy`."""
        below = [] if self._ground.whole else self.snapshots.view(await self.bases.get(frozen), frozen.chain)
        name, size = await self._copied([f"{upper}/u"], below)
        self.layers.add(name).size = size
        return name

    async def fill(self, base: Base, chain: Chain, upper: str) -> None:
        """Make a writable layer as a copy of a state, for backends whose layers are whole states."""
        await self._ground.make_layer(upper, 0)
        sources = self.snapshots.view(base, chain)
        await self._ground.job("merge", sources=sources, below=[], target=f"{upper}/u", prefix="")

    async def _merge(self, run: Chain, below: Chain, of: Frozen) -> tuple[str, int]:
        under = self.snapshots.view(await self.bases.get(of), below)
        return await self._copied([f"{layer}/f" for layer in reversed(run)], under, nice=_BACKGROUND)

    async def _copied(self, sources: list[str], below: list[str], *, nice: int = 0) -> tuple[str, int]:
        """A frozen layer with what stacked directories (topmost first) show above others, and its size."""
        name = self._ground.new_layer_name()
        await self._ground.make_layer(name)
        try:
            size, _body = await self._ground.job(
                "merge", sources=sources, below=below, target=f"{name}/f", prefix=self._ground.prefix, nice=nice
            )
        except BaseException:
            await self._ground.drop((name,))
            raise
        return name, int(size)

    async def digest(self, frozen: Frozen, upper: str | None) -> str:
        """See `Freezer.digest`."""
        return await self.snapshots.digest(frozen, upper)

    async def diff(
        self, frozen: Frozen, upper: str | None, since: SandboxSnapshot | None
    ) -> dict[str, bytes | None]:
        """See `Freezer.diff`."""
        return await self.snapshots.diff(frozen, upper, since)

    async def hold(self, frozen: Frozen, *, durable: bool = False) -> SandboxSnapshot:
        """See `Freezer.hold`."""
        return await self.snapshots.hold(frozen, durable=durable)

    @asynccontextmanager
    async def opened(self, snapshot: SandboxSnapshot) -> AsyncIterator[Frozen]:
        """The state of a snapshot, on as few layers as there are by now, kept meanwhile. Raises SnapshotGone."""
        async with self.snapshots.opened(snapshot) as found:
            yield replace(found, chain=self.layers.shortened(found.chain))

    async def close(self) -> None:
        """Let everything go: the layers end with the backend."""
        await self.layers.close()
        self.snapshots.clear()
