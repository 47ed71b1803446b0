"""Every episode of an asynchronous loop in one crowd, whose size follows from what pushes back.

Unlike `Arena.play` there is no end to it and no batch: groups come and go, and share one `Window`. Where sandboxes
or a policy's server have no room, fewer play at a time, and those that were refused play later.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from envgym.episode import Episode
from envgym.errors import InfrastructureFailure, Overloaded, PoolFull
from envgym.jobs import Job, stream
from envgym.window import Window
from envgym_agents.learn.play import Arena

__all__ = ["Crowd"]

_PUSHED_BACK = frozenset({Overloaded.__name__, PoolFull.__name__})
_PATIENCE_S = 600.0


@dataclass(slots=True)
class Crowd:
    """Plays jobs of `arena`, at most as many at a time as its concurrency and what pushes back allow.

    recent: how many of the last episodes are looked at; where more than the arena's share of them failed,
    InfrastructureFailure is raised.
    """

    arena: Arena
    recent: int
    window: Window = field(init=False)
    played: int = 0
    _failed: deque[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.window = Window(self.arena.concurrency)
        self._failed = deque(maxlen=self.recent)

    async def play(self, jobs: Sequence[Job]) -> list[Episode]:
        """Play jobs side by side, and those that follow from them; their episodes sorted by id."""
        tasks = [asyncio.create_task(self._all_of(job)) for job in jobs]
        try:
            found = [episode for episodes in await asyncio.gather(*tasks) for episode in episodes]
            return sorted(found, key=lambda episode: episode.id)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _all_of(self, job: Job) -> list[Episode]:
        """Its episode, and as soon as that has ended those of the jobs that follow from it."""
        episode = await self._one(replace(job, then=None))
        return [episode, *(await self.play(job.then(episode)) if job.then is not None else ())]

    async def _one(self, job: Job) -> Episode:
        while True:
            async with self.window.enter() as passed:
                episode = await self._try(job)
                failure = episode.failure
                passed.refused = False if failure is None else (failure.kind in _PUSHED_BACK or None)
                others = self.window.in_flight > 1
            if passed.refused and (others or self.window.refused_s < _PATIENCE_S):
                continue
            self._count(episode)
            return episode

    async def _try(self, job: Job) -> Episode:
        arena = self.arena
        one = stream([job], concurrency=1, retries=arena.retries, memory=arena.memory, patience_s=0.0)
        try:
            return await anext(one)
        finally:
            await one.aclose()

    def _count(self, episode: Episode) -> None:
        self.played += 1
        self._failed.append(episode.failure is not None)
        full, share = len(self._failed) == self.recent, self.arena.max_failures
        if episode.failure is not None and full and sum(self._failed) > share * self.recent:
            failure = episode.failure
            raise InfrastructureFailure(
                f"{sum(self._failed)} of the last {self.recent} episodes failed, more than max_failures allows "
                f"({share:g} of all); the last in {failure.where}: {failure.kind}: {failure.message}"
            )
        self.arena.remember_failed(episode)
