"""States of this process to and from a store: which layers have to be packed, and what is made of packed ones.

Each layer is written once, whatever stands on it: a merged one is stored as the list of those it was merged from,
if they are stored. It knows how states hang together; the form of what is stored, and where, is others' matter.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from errno import EBADMSG
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from envgym.errors import InfrastructureFailure, StoreCorrupt
from envgym.task import World
from envgym_sandboxes.bases import Bases
from envgym_sandboxes.durable.identity import check_identity, identity_of
from envgym_sandboxes.durable.records import Manifest, ShellState
from envgym_sandboxes.durable.store import Store
from envgym_sandboxes.engine import Frozen
from envgym_sandboxes.ground import Ground
from envgym_sandboxes.layers import Chain, Layer, Layers

__all__ = ["Keeping"]

_ROOM = 64 << 20
"""What a layer's own bookkeeping may take beside the bytes that a sandbox may write."""


class Keeping:
    """Saves and loads the states of one backend. The store's calls block, so they are made in threads."""

    def __init__(self, ground: Ground, layers: Layers, bases: Bases, store: Store) -> None:
        self._ground = ground
        self._layers = layers
        self._bases = bases
        self.store = store
        self._packed: dict[str, str] = {}  # directory of a base's layer -> digest
        self._loaded: dict[str, str] = {}  # digest -> layer of a chain

    @asynccontextmanager
    async def sharing(self) -> AsyncIterator[None]:
        """While something is added or read: nothing is removed from the store."""
        taking = asyncio.ensure_future(asyncio.to_thread(self._lock))
        try:
            file = await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(lambda taken: None if taken.cancelled() else taken.result().close())
            raise
        with file:
            yield

    def _lock(self) -> IO[bytes]:
        file = self.store.opened()
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
        except BaseException:
            file.close()
            raise
        return file

    # -- saving ------------------------------------------------------------------------------------------------

    async def save(self, frozen: Frozen, digest: str) -> Manifest:
        """Store all that a state needs, and say what that is. Call it while sharing."""
        base = await self._bases.get(frozen)
        with self.store.making() as making:
            own = base.lowers[: len(base.lowers) - base.image]
            below = own[0] if self._ground.whole else None
            own, chain = (own[:1], frozen.chain[-1:]) if self._ground.whole else (own, frozen.chain)
            world, shell = frozen.world.model_dump_json(), json.dumps(self._absolute(frozen.shell))
            identity = await asyncio.to_thread(lambda: identity_of(self._ground.image(frozen.world)))
            return Manifest(
                backend=self._ground.name,
                created=time.time(),
                partial=frozen.partial,
                digest=digest,
                identity=identity,
                world=await asyncio.to_thread(self.store.add, "world", world.encode(), making),
                shell=await asyncio.to_thread(self.store.add, "shell", shell.encode(), making)
                if frozen.shell
                else None,
                base=tuple([await self._keep_directory(directory, making) for directory in own]),
                chain=tuple([await self._keep(self._layers.known[name], below, making) for name in chain]),
            )

    def _absolute(self, shell: Mapping[str, str] | None) -> dict[str, str]:
        """A shell's state with the whole path of the layer that may be named in it: it will be another one."""
        return {**shell, "layer": os.path.join(self._ground.place, shell["layer"])} if shell else {}

    async def _keep_directory(self, directory: str, making: Path) -> str:
        """Store a layer of a base."""
        digest = self._packed.get(directory)
        if digest is None or not self.store.objects.has(digest):
            digest = self._packed[directory] = await self._pack(directory, None, making)
        return digest

    async def _keep(self, layer: Layer, below: str | None, making: Path) -> str:
        """Store a layer of a chain."""
        if layer.stored is None or not self.store.objects.has(layer.stored):
            if layer.parts and all(self._has(part) for part in layer.parts):
                names = [await self._keep(part, below, making) for part in layer.parts]
                text = json.dumps(names).encode()
                layer.stored = await asyncio.to_thread(self.store.add, "list", text, making)
            else:
                layer.stored = await self._pack(f"{layer.name}/f", below, making)
            self._loaded[layer.stored] = layer.name
        return layer.stored

    def _has(self, layer: Layer) -> bool:
        if layer.stored is not None and self.store.objects.has(layer.stored):
            return True
        return bool(layer.parts) and all(self._has(part) for part in layer.parts)

    async def _pack(self, directory: str, below: str | None, making: Path) -> str:
        path = making / directory.replace("/", "-")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            owner, prefix = self._ground.settings()["uid"], self._ground.prefix
            head, _body = await self._ground.job(
                "pack", fds=[fd], layer=directory, below=below, owner=owner, prefix=prefix
            )
        finally:
            os.close(fd)
        await asyncio.to_thread(self.store.keep, path, str(head["digest"]))
        return str(head["digest"])

    # -- loading -----------------------------------------------------------------------------------------------

    async def load(self, name: str) -> Frozen:
        """A stored state; its layers are used once, for the caller. Raises SnapshotGone, StoreCorrupt.

        SandboxUnavailable: it is another backend's, or its image is another one here.
        """
        async with self.sharing():
            manifest = await asyncio.to_thread(self.store.find, name)
            frozen = await asyncio.to_thread(self._read, name, manifest)
            chain = await self._load_chain(manifest.chain, frozen)
            return Frozen(frozen.world, chain, frozen.shell, frozen.partial, frozen.origin)

    def _read(self, name: str, manifest: Manifest) -> Frozen:
        try:
            world = World.model_validate_json(self.store.objects.read("world", manifest.world))
            shell = None
            if manifest.shell is not None:
                text = self.store.objects.read("shell", manifest.shell)
                shell = ShellState.model_validate_json(text).model_dump()
        except ValidationError as error:
            raise StoreCorrupt(f"snapshot {name!r} in {self.store.top}: {error.errors()[0]['msg']}") from None
        self.check(manifest, world, f"snapshot {name!r}")
        return Frozen(world, (), shell, manifest.partial, manifest.base)

    def check(self, manifest: Manifest, world: World, what: str) -> None:
        """Raise unless this backend can restore a snapshot here: ValueError, SandboxUnavailable. It reads files."""
        if manifest.backend != self._ground.name:
            raise ValueError(
                f"{what} was taken by the {manifest.backend!r} backend; {self._ground.name!r} cannot restore it, "
                "since paths, users and the shell's state are others there"
            )
        check_identity(manifest.identity, identity_of(self._ground.image(world)), what)

    async def base(self, origin: Sequence[str]) -> Chain:
        """New layers that hold what was stored of a base, topmost first."""
        async with self.sharing():
            names = tuple([self._ground.new_layer_name() for _ in origin])
            await self._unpack(list(zip(names, origin, strict=True)), None)
        self._packed |= {f"{name}/f": digest for name, digest in zip(names, origin, strict=True)}
        return names

    async def _load_chain(self, digests: Sequence[str], of: Frozen) -> Chain:
        """Layers of stored things, lowest first, each used once."""
        await self._bases.hold(of)  # which others lie on
        fresh: dict[str, list[str]] = {}
        chain: list[str] = []
        try:
            missing = await asyncio.to_thread(lambda: [one for digest in digests for one in self._missing(digest)])
            for name, digest in zip(await self._unpacked(missing, of), missing, strict=True):
                fresh.setdefault(digest, []).append(name)
            for digest in digests:
                chain.append(await self._load(digest, tuple(chain), of, fresh))
            return tuple(chain)
        except BaseException:
            await self._layers.unuse(tuple(chain))
            raise
        finally:
            await self._layers.unuse(tuple(name for left in fresh.values() for name in left))
            self._bases.leave(of)

    def _missing(self, digest: str) -> list[str]:
        """The packed layers, lowest first, that have to be unpacked for a stored thing."""
        if self._loaded.get(digest) in self._layers.known:
            return []
        if self.store.objects.kind(digest) != "list":
            return [digest]
        return [one for part in self.store.objects.read_list(digest) for one in self._missing(part)]

    async def _load(self, digest: str, below: Chain, of: Frozen, fresh: dict[str, list[str]]) -> str:
        """A layer of a stored thing, used once. fresh: those that were just unpacked, used once each."""
        name = self._loaded.get(digest)
        if fresh.get(digest):
            name = fresh[digest].pop()
        elif name is not None and name in self._layers.known and name not in below:
            self._layers.use((name,))
        elif await asyncio.to_thread(self.store.objects.kind, digest) == "list":
            parts: list[str] = []
            try:
                for part in await asyncio.to_thread(self.store.objects.read_list, digest):
                    parts.append(await self._load(part, (*below, *parts), of, fresh))
                name = await self._layers.merged(tuple(parts), below, of)
            finally:
                await self._layers.unuse(tuple(parts))
            self._layers.known[name].stored = digest
        else:
            [name] = await self._unpacked([digest], of)
        self._loaded[digest] = name
        return name

    async def _unpacked(self, digests: Sequence[str], of: Frozen) -> list[str]:
        """New layers of packed ones, used once each."""
        names = [self._ground.new_layer_name() for _ in digests]
        sizes = await self._unpack(list(zip(names, digests, strict=True)), of)
        for name, digest, size in zip(names, digests, sizes, strict=True):
            layer = self._layers.add(name, users=1)
            layer.stored, layer.size = digest, size
        return names

    async def _unpack(self, layers: list[tuple[str, str]], of: Frozen | None) -> list[int]:
        """Fill new layers from what is stored; their sizes. of: the state they belong to; None for a base's."""
        if not layers:
            return []
        room = 1 << 40 if of is None else of.world.resources.disk_bytes + _ROOM
        settings, whole = self._ground.settings(), self._ground.whole
        made: list[str] = []
        try:
            await asyncio.gather(*(self._ground.make_layer(name, 0 if whole else room) for name, _digest in layers))
            made += [name for name, _digest in layers]
            for name in made:
                if whole and of is not None:  # it is told as a difference
                    sources = list((await self._bases.get(of)).lowers[:1])
                    await self._ground.job("merge", sources=sources, below=[], target=f"{name}/f", prefix="")
            objects = os.open(self.store.top / "objects", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with self._naming_the_store():
                    sizes, _body = await self._ground.job(
                        "unpack",
                        fds=[objects],
                        layers=[(f"{name}/f", digest) for name, digest in layers],
                        owner=(settings["uid"], settings["gid"]),
                        prefix=self._ground.prefix,
                        privileged=bool(settings["privileged"]),
                    )
                return [int(size) for size in sizes]
            finally:
                os.close(objects)
        except BaseException:
            await self._ground.drop(tuple(made))
            raise

    @contextlib.contextmanager
    def _naming_the_store(self) -> Iterator[None]:
        """A thing that is not what it should be is the store's fault, and says where it is."""
        try:
            yield
        except OSError as error:
            place = self.store.top / "objects"
            if error.errno == EBADMSG:
                raise StoreCorrupt(
                    f"{place}: {error}; release the snapshots that need it, or import them again"
                ) from None
            raise InfrastructureFailure(f"a snapshot of {place} could not be unpacked: {error}") from error
