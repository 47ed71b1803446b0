"""The one Gymnasium space of language: any text up to a length.

Gymnasium's own ``Text`` is a finite character set of up to a few hundred characters; observations and
actions here are unicode. The vector functions are registered below, so that synchronous, asynchronous and
shared-memory vector environments batch it as a tuple of strings.
"""

import multiprocessing
from collections.abc import Iterable, Sequence
from multiprocessing.sharedctypes import SynchronizedArray
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, create_empty_array
from gymnasium.vector.utils.shared_memory import (
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)
from numpy.typing import NDArray

__all__ = ["Unicode"]

_SAMPLE_LENGTH = 64
_ALPHABETS = (
    range(0x20, 0x7F),
    range(0xA0, 0x250),
    range(0x370, 0x530),
    range(0x4E00, 0x9FA0),
    range(0x1F300, 0x1F650),
)


class Unicode(Space[str]):
    """Every ``str`` of at most `max_length` code points (the empty one included).

    Samples have up to 64 code points of five alphabets (ASCII, Latin, Greek and Cyrillic, Han, emoji); they are
    drawn from the space's own generator (`seed`).
    """

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None) -> None:
        if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1:
            raise ValueError(f"Unicode.max_length is {max_length!r}; it must be an int of at least 1")
        self.max_length = max_length
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no fixed shape."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """A random text. Raises ValueError for a mask or probabilities, which have no meaning here."""
        if mask is not None or probability is not None:
            raise ValueError("Unicode.sample takes neither mask nor probability; leave them None")
        length = int(self.np_random.integers(min(self.max_length, _SAMPLE_LENGTH) + 1))
        chosen = self.np_random.integers(len(_ALPHABETS), size=length)
        places = self.np_random.integers(1 << 32, size=length)
        return "".join(chr(_ALPHABETS[k][at % len(_ALPHABETS[k])]) for k, at in zip(chosen, places, strict=True))

    def contains(self, x: Any) -> bool:
        """Whether `x` is a str that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """The texts themselves."""
        return [str(text) for text in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """The texts themselves."""
        return [str(text) for text in sample_n]

    def __repr__(self) -> str:
        return f"Unicode({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unicode) and self.max_length == other.max_length

    __hash__ = None  # type: ignore[assignment]  # carries a generator: equality is by value, as for every space


@create_empty_array.register(Unicode)
def _empty(space: Unicode, n: int = 1, fn: Any = np.zeros) -> tuple[str, ...]:
    return ("",) * n


# `iterate` must stay unregistered: a batch is a tuple of texts, and a text has no parts to go through.


@batch_differing_spaces.register(Unicode)
def _batch_differing(spaces_N: Sequence[Unicode]) -> spaces.Tuple[Any]:  # type: ignore[misc]  # by its first
    return spaces.Tuple([Unicode(space.max_length) for space in spaces_N])


@is_space_dtype_shape_equiv.register(Unicode)
def _equivalent(space_1: Unicode, space_2: Space[Any]) -> bool:
    return space_1 == space_2


# One int32 row per environment: its length, then its code points.


@create_shared_memory.register(Unicode)
def _create_shared(space: Unicode, n: int = 1, ctx: ModuleType = multiprocessing) -> "SynchronizedArray[Any]":
    return ctx.Array(np.dtype(np.int32).char, n * (1 + space.max_length))  # type: ignore[no-any-return]


def _rows(space: Unicode, shared_memory: "SynchronizedArray[Any]") -> NDArray[np.int32]:
    flat = np.frombuffer(memoryview(shared_memory.get_obj()).cast("B"), np.int32)
    return flat.reshape(-1, 1 + space.max_length)


@write_to_shared_memory.register(Unicode)
def _write_shared(space: Unicode, index: int, value: str, shared_memory: "SynchronizedArray[Any]") -> None:
    rows = _rows(space, shared_memory)
    points = np.frombuffer(value.encode("utf-32-le", "surrogatepass"), np.int32)
    rows[index, 0] = len(points)
    rows[index, 1 : 1 + len(points)] = points


class _SharedTexts(Sequence[str]):
    """The texts in shared memory, read at each access; a deep copy is a tuple of what they are now.

    The asynchronous vector environment asks for its observations once and expects them to change under
    its hands, as arrays do. With ``copy=True`` (its default) users only ever see tuples.
    """

    def __init__(self, rows: NDArray[np.int32]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        row = self._rows[index]
        return row[1 : 1 + row[0]].tobytes().decode("utf-32-le", "surrogatepass")

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)


@read_from_shared_memory.register(Unicode)
def _read_shared(space: Unicode, shared_memory: "SynchronizedArray[Any]", n: int = 1) -> _SharedTexts:
    return _SharedTexts(_rows(space, shared_memory))
