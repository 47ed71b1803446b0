"""Near-duplicates among texts: MinHash finds the candidates (datasketch), the exact Jaccard index decides.

Broder, "On the resemblance and containment of documents" (1997): the share of equal minima over random hash
functions estimates the Jaccard index of two sets of shingles; bands of them make likely pairs meet. What is a pair
here was always compared exactly, so that a hash never drops a task.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator

from datasketch import MinHash, MinHashLSH

__all__ = ["Neighbours", "jaccard", "shingles"]

_WORD = re.compile(r"\w+|[^\w\s]")
_SEED = 0


def shingles(text: str, *, length: int = 3) -> frozenset[str]:
    """Runs of `length` words and signs, in small letters; of a shorter text the whole. Empty for an empty one."""
    words = _WORD.findall(text.lower())
    if not words:
        return frozenset()
    return frozenset(" ".join(words[at : at + length]) for at in range(max(1, len(words) - length + 1)))


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """The Jaccard index; 0 where one of them is empty: nothing resembles nothing."""
    return len(one & other) / len(one | other) if one and other else 0.0


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "little")


class Neighbours:
    """Texts by key, and those of them that resemble another. threshold: the least Jaccard index of a pair.

    Raises ValueError for a threshold outside (0, 1].
    """

    def __init__(self, threshold: float, *, permutations: int = 128) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold is {threshold}; it must be more than 0 and at most 1")
        self.threshold, self._permutations = threshold, permutations
        # candidates are sought well below the threshold: what an estimate misses no exact comparison sees
        self._index = MinHashLSH(threshold=max(0.1, threshold - 0.2), num_perm=permutations)
        self._sets: dict[str, frozenset[str]] = {}

    def _sketch(self, found: frozenset[str]) -> MinHash:
        sketch = MinHash(num_perm=self._permutations, seed=_SEED, hashfunc=_hash)
        sketch.update_batch([one.encode("utf-8", "surrogatepass") for one in sorted(found)])
        return sketch

    def add(self, key: str, found: frozenset[str]) -> None:
        """Know one more; an empty one resembles nothing. Raises ValueError for a key that is known."""
        if key in self._sets:
            raise ValueError(f"key {key!r} is known already; each text has one of its own")
        self._sets[key] = found
        if found:
            self._index.insert(key, self._sketch(found))

    def like(self, found: frozenset[str]) -> Iterator[tuple[str, float]]:
        """The known ones at or above the threshold, the most alike first, then as they were added."""
        if not found:
            return
        keys: Iterable[str] = self._index.query(self._sketch(found))
        order = {key: place for place, key in enumerate(self._sets)}
        pairs = [(jaccard(found, self._sets[key]), key) for key in keys]
        for value, key in sorted(pairs, key=lambda pair: (-pair[0], order[pair[1]])):
            if value >= self.threshold:
                yield key, value
