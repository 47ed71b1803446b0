"""What this process holds: a census of descriptors, threads, children and asyncio tasks, to be compared later.

It reads /proc where there is one; elsewhere only threads and tasks are counted.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["Census", "children"]


def children(pid: int | None = None) -> dict[int, str]:
    """Living descendants of a process (default: this one): pid -> command name. Zombies count."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue  # it ended while we looked
        head, _, tail = stat.rpartition(")")
        parents[int(entry.name)] = (int(tail.split()[1]), head.partition("(")[2])
    found: dict[int, str] = {}
    wanted = {os.getpid() if pid is None else pid}
    while wanted:
        wanted = {child for child, (parent, _) in parents.items() if parent in wanted} - set(found)
        found.update({child: parents[child][1] for child in wanted})
    return found


def _descriptors() -> dict[int, str]:
    found = {}
    for entry in Path("/proc/self/fd").glob("*"):
        try:
            found[int(entry.name)] = os.readlink(entry)
        except OSError:
            continue
    return found


@dataclass(frozen=True, slots=True)
class Census:
    """Who and what was there at one moment."""

    descriptors: dict[int, str]
    threads: frozenset[str]
    children: dict[int, str]
    tasks: int
    named: frozenset[str]

    @classmethod
    def take(cls, leftovers: Callable[[], Collection[str]] | None = None) -> Self:
        """Count now. Threads of asyncio's own executor are left out: they are a pool that may still grow."""
        threads = frozenset(
            f"{thread.name}#{thread.ident}"
            for thread in threading.enumerate()
            if not thread.name.startswith("asyncio_")
        )
        try:
            tasks = len(asyncio.all_tasks())
        except RuntimeError:
            tasks = 0
        named = frozenset(leftovers()) if leftovers is not None else frozenset()
        return cls(_descriptors(), threads, children(), tasks, named)

    def more_in(self, later: Self) -> list[str]:
        """What `later` has that this one had not, in words.

        Descriptors and processes are compared by number: a backend may keep some prepared, and change which.
        """
        found = [f"thread {name}" for name in sorted(later.threads - self.threads)]
        if len(later.children) > len(self.children):
            found += [f"process {pid} ({name})" for pid, name in later.children.items() if pid not in self.children]
        found += [f"{name}" for name in sorted(later.named - self.named)]
        if later.tasks > self.tasks:
            found.append(f"{later.tasks - self.tasks} asyncio task(s)")
        if len(later.descriptors) > len(self.descriptors):
            new = [f"{fd}={name}" for fd, name in later.descriptors.items() if self.descriptors.get(fd) != name]
            found.append(f"{len(later.descriptors) - len(self.descriptors)} descriptor(s), among {', '.join(new)}")
        return found

    async def wait_until_back(
        self, leftovers: Callable[[], Collection[str]] | None = None, *, within_s: float = 2.0
    ) -> list[str]:
        """What is still there `within_s` seconds from now; returns at once when nothing is."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within_s
        while True:
            left = self.more_in(Census.take(leftovers))
            if not left or loop.time() >= end:
                return left
            await asyncio.sleep(0.01)  # polling a state of the kernel, bounded by `within_s`
