"""What the backends of this package share: layers with reference counts, snapshots, life cycle.

A layer is a directory that one sandbox at a time can write to and that, once frozen, nobody writes to again. This
file counts who stands on which layer and removes what nobody does; it never looks into one.
"""

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from envgym.errors import EnvgymError, EnvironmentFailure, InfrastructureFailure, SnapshotGone
from envgym.sandbox import SandboxSnapshot
from envgym.task import World
from envgym_sandboxes import state
from envgym_sandboxes.bases import Base, Bases
from envgym_sandboxes.cgroups import Groups
from envgym_sandboxes.channel import Peer, ZygoteClient, job
from envgym_sandboxes.processes import Processes
from envgym_sandboxes.sandbox import Frozen, LayeredSandbox, Started
from envgym_sandboxes.state import remove_cgroup
from envgym_sandboxes.world import check_world

__all__ = ["LayeredBackend"]

_LONGEST_CHAIN = 24
_START_S = 30.0
_PATIENCE_MS = 2000


@dataclass(slots=True)
class _Held:
    frozen: Frozen
    references: int = field(default=1)


class LayeredBackend:
    """See `envgym.sandbox.SandboxBackend`. A subclass says how a world becomes layers and what init is told."""

    name = "layered"
    confined = True

    def __init__(
        self,
        *,
        root: str | os.PathLike[str] | None = None,
        images: Mapping[str, str] | None = None,
    ) -> None:
        self._root = Path(root) if root is not None else state.default_root()
        self._images = dict(images or {})
        self._numbers = itertools.count(1)
        self._references: dict[str, int] = {}
        self._snapshots: dict[str, _Held] = {}
        self._bases = Bases(self._prepare, lambda base: self._drop(base.layers))
        self._sandboxes: dict[str, LayeredSandbox] = {}
        self._groups: dict[str, Groups] = {}
        self._dying: list[Path] = []
        self._processes = Processes(self._root, self.confined, self.describe)
        self._closed = False

    # -- what a subclass says ----------------------------------------------------------------------------------

    def describe(self) -> tuple[str, dict[str, Any], str]:
        """Name, settings and advice, for the processes."""
        return self.name, self.settings(), self.advice()

    def settings(self) -> dict[str, Any]:
        """What the zygote is told."""
        raise NotImplementedError

    async def make_base(self, world: World) -> Base:
        """A world's layers, without its setup commands."""
        raise NotImplementedError

    def spec(self, base: Base, frozen: Frozen, upper: str) -> dict[str, Any]:
        """What an init is told."""
        raise NotImplementedError

    def shell(self, frozen: Frozen, upper: str) -> Mapping[str, str] | None:
        """The shell state that a sandbox above `frozen` begins with; None for a world's first one."""
        return frozen.shell

    async def fill_upper(self, base: Base, frozen: Frozen, upper: str) -> bool:
        """Make the writable layer, or leave that to the zygote: True."""
        return True

    # -- create, restore, references ---------------------------------------------------------------------------

    async def create(self, world: World) -> LayeredSandbox:
        """See the contract. The first sandbox of a world makes its base state; later ones only stand on it."""
        check_world(world)
        return await self.adopt(Frozen(world))

    async def restore(self, snapshot: SandboxSnapshot) -> LayeredSandbox:
        """See the contract."""
        return await self.adopt(self._held(snapshot).frozen)

    async def retain(self, snapshot: SandboxSnapshot) -> None:
        """See the contract."""
        self._held(snapshot).references += 1

    async def release(self, snapshot: SandboxSnapshot) -> None:
        """See the contract."""
        held = self._held(snapshot)
        held.references -= 1
        if held.references == 0:
            del self._snapshots[snapshot.id]
            self._bases.leave(held.frozen.world)
            await self.unuse(held.frozen.chain)

    def _held(self, snapshot: SandboxSnapshot) -> _Held:
        if snapshot.id not in self._snapshots:
            raise SnapshotGone(
                f"snapshot {snapshot.id!r} of backend {snapshot.backend!r} is not held by this {self.name} one: "
                "it was released, or made by another backend or process"
            )
        return self._snapshots[snapshot.id]

    async def hold(self, frozen: Frozen) -> SandboxSnapshot:
        """A handle of a frozen state, with one reference."""
        self.use(frozen.chain)
        try:
            digest = await self.digest(frozen, None)
            await self._bases.hold(frozen.world)
        except BaseException:
            await self.unuse(frozen.chain)
            raise
        name = f"{self._processes.state.name}-s{next(self._numbers)}"
        self._snapshots[name] = _Held(frozen)
        return SandboxSnapshot(id=name, backend=self.name, partial=frozen.partial, digest=digest)

    async def adopt(self, frozen: Frozen) -> LayeredSandbox:
        """A running sandbox in a frozen state."""
        await self._zygote(())
        number = next(self._numbers)
        sandbox = LayeredSandbox(self, f"{self.name}-{os.getpid()}-{number}", frozen)
        self.use(frozen.chain)
        try:
            await self._bases.hold(frozen.world)
        except BaseException:
            await self.unuse(frozen.chain)
            raise
        self._sandboxes[sandbox.id] = sandbox
        try:
            if self.confined:
                self._groups[sandbox.id] = Groups(
                    f"envgym-{self._processes.state.name}-{number}", frozen.world.resources
                )
            sandbox.begin()
            return await sandbox.started()
        except BaseException:
            await sandbox.close()
            raise

    async def discard(self, sandbox: LayeredSandbox, chain: tuple[str, ...], upper: str | None) -> None:
        """Remove what a closed sandbox had."""
        if self._sandboxes.pop(sandbox.id, None) is None:
            return
        groups = self._groups.pop(sandbox.id, None)
        if groups:
            self._dying = [path for path in self._dying if not remove_cgroup(path)] + groups.remove()
        self._bases.leave(sandbox.world)
        if upper is not None:
            await self._drop((upper,))
        await self.unuse(chain)

    # -- layers ------------------------------------------------------------------------------------------------

    def new_layer_name(self) -> str:
        """Short: all names of a stack must fit into one page of mount options."""
        return f"l{next(self._numbers):x}"

    def use(self, chain: tuple[str, ...]) -> None:
        """Count one more user of each layer."""
        for layer in chain:
            self._references[layer] = self._references.get(layer, 0) + 1

    async def unuse(self, chain: tuple[str, ...]) -> None:
        """Count one user less; remove layers without any."""
        unused = []
        for layer in chain:
            self._references[layer] -= 1
            if self._references[layer] <= 0:
                del self._references[layer]
                unused.append(layer)
        await self._drop(tuple(unused))

    async def _drop(self, layers: tuple[str, ...]) -> None:
        if layers:
            with contextlib.suppress(EnvgymError):  # with the zygote its layers are gone
                zygote = await self._processes.zygote(())
                await zygote.ask("drop", names=list(layers))

    async def freeze(self, frozen: Frozen, upper: str) -> tuple[str, ...]:
        """Make the writable layer of a stopped sandbox a frozen one; keep the stack short."""
        self._references[upper] = 1
        chain = (*frozen.chain, upper)
        if len(chain) <= _LONGEST_CHAIN:
            return chain
        merged = await self._merge([f"{layer}/f" for layer in chain])
        self._references[merged] = 1
        await self.unuse(chain)
        return (merged,)

    async def copy(self, upper: str) -> str:
        """A frozen copy of a layer that is still written to."""
        return await self._merge([f"{upper}/u"])

    async def _merge(self, sources: list[str]) -> str:
        zygote = await self._zygote(())
        name = self.new_layer_name()
        await zygote.ask("layer", name=name, size=1 << 40, after=[])
        await job(zygote, "copy", sources=sources, target=f"{name}/f", privileged=self.settings()["privileged"])
        return name

    def _stacks(self, base: Base, frozen: Frozen, upper: str | None) -> dict[str, Any]:
        chain = [*(f"{layer}/f" for layer in frozen.chain), *([f"{upper}/u"] if upper else [])]
        return {"chain": chain, "lowers": list(base.lowers)}

    async def digest(self, frozen: Frozen, upper: str | None) -> str:
        """See the contract."""
        base = await self._bases.get(frozen.world)
        head, _body = await job(await self._zygote(()), "digest", **self._stacks(base, frozen, upper))
        return str(head)

    async def diff(self, frozen: Frozen, upper: str | None) -> dict[str, bytes | None]:
        """See the contract."""
        base = await self._bases.get(frozen.world)
        index: list[tuple[str, int]]
        index, body = await job(await self._zygote(()), "diff", **self._stacks(base, frozen, upper))
        found: dict[str, bytes | None] = {}
        at = 0
        for path, size in index:
            found[path] = None if size < 0 else body[at : at + size]
            at += max(size, 0)
        return found

    # -- base states -------------------------------------------------------------------------------------------

    async def _prepare(self, world: World) -> Base:
        """A world's base with its setup commands done."""
        base = await self.make_base(world)
        if not world.setup:
            return base
        name = f"{self.name}-{os.getpid()}-setup{next(self._numbers)}"
        started = await self._launch(name, base, Frozen(world))
        try:
            await self._run_setup(world, started)
        finally:
            await self.stop(started)
        lowers = (f"{started.upper}/u", *base.lowers)
        return Base(lowers, (started.upper, *base.layers), base.spec)

    async def _run_setup(self, world: World, started: Started) -> None:
        for command in world.setup:
            text = command.encode()
            head = {"op": "shell", "size": len(text), "timeout_s": world.resources.command_s, "limit": 1 << 16}
            answer, output = await started.peer.ask(head, text)
            if answer["code"] != 0:
                tail = output[-2000:].decode("utf-8", "replace")
                what = "timed out" if answer["timed_out"] else f"ended with status {answer['code']}"
                raise EnvironmentFailure(f"World.setup command {command!r} {what}: {tail}")

    # -- processes ---------------------------------------------------------------------------------------------

    async def start(self, sandbox: str, frozen: Frozen) -> Started:
        """Start an init in a frozen state."""
        return await self._launch(sandbox, await self._bases.get(frozen.world), frozen)

    async def _launch(self, sandbox: str, base: Base, frozen: Frozen) -> Started:
        zygote = await self._zygote(frozen.world.preload)
        upper = self.new_layer_name()
        fresh = await self.fill_upper(base, frozen, upper)
        spec = self.spec(base, frozen, upper)
        groups = self._groups.get(sandbox)
        spec["cgroups"] = [str(path) for path in groups.paths] if groups else []
        ours, theirs = socket.socketpair()
        peer = Peer(ours, sandbox)
        ended = zygote.exit_of(upper)
        size, after = frozen.world.resources.disk_bytes, list(frozen.chain)
        with theirs:
            asked = zygote.ask(
                "start", [theirs.fileno()], sandbox=upper, spec=spec, fresh=fresh, size=size, after=after
            )
        started = Started(upper, peer, ended, zygote)
        if shell := self.shell(frozen, upper):
            script = shell["script"].encode("utf-8", "surrogateescape")
            peer.send({"op": "continue", "cwd": shell["cwd"]}, script)
        try:
            await asked
            async with asyncio.timeout(_START_S):
                await peer.ready
        except BaseException as error:
            peer.end(f"{error}")
            with contextlib.suppress(OSError):  # it may not have been made
                await self._drop((upper,))
            if isinstance(error, OSError):
                raise InfrastructureFailure(f"sandbox {sandbox} could not be started: {error}") from error
            raise
        return started

    async def settle(self, started: Started) -> None:
        """End an init that said its state, without waiting for it."""
        await started.zygote.ask("settle", sandbox=started.upper)
        started.peer.end("frozen")

    async def stop(self, started: Started) -> None:
        """End an init and all below it; nothing writes to its layer afterwards."""
        started.peer.end("stopped")
        with contextlib.suppress(EnvgymError):
            await started.zygote.ask("kill", sandbox=started.upper)
            await started.ended

    def ran_out_of_memory(self, sandbox: str) -> bool:
        """Whether the kernel killed for memory in this sandbox since the last call."""
        groups = self._groups.get(sandbox)
        return groups.ran_out() if groups else False

    async def _zygote(self, preload: tuple[str, ...]) -> ZygoteClient:
        if self._closed:
            raise InfrastructureFailure(f"this {self.name} backend is closed")
        return await self._processes.zygote(preload)

    def advice(self) -> str:
        """What would make this backend work."""
        return ""

    # -- the end -----------------------------------------------------------------------------------------------

    def reap(self) -> list[str]:
        """See the contract."""
        return state.reap(self._root)

    async def close(self) -> None:
        """See the contract."""
        if self._closed:
            return
        self._closed = True
        for sandbox in list(self._sandboxes.values()):
            await sandbox.close()
        self._snapshots.clear()
        await self._processes.close(self._last_groups_gone)

    async def _last_groups_gone(self) -> bool:
        """Remove what is left of the groups; the kernel has no event to wait for."""
        for groups in self._groups.values():
            self._dying += groups.remove()
        self._groups.clear()
        for _ in range(_PATIENCE_MS):
            self._dying = [path for path in self._dying if not remove_cgroup(path)]
            if not self._dying:
                return True
            await asyncio.sleep(0.001)
        return False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()
