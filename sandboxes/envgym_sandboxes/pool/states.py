"""The snapshots of a pool: on which member each is, and which share holds how many references of it.

A pool's name for one is its member's and the member's own. Of a durable one that is all there is to know: it may be
another process's, and outlives the backend that took it.
"""

import contextlib
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from envgym.arguments import instance
from envgym.errors import EnvgymError, SnapshotGone
from envgym.sandbox import Sandbox, SandboxBackend, SandboxSnapshot
from envgym.task import World
from envgym_sandboxes.pool.member import Member
from envgym_sandboxes.pool.sandbox import PoolSandbox

__all__ = ["Kept", "States"]


@dataclass(frozen=True, slots=True)
class Kept:
    """A snapshot: where it is, and of which world, if that is known."""

    member: Member
    generation: int
    inner: SandboxSnapshot
    world: World | None

    async def begin(self, member: Member, backend: SandboxBackend) -> Sandbox:
        """A sandbox in its state. Raises SnapshotGone when its backend died meanwhile."""
        return await backend.restore(self.at(backend))

    def at(self, backend: SandboxBackend) -> SandboxSnapshot:
        """The snapshot as its backend knows it. Raises SnapshotGone."""
        self.check()
        return self.inner.model_copy(update={"backend": backend.name})

    def check(self) -> None:
        """Raise SnapshotGone when its backend is another one by now, and it went with the one that made it."""
        if not self.inner.durable and self.member.generation != self.generation:
            raise SnapshotGone(
                f"snapshot {self.inner.id!r} went with the backend {self.member.name} that it was made by"
            )


class States:
    """Snapshots by the pool's name for them."""

    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members = members
        self._snapshots: dict[str, Kept] = {}
        self._references: dict[str, Counter[str]] = defaultdict(Counter)  # name -> share -> how many

    def keep(self, sandbox: PoolSandbox, inner: SandboxSnapshot) -> SandboxSnapshot:
        """The pool's handle of a snapshot that one of its sandboxes made."""
        snapshot = self.handle(sandbox.member, inner)
        if not inner.durable:
            self._snapshots[snapshot.id] = Kept(sandbox.member, sandbox.generation, inner, sandbox.world)
            self._references[snapshot.id][sandbox.seat.share] += 1
        return snapshot

    @staticmethod
    def handle(member: Member, inner: SandboxSnapshot) -> SandboxSnapshot:
        """A member's snapshot as one of the pool's."""
        return inner.model_copy(update={"id": f"{member.name}/{inner.id}", "backend": "pool"})

    def kept(self, snapshot: SandboxSnapshot) -> Kept:
        """A snapshot that is here, or durable on a member. Raises SnapshotGone."""
        place, slash, name = instance("snapshot", snapshot, SandboxSnapshot).id.partition("/")
        if snapshot.durable and slash and place in self._members:
            member = self._members[place]
            return Kept(member, member.generation, snapshot.model_copy(update={"id": name}), None)
        if snapshot.id not in self._snapshots:
            raise SnapshotGone(
                f"snapshot {snapshot.id!r} of backend {snapshot.backend!r} is not held by this pool: "
                "it was released, or made elsewhere"
            )
        return self._snapshots[snapshot.id]

    async def retain(self, share: str, snapshot: SandboxSnapshot) -> None:
        """One more reference, a share's."""
        kept = self.kept(snapshot)
        kept.check()
        backend = await kept.member.ready()
        await backend.retain(kept.at(backend))
        if not snapshot.durable:
            self._references[snapshot.id][share] += 1

    async def release(self, share: str, snapshot: SandboxSnapshot) -> None:
        """One reference less: the share's, or that of whoever has one."""
        kept = self.kept(snapshot)
        if not snapshot.durable:
            self._forget_one(share, snapshot.id)
        kept.check()
        backend = await kept.member.ready()
        await backend.release(kept.at(backend))

    def _forget_one(self, share: str, name: str) -> None:
        held = self._references[name]
        owner = share if held[share] else next(iter(+held))
        held[owner] -= 1
        if not +held:
            del self._references[name], self._snapshots[name]

    @asynccontextmanager
    async def at_sandbox(self, snapshot: SandboxSnapshot, sandbox: PoolSandbox) -> AsyncIterator[SandboxSnapshot]:
        """A snapshot as a sandbox's own backend knows it; one of another host is brought there meanwhile.

        Raises SnapshotGone, ValueError for another backend's, and what exporting and importing raise.
        """
        if instance("since", snapshot, SandboxSnapshot).backend != sandbox.backend:
            raise ValueError(
                f"snapshot {snapshot.id!r} is of backend {snapshot.backend!r}, not of {sandbox.backend!r}"
            )
        kept = self.kept(snapshot)
        backend = await kept.member.ready()
        if kept.member is sandbox.member:
            yield kept.at(backend)
            return
        here = await sandbox.member.ready()
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, "state"))
            await backend.export_snapshot(kept.at(backend), path)
            brought = await here.import_snapshot(path)
        try:
            yield brought
        finally:
            await here.release(brought)

    async def leave(self, share: str) -> None:
        """Give back all references of a share; what is gone is gone."""
        for name, held in list(self._references.items()):
            for _ in range(held[share]):
                with contextlib.suppress(EnvgymError):
                    await self.release(share, SandboxSnapshot(id=name, backend="pool"))

    def clear(self) -> None:
        """Forget all: their backends are closed."""
        self._snapshots.clear()
        self._references.clear()
