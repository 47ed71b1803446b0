"""A live run as it happens: every record that a store's writer appends, once, from now on.

What comes out at first is what is in the logs: the latest episodes, finished or not. Older ones are in shards,
which a `StoreReader` reads.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from envgym.episode import Began
from envgym.store.folder import Places, is_store, parts
from envgym.store.log import Damage, read_log
from envgym.store.records import Answered, Record, Said, Turned

__all__ = ["follow"]


def follow(path: str | Path, *, poll_s: float = 0.1, until: Callable[[], bool] = lambda: False) -> Iterator[Record]:
    """Yield records as they are appended, until `until()` says that it is enough and nothing more is there.

    poll_s: how often is looked for more. Raises ValueError when no store is there. What is unfinished when a new
    log begins is carried over to it by the writer, and not told twice.
    """
    top = Path(path)
    if not is_store(top):
        raise ValueError(f"{top} is no store; name the folder that episodes are stored in")
    told: dict[str, tuple[int, int]] = {}  # of unfinished episodes: attempt, and half turns so far
    read: dict[int, int] = {}  # of logs: up to where
    while True:
        last = until()  # asked before looking, so that what came until then is told
        fresh = False
        for number, log in parts(Places(top)).logs:
            for record in _after(log, number, read):
                fresh = True
                if _is_new(record, told):
                    yield record
        if last and not fresh:
            return
        if not fresh:
            time.sleep(poll_s)


def _after(log: Path, number: int, read: dict[int, int]) -> Iterator[Record]:
    try:
        for record, after in read_log(log, read.get(number, 0)):
            if isinstance(record, Damage):
                if record.torn:
                    return  # it is being written
            else:
                yield record
            read[number] = after
    except FileNotFoundError:  # compacted meanwhile: what it held had been told, or is in a shard
        return


def _is_new(record: Record, told: dict[str, tuple[int, int]]) -> bool:
    if isinstance(record, Began):
        if record.id in told and told[record.id][0] >= record.attempt:
            return False
        told[record.id] = (record.attempt, 0)
    elif isinstance(record, Turned | Said | Answered):
        attempt, steps = told.get(record.episode, (0, 0))
        step = 2 * record.index + (not isinstance(record, Said))
        if step < steps:
            return False
        told[record.episode] = (attempt, step + 1)
    return True
