"""Candidates are judged several at once and become tasks in their queue's order, each function up to its share.

What is skipped is decided in queue order too, so what comes out depends on no sandbox being faster than another.
Several bugs of one task are made of bugs that were proved one by one.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from envgym.task import Task
from envgym_environments.code_repair.combine import Pool, interacting, together
from envgym_environments.code_repair.judge import Candidate, Judged, Plan, Verdict
from envgym_environments.code_repair.places import Yield

__all__ = ["Shares", "judged_in_order", "place_of", "tasks_in_order"]

B = TypeVar("B")
J = TypeVar("J", bound=Judged)


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


async def tasks_in_order(
    queue: AsyncGenerator[Candidate, None],
    functions: int,
    judge: Callable[[Candidate], Awaitable[J]],
    make: Callable[[J], Awaitable[Task | Verdict]],
    *,
    plan: Plan,
    counts: Yield,
    tests: Sequence[str] = (),
) -> AsyncGenerator[Task, None]:
    """What `make` makes of valid bugs, up to ``plan.per_package``, in the queue's order; verdicts go to `counts`.

    functions: in how many the candidates lie. make: the task, or why the grader does not believe it. tests: in
    running order, as far as it is known what covers candidates.
    """
    cap = (plan.per_function or max(3, -(-2 * plan.per_package // functions))) * plan.bugs
    shares, pool = Shares(cap), Pool[J](plan)
    async with aclosing(judged_in_order(queue, judge, shares, in_flight=plan.in_flight)) as bugs:
        async for bug in bugs:
            counts.add(bug)
            if bug.verdict is not Verdict.VALID:
                continue
            shares.take(bug.candidate)
            group = (bug,) if plan.bugs == 1 else pool.add(bug)
            if not group:
                continue
            whole = bug
            if plan.bugs > 1:
                whole = await judge(together(group, tests))
                counts.add(whole)
                if whole.verdict is not Verdict.VALID:
                    continue
                whole = replace(whole, interacting=interacting(group, whole.failing))
            made = await make(whole)
            if isinstance(made, Verdict):
                counts.take_back(whole, made)
                continue
            counts.tasks += 1
            yield made
            if counts.tasks >= plan.per_package:
                return


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
