"""The snapshots that one client may use on a server, and how they travel in a file.

What is not durable is its session's: nobody else can name it, and it is given back with the session. A durable one
belongs to the server's user, and so to every client that knows the token, until somebody releases it.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envgym.errors import EnvgymError, SandboxUnavailable, SnapshotGone, StoreCorrupt
from envgym.sandbox import Sandbox, SandboxBackend, SandboxSnapshot
from envgym_sandboxes.remote.link import Call
from envgym_sandboxes.remote.parcels import receive_file, send_file
from envgym_sandboxes.remote.trees import remove_tree

__all__ = ["States"]

Answer = tuple[dict[str, Any], bytes]


class States:
    """Of one session. sandbox: the one that a call names. folder: on disk, for files on their way."""

    def __init__(self, backend: SandboxBackend, sandbox: Callable[[Call], Sandbox], folder: Path) -> None:
        self._backend, self._sandbox, self._folder = backend, sandbox, folder
        self._numbers = itertools.count(1)
        self._references: Counter[str] = Counter()
        self._known: dict[str, SandboxSnapshot] = {}

    async def find(self, call: Call) -> SandboxSnapshot:
        """The snapshot that a call names. Raises SnapshotGone."""
        name = call.arguments.get("snapshot")
        if not isinstance(name, str):
            raise ValueError(f"{call.op}: snapshot is {name!r}; it must be a text")
        if name not in self._known and call.arguments.get("durable") is True:
            self._known |= {one.id: one for one in await self._backend.snapshots()}
        if name not in self._known:
            raise SnapshotGone(f"snapshot {name!r} is not held by this client: it was released, or never made here")
        return self._known[name]

    async def do_snapshot(self, call: Call) -> Answer:
        """Freeze a sandbox's state; the reference is this session's, if it is not durable."""
        durable = call.arguments.get("durable") is True
        snapshot = await self._sandbox(call).snapshot(durable=durable)
        self._known[snapshot.id] = snapshot
        if not durable:
            self._references[snapshot.id] += 1
        return {"snapshot": snapshot.model_dump()}, b""

    async def do_snapshots(self, _call: Call) -> Answer:
        """The durable ones."""
        return {"snapshots": [one.model_dump() for one in await self._backend.snapshots()]}, b""

    async def do_retain(self, call: Call) -> Answer:
        """One more reference."""
        snapshot = await self.find(call)
        await self._backend.retain(snapshot)
        if not snapshot.durable:
            self._references[snapshot.id] += 1
        return {}, b""

    async def do_release(self, call: Call) -> Answer:
        """One reference less."""
        snapshot = await self.find(call)
        if not snapshot.durable:
            self._references[snapshot.id] -= 1
            if not self._references[snapshot.id]:
                del self._references[snapshot.id], self._known[snapshot.id]
        await self._backend.release(snapshot)
        return {}, b""

    async def do_export(self, call: Call) -> Answer:
        """A snapshot as the bytes of a file."""
        snapshot, path = await self.find(call), self._new()
        try:
            await self._backend.export_snapshot(snapshot, str(path))
            await send_file(call, path)
        finally:
            await asyncio.to_thread(remove_tree, path)
        return {}, b""

    async def do_import(self, call: Call) -> Answer:
        """A durable snapshot of the bytes of a file."""
        path = self._new()
        try:
            await receive_file(call.pieces(), path)
            snapshot = await self._backend.import_snapshot(str(path))
        except (StoreCorrupt, SandboxUnavailable) as error:  # the client knows the file by a name of its own
            name = str(call.arguments.get("name", "the file"))
            raise type(error)(str(error).replace(str(path), name)) from None
        finally:
            await asyncio.to_thread(remove_tree, path)
        self._known[snapshot.id] = snapshot
        return {"snapshot": snapshot.model_dump()}, b""

    def _new(self) -> Path:
        return self._folder / f"state-{next(self._numbers)}"

    async def close(self) -> None:
        """Give back what is this session's."""
        held, self._references = self._references, Counter()
        for name, references in held.items():
            with contextlib.suppress(EnvgymError):
                for _ in range(references):
                    await self._backend.release(self._known[name])
        self._known.clear()
