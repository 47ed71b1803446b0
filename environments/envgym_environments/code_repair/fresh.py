"""A task's base state with a submission's files in it: each time in a sandbox of its own, which is closed again."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.util import cache_from_source
from typing import Any

from envgym.sandbox import Sandbox, SandboxBackend
from envgym_environments.code_repair.closing import Closing
from envgym_environments.code_repair.quality import byte_code
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.trials import Trials

__all__ = ["FreshStates", "over"]


class FreshStates:
    """Where a grader has its sandboxes from."""

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend
        self._closing = Closing.of(backend)

    @asynccontextmanager
    async def sandbox(self, trials: Trials, changed: Mapping[str, str | None]) -> AsyncIterator[Sandbox]:
        """The base state with these files: path -> text, None where there is none any more."""
        compiling = asyncio.ensure_future(_byte_codes(trials, changed))  # while it begins
        try:
            sandbox = await self._backend.create(trials.world)
            try:
                for path, text in changed.items():
                    await _put(sandbox, path, text)
                for path, compiled in (await compiling).items():
                    await sandbox.write(path, compiled)
                trials.begun.set()
                yield sandbox
            finally:
                await self._closing.leave(sandbox)
        finally:
            await over(compiling)


async def over(task: asyncio.Future[Any]) -> None:
    """What ran beside is over: cancelled where it still runs, its error heard where another one is on its way."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


async def _put(sandbox: Sandbox, path: str, text: str | None) -> None:
    if text is None:
        await sandbox.exec(["rm", "-f", "--", path])
    else:
        await sandbox.write(path, text.encode("utf-8", "surrogatepass"))


async def _byte_codes(trials: Trials, changed: Mapping[str, str | None]) -> dict[str, bytes]:
    """Byte code by path: `lint` has to make it anyway, and who imports the text would make it again."""
    if not isinstance(trials.facts.layout, Layout):
        return {}
    texts = {path: text for path, text in changed.items() if text is not None and path.endswith(".py")}
    made = {cache_from_source(path, optimization=""): byte_code(text) for path, text in texts.items()}
    return {path: code for path, code in made.items() if code is not None}
