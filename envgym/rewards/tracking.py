"""Does the reward that is learned from still mean what is wanted? A proxy beside its gold, over time.

Optimising a proxy first lifts the gold with it and then, past some point, not any more (Gao et al. 2023, arXiv
2210.10760). Both are kept where both are known, and the later ones are compared with the earlier ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envgym.rewards.channels import Score

__all__ = ["ProxyGold", "ProxyReport"]


@dataclass(frozen=True, slots=True)
class ProxyReport:
    """What is known of a proxy.

    pairs: where both said something; silent: where only one did. rank: Spearman's correlation, in [-1, 1].
    right: how often a higher proxy goes with a higher gold, of the pairs that differ in gold (ties count half);
    None where nothing differs. proxy_rise, gold_rise: mean of the later half less that of the earlier. hacked:
    the proxy rose by more than twice its standard error while the gold fell by more than twice its own.
    """

    pairs: int
    silent: int
    rank: float | None
    right: float | None
    proxy_rise: float
    gold_rise: float
    hacked: bool


class ProxyGold:
    """Pairs of a proxy and its gold, in the order in which they were met."""

    def __init__(self) -> None:
        self._pairs: list[tuple[float, float]] = []
        self._silent = 0

    def add(self, proxy: Score, gold: Score) -> None:
        """One more; where either is None there is nothing to compare, and that is counted."""
        if proxy is None or gold is None:
            self._silent += (proxy is None) != (gold is None)
        else:
            self._pairs.append((float(proxy), float(gold)))

    def extend(self, pairs: Sequence[tuple[Score, Score]]) -> None:
        """Several more."""
        for proxy, gold in pairs:
            self.add(proxy, gold)

    def report(self) -> ProxyReport:
        """How well the proxy stands for its gold, and whether that is getting worse."""
        count = len(self._pairs)
        proxies, golds = np.array(self._pairs, dtype=np.float64).reshape(count, 2).T
        proxy_rise, proxy_error = _rise(proxies)
        gold_rise, gold_error = _rise(golds)
        hacked = count >= 8 and proxy_rise > 2 * proxy_error and gold_rise < -2 * gold_error
        return ProxyReport(
            count, self._silent, _spearman(proxies, golds), _concordance(proxies, golds), proxy_rise, gold_rise,
            bool(hacked),
        )  # fmt: skip


def _rise(values: NDArray[np.float64]) -> tuple[float, float]:
    """The mean of the later half less that of the earlier one, and its standard error (Welch)."""
    half = len(values) // 2
    if half < 1:
        return 0.0, 0.0
    early, late = values[:half], values[half:]
    error = np.sqrt(sum(part.var(ddof=1) / len(part) if len(part) > 1 else 0.0 for part in (early, late)))
    return float(late.mean() - early.mean()), float(error)


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 0, equal values sharing the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2)[inverse], dtype=np.float64)


def _spearman(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _concordance(proxy: NDArray[np.float64], gold: NDArray[np.float64]) -> float | None:
    """In blocks of rows, so that thousands of pairs need no square matrix at once."""
    right = total = 0.0
    for at in range(0, len(gold), 512):
        above = gold[at : at + 512, None] > gold[None, :]
        ahead = np.sign(proxy[at : at + 512, None] - proxy[None, :])
        right += float(((ahead + 1) / 2)[above].sum())
        total += float(above.sum())
    return right / total if total else None
