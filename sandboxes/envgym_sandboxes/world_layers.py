"""The layers that worlds are made of: each made once, and shared by all worlds that have it in common.

For backends that stack layers above an image. It decides what is shared; `world` says what is in a layer, and
`jobs` fills it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from envgym.task import Tree, World
from envgym_sandboxes import world as worlds
from envgym_sandboxes.channel import ZygoteClient
from envgym_sandboxes.images.store import Image

__all__ = ["MOST_TREES", "Stack", "WorldLayers"]

MOST_TREES = 16
"""More trees than this share layers: the kernel stacks at most 500, and their names must fit into one page."""
_UNBOUNDED = 1 << 40


class Keeper(Protocol):
    """The backend that layers are made for."""

    @property
    def prefix(self) -> str:
        """Of the names of the attributes by which layers say what is hidden."""
        ...

    def new_layer_name(self) -> str:
        """A name for one."""
        ...

    def job(self, name: str, /, **arguments: Any) -> Awaitable[Any]:
        """Run one of `jobs` where the layers are."""
        ...


Key = tuple[str, ...]
"""What tells a shared layer from others."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The layers of a base: all lowers, topmost first; the one that is its own; and the end of its use."""

    lowers: tuple[str, ...]
    top: str
    leave: Callable[[], Awaitable[None]]


@dataclass(slots=True)
class _Shared:
    layer: asyncio.Task[str]
    users: int = 0


class WorldLayers:
    """The layers of one backend's worlds.

    zygote: where they are made. drop: removes some. owner: the user and group that the sandbox's own files belong
    to, as the zygote sees it.
    """

    def __init__(
        self,
        keeper: Keeper,
        *,
        zygote: Callable[[], Awaitable[ZygoteClient]],
        drop: Callable[[tuple[str, ...]], Awaitable[None]],
        owner: int,
    ) -> None:
        self._keeper = keeper
        self._zygote = zygote
        self._drop = drop
        self._owner = owner
        self._shared: dict[Key, _Shared] = {}

    async def stack(self, world: World, image: Image, binds: list[str]) -> Stack:
        """The layers of a world's base.

        binds: what of the host is shown at its own path, in worlds that stand on the host.
        """
        used: list[Key] = []
        try:
            trees = await self._trees(world.trees, used)
            below = (*trees, *await self._image(image.root, world, binds, used))
            top = await self._make(worlds.files_steps(world, binds))
        except BaseException:
            await self._leave(used)
            raise
        return Stack((f"{top}/u", *below), top, partial(self._leave, used))

    async def _leave(self, used: list[Key]) -> None:
        """Remove the layers that nobody shares any more."""
        gone = []
        for key in used:
            shared = self._shared[key]
            shared.users -= 1
            if not shared.users:
                gone.append(self._shared.pop(key).layer)
        names = await asyncio.gather(*gone, return_exceptions=True)
        await self._drop(tuple(name for name in names if isinstance(name, str)))

    async def _make(self, steps: list[dict[str, Any]], beside: list[dict[str, Any]] | None = None) -> str:
        """A layer filled by steps. beside: steps for what is with the layer, but not in it."""
        zygote = await self._zygote()
        name = self._keeper.new_layer_name()
        await zygote.ask("layer", name=name, size=_UNBOUNDED, after=[])
        ids = {"uid": self._owner, "gid": self._owner}
        try:
            await self._keeper.job("fill", layer=f"{name}/u", steps=steps, **ids)
            if beside:
                await self._keeper.job("fill", layer=name, steps=beside, **ids)
        except BaseException:
            await self._drop((name,))
            raise
        return name

    async def _share(self, key: Key, used: list[Key], make: Callable[[], Coroutine[Any, Any, str]]) -> str:
        """A layer that many worlds stand on, made once, and kept until the last of them leaves it."""
        if key not in self._shared:
            self._shared[key] = _Shared(asyncio.create_task(make()))
        self._shared[key].users += 1
        used.append(key)
        return await asyncio.shield(self._shared[key].layer)

    async def _image(self, image: str, world: World, binds: list[str], used: list[Key]) -> tuple[str, ...]:
        """The lowers of an image, topmost first. A directory of the host gets a short name, whatever its own is."""
        if world.image == "host":
            make = partial(self._make, worlds.host_steps(binds, world.network))
        else:
            link = [{"do": "link", "path": "/image", "target": image}]
            make = partial(self._make, worlds.rootfs_steps(), link)
        layer = await self._share(("image", image, str(world.network)), used, make)
        return (f"{layer}/u",) if world.image == "host" else (f"{layer}/u", f"{layer}/image")

    async def _trees(self, trees: tuple[Tree, ...], used: list[Key]) -> tuple[str, ...]:
        """The lowers of trees, topmost first: one each, or, of too many, one for some of them together."""
        if len(trees) <= MOST_TREES:
            groups: list[tuple[Tree, ...]] = [(tree,) for tree in trees]
        else:
            each = -(-len(trees) // MOST_TREES)
            groups = [trees[at : at + each] for at in range(0, len(trees), each)]
        layers = []
        for group in groups:
            key = ("trees", *(part for tree in group for part in (tree.source, tree.target)))
            layers.append(await self._share(key, used, partial(self._tree_layer, group)))
        return tuple(f"{layer}/u" for layer in reversed(layers))

    async def _tree_layer(self, trees: tuple[Tree, ...]) -> str:
        if len(trees) == 1:
            return await self._make(worlds.tree_steps(trees[0]))
        parts: list[str] = []
        name = await self._make([])
        try:
            for tree in trees:
                parts.append(await self._make(worlds.tree_steps(tree)))
            sources = [f"{part}/u" for part in reversed(parts)]
            arguments: dict[str, Any] = {"sources": sources, "below": sources, "target": f"{name}/u"}
            await self._keeper.job("merge", **arguments, prefix=self._keeper.prefix)
        except BaseException:
            await self._drop((name,))
            raise
        finally:
            await self._drop(tuple(parts))
        return name
