"""What the two players of self-play earn. Pure.

Wei et al., "Toward Training Superintelligent Software Agents through Self-Play SWE-RL" (SSR), arXiv 2512.18552: the
injector's reward (its consistency and its difficulty part are one formula by cases), and the solver's.
"""

from collections.abc import Sequence

__all__ = ["injector_reward", "solve_rate", "solver_reward"]


def injector_reward(solved: float | None, *, alpha: float = 0.8) -> float:
    """The injector's reward. solved: the share s of attempts that repaired the bug; None for an inconsistent one.

    -1 where the artifact is not consistent; -alpha for s = 0 and s = 1 (it teaches nothing); else 1 - (1 + alpha)
    s,
    which is near 1 for a bug that is rarely repaired and falls to -alpha. Raises ValueError outside 0 <= s <= 1 and
    0 < alpha < 1.
    """
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha is {alpha}; it must lie between 0 and 1")
    if solved is None:
        return -1.0
    if not 0.0 <= solved <= 1.0:
        raise ValueError(f"solved is {solved}; it is a share, from 0 to 1")
    return -alpha if solved in (0.0, 1.0) else 1.0 - (1.0 + alpha) * solved


def solver_reward(resolved: bool) -> float:
    """The solver's reward: 1 where all of the formal specification's tests pass, else -1."""
    return 1.0 if resolved else -1.0


def solve_rate(results: Sequence[bool]) -> float:
    """The share of attempts that repaired the bug. Raises ValueError where there was none."""
    if not results:
        raise ValueError("results is empty; a solve rate needs at least one attempt")
    return sum(results) / len(results)
