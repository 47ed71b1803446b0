"""From one row of logits to one token, and the log-probability it really had.

Pure functions in float64: a draw depends on its logits and its own generator, not on what else is in the batch.
"""

import numpy as np
from numpy.typing import NDArray

from envgym.limits import Sampling

__all__ = ["distribution", "draw"]


def distribution(
    logits: NDArray[np.float32], sampling: Sampling, *, first: bool
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The candidate ids [K] (ascending) and their log-probabilities [K] (nats, summing to 1).

    `allowed` holds for the first token only. Order: restrict, divide by the temperature, keep the smallest set of
    likeliest ids whose mass reaches `top_p`, renormalise. Temperature 0 is greedy: the distribution is then the
    one of temperature 1, unclipped, from which the likeliest is taken.
    """
    if first and sampling.allowed is not None:
        ids = np.asarray(sampling.allowed, np.int64)
    else:
        ids = np.arange(len(logits), dtype=np.int64)
    logs = logits[ids].astype(np.float64) / (sampling.temperature or 1.0)
    logs -= logs.max()
    logs -= np.log(np.exp(logs).sum())
    if sampling.top_p < 1 and sampling.temperature > 0:
        order = np.argsort(-logs, kind="stable")
        mass_before = np.concatenate([[0.0], np.cumsum(np.exp(logs[order]))[:-1]])
        kept = np.sort(order[mass_before < sampling.top_p])
        ids, logs = ids[kept], logs[kept]
        logs = logs - np.log(np.exp(logs).sum())
    return ids, logs


def draw(
    logits: NDArray[np.float32], sampling: Sampling, rng: np.random.Generator, *, first: bool
) -> tuple[int, float]:
    """One token id and its log-probability under `distribution`. Raises ValueError when the logits hold nan."""
    ids, logs = distribution(logits, sampling, first=first)
    if np.isnan(logs).any():
        raise ValueError("the model's logits hold nan or no finite value: its weights have diverged")
    if sampling.temperature == 0:
        index = int(logs.argmax())
    else:
        edges = np.cumsum(np.exp(logs))
        index = int(min(np.searchsorted(edges, rng.random() * edges[-1], side="right"), len(ids) - 1))
    return int(ids[index]), float(logs[index])
