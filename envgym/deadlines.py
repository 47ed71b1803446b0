"""Deadlines that cost nothing until something waits: a call runs up to its first wait before any timer is made.

Most calls of an episode never wait. A deadline cancels; it cannot stop code that blocks the event loop.
"""

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

from envgym.errors import Boundary, DeadlineExceeded

__all__ = ["Waiting", "begin", "deadline"]

T = TypeVar("T")


@types.coroutine
def _resume(coroutine: Coroutine[Any, Any, T], waiting_for: Any) -> Generator[Any, Any, T]:
    """Go on with a coroutine that already ran up to its first wait."""
    try:
        while True:
            try:
                sent = yield waiting_for
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:
                waiting_for = coroutine.throw(error)
            else:
                waiting_for = coroutine.send(sent)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


class Waiting:
    """A coroutine that ran up to its first wait."""

    __slots__ = ("coroutine", "waiting_for")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waiting_for: Any) -> None:
        self.coroutine, self.waiting_for = coroutine, waiting_for

    async def finished(self) -> Any:
        """Its result, however long that takes."""
        return await _resume(self.coroutine, self.waiting_for)

    async def within(self, limit_s: float, what: str, party: Boundary) -> Any:
        """Its result, or DeadlineExceeded."""
        try:
            async with asyncio.timeout(limit_s) as timer:
                return await _resume(self.coroutine, self.waiting_for)
        except TimeoutError as error:
            if timer.expired():
                raise DeadlineExceeded(what, limit_s, party) from error
            raise


def begin(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits, else a `Waiting`: most calls need neither timer nor task."""
    try:
        return Waiting(coroutine, coroutine.send(None))
    except StopIteration as done:
        return done.value


async def deadline(coroutine: Coroutine[Any, Any, T], limit_s: float, what: str, party: Boundary) -> T:
    """Await with a deadline; a call that never waits costs no timer.

    Raises DeadlineExceeded (of `party`). Cancellation reaches the coroutine, which must free what it holds;
    code that blocks the loop cannot be stopped here: run such an environment with ``isolate="process"``.
    """
    begun = begin(coroutine)
    if type(begun) is Waiting:
        begun = await begun.within(limit_s, what, party)
    return begun  # type: ignore[no-any-return]
