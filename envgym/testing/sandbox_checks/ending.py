"""The end: what close does, and what wrong use does not."""

import asyncio

from envgym.errors import EnvgymError, SandboxDied
from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import World
from envgym.testing.sandbox_checks.common import Check, raises

__all__ = ["CHECKS", "closed_backend"]


async def _closing(backend: SandboxBackend, world: World) -> None:
    sandbox = await backend.create(world)
    running = asyncio.ensure_future(sandbox.exec(["sleep", "97"]))
    await sandbox.exec(["true"])
    await sandbox.close()
    await sandbox.close()
    await raises(SandboxDied, running, "a command in a sandbox that was closed")
    await raises(SandboxDied, sandbox.exec(["true"]), "a command after close")
    await raises(SandboxDied, sandbox.read("given.txt"), "reading after close")
    await raises(SandboxDied, sandbox.snapshot(), "a snapshot after close")


async def _wrong_use(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        await raises(ValueError, sandbox.exec([]), "an empty argv")
        await raises(ValueError, sandbox.exec("echo \0"), "a NUL in a shell command")
        await raises(ValueError, sandbox.exec(["true"], timeout_s=0), "a deadline of zero")
        assert (await sandbox.exec(["true"])).ok, "wrong use does not break a sandbox"


async def closed_backend(backend: SandboxBackend, world: World) -> None:
    """What holds when a whole backend ends; it ends this one."""
    async with backend:
        sandbox: Sandbox = await backend.create(world)
        snapshot = await sandbox.snapshot()
    await raises(SandboxDied, sandbox.exec(["true"]), "a command after the backend's end")
    await raises(EnvgymError, backend.create(world), "creating after the backend's end")
    await raises(EnvgymError, backend.restore(snapshot), "restoring after the backend's end")
    await backend.close()
    assert isinstance(backend.reap(), list), "reap says what it removed"


CHECKS: tuple[Check, ...] = (
    _closing,
    _wrong_use,
)
