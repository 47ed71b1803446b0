"""Sandboxes in containers that cannot be entered: of engines elsewhere or without root, of other kernels (gVisor).

An agent of ours is pid 1 of each container, and the workspace is in its memory. So a state is a copy that is
carried through the engine: snapshots, forks and diffs take time in proportion to the workspace, and every life is
a container started anew. Where it works, the docker backend is the faster one.
"""

import asyncio
import contextlib
import itertools
import json
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from envgym.errors import EnvgymError
from envgym.limits import Resources
from envgym.sandbox import BackendReport
from envgym.task import World
from envgym_sandboxes import copies, protocol
from envgym_sandboxes import world as worlds
from envgym_sandboxes.bases import Base
from envgym_sandboxes.channel import Peer
from envgym_sandboxes.docker_engine import runtime
from envgym_sandboxes.docker_engine.attached import Attached
from envgym_sandboxes.docker_engine.base import EngineBackend
from envgym_sandboxes.docker_engine.client import Facts
from envgym_sandboxes.docker_engine.container import Kind, Maker, hardening
from envgym_sandboxes.docker_engine.report import examine
from envgym_sandboxes.engine import Frozen, Started
from envgym_sandboxes.layers import Chain
from envgym_sandboxes.root import INSIDE_ID
from envgym_sandboxes.way_out import way_out_port

__all__ = ["DockerCopyBackend"]

_PIECE = 1 << 20
_AGENT_BYTES = 48 << 20
"""Memory that a container may use beyond its world's, for the agent."""
_SLACK = 64 << 20
_PATIENCE_S = 120.0
_PLACES = {"/dev/shm": "1777"}


class DockerCopyBackend(EngineBackend):
    """See `envgym.sandbox.SandboxBackend`.

    Worlds need an image, and may bring files and trees only into their workdir, home and /tmp.
    root, images, address, runtime: as of the docker backend. The engine may be anywhere; nothing here needs root.
    """

    name = "docker-copy"
    confined = False
    whole = True

    def __init__(
        self,
        *,
        root: str | os.PathLike[str] | None = None,
        images: Mapping[str, str] | None = None,
        snapshots: str | os.PathLike[str] | None = None,
        address: str | None = None,
        runtime: str | None = None,
    ) -> None:
        super().__init__(root=root, images=images, snapshots=snapshots, address=address, runtime=runtime)
        self._names = itertools.count(1)
        self._lives: dict[str, _Life] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def create(self, world: World) -> Any:
        """See the contract."""
        worlds.check_world(world, self.name, way_out=self.has_way_out)
        if world.image == "host" or world.workdir == "/":
            raise ValueError(
                "World: a container needs an image that is not 'host', such as 'base', and a workdir that is not "
                f"'/'; not {world.image!r} and {world.workdir!r}"
            )
        unasked: dict[str, Any] = {"file_bytes": None, "io_bytes_s": None, "inodes": Resources().inodes}
        worlds.refuse_bounds(world.resources, self.name, **unasked)
        return await super().create(world)

    # -- states ------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """See `LayeredBackend.settings`."""
        return {"privileged": os.geteuid() == 0, "uid": os.geteuid(), "gid": os.getegid()}

    async def make_base(self, world: World, *, bare: bool = False) -> Base:
        """See `LayeredBackend.make_base`."""
        steps = copies.base_steps(worlds.emptied(world) if bare else world, self.name)
        image = await asyncio.to_thread(worlds.image_of, world, self._images)
        gathered = await asyncio.to_thread(runtime.gather)
        inside = await self._client.image(image, gathered, runtime.INSIDE)
        name = self.new_layer_name()
        await self.make_layer(name, 0)
        await self.job("fill", layer=f"{name}/u", steps=steps, uid=os.geteuid(), gid=os.getegid())
        env = worlds.default_env(world, [])
        return Base((f"{name}/u",), (name,), {"env": env, "image": inside})

    def spec(self, base: Base, frozen: Frozen, upper: str) -> dict[str, Any]:
        """See `LayeredBackend.spec`."""
        world = frozen.world
        return {
            "env": base.spec["env"],
            "python": worlds.IMAGE_PYTHON,
            "workdir": world.workdir,
            "limits": {},
            "writable": [*copies.tops(world), *_PLACES],
            "way_out": way_out_port(world),
        }

    async def bring(self, started: Started) -> None:
        """See `Engine.bring`."""
        life = self._lives[started.upper]
        layer = f"{self._processes.state.mount}/{started.upper}/u"
        for top in copies.tops(life.world):
            with tempfile.TemporaryFile(dir=self._processes.state.path) as file:
                await _dump(started.peer, top, life.world, file)
                file.flush()
                owner = (os.geteuid(), os.getegid())
                await self.job("replace", fds=[file.fileno()], target=f"{layer}{top}", owner=owner)

    # -- lives -------------------------------------------------------------------------------------------------

    async def enter(
        self, sandbox: str, base: Base, frozen: Frozen, *, upper: str, spec: dict[str, Any], stream: socket.socket
    ) -> "asyncio.Future[int]":
        """See `LayeredBackend.enter`."""
        await self._zygote(())
        await self.states.fill(base, frozen.chain, upper)
        life = Attached(self._client, f"envgym-{self._processes.state.name}-{next(self._names)}")
        self._lives[upper] = _Life(life, frozen.world, sandbox)
        settings = self._settings(frozen.world, base.spec["image"], await self._engine())
        try:
            with contextlib.ExitStack() as opened:
                cargo = []
                for top in copies.tops(frozen.world):
                    file = opened.enter_context(tempfile.TemporaryFile(dir=self._processes.state.path))
                    await self._pack(f"{upper}/u{top}", file.fileno())
                    cargo.append((top, file))
                command = runtime.command(json.dumps(spec))
                await life.start(base.spec["image"], command, settings)
                life.bound_buffers(frozen.world.resources.memory_bytes)
                await self._client.call(life.send, _frames(cargo))
            life.carry(stream)
        except BaseException:
            self._lives.pop(upper)
            await life.remove()
            raise
        return life.ended

    async def _pack(self, directory: str, fd: int) -> None:
        await self.job("pack", fds=[fd], layer=directory, below=None, owner=os.geteuid(), prefix="")

    def _settings(self, world: World, image: str, facts: Facts) -> tuple[dict[str, Any], dict[str, Any]]:
        """What each container is made with: as every other, and with a workspace of its own."""
        state = self._processes.state
        maker = Maker(self._client, state.name, state.path, self._runtime, facts)
        own, host = hardening(maker, Kind.of(image, (), world))
        own |= {"user": f"{INSIDE_ID}:{INSIDE_ID}", "hostname": "envgym", "stdin_open": True}
        memory = world.resources.memory_bytes + _AGENT_BYTES
        host |= {"mem_limit": memory, "memswap_limit": memory, "shm_size": world.resources.disk_bytes}
        host["pids_limit"] = world.resources.pids + 1  # the agent is one process
        bounds = f"size={world.resources.disk_bytes},nr_inodes={world.resources.inodes}"
        kept = f"rw,exec,nosuid,nodev,{bounds},uid={INSIDE_ID},gid={INSIDE_ID},mode=0755"
        host["tmpfs"] = dict.fromkeys(copies.tops(world), kept)
        return own, host

    def ran_out_of_memory(self, sandbox: str) -> bool:
        """See `Engine.ran_out_of_memory`. Of an engine elsewhere it is not seen."""
        lives = [life.container for life in self._lives.values() if life.sandbox == sandbox]
        return any([life.ran_out_of_memory() for life in lives])

    def end(self, started: Started) -> None:
        """See `Engine.end`."""
        started.peer.end("frozen")
        self._leave(started.upper)

    def _leave(self, upper: str) -> None:
        """Remove the container of a life that is over, without waiting for it."""
        life = self._lives.pop(upper, None)
        if life is not None:
            task = asyncio.create_task(life.container.remove())
            self._leaving.add(task)
            task.add_done_callback(self._left)

    def _left(self, task: "asyncio.Task[None]") -> None:
        self._leaving.discard(task)
        if not task.cancelled():
            task.exception()  # what an engine that is gone still has, is reaped by whoever comes next

    async def stop(self, started: Started) -> None:
        """See `Engine.stop`."""
        started.peer.end("stopped")
        life = self._lives.pop(started.upper, None)
        if life is not None:
            with contextlib.suppress(EnvgymError):
                await life.container.remove()

    def tops(self, world: World) -> set[str]:
        """See `EngineBackend.tops`."""
        return set(copies.tops(world))

    async def drop(self, layers: Chain) -> None:
        """See `Ground.drop`. With the layer of a life that did not come to be goes its container."""
        for name in layers:
            self._leave(name)
        await super().drop(layers)

    # -- the end -----------------------------------------------------------------------------------------------

    def report(self) -> BackendReport:
        """See the contract. It makes a sandbox of an image that is there, and runs a program in it."""
        given: dict[str, Any] = {"root": self._root, "images": self._images, "runtime": self._runtime}
        return examine(partial(DockerCopyBackend, address=self.address, **given), self.address, copying=True)

    async def _last_groups_gone(self) -> bool:
        while self._leaving:
            await asyncio.wait(self._leaving)
        return await super()._last_groups_gone()


@dataclass(frozen=True, slots=True)
class _Life:
    container: Attached
    world: World
    sandbox: str


def _frames(cargo: Sequence[tuple[str, IO[bytes]]]) -> Iterator[bytes]:
    """Directories' contents as requests that are not answered."""
    for top, file in cargo:
        file.seek(0)
        piece = file.read(_PIECE)
        while True:
            more = file.read(_PIECE)
            yield protocol.encode({"op": "load", "id": 0, "top": top, "last": not more}, piece)
            if not more:
                break
            piece = more


async def _dump(peer: Peer, top: str, world: World, file: IO[bytes]) -> None:
    """Have a directory's content sent, into a file. Raises SandboxDied, and OSError as the agent met it."""
    most = 2 * world.resources.disk_bytes + _SLACK
    with peer.open({"op": "dump", "top": top}, most=most) as request:
        while True:
            head, piece = await request.answer(within_s=_PATIENCE_S)
            if head.get("more") is not True:
                return
            file.write(piece)
