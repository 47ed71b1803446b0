"""What is closed and released after an episode, within deadlines, whatever happened: the episode stands."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from envgym.deadlines import Waiting, begin
from envgym.env import Env, Snapshot
from envgym.episode import Episode, Turn
from envgym.errors import Boundary, EnvgymError, SnapshotGone, boundary
from envgym.limits import Limits
from envgym.policy import Agent

__all__ = ["close_all", "close_both", "end_all", "release_all", "snapshots_of"]

_LOG = logging.getLogger("envgym")

_CLOSING = "close", "closing", boundary(Boundary.INFRASTRUCTURE, "close")
_RELEASING = "release", "releasing a snapshot of", boundary(Boundary.INFRASTRUCTURE, "release")

_told: WeakKeyDictionary[asyncio.AbstractEventLoop, set[str]] = WeakKeyDictionary()
"""What each event loop's run was already warned of: a close that fails mostly fails in every episode."""


async def close_both(env: Env | None, agent: Agent | None, limit_s: float) -> None:
    """Close both; one failing close does not skip the other."""
    await close_all(env, () if agent is None else (agent,), limit_s)


async def close_all(env: Env | None, agents: Iterable[Agent], limit_s: float) -> None:
    """Close the agents, then the world they play in."""
    for closing in (*agents, env):
        if closing is not None:
            await _clean_up(closing.close, limit_s, _CLOSING, closing)


def snapshots_of(turns: Iterable[Turn]) -> list[Snapshot]:
    """The snapshots that were taken before turns."""
    return [turn.snapshot for turn in turns if turn.snapshot is not None]


async def release_all(env: Env, snapshots: Iterable[Snapshot], limits: Limits, *, gone: bool = False) -> None:
    """Give snapshots back. gone: one may have been given back before, by a process that was killed then."""
    for one in snapshots:
        release = partial(_release_again, env, one) if gone else partial(env.release, one)
        await _clean_up(release, limits.close_s, _RELEASING, env)


async def _release_again(env: Env, snapshot: Snapshot) -> None:
    with suppress(SnapshotGone):
        await env.release(snapshot)


async def _clean_up(
    call: Callable[[], Coroutine[Any, Any, None]], limit_s: float, doing: tuple[str, str, boundary], of: object
) -> None:
    """Call within a deadline, which bounds one that hangs. doing: in a word, in a sentence, and whose fault it is.

    A failure is a warning in the log "envgym", one line and once per run however often it happens; each one and
    its traceback are there at level DEBUG.
    """
    what, sentence, faults = doing
    try:
        with faults:
            begun = begin(call())
            if type(begun) is Waiting:
                await begun.within(limit_s, what, Boundary.INFRASTRUCTURE)
    except EnvgymError as error:
        message = " ".join(f"{sentence} {type(of).__name__} failed: {error}".split())
        told = _told.setdefault(asyncio.get_running_loop(), set())
        if message not in told:
            told.add(message)
            _LOG.warning("%s (the episode stands; said once per run)", message)
        _LOG.debug("%s", message, exc_info=error)


async def end_all(tasks: Iterable[asyncio.Task[Episode]]) -> None:
    """Cancel what still runs and wait for its clean-up."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
