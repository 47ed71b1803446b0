"""Sandboxes that are ready before they are asked for, of the worlds that were asked for lately and more than once.

They are the first to go when memory is short. It starts nothing and closes nothing itself: it says what to start,
and gives what to close.
"""

from collections import OrderedDict

from envgym.task import World
from envgym_sandboxes.pool.member import Member
from envgym_sandboxes.pool.sandbox import PoolSandbox

__all__ = ["Shelf"]


class Shelf:
    """At most `each` sandboxes of each of the last `most_worlds` worlds; worlds go by their JSON."""

    def __init__(self, each: int, most_worlds: int) -> None:
        self._each, self._most_worlds = each, most_worlds
        self._asked: OrderedDict[str, World | None] = OrderedDict()
        self._ready: dict[str, list[PoolSandbox]] = {}
        self._coming: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(len(ready) for ready in self._ready.values())

    def asked(self, key: str, world: World) -> list[PoolSandbox]:
        """A world was asked for; returns those of a world that is forgotten for it, to be closed."""
        if not self._each or not self._most_worlds:
            return []
        self._asked[key] = world if key in self._asked else None  # once is no habit
        self._asked.move_to_end(key)
        gone: list[PoolSandbox] = []
        while len(self._asked) > self._most_worlds:
            gone += self.forget(next(iter(self._asked)))
        return gone

    def forget(self, key: str) -> list[PoolSandbox]:
        """Keep no more of a world until it is asked for again; returns what there is of it, to be closed."""
        self._asked.pop(key, None)
        return self._ready.pop(key, [])

    def wanted(self) -> tuple[str, World] | None:
        """A world of which one more should be ready, those asked for last first."""
        for key, world in reversed(self._asked.items()):
            there = len(self._ready.get(key, ())) + self._coming.get(key, 0)
            if world is not None and there < self._each:
                return key, world
        return None

    def coming(self, key: str, count: int) -> None:
        """So many more (or fewer) of a world are being started."""
        self._coming[key] = self._coming.get(key, 0) + count
        if not self._coming[key]:
            del self._coming[key]

    def put(self, key: str, sandbox: PoolSandbox) -> bool:
        """One is ready; False when nobody wants it any more."""
        if key not in self._asked:
            return False
        self._ready.setdefault(key, []).append(sandbox)
        return True

    def take(self, key: str) -> PoolSandbox | None:
        """One of a world, the longest ready; whether it lives is to be looked at."""
        ready = self._ready.get(key)
        if not ready:
            return None
        sandbox = ready.pop(0)
        if not ready:
            del self._ready[key]
        return sandbox

    def remove(self, sandbox: PoolSandbox) -> None:
        """One is gone by itself."""
        for key, ready in list(self._ready.items()):
            if sandbox in ready:
                ready.remove(sandbox)
                if not ready:
                    del self._ready[key]

    def drop(self, member: Member) -> list[PoolSandbox]:
        """Give up all on a host whose memory is short; returns them, to be closed."""
        dropped = [one for ready in self._ready.values() for one in ready if one.member is member]
        for sandbox in dropped:
            self.remove(sandbox)
        return dropped
