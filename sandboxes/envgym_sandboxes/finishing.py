"""Work that is done to its end whatever becomes of who asked for it: half a freeze would leave a sandbox stuck.

A caller who is cancelled leaves; the work goes on as a task of its own, and what it gives is handed to somebody who
puts it away.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["finish"]

T = TypeVar("T")
_TASKS: set["asyncio.Task[Any]"] = set()


async def finish(work: Coroutine[Any, Any, T], unwanted: Callable[[T], Awaitable[object]]) -> T:
    """Do `work`, to its end even where this call is cancelled; then its result goes to `unwanted`."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        _keep(asyncio.create_task(_put_away(task, unwanted)))
        raise


def _keep(task: "asyncio.Task[Any]") -> None:
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)


async def _put_away(task: "asyncio.Task[T]", unwanted: Callable[[T], Awaitable[object]]) -> None:
    with contextlib.suppress(Exception):  # nobody is left to be told; whoever asks next meets what is wrong
        await unwanted(await task)
