"""Sandboxes whose work is done are closed while their owner goes on: nobody waits for an end that changes nothing.

A backend's own end waits for all of them, as for any sandbox that is still there.
"""

import asyncio
import logging
import os
from typing import ClassVar
from weakref import WeakKeyDictionary

from envgym.sandbox import Sandbox

__all__ = ["Closing"]

_LOG = logging.getLogger("envgym.code_repair")


class Closing:
    """The sandboxes of one backend that are being closed. most: how many at a time; one more is waited for."""

    _by_owner: ClassVar["WeakKeyDictionary[object, Closing]"] = WeakKeyDictionary()

    def __init__(self, most: int | None = None) -> None:
        self._most = most or os.cpu_count() or 1
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def of(cls, owner: object) -> "Closing":
        """The one that lives as long as `owner` (a sandbox backend)."""
        found = cls._by_owner.get(owner)
        if found is None:
            found = cls._by_owner[owner] = cls()
        return found

    async def leave(self, sandbox: Sandbox) -> None:
        """Begin to close it. What fails then is a line of the log: what was found in it is known by now."""
        task = asyncio.create_task(sandbox.close())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if len(self._tasks) > self._most:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def over(self) -> None:
        """Wait until none is being closed."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.warning("a grade's sandbox was not closed: %s: %s", type(error).__name__, error)
