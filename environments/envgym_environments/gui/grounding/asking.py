"""Which element of a screen is asked for, and in which words: drawn from what is shown, so that one is meant.

Pure functions over marked elements, whatever screen they came from. Boxes are those of the accessibility tree.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["EVERY", "KINDS", "Asked", "Mark", "asked", "clipped", "every"]

_LEAST = 6.0
"""Pixels that an element must have in width and height to be asked for."""
_MOST = 12
"""Elements that are asked for at once, where a screen has fewer than that of a role."""
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")

_WAYS = (
    ("directly below", 1, 1), ("directly above", 1, -1), ("directly right of", 0, 1), ("directly left of", 0, -1),
)  # fmt: skip
"""Words, the axis (0: across), and towards which end of it."""

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An element that can be acted on, in document order."""

    role: str
    name: str
    box: Box

    @property
    def middle(self) -> tuple[float, float]:
        """The middle of its box."""
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2


@dataclass(frozen=True, slots=True)
class Asked:
    """An instruction, and the element that it means."""

    text: str
    mark: Mark


def clipped(box: Box, size: tuple[int, int]) -> Box | None:
    """The part of a box that is on the screen; None where too little of it is, or its middle is not."""
    wide, high = size
    left, top, right, bottom = (
        max(box[0], 0.0),
        max(box[1], 0.0),
        min(box[2], float(wide)),
        min(box[3], float(high)),
    )
    middle = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    shown = 0 <= middle[0] < wide and 0 <= middle[1] < high
    return (left, top, right, bottom) if shown and right - left >= _LEAST and bottom - top >= _LEAST else None


def _label(mark: Mark) -> str:
    return f"the {mark.role} {' '.join(mark.name.split())[:80]!r}"


def _only(marks: Sequence[Mark]) -> list[Mark]:
    """Those that role and name tell from all others."""
    count = Counter((mark.role, mark.name) for mark in marks)
    return [mark for mark in marks if mark.name.strip() and count[mark.role, mark.name] == 1]


def named(marks: Sequence[Mark]) -> list[Asked]:
    """By role and name."""
    return [Asked(f"Click {_label(mark)}.", mark) for mark in _only(marks)]


def ordinal(marks: Sequence[Mark]) -> list[Asked]:
    """By its place among all of its role, counted line by line."""
    found = []
    for role in sorted({mark.role for mark in marks}):
        own = sorted(
            (mark for mark in marks if mark.role == role), key=lambda mark: (round(mark.box[1]), mark.box[0])
        )
        if len(own) < 2 or len({mark.box for mark in own}) < len(own):
            continue
        words = [*zip(_ORDINALS, own, strict=False), ("last", own[-1])]
        found += [
            Asked(f"Click the {word} {role}, counted from the top, left to right.", mark) for word, mark in words
        ]
    return found


def relation(marks: Sequence[Mark]) -> list[Asked]:
    """As what stands next to an element with a name, in one of four directions."""
    found = []
    for anchor in _only(marks):
        others = [mark for mark in marks if mark.box != anchor.box]
        for words, axis, sign in _WAYS:
            near = _nearest(anchor, others, axis, sign)
            if near is not None:
                found.append(Asked(f"Click the {near.role} {words} {_label(anchor)}.", near))
    return found


def _nearest(anchor: Mark, others: Sequence[Mark], axis: int, sign: int) -> Mark | None:
    """What stands in a direction, overlapping across it; None where two are as near."""
    ways = []
    for mark in others:
        gap = mark.box[axis] - anchor.box[axis + 2] if sign > 0 else anchor.box[axis] - mark.box[axis + 2]
        across = 1 - axis
        beside = min(mark.box[across + 2], anchor.box[across + 2]) - max(mark.box[across], anchor.box[across])
        if gap >= 0 and beside > 0:
            ways.append((gap, mark))
    ways.sort(key=lambda way: way[0])
    if not ways or (len(ways) > 1 and ways[1][0] - ways[0][0] < 1):
        return None
    return ways[0][1]


KINDS: dict[str, Callable[[Sequence[Mark]], list[Asked]]] = {
    "named": named, "ordinal": ordinal, "relation": relation,
}  # fmt: skip
"""Ways to ask, from easy to hard."""


def every(marks: Sequence[Mark], rng: np.random.Generator) -> tuple[str, tuple[Box, ...]] | None:
    """A question for all elements of a role, several if there are, and their boxes line by line; None for none."""
    groups = {role: {mark.box for mark in marks if mark.role == role} for role in sorted({m.role for m in marks})}
    if not groups:
        return None
    among = [role for role, found in groups.items() if 2 <= len(found) <= _MOST] or list(groups)
    role = among[int(rng.integers(len(among)))]
    return f"Find every {role}.", tuple(sorted(groups[role], key=lambda box: (round(box[1]), box[0])))


EVERY = "every"
"""The kind of question that asks for several."""


def asked(marks: Sequence[Mark], kind: str, rng: np.random.Generator) -> Asked | None:
    """One question of a kind, or of another one that the screen gives occasion to; None where it gives none.

    The easier kinds are tried first, from the hardest of them down, then the harder ones.
    """
    ways = list(KINDS)
    at = ways.index(kind)
    for way in [*ways[at::-1], *ways[at + 1 :]]:
        if found := KINDS[way](marks):
            return found[int(rng.integers(len(found)))]
    return None
