"""What both container backends have in common: an engine, asked about itself once, and dead owners' containers."""

import asyncio
import contextlib
import os
from collections.abc import Mapping

from envgym.errors import EnvgymError, SandboxUnavailable
from envgym.sandbox import Sandbox, SandboxSnapshot
from envgym.task import World
from envgym_sandboxes.backend import LayeredBackend
from envgym_sandboxes.channel import ZygoteClient
from envgym_sandboxes.docker_engine.client import Client, Facts
from envgym_sandboxes.docker_engine.commit import check_name, commit

__all__ = ["EngineBackend"]


class EngineBackend(LayeredBackend):
    """A layered backend with an engine. root, images, snapshots: as of the namespace backend.

    address: of the engine (None: ``$DOCKER_HOST``, else the standard socket). runtime: which of the engine's
    runtimes starts containers (None: its default).
    """

    grouped = False
    has_way_out = True

    def __init__(
        self,
        *,
        root: str | os.PathLike[str] | None,
        images: Mapping[str, str] | None,
        snapshots: str | os.PathLike[str] | None,
        address: str | None,
        runtime: str | None,
    ) -> None:
        super().__init__(root=root, images=images, snapshots=snapshots)
        self._runtime = runtime
        self._client = Client(address, most_at_once=max(2, os.cpu_count() or 2))
        self._facts: asyncio.Task[Facts] | None = None

    @property
    def address(self) -> str:
        """The engine's."""
        return self._client.address

    def refuse_engine(self, facts: Facts) -> None:
        """Raise SandboxUnavailable for an engine that this backend cannot use."""

    def tops(self, world: World) -> set[str]:
        """The directories of a world that are a sandbox's own."""
        raise NotImplementedError

    async def _engine(self) -> Facts:
        """What the engine says of itself, asked once. Raises SandboxUnavailable."""
        self._check_open()
        if self._facts is None:
            self._facts = asyncio.create_task(self._ask())
        try:
            return await asyncio.shield(self._facts)
        except EnvgymError:
            self._facts = None
            raise

    async def _ask(self) -> Facts:
        facts = await self._client.call(self._client.facts)
        self.refuse_engine(facts)
        if self._runtime is not None and self._runtime not in facts.runtimes:
            known = ", ".join(facts.runtimes)
            raise ValueError(f"runtime {self._runtime!r} is none of the engine's at {self.address}: {known}")
        await self._client.call(self._client.reap)
        return facts

    async def _zygote(self, preload: tuple[str, ...]) -> ZygoteClient:
        self._home.check()
        await self._engine()
        return await super()._zygote(())  # no interpreter is kept warm: an image has its own

    async def commit(self, snapshot: SandboxSnapshot, name: str) -> str:
        """Make an image `name` ("NAME" or "NAME:TAG") of the engine's from a snapshot, and return its id.

        It has the world's image, what the sandbox had in its own directories, owned by root, and the world's
        workdir and variables. Everything is copied. Raises ValueError for a name that is none, SnapshotGone, and
        OSError when a directory is larger than `Resources.transfer_bytes`.
        """
        check_name(name)
        sandbox: Sandbox
        async with await self.restore(snapshot) as sandbox:
            image = await asyncio.to_thread(self.image, sandbox.world)
            return await commit(self._client, sandbox, image, self.tops(sandbox.world), name)

    def reap(self) -> list[str]:
        """See the contract. Without an engine there are no containers."""
        removed = super().reap()
        client = Client(self.address, most_at_once=1)  # this one's may be closed
        with contextlib.closing(client), contextlib.suppress(SandboxUnavailable):
            removed += client.reap()
        return removed

    async def _last_groups_gone(self) -> bool:
        self._client.close()
        return await super()._last_groups_gone()
