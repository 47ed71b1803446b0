"""A backend belongs to one event loop; whoever comes from another one is told, and nothing is lost by it."""

import asyncio

from envgym.sandbox import SandboxBackend
from envgym.task import World
from envgym.testing.sandbox_checks.common import SLACK_S, Check

__all__ = ["CHECKS"]


async def _another_loop(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        await sandbox.exec("x=here")

        async def elsewhere() -> None:
            for what, work in (
                ("exec", sandbox.exec("x=elsewhere")),
                ("read", sandbox.read(f"{world.workdir}/given.txt")),
                ("fork", sandbox.fork()),
                ("create", backend.create(world)),
                ("close of a sandbox", sandbox.close()),
                ("close of a backend", backend.close()),
            ):
                said = ""
                try:
                    async with asyncio.timeout(4 * SLACK_S):
                        await work
                except RuntimeError as error:
                    said = str(error)
                assert "event loop" in said, (
                    f"{what} from another event loop raises RuntimeError that says so: {said}"
                )

        await asyncio.to_thread(asyncio.run, elsewhere())
        result = await sandbox.exec('echo "$x"')
        assert result.stdout == b"here\n", f"what came from another event loop did nothing: {result}"


CHECKS: tuple[Check, ...] = (_another_loop,)
