"""Actors of one kind that play or sample: who lives, how busy each is, and the wait for one that has room.

It calls none of them. Who is found to be gone is taken out; whether somebody comes in its place is decided
elsewhere.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from envgym.errors import WorkersLost
from envgym_agents.learn.cluster.begun import Member

__all__ = ["Members"]


@dataclass(slots=True)
class Members:
    """All of one kind. each: the most episodes of one. coming: how many are being begun in place of lost ones."""

    kind: str
    each: int
    coming: int = 0
    lost: list[str] = field(default_factory=list)
    _living: list[Member] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._living))

    def __contains__(self, member: Member) -> bool:
        return member in self._living

    def add(self, member: Member) -> None:
        """One that is ready."""
        self._living.append(member)
        self._news.set()

    def drop(self, member: Member, why: str) -> None:
        """One that is gone."""
        self._living.remove(member)
        self.lost.append(f"{member.placed.name}: {why}")
        self._news.set()

    def awaited(self, more: int) -> None:
        """So many more are being begun; negative: fewer."""
        self.coming += more
        self._news.set()

    def let_go(self, member: Member) -> None:
        """It has one episode less."""
        member.busy -= 1
        self._news.set()

    async def take(self) -> Member:
        """The least busy one, with one episode more, as soon as there is room.

        Raises WorkersLost where nobody is left and nobody is coming.
        """
        while True:
            free = [member for member in self._living if member.busy < self.each]
            if free:
                chosen = min(free, key=lambda member: (member.busy, member.placed.need.number))
                chosen.busy += 1
                return chosen
            if not self._living and not self.coming:
                raise WorkersLost(
                    f"no {self.kind} is left, and none can be begun (cluster.restarts, and what is free): "
                    f"{'; '.join(self.lost[-4:])}. All that was played is stored: go on with --resume"
                )
            self._news.clear()
            await self._news.wait()
