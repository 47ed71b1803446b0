"""Sessions of one policy: which ids each has cached, who shares a storage, and the bound over all of them.

What one session has computed another with the same beginning takes over: the members of a group share their prompt.
All of this runs in the event loop's thread; only storages that were reserved for a pass are touched elsewhere.
"""

import itertools
from bisect import bisect_left
from collections.abc import Sequence, Set

from envgym_agents.policies.engine import Part
from envgym_agents.policies.kv import Storage

__all__ = ["WORTH", "Pool", "TransformerSession", "common"]

_STEP = 128
"""Storages grow to multiples of this many positions, at least by half of what they had."""
WORTH = 64
"""Positions whose computing costs about what one more pass does, or a look at all sessions: fewer are computed."""


def common(a: Sequence[int], b: Sequence[int], most: int) -> int:
    """How many of the first `most` ids of two lists, of which neither is shorter, are the same."""
    if a[:most] == b[:most]:
        return most
    return bisect_left(range(most), True, key=lambda last: a[: last + 1] != b[: last + 1])


class Pool:
    """Every open session of a policy, and how many positions their storages have room for."""

    def __init__(self, capacity: int, *, packs: bool) -> None:
        self.capacity, self.packs = capacity, packs
        self.used = 0
        self.clock = itertools.count()
        self._open: set[TransformerSession] = set()

    def open(self) -> "TransformerSession":
        """A fresh, empty session."""
        session = TransformerSession(self)
        self._open.add(session)
        return session

    def add(self, session: "TransformerSession") -> None:
        """Count a forked session."""
        self._open.add(session)

    def drop(self, session: "TransformerSession") -> None:
        """Forget a closed session."""
        self._open.discard(session)

    def room_for(self, count: int, keep: Set["TransformerSession"]) -> bool:
        """Whether `count` more positions fit, after taking caches from sessions outside `keep`, oldest first."""
        if self.used + count > self.capacity:
            idle = sorted(self._open - keep, key=lambda session: session.last_used)
            for session in idle:
                session.forget()
                if self.used + count <= self.capacity:
                    break
        return self.used + count <= self.capacity

    def nearest(self, context: Sequence[int], version: int) -> "tuple[TransformerSession | None, int]":
        """The session that has cached the most of a context's leading ids with these weights, and how many.

        Those that saw images are left out: equal ids are not equal pictures.
        """
        found, most = None, 0
        for session in self._open:
            bound = min(len(session.ids), len(context) - 1)
            # the next id after the best so far decides mostly, and costs nothing to look at
            if (
                session.version == version
                and not session.images
                and bound > most
                and session.ids[most] == context[most]
            ):
                same = common(session.ids, context, bound)
                if same > most:
                    found, most = session, same
        return found, most

    def clear(self) -> None:
        """Close every session."""
        for session in list(self._open):
            session.close()


class TransformerSession:
    """The cache of one growing context. A context that does not extend what is cached is cut at the difference.

    beside: a masking policy's cache of the same context, where there is such a policy.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.beside: TransformerSession | None = None
        self.ids: list[int] = []
        self.images: tuple[bytes, ...] = ()
        self.version = -1
        self.last_used = next(pool.clock)
        self._storage: Storage | None = None
        self._busy = self._closed = False

    def fork(self) -> "TransformerSession":
        """A session with the same cache, independent from here on; memory is shared until they differ."""
        if self._busy or self._closed:
            raise ValueError("a session can be forked only while it is open and no sample call uses it")
        other = TransformerSession(self.pool)
        if self._storage is not None and self.pool.packs:
            other.ids, other.version, other._storage = list(self.ids), self.version, self._storage
            self._storage.users += 1
        elif self._storage is not None and self.pool.room_for(self._storage.capacity, {self}):
            other.ids, other.version, other._storage = list(self.ids), self.version, self._storage.twin()
            other.images = self.images
            self.pool.used += self._storage.capacity
        if self.beside is not None:
            other.beside = self.beside.fork()
        self.pool.add(other)
        return other

    def close(self) -> None:
        """Free the cache; idempotent. During a sample call, as soon as that has ended."""
        self._closed = True
        if not self._busy:
            self.forget()
            self.pool.drop(self)
            if self.beside is not None:
                self.beside.close()

    def take(self) -> None:
        """Mark as in use by one sample call. Raises ValueError when it is closed or in use."""
        if self._closed:
            raise ValueError("this session is closed; ask the policy for a new one")
        if self._busy:
            raise ValueError("two sample calls use one session at a time; fork it or wait for the first")
        self._busy = True
        self.last_used = next(self.pool.clock)

    def release(self) -> None:
        """End the use by a sample call."""
        self._busy = False
        if self._closed:
            self.close()

    def forget(self) -> None:
        """Drop the cache; what is needed of it is computed anew."""
        self.ids, storage, self._storage = [], self._storage, None
        if storage is not None:
            storage.users -= 1
            if storage.users == 0:
                self.pool.used -= storage.capacity

    def spoil(self) -> None:
        """A pass has failed: nothing goes on from what it may have left."""
        self.forget()
        if self.beside is not None:
            self.beside.forget()

    def reserve(
        self, context: Sequence[int], version: int, *, busy: Set["TransformerSession"], room: int | None,
        images: tuple[bytes, ...] = (),
    ) -> Part | None:  # fmt: skip
        """What a pass must compute so that `context` is cached, its storage made ready. images: behind its ids.

        None when that is more than `room` new positions, or more memory than there is while the sessions in
        `busy` keep theirs.
        """
        past = self._reusable(context, version) if images[: len(self.images)] == self.images else 0
        if self.pool.packs and not images and len(context) - past > WORTH:
            past = self._take_over(context, version, past)
        if room is not None and len(context) - past > room:
            return None
        storage = self._storage
        in_place = (
            storage is not None
            and storage.capacity >= len(context)
            and (storage.filled == past or storage.users == 1)
        )
        if not in_place and not self._replace(past, len(context), busy):
            if busy:
                return None
            self.forget()  # alone and still too large beside its own old storage: compute it all anew
            past = 0
            self._replace(0, len(context), busy)
        assert self._storage is not None
        self._storage.filled = len(context)
        self.ids = self.ids[:past]
        return Part(context[past:], past, self._storage, context, images)

    def known(self, context: Sequence[int], version: int) -> int:
        """How many leading ids of a context it has cached itself."""
        return self._reusable(context, version)

    def _take_over(self, context: Sequence[int], version: int, past: int) -> int:
        """Share the storage of who has cached at least `WORTH` more of a context, as a fork of it would.

        Returns how many leading ids need no computing then.
        """
        other, same = self.pool.nearest(context, version)
        if other is None or other is self or other._storage is None or same - past < WORTH:
            return past
        self.forget()
        self.ids, self.version, self._storage = other.ids[:same], version, other._storage
        self._storage.users += 1
        return same

    def commit(self, part: Part, version: int) -> None:
        """The pass is done: its ids are cached, computed by the weights of `version`."""
        if self._storage is part.storage:
            self.ids += part.ids
            self.images = tuple(part.images)
            self.version = version

    def _reusable(self, context: Sequence[int], version: int) -> int:
        """How many leading ids need no computing; at least the last one must be, for its logits."""
        if self._storage is None or self.version != version:
            return 0
        most = min(len(self.ids), len(context) - 1)
        same = common(self.ids, context, most)
        if not self.pool.packs and same < len(self.ids):
            return 0  # a model's own cache cannot be cut in every architecture
        return same

    def _replace(self, past: int, length: int, busy: Set["TransformerSession"]) -> bool:
        """A storage of its own with room for `length` positions, holding the first `past`."""
        old = self._storage
        room = 0 if old is None else old.capacity
        if room < length:  # it grows; else it only goes its own way from here on
            room += room // 2
        wanted = max(length, min(room, 2 * length))
        capacity = max(length, min(-(-wanted // _STEP) * _STEP, self.pool.capacity))
        if not self.pool.room_for(capacity, busy | {self}):
            return False
        if old is None or not past:
            kept = Storage(capacity)
        else:
            kept = old.copy(past, capacity) if self.pool.packs else old.moved(capacity)
        ids = self.ids
        self.forget()
        self.ids, self._storage = ids, kept
        self.pool.used += capacity
        return True
