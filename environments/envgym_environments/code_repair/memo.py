"""Results that are functions of the state, computed once: shared by all environments of a run, and by runs.

A value is plain JSON under a key that names everything it depends on. At most one computation of a key runs at a
time; what fails is not kept. The optional file is one JSON record a line with a checksum: a torn or damaged line
costs that line only, and several processes may append.
"""

import asyncio
import fcntl
import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakValueDictionary

__all__ = ["Memo", "Unwritten", "digest_of"]


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A computed value that is kept while the memo lives and never written to its file.

    A busier machine might have computed another one: that is no reason to compute it again here, where a whole
    group may ask for it, but it must not decide in later runs.
    """

    value: Any


def digest_of(*parts: str) -> str:
    """A key of any texts."""
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()


class Memo:
    """Values by key, least recently used first out.

    path: also append to, and at first read from, this file. entries: most values in memory.
    at_once: most computations that run at a time (each may hold a sandbox); None: the number of CPUs.
    hits, misses: how often a value was there, and how often it was computed.
    """

    _by_path: ClassVar["WeakValueDictionary[str, Memo]"] = WeakValueDictionary()
    _by_owner: ClassVar["WeakKeyDictionary[object, Memo]"] = WeakKeyDictionary()

    def __init__(self, path: Path | None = None, *, entries: int = 200_000, at_once: int | None = None) -> None:
        if entries < 1:
            raise ValueError(f"Memo.entries is {entries}; it must be at least 1")
        self.path = path
        self.hits = self.misses = 0
        self._entries = entries
        self._values: OrderedDict[str, Any] = OrderedDict()
        self._running: dict[str, asyncio.Event] = {}
        self._within = ContextVar("within", default=False)
        self._slots = asyncio.Semaphore(at_once or os.cpu_count() or 1)
        if path is not None:
            self._load(path)

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> "Memo":
        """The one memo of this process for a file."""
        name = os.path.abspath(os.path.expanduser(path))
        found = cls._by_path.get(name)
        if found is None:
            found = cls._by_path[name] = cls(Path(name))
        return found

    @classmethod
    def of(cls, owner: object) -> "Memo":
        """The one memo that lives as long as `owner` (a sandbox backend)."""
        found = cls._by_owner.get(owner)
        if found is None:
            found = cls._by_owner[owner] = cls()
        return found

    def __len__(self) -> int:
        return len(self._values)

    def known(self, key: str) -> Any:
        """The value of `key` if it has been computed, else None."""
        return self._values.get(key)

    async def get(self, key: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """The value of `key`, computed by `make` if nobody has it.

        What `make` raises is raised, and not kept; what it returns as `Unwritten` is not written to the file.
        """
        while key not in self._values and key in self._running:
            await self._running[key].wait()
        if key in self._values:
            self.hits += 1
            self._values.move_to_end(key)
            return self._values[key]
        self.misses += 1
        event = self._running[key] = asyncio.Event()
        try:
            if self._within.get():  # it has a place already; waiting for a second could last for ever
                value = await make()
            else:
                async with self._slots:
                    value = await self._inside(make)
            if isinstance(value, Unwritten):
                value = value.value
            else:
                self._append(key, value)
            self._put(key, value)
            return value
        finally:
            del self._running[key]
            event.set()

    async def _inside(self, make: Callable[[], Awaitable[Any]]) -> Any:
        mark = self._within.set(True)
        try:
            return await make()
        finally:
            self._within.reset(mark)

    def _put(self, key: str, value: Any) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._entries:
            self._values.popitem(last=False)

    def _append(self, key: str, value: Any) -> None:
        if self.path is None:
            return
        body = json.dumps([key, value], ensure_ascii=True, separators=(",", ":"))
        # the line break before the record parts it from a line that another writer left torn
        record = f"\n{_checksum(body)} {body}\n".encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            view = memoryview(record)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)

    def _load(self, path: Path) -> None:
        if not path.exists():
            return
        with path.open("rb") as file:
            for raw in file:
                mark, _, body = raw.decode("ascii", "replace").rstrip("\n").partition(" ")
                if body and mark == _checksum(body):
                    key, value = json.loads(body)
                    self._put(key, value)


def _checksum(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=6).hexdigest()
