"""Sandboxes in containers of a Docker engine, with the layers, snapshots and forks of every layered backend.

A sandbox is a warm container into which an overlay is mounted: at the world's workdir, at home and /tmp, and
wherever else the world brings something along. So a fork is an overlay and a container that already runs. What is
in a container besides is the image, read-only. It needs to be root on the engine's own host.
"""

import asyncio
import os
import posixpath
import socket
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from envgym.arguments import checked_count
from envgym.errors import SandboxUnavailable
from envgym.sandbox import BackendReport, MemoryUse, Sandbox
from envgym.task import World
from envgym_sandboxes import world as worlds
from envgym_sandboxes.backend import heard
from envgym_sandboxes.bases import Base
from envgym_sandboxes.capsule import TOOLS
from envgym_sandboxes.channel import ZygoteClient
from envgym_sandboxes.docker_engine.base import EngineBackend
from envgym_sandboxes.docker_engine.client import Facts
from envgym_sandboxes.docker_engine.container import Container, Kind, Maker, block_devices
from envgym_sandboxes.docker_engine.report import examine
from envgym_sandboxes.docker_engine.stock import Stock
from envgym_sandboxes.engine import Frozen
from envgym_sandboxes.host_memory import host_memory
from envgym_sandboxes.namespace import HOST_UID, is_privileged
from envgym_sandboxes.way_out import way_out_port
from envgym_sandboxes.world_layers import WorldLayers

__all__ = ["DockerBackend"]

_QUIET_S = 0.02
_SHARED = "/dev/shm"
"""It shows /tmp, so that shared memory counts against the disk limit and is part of snapshots."""
_SCRATCH = ("/tmp", "/var/tmp")
_TAKEN = ("/dev", "/proc", "/sys", TOOLS)


class DockerBackend(EngineBackend):
    """See `envgym.sandbox.SandboxBackend`.

    root, images, snapshots: as of the namespace backend. Worlds need an image; "host" is refused.
    address: of the engine (None: ``$DOCKER_HOST``, else the standard socket). podman's socket serves too.
    runtime: which of the engine's runtimes starts containers (None: its default).
    warm: how many containers of a kind are started ahead of the sandboxes that will need them.
    """

    name = "docker"
    confined = True

    def __init__(
        self,
        *,
        root: str | os.PathLike[str] | None = None,
        images: Mapping[str, str] | None = None,
        snapshots: str | os.PathLike[str] | None = None,
        address: str | None = None,
        runtime: str | None = None,
        warm: int = 1,
    ) -> None:
        super().__init__(root=root, images=images, snapshots=snapshots, address=address, runtime=runtime)
        self._warm = checked_count("warm", warm, least=0)
        self._idle: Stock | None = None
        self._worlds = WorldLayers(self, zygote=partial(self._zygote, ()), drop=self.drop, owner=HOST_UID)
        self._containers: dict[str, Container] = {}
        self._owner: ZygoteClient | None = None

    # -- the engine --------------------------------------------------------------------------------------------

    async def create(self, world: World) -> Any:
        """See the contract."""
        worlds.check_world(world, self.name, way_out=self.has_way_out)
        if world.image == "host":
            raise ValueError(
                "World.image is 'host': a container needs an image; use 'base' (`envgym images build base`) or "
                "another one of `envgym images list`, or the namespace backend, which can stand on the host"
            )
        if not block_devices():
            worlds.refuse_bounds(world.resources, self.name, io_bytes_s=None)
        _places(world)
        return await super().create(world)

    def refuse_engine(self, facts: Facts) -> None:
        """See `EngineBackend.refuse_engine`."""
        if not is_privileged() or not facts.local or facts.rootless:
            raise SandboxUnavailable(
                "workspaces are mounted into containers, which needs root on the host of the engine, at "
                f"{self.address}"
            )

    def _containers_of(self, facts: Facts) -> Stock:
        """The stock, made when there is a state directory to be named after."""
        if self._idle is None:
            state = self._processes.state
            maker = Maker(self._client, state.name, state.path, self._runtime, facts)
            self._idle = Stock(maker, self._warm, self._prepare_life)
        return self._idle

    # -- layers ------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """See `LayeredBackend.settings`."""
        mine: dict[str, Any] = {"privileged": True, "uid": HOST_UID, "gid": HOST_UID, "containers": True}
        return mine | {"alias": None, "binds": [], "spares": False}

    async def make_base(self, world: World, *, bare: bool = False) -> Base:
        """See `LayeredBackend.make_base`."""
        image = await asyncio.to_thread(worlds.image_of, world, self._images)
        inside = await self._client.image(image)
        stack = await self._worlds.stack(worlds.emptied(world) if bare else world, image, [])
        spec = {"env": worlds.default_env(world, []), "python": worlds.IMAGE_PYTHON, "image": inside}
        return Base(stack.lowers, (stack.top,), spec, image=2, leave=stack.leave)

    def spec(self, base: Base, frozen: Frozen, upper: str) -> dict[str, Any]:
        """See `LayeredBackend.spec`."""
        world = frozen.world
        return {
            "env": base.spec["env"],
            "python": base.spec["python"],
            "lowers": [*(f"{layer}/f" for layer in reversed(frozen.chain)), *base.lowers],
            "upper": upper,
            "mounts": _places(world),
            "writable": [target for _source, target in _places(world)],
            "limits": {"file": world.resources.file_bytes},
            "uid": HOST_UID,
            "gid": HOST_UID,
            "privileged": True,
            "workdir": world.workdir,
            "way_out": way_out_port(world),
        }

    # -- lives -------------------------------------------------------------------------------------------------

    async def enter(
        self, sandbox: str, base: Base, frozen: Frozen, *, upper: str, spec: dict[str, Any], stream: socket.socket
    ) -> "asyncio.Future[int]":
        """See `LayeredBackend.enter`."""
        zygote = self._owner = await self._zygote(())
        container = self._containers.get(sandbox)
        if container is None:
            tops = tuple(target for _source, target in spec["mounts"] if target != _SHARED)
            container = await self._containers_of(await self._engine()).take(
                Kind.of(base.spec["image"], tops, frozen.world)
            )
            self._containers[sandbox] = container
        spec |= {"container": container.name, "cgroups": container.groups, "meters": container.meters}
        ended = zygote.exit_of(upper)
        try:
            doors = [stream.fileno(), *container.namespaces]
            await zygote.ask("start", doors, sandbox=upper, spec=spec, fresh=True, room=frozen.room)
            asyncio.get_running_loop().call_later(_QUIET_S, self._prepare_life, container)
        except BaseException:
            if sandbox not in self._sandboxes:
                self._leave(sandbox)
            raise
        return ended

    def _prepare_life(self, container: Container) -> None:
        """Have the next life's first process wait in a container: most of its start, done when nobody waits."""
        if self._owner is not None and not self._closed and container.dead is None:
            told = {"container": container.name, "cgroups": container.groups, "seat": container.seat}
            self._owner.ask("ready", container.namespaces, **told).add_done_callback(heard)

    def _leave(self, sandbox: str) -> None:
        """A sandbox that has ended needs its container no more."""
        container = self._containers.pop(sandbox, None)
        if container is not None and self._idle is not None:
            self._idle.give(container)

    async def _prepare(self, state: Frozen) -> Base:
        try:
            return await super()._prepare(state)
        finally:  # setup ran in a sandbox that nobody will close
            for sandbox in self._containers.keys() - self._sandboxes.keys():
                self._leave(sandbox)

    async def discard(self, sandbox: Sandbox, frozen: Frozen, upper: str | None) -> None:
        """See `Engine.discard`."""
        await super().discard(sandbox, frozen, upper)
        self._leave(sandbox.id)  # now that its layers are gone, its container may hold little

    def ran_out_of_memory(self, sandbox: str) -> bool:
        """See `Engine.ran_out_of_memory`."""
        container = self._containers.get(sandbox)
        return container is not None and container.ran_out_of_memory()

    async def memory(self, sandboxes: Collection[str]) -> MemoryUse:
        """See `envgym.sandbox.MeteredBackend`."""
        containers = {name: self._containers[name] for name in sandboxes if name in self._containers}
        used = {name: size for name, one in containers.items() if (size := one.used_bytes()) is not None}
        total, available = host_memory()
        return MemoryUse(total, available, used)

    def tops(self, world: World) -> set[str]:
        """See `EngineBackend.tops`."""
        return {target for _source, target in _places(world)} - {_SHARED}

    # -- the end -----------------------------------------------------------------------------------------------

    def report(self) -> BackendReport:
        """See the contract. It makes a sandbox of an image that is there, and runs a program in it."""
        probe = partial(
            DockerBackend, root=self._root, images=self._images, address=self.address, runtime=self._runtime, warm=0
        )
        return examine(probe, self.address)

    async def _last_groups_gone(self) -> bool:
        if self._idle is not None:
            await self._idle.close()
        return await super()._last_groups_gone()


def _places(world: World) -> list[tuple[str, str]]:
    """What is mounted into a container for a world: directories of its overlay, and where they appear.

    Raises ValueError for a path that no container can have.
    """
    wanted = {world.workdir, worlds.HOME, *_SCRATCH, *(tree.target for tree in world.trees)}
    wanted |= {posixpath.dirname(path) for path in world.files}
    for path in sorted(wanted):
        first = f"/{path.split('/')[1]}"
        if path == "/" or first in _TAKEN:
            raise ValueError(
                f"World: something is to be at {path!r}; in a container, '/' and {', '.join(_TAKEN)} are not the "
                "world's: put it into a directory of its own, or use the namespace backend"
            )
    tops = [path for path in sorted(wanted) if not any(path.startswith(f"{other}/") for other in wanted)]
    return [*((path.lstrip("/"), path) for path in tops), ("tmp", _SHARED)]
