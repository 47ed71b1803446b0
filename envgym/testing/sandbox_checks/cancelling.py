"""Leaving early: a caller who is cancelled takes nothing with it, and leaves nothing half done."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from envgym.sandbox import SandboxBackend
from envgym.task import World
from envgym.testing.sandbox_checks.common import SLACK_S, Check

__all__ = ["CHECKS"]

_MOMENTS_S = (0.0, 0.0003, 0.0006, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01)


async def _leave(work: Coroutine[Any, Any, Any], moment_s: float) -> Any:
    """Begin something and cancel it after a while; what it gave, if it was over before, else None."""
    task = asyncio.ensure_future(work)
    if moment_s:
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), moment_s)
    else:
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        return await task


async def _left_early(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        for number, moment_s in enumerate(_MOMENTS_S):
            for what in (sandbox.snapshot, sandbox.fork):
                await sandbox.exec(f"echo {number} > f; v={number}")
                if given := await _leave(what(), moment_s):
                    await (given.close() if what == sandbox.fork else backend.release(given))
                async with asyncio.timeout(4 * SLACK_S):
                    result = await sandbox.exec('cat f; echo "$v"')
                assert result.stdout == f"{number}\n{number}\n".encode(), (
                    f"a {what.__name__} that nobody waits for leaves the sandbox as it was: {result}"
                )


async def _closed_by_two(backend: SandboxBackend, world: World) -> None:
    for moment_s in _MOMENTS_S:
        sandbox = await backend.create(world)
        await _leave(sandbox.close(), moment_s)
        async with asyncio.timeout(4 * SLACK_S):
            await asyncio.gather(sandbox.close(), sandbox.close())  # as good as the first, had it been waited for


CHECKS: tuple[Check, ...] = (_left_early, _closed_by_two)
