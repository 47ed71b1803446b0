"""Which split a task is of, told by what it asks: training and held-out tasks have nothing in common.

Where a task's split went by its number alone, two numbers could draw the same task for both. What "the same" means
is the environment's: it names a task's content.
"""

import json
import zlib
from collections.abc import Callable
from typing import TypeVar

from pydantic import JsonValue

__all__ = ["belongs", "of_split"]

T = TypeVar("T")

_MOST_DRAWS = 256


def belongs(content: JsonValue, split: str) -> bool:
    """Whether a content is of a split: a fifth of all, by a digest, is "heldout", and the others are not.

    So none is of both, however many tasks are drawn, and by whatever seed.
    """
    return (zlib.crc32(json.dumps(content).encode()) % 5 == 0) == (split == "heldout")


def of_split(split: str, draw: Callable[[int], T], content: Callable[[T], JsonValue]) -> T:
    """The first of ``draw(0)``, ``draw(1)``, ... whose content belongs to a split.

    Raises ValueError where 256 draws have none: what is drawn is then too little varied to be cut in two.
    """
    for number in range(_MOST_DRAWS):
        if belongs(content(drawn := draw(number)), split):
            return drawn
    raise ValueError(f"of {_MOST_DRAWS} drawn tasks none belongs to split {split!r}: ask for more varied ones")
