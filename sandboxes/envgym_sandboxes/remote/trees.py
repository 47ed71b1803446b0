"""A client's directories on the server: named by a digest of their content, sent once, kept while they are in use.

The server believes no name and no digest: it unpacks below a directory of its own, digests what came, and only then
gives it its name. What nobody uses goes, least recently used first, when all of it is more than a bound.
"""

import asyncio
import hashlib
import json
import os
import re
import shutil
import stat
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from envgym.task import World
from envgym_sandboxes.transfer import Arrival, Tally, pack

__all__ = ["Trees", "digest_tree", "remove_tree", "tree_pieces"]

_MOST_BYTES, _MOST_ENTRIES = 1 << 40, 1 << 24  # of one tree
_DIGEST = re.compile(r"[0-9a-f]{64}")


def _with_sources(world: World, change: Callable[[str], str]) -> World:
    trees = tuple(tree.model_copy(update={"source": change(tree.source)}) for tree in world.trees)
    return world.model_copy(update={"trees": trees})


def _tally() -> Tally:
    return Tally(_MOST_BYTES, _MOST_ENTRIES)


def tree_pieces(source: str) -> Iterator[tuple[dict[str, Any], bytes]]:
    """`transfer.pack` of a directory, with times. Raises OSError."""
    for head, body in pack(source, _tally()):
        path = os.path.join(source, *head["path"])
        info = os.stat(path) if not head["path"] else os.lstat(path)
        yield head | {"mtime": info.st_mtime_ns}, body


def _add(digest: Any, head: dict[str, Any], body: bytes) -> None:
    text = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
    digest.update(b"%d:%d:" % (len(text), len(body)) + text)
    digest.update(body)


def digest_tree(source: str) -> str:
    """The SHA-256 of a directory's names, modes, times, links and contents, in hex. Raises OSError."""
    digest = hashlib.sha256()
    for head, body in tree_pieces(source):
        _add(digest, head, body)
    return digest.hexdigest()


class Trees:
    """The trees of one server, in a directory of its own.

    most_bytes: what unused trees may take together with the used ones before they go.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most = most_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._users: Counter[str] = Counter()
        self._numbers = 0
        folder.mkdir(mode=0o755)

    def __contains__(self, digest: str) -> bool:
        return digest in self._sizes

    def placed(self, world: World) -> World:
        """A world whose trees are named by digest, with this host's directories. Raises ValueError."""
        for tree in world.trees:
            if tree.source not in self._sizes:
                raise ValueError(f"World.trees: the server has no tree {tree.source!r}; it must be sent first")
        return _with_sources(world, lambda source: str(self._folder / source))

    def named(self, world: World) -> World:
        """The inverse of `placed`; what is no tree of a client keeps its place's name."""
        names = {str(self._folder / digest): digest for digest in self._sizes}
        return _with_sources(world, lambda source: names.get(source, source))

    def use(self, digest: str) -> None:
        """One more session uses a tree that is here."""
        self._sizes.move_to_end(digest)
        self._users[digest] += 1

    def leave(self, digest: str) -> None:
        """One session less does."""
        self._users[digest] -= 1
        if not self._users[digest]:
            del self._users[digest]

    async def receive(self, digest: str, pieces: AsyncIterator[tuple[Any, bytes]]) -> None:
        """Take a tree that is being sent, and use it. Raises ValueError when it is not what its name says."""
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"{digest!r} is not the digest of a tree")
        arriving = self._new("arriving")
        try:
            size = await self._unpacked(digest, arriving, pieces)
            if digest not in self._sizes:  # it may have come from another client meanwhile
                arriving.rename(self._folder / digest)
                self._sizes[digest] = size
            self.use(digest)
        finally:
            await asyncio.to_thread(remove_tree, arriving)
        await self._forget()

    async def _unpacked(self, digest: str, target: Path, pieces: AsyncIterator[tuple[Any, bytes]]) -> int:
        seen, size = hashlib.sha256(), 0
        last: dict[tuple[str, ...], tuple[int, int]] = {}
        arrival = Arrival(str(target), _tally())
        async for head, body in pieces:
            if not isinstance(head, dict) or (not last and head.get("kind") != "directory"):
                raise ValueError("a tree begins with its directory")
            await asyncio.to_thread(arrival.add, head, body)
            _add(seen, head, body)
            size += len(body) + 512
            last[tuple(head["path"])] = (int(head["mode"]) & 0o777, int(head["mtime"]))
        if seen.hexdigest() != digest:
            raise ValueError(f"a tree arrived with other content than {digest} says; did its source change?")
        await asyncio.to_thread(_settle, str(target), last)
        return size

    async def _forget(self) -> None:
        total = sum(self._sizes.values())
        for digest, size in list(self._sizes.items()):
            if total <= self._most:
                return
            if digest not in self._users:
                del self._sizes[digest]
                total -= size
                going = self._new("going")
                (self._folder / digest).rename(going)
                await asyncio.to_thread(remove_tree, going)

    def _new(self, what: str) -> Path:
        self._numbers += 1
        return self._folder / f"{what}-{self._numbers}"


def _settle(top: str, said: dict[tuple[str, ...], tuple[int, int]]) -> None:
    """Give files and directories their times and modes, deepest first: writing below changes a directory's."""
    for path, _directories, files in os.walk(top, topdown=False):
        names = tuple(os.path.relpath(path, top).split(os.sep)) if path != top else ()
        for name in files:
            _, mtime = said[(*names, name)]
            os.utime(f"{path}/{name}", ns=(mtime, mtime), follow_symlinks=False)
        mode, mtime = said[names]
        os.chmod(path, mode | 0o500)
        os.utime(path, ns=(mtime, mtime))


def remove_tree(path: Path) -> None:
    """Remove a file or tree with directories that forbid it; nothing there is fine."""

    def force(function: Any, name: str, _error: object) -> None:
        os.chmod(os.path.dirname(name), 0o700)
        if stat.S_ISDIR(os.lstat(name).st_mode):
            os.chmod(name, 0o700)
            shutil.rmtree(name, onerror=force)
        else:
            function(name)

    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path, onerror=force)
