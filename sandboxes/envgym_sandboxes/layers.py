"""Frozen layers: who stands on which, and how a long line of them becomes a short one.

A chain is layers that lie on each other, lowest first; each layer has exactly one state below it. Every snapshot
adds one. So that no chain grows long, layers have ranks: `WIDTH` layers of one rank that lie on each other are
copied into one of the next rank, in the background, and whoever freezes next stands on that one. After n snapshots
a chain has at most ``(WIDTH - 1) * (1 + log(n, WIDTH))`` layers beside those still being copied, and each byte was
copied once per rank. A chain that is mostly overwritten content is copied as a whole before it fills the disk.
Nothing here looks into a layer; how they are copied and removed it is told.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from envgym_sandboxes.engine import Frozen

__all__ = ["LONGEST", "WIDTH", "Chain", "Layer", "Layers"]

WIDTH = 8
_AT_ONCE = 2
"""Many chains come due together when many forks take turns; their copying must not crowd out what they do."""
LONGEST = 64
"""More layers than 8**9 snapshots need: beyond it a freeze waits for the copies that are under way."""

Chain = tuple[str, ...]


@dataclass(slots=True)
class Layer:
    """A frozen layer. size: bytes it takes. parts: the layers, some of them gone, that it is a copy of.

    total: the sum (see `compare`) of the state whose topmost layer this is, where it is known. stored: the digest
    under which it can be had again.
    """

    name: str
    size: int = 0
    rank: int = 0
    parts: tuple["Layer", ...] = ()
    total: bytes | None = None
    stored: str | None = None


class Layers:
    """The layers of one backend.

    merge: ``merge(run, below, of)`` copies the chain `run`, which lies on `below` in a state `of` some world, into
    a new layer, and gives its name and size. drop: removes layers that nobody stands on.
    width: how many layers of one rank become one of the next.
    """

    def __init__(
        self,
        merge: Callable[[Chain, Chain, Frozen], Awaitable[tuple[str, int]]],
        drop: Callable[[Chain], Awaitable[None]],
        *,
        width: int = WIDTH,
    ) -> None:
        self._merge = merge
        self._drop = drop
        self.width = width
        self.known: dict[str, Layer] = {}
        self._users: Counter[str] = Counter()
        self._copying: dict[Chain, asyncio.Task[None]] = {}
        self._copies: dict[Chain, str] = {}
        self._runs: defaultdict[str, set[Chain]] = defaultdict(set)
        self._turn = asyncio.Semaphore(_AT_ONCE)

    # -- who stands on what ------------------------------------------------------------------------------------

    def add(self, name: str, *, users: int = 0) -> Layer:
        """Take note of a layer that was just made."""
        self._users[name] = users
        layer = self.known[name] = Layer(name)
        return layer

    def use(self, chain: Chain) -> None:
        """Count one more user of each layer."""
        self._users.update(chain)

    async def unuse(self, chain: Chain) -> None:
        """Count one user less; remove layers without any, and copies that nobody could ask for any more."""
        left, gone = list(chain), []
        while left:
            name = left.pop()
            self._users[name] -= 1
            if self._users[name] > 0:
                continue
            del self._users[name]
            self.known.pop(name).total = None  # others may be made of it, but nobody stands on it
            gone.append(name)
            for run in self._runs.pop(name, ()):
                if run in self._copies:
                    left.append(self._copies.pop(run))
        if gone:
            await self._drop(tuple(gone))

    # -- short chains ------------------------------------------------------------------------------------------

    def shortened(self, chain: Chain) -> Chain:
        """The same state, standing on copies where there are any."""
        at = 0
        while at < len(chain):
            runs = [run for run in self._runs.get(chain[at], ()) if run in self._copies]
            longest = max((run for run in runs if chain[at : at + len(run)] == run), key=len, default=None)
            if longest is None:
                at += 1
            else:
                chain = (*chain[:at], self._copies[longest], *chain[at + len(longest) :])
                at = 0
        return chain

    def tidy(self, chain: Chain, of: Frozen) -> None:
        """Begin to copy what of a chain is due, in the background."""
        for run in self._due(chain, of.world.resources.disk_bytes):
            if run not in self._copying and run not in self._copies:
                below = chain[: chain.index(run[0])]
                task = self._copying[run] = asyncio.create_task(self._copy(run, below, of))
                task.add_done_callback(lambda done, run=run: self._copied(run, done))  # type: ignore[misc]

    async def bounded(self, chain: Chain, of: Frozen) -> Chain:
        """`shortened`, waiting where the chain would be too long or leave too little of the disk.

        Raises what a copy that was waited for raised.
        """
        chain, limit = self.shortened(chain), of.world.resources.disk_bytes
        while len(chain) > LONGEST or (4 * self.size(chain) > 3 * limit and chain in self._due(chain, limit)):
            self.tidy(chain, of)
            awaited = [task for run, task in self._copying.items() if run[0] in chain]
            if not awaited:
                break
            done, _pending = await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            chain = self.shortened(chain)
        return chain

    def size(self, chain: Chain) -> int:
        """Bytes that a chain takes."""
        return sum(self.known[name].size for name in chain)

    def _due(self, chain: Chain, limit: int) -> Iterator[Chain]:
        total = self.size(chain)
        if len(chain) > 1 and 2 * total > limit and total > 2 * self.known[chain[0]].size:
            yield chain
            return
        begin = 0
        for at in range(1, len(chain) + 1):
            if at == len(chain) or self.known[chain[at]].rank != self.known[chain[begin]].rank:
                begin = at
            elif at - begin == self.width - 1:
                yield chain[begin : at + 1]
                begin = at + 1

    async def _copy(self, run: Chain, below: Chain, of: Frozen) -> None:
        held = (*below, *run)
        self.use(held)
        try:
            async with self._turn:
                name, size = await self._merge(run, below, of)
            if run in self._copies:  # somebody else was first
                await self._drop((name,))
                return
            layer = self.add(name, users=1)
            layer.size, layer.parts = size, tuple(self.known[part] for part in run)
            layer.rank = layer.parts[0].rank + 1
            layer.total = layer.parts[-1].total
            self._copies[run] = name
            for part in run:
                self._runs[part].add(run)
        finally:
            await self.unuse(held)

    def _copied(self, run: Chain, task: "asyncio.Task[None]") -> None:
        """A copy that failed is tried again when it is due again; who cannot do without it waits for it himself."""
        del self._copying[run]
        if not task.cancelled():
            task.exception()

    # -- where a state comes from ------------------------------------------------------------------------------

    def expanded(self, chain: Chain, seen: Chain) -> Chain:
        """A chain with its copies replaced by what they are copies of, where that is there and is in `seen`."""
        found: list[str] = []
        for name in chain:
            layer = self.known[name]
            if self._made_of(layer, set(seen)) and all(part.name in self.known for part in layer.parts):
                found += self.expanded(tuple(part.name for part in layer.parts), seen)
            else:
                found.append(name)
        return tuple(found)

    def _made_of(self, layer: Layer, seen: set[str]) -> bool:
        return any(part.name in seen or self._made_of(part, seen) for part in layer.parts)

    async def merged(self, run: Chain, below: Chain, of: Frozen) -> str:
        """A copy of a run, used once for the caller; made now unless it is there."""
        if run not in self._copies:
            await self._copy(run, below, of)
        name = self._copies[run]
        self.use((name,))
        return name

    async def quiet(self) -> None:
        """Wait until nothing is being copied."""
        while self._copying:
            await asyncio.wait(self._copying.values())

    async def close(self) -> None:
        """End the copying."""
        tasks = list(self._copying.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
