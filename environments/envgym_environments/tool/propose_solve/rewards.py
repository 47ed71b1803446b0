"""What proposer and solver earn, as in Absolute Zero (Zhao et al. 2025, arXiv 2505.03335), on its reward design."""

from collections.abc import Sequence

__all__ = ["UNREADABLE", "WRONG", "learnability", "solved"]

WRONG, UNREADABLE = -0.5, -1.0
"""The format penalty: what a role earns that answered in the right form and wrongly, or in no readable form."""


def learnability(solved: Sequence[bool]) -> float:
    """With s the mean success of the attempts, 0 where s is 0 or 1, else 1 - s.

    What is always solved teaches nothing, and neither does what never is. Raises ValueError for no attempts.
    """
    if not solved:
        raise ValueError("no attempt was made; a solve rate needs at least one")
    rate = sum(solved) / len(solved)
    return 0.0 if rate in (0.0, 1.0) else 1.0 - rate


def solved(right: bool) -> float:
    """1 for the right answer, else `WRONG`; an answer that cannot be read is `UNREADABLE`."""
    return 1.0 if right else WRONG
