"""What a backend tells its states and does for them: jobs where the layers are, room for layers. Types only."""

from collections.abc import Sequence
from typing import Any, Protocol

from envgym.task import World
from envgym_sandboxes.images.store import Image

__all__ = ["Ground"]


class Ground(Protocol):
    """The backend that states are those of. whole: each layer is a whole state, not what was written above one."""

    name: str
    whole: bool

    @property
    def prefix(self) -> str:
        """See `walk.overlay_prefix`; empty where each layer is a whole state."""
        ...

    @property
    def place(self) -> str:
        """The directory that layers are in."""
        ...

    def settings(self) -> dict[str, Any]:
        """What its zygote was told: uid and gid of sandboxes, and whether it is privileged."""
        ...

    def image(self, world: World) -> Image:
        """A world's image. It may read files, so call it in a thread."""
        ...

    async def job(self, name: str, /, *, fds: Sequence[int] = (), **arguments: Any) -> tuple[Any, bytes]:
        """Run one of `jobs`. fds: descriptors that it takes."""
        ...

    def snapshot_name(self) -> str:
        """A name that no other snapshot has."""
        ...

    def new_layer_name(self) -> str:
        """A short name that no other layer has."""
        ...

    async def make_layer(self, name: str, size: int = ...) -> None:
        """Make room for a layer of at most `size` bytes (default: as many as there are)."""
        ...

    async def drop(self, layers: tuple[str, ...]) -> None:
        """Remove layers."""
        ...
