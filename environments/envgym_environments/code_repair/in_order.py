"""Candidates are judged several at once and told in the order of their queue, each function up to its share.

What is skipped is decided in queue order too, so what comes out depends on no sandbox being faster than another.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from envgym_environments.code_repair.judge import Candidate

__all__ = ["Shares", "judged_in_order", "place_of"]

B = TypeVar("B")


def place_of(candidate: Candidate) -> tuple[str, str]:
    """The file and the function of a candidate."""
    return candidate.path, candidate.mutation.function


class Shares:
    """How many bugs each function has given, of `most` that it may."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: Counter[tuple[str, str]] = Counter()

    def take(self, candidate: Candidate) -> None:
        """One more of its function."""
        self._made[place_of(candidate)] += 1

    def left(self, candidate: Candidate) -> bool:
        """Whether its function may give another."""
        return self._made[place_of(candidate)] < self._most


async def judged_in_order(
    queue: AsyncGenerator[Candidate, None],
    judge: Callable[[Candidate], Awaitable[B]],
    shares: Shares,
    *,
    in_flight: int,
) -> AsyncGenerator[B, None]:
    """What `judge` says of the candidates whose function has not had its share, `in_flight` judged at once.

    Whoever reads takes from `shares` as it goes. Closing ends what is being judged, and the queue.
    """
    running: deque[tuple[Candidate, asyncio.Future[B]]] = deque()
    try:
        while True:
            while len(running) < in_flight:
                candidate = await _next(queue, shares)
                if candidate is None:
                    break
                running.append((candidate, asyncio.ensure_future(judge(candidate))))
            if not running:
                return
            candidate, judging = running.popleft()
            said = await judging
            if shares.left(candidate):
                yield said
    finally:
        for _, left in running:
            left.cancel()
        await asyncio.gather(*(left for _, left in running), return_exceptions=True)
        await queue.aclose()


async def _next(queue: AsyncGenerator[Candidate, None], shares: Shares) -> Candidate | None:
    async for candidate in queue:
        if shares.left(candidate):
            return candidate
    return None
