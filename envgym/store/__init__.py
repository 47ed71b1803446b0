"""One store of trajectories: flight recorder, data set and replay buffer. See `writer`, `reader` and `schema`."""

from envgym.store.folder import is_store
from envgym.store.follow import follow
from envgym.store.log import Damage
from envgym.store.reader import StoreReader
from envgym.store.records import Answered, Ended, Graded, Record, Said, Turned
from envgym.store.writer import StoreWriter

__all__ = [
    "Answered", "Damage", "Ended", "Graded", "Record", "Said", "StoreReader", "StoreWriter",
    "Turned", "follow", "is_store",
]  # fmt: skip
