"""What a pool may take of its hosts, and how long who asks may wait."""

import os
from dataclasses import dataclass, fields

from envgym.arguments import checked_count, checked_number, checked_seconds

__all__ = ["PoolBounds"]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class PoolBounds:
    """The bounds of each inner backend, and of those who wait.

    starts: creates, forks and restores under way at once (0: two per core of this host).
    sandboxes: open at once (None: as memory allows).
    memory_bytes: what its sandboxes may be charged together (None: `memory_share` of its host's memory).
    reserve_share: of its host's memory; while less than that is available nothing is started.
    estimate_bytes: what a sandbox of an unknown world is charged (None: what its world allows it).
    queue: requests that one share may have waiting. wait_s: how long one waits.
    start_s: how long one start may take, set-up commands included.
    warm: sandboxes kept ready for each of the last `warm_worlds` worlds that were asked for more than once.
    """

    starts: int = 0
    sandboxes: int | None = None
    memory_bytes: int | None = None
    memory_share: float = 0.8
    reserve_share: float = 0.08
    estimate_bytes: int | None = None
    queue: int = 10_000
    wait_s: float = 600.0
    start_s: float = 600.0
    warm: int = 2
    warm_worlds: int = 8

    def __post_init__(self) -> None:
        for name in ("starts", "warm", "warm_worlds"):
            checked_count(f"PoolBounds.{name}", getattr(self, name), least=0)
        for name in ("queue", "sandboxes", "memory_bytes", "estimate_bytes"):
            if (value := getattr(self, name)) is not None or name == "queue":
                checked_count(f"PoolBounds.{name}", value, least=1)
        for name in ("wait_s", "start_s"):
            checked_seconds(f"PoolBounds.{name}", getattr(self, name))
        for name in ("memory_share", "reserve_share"):
            checked_number(f"PoolBounds.{name}", getattr(self, name))
        if not 0 < self.memory_share <= 1 or not 0 <= self.reserve_share < 1:
            raise ValueError(
                f"PoolBounds.memory_share is {self.memory_share} and reserve_share {self.reserve_share}; "
                "they are parts of 1"
            )

    @property
    def most_starts(self) -> int:
        """`starts`, or what stands for 0."""
        return self.starts or 2 * _cores()

    @classmethod
    def of(cls, given: "PoolBounds | dict[str, float] | None") -> "PoolBounds":
        """Bounds as they are, or from a mapping, as a command line gives it. Raises TypeError, ValueError."""
        if given is None or isinstance(given, PoolBounds):
            return given or cls()
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise TypeError(f"PoolBounds has no {unknown[0]!r}; it has {', '.join(sorted(known))}")
        return cls(**given)  # type: ignore[arg-type]  # its own checks follow
