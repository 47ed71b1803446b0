"""A pool over any backends: warm sandboxes, throttled starts, fair shares, bounded memory, hosts that come back."""

from envgym_sandboxes.pool.backend import PoolBackend, PoolShare
from envgym_sandboxes.pool.bounds import PoolBounds

__all__ = ["PoolBackend", "PoolBounds", "PoolShare"]
