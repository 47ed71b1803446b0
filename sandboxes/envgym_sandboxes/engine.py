"""What a sandbox asks of its backend: frozen states, running inits, and the steps between them. Types only."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from envgym.sandbox import Sandbox, SandboxSnapshot
from envgym.task import World
from envgym_sandboxes.cgroups import Groups
from envgym_sandboxes.channel import Peer, ZygoteClient

__all__ = ["Engine", "Freezer", "Frozen", "Place", "Started"]


@dataclass(frozen=True, slots=True)
class Frozen:
    """A state that nothing can write to: layers above the world's base, lowest first, and the shell's state.

    origin: where the base is not made of the world's trees, files and set-up, the stored layers that stand in for
    it, topmost first.
    """

    world: World
    chain: tuple[str, ...] = ()
    shell: Mapping[str, str] | None = None
    partial: bool = False
    origin: tuple[str, ...] = ()

    @property
    def room(self) -> dict[str, Any]:
        """What a writable layer above it may hold, the layers of its chain included."""
        resources = self.world.resources
        return {"size": resources.disk_bytes, "inodes": resources.inodes, "after": list(self.chain)}


@dataclass(slots=True)
class Started:
    """A running init: its writable layer, its connection, and the future of its end."""

    upper: str
    peer: Peer
    ended: "asyncio.Future[int]"
    zygote: ZygoteClient


class Place(Protocol):
    """Where a sandbox is about to be."""

    @property
    def name(self) -> str:
        """The sandbox's."""
        ...

    @property
    def groups(self) -> Groups | None:
        """The sandbox's, where there are any."""
        ...

    def remove(self) -> None:
        """Nothing came of it."""
        ...


class Freezer(Protocol):
    """What a backend does with states."""

    async def freeze(self, frozen: Frozen, upper: str) -> tuple[str, ...]:
        """The layers of a stopped sandbox with its writable one on top, or fewer ones of the same state."""
        ...

    def tidy(self, frozen: Frozen) -> None:
        """Shorten the chain of a state in the background, for whoever freezes next."""
        ...

    async def copy(self, frozen: Frozen, upper: str) -> str:
        """A frozen copy of a layer that is still written to, above a frozen state."""
        ...

    async def digest(self, frozen: Frozen, upper: str | None) -> str:
        """A digest of what differs from the world's base."""
        ...

    async def diff(
        self, frozen: Frozen, upper: str | None, since: SandboxSnapshot | None
    ) -> dict[str, bytes | None]:
        """What differs from the world's base, or from a snapshot."""
        ...

    async def hold(self, frozen: Frozen, *, durable: bool = False) -> SandboxSnapshot:
        """A handle of a frozen state, with one reference. durable: it outlives this process."""
        ...

    def use(self, chain: tuple[str, ...]) -> None:
        """Keep layers until `unuse`."""
        ...

    async def unuse(self, chain: tuple[str, ...]) -> None:
        """Let layers go that nobody else uses."""
        ...


class Engine(Protocol):
    """What a backend does for its sandboxes.

    no_loopback: whether nothing can listen in a world without network.
    """

    name: str
    no_loopback: bool

    @property
    def states(self) -> Freezer:
        """Its frozen states."""
        ...

    async def start(self, sandbox: str, frozen: Frozen) -> Started:
        """A running init in a frozen state."""
        ...

    async def stop(self, started: Started) -> None:
        """End an init; nothing writes to its layer afterwards."""
        ...

    async def bring(self, started: Started) -> None:
        """Have all that was written in the writable layer, where it is not written there in the first place."""
        ...

    def settle(self, started: Started) -> "asyncio.Future[Any]":
        """Make the writable layer of an init that stands still a frozen one: before anything asked for later."""
        ...

    def end(self, started: Started) -> None:
        """End an init that stands still, without waiting for it."""
        ...

    async def release(self, snapshot: SandboxSnapshot) -> None:
        """Give up a handle."""
        ...

    def reserve(self, world: World) -> Place:
        """A name, and the groups under it, for a sandbox to come: what needs no state."""
        ...

    async def adopt(self, frozen: Frozen, place: Place | None = None) -> Sandbox:
        """A running sandbox in a frozen state, in a place reserved for it. The place is given back if it fails."""
        ...

    async def discard(self, sandbox: Sandbox, frozen: Frozen, upper: str | None) -> None:
        """Remove what a closed sandbox had."""
        ...

    def ran_out_of_memory(self, sandbox: str) -> bool:
        """Whether the kernel killed for memory since the last call."""
        ...
