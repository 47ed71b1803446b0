"""What can be said of a text alone: its format, its length, how much it repeats."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Tag", "format_score", "length_score", "repetition", "target_length"]


@dataclass(frozen=True, slots=True)
class Tag:
    """A tagged part, such as ``<think>...</think>``; optional: it may be missing, but not stand twice."""

    name: str
    optional: bool = False


def format_score(text: str, tags: Sequence[Tag], *, alone: bool = True) -> float:
    """1.0 when every tag stands once, whole, in this order, 0.0 otherwise (ToolRL's R_format).

    alone: nothing but white space may stand outside the tags.
    """
    at, outside = 0, []
    for tag in tags:
        opening, closing = f"<{tag.name}>", f"</{tag.name}>"
        counts = (text.count(opening), text.count(closing))
        if counts == (0, 0) and tag.optional:
            continue
        begin, end = text.find(opening, at), text.find(closing, at)
        if counts != (1, 1) or not 0 <= begin < end:
            return 0.0
        outside.append(text[at:begin])
        at = end + len(closing)
    outside.append(text[at:])
    return float(not alone or not "".join(outside).strip())


def length_score(length: int, *, most: int, soft: int) -> float:
    """0.0 up to ``most - soft``, falling to -1.0 at `most` and beyond: DAPO's soft overlong punishment.

    Yu et al. 2025 (arXiv 2503.14476), equation 13. Raises ValueError unless 0 < soft <= most.
    """
    if not 0 < soft <= most:
        raise ValueError(f"soft is {soft} and most {most}; 0 < soft <= most must hold")
    return -min(1.0, max(0.0, (length - (most - soft)) / soft))


def target_length(length: int, target: int) -> float:
    """``1 - |length - target| / target``, at least 0: how near a length is to the one that was asked for."""
    if target < 1:
        raise ValueError(f"target is {target}; it must be at least 1")
    return max(0.0, 1.0 - abs(length - target) / target)


_WORD = re.compile(r"\w+|[^\w\s]")


def repetition(text: str, *, size: int = 4) -> float:
    """The share of word n-grams that stood before: 0.0 nothing repeats, towards 1.0 all of it does.

    As in Demystify-long-CoT (Yeo et al. 2025, arXiv 2502.03373), as a share instead of a penalty.
    """
    if size < 1:
        raise ValueError(f"size is {size}; it must be at least 1")
    words = _WORD.findall(text.lower())
    grams = [tuple(words[at : at + size]) for at in range(len(words) - size + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
