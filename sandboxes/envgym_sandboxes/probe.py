"""Whether a backend works here, found out the only sure way: by making a sandbox and running a program in it."""

import asyncio
import threading
from collections.abc import Callable

from envgym.sandbox import SandboxBackend
from envgym.task import World

__all__ = ["failure"]


def failure(make: Callable[[], SandboxBackend], world: World | None = None) -> str:
    """What went wrong with a fresh backend; empty if nothing did. It uses an event loop of its own."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(_try(make, world or World()))))
    thread.start()
    thread.join()
    return found[0] if found else "the probe crashed"


async def _try(make: Callable[[], SandboxBackend], world: World) -> str:
    try:
        async with make() as backend, await backend.create(world) as sandbox:
            result = await sandbox.exec(["true"], timeout_s=10)
            return "" if result.ok else f"`true` ended with {result.exit_code}: {result.text}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
