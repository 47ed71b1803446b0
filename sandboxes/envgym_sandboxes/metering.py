"""What sandboxes use, by their control groups, for whoever admits by that; one without a group is left out."""

import contextlib
from collections.abc import Collection, Mapping

from envgym.sandbox import MemoryUse
from envgym_sandboxes.cgroups import Groups
from envgym_sandboxes.host_memory import host_memory

__all__ = ["memory_use"]


def memory_use(groups: Mapping[str, Groups], sandboxes: Collection[str]) -> MemoryUse:
    """See `envgym.sandbox.MeteredBackend.memory`. groups: of sandboxes by name."""
    used = {}
    for name in sandboxes:
        there = groups.get(name)
        with contextlib.suppress(OSError):  # it ends just now
            if there is not None and (size := there.used()) is not None:
                used[name] = size
    return MemoryUse(*host_memory(), used)
