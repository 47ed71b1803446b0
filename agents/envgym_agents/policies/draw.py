"""From one row of logits to one token, and the log-probability it really had.

Pure functions in float64: a draw depends on its logits and its own generator, not on what else is in the batch.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from envgym.limits import Sampling

__all__ = ["distribution", "draw", "draws", "nucleus"]

Ids = NDArray[np.int64]


def distribution(
    logits: NDArray[np.float32], sampling: Sampling, *, first: bool, among: Ids | None = None
) -> tuple[Ids, NDArray[np.float64]]:
    """The candidate ids [K] (ascending) and their log-probabilities [K] (nats, summing to 1).

    `allowed` holds for the first token only. Order: restrict, divide by the temperature, keep the smallest set of
    likeliest ids whose mass reaches `top_p`, renormalise. Temperature 0 is greedy: the distribution is then the
    one of temperature 1, unclipped, from which the likeliest is taken. among: the ids that are left to choose from,
    of those allowed; None: all of them.
    """
    if among is not None:
        ids = among
    elif first and sampling.allowed is not None:
        ids = np.asarray(sampling.allowed, np.int64)
    else:
        ids = np.arange(len(logits), dtype=np.int64)
    logs = _normalised(logits[ids].astype(np.float64) / (sampling.temperature or 1.0))
    if sampling.top_p < 1 and sampling.temperature > 0:
        order = np.argsort(-logs, kind="stable")
        mass_before = np.concatenate([[0.0], np.cumsum(np.exp(logs[order]))[:-1]])
        kept = np.sort(order[mass_before < sampling.top_p])
        ids, logs = ids[kept], logs[kept]
        logs = logs - np.log(np.exp(logs).sum())
    return ids, logs


def nucleus(logits: NDArray[np.float32], sampling: Sampling, *, first: bool, top_p: float) -> Ids:
    """The ids (ascending) that a masking policy with these logits leaves open: the learner's `masks.nucleus`.

    At the temperature that is sampled with; where that is greedy, at 1. Raises ValueError when the logits hold nan.
    """
    if np.isnan(logits).any():
        raise ValueError(_DIVERGED)
    asked = replace(sampling, temperature=sampling.temperature or 1.0, top_p=top_p)
    return distribution(logits, asked, first=first)[0]


def draw(
    logits: NDArray[np.float32],
    sampling: Sampling,
    rng: np.random.Generator,
    *,
    first: bool,
    among: Ids | None = None,
) -> tuple[int, float]:
    """One token id and its log-probability under `distribution`. Raises ValueError when the logits hold nan."""
    ids, logs = distribution(logits, sampling, first=first, among=among)
    if np.isnan(logs).any():
        raise ValueError(_DIVERGED)
    index = int(logs.argmax()) if sampling.temperature == 0 else _index(np.cumsum(np.exp(logs)), rng)
    return int(ids[index]), float(logs[index])


def draws(
    logits: NDArray[np.float32], asked: Sequence[tuple[Sampling, np.random.Generator, bool]],
    nuclei: Sequence[Ids] | None = None,
) -> list[tuple[int, float]]:  # fmt: skip
    """`draw` for each row of logits [B, V] with its sampling, generator and whether it is the first, bit by bit.

    Rows that draw from the whole vocabulary are computed together. nuclei: what each may draw from, where masked.
    Raises ValueError as `draw` does.
    """
    if nuclei is not None:
        rows = zip(logits, asked, nuclei, strict=True)
        return [draw(row, one, rng, first=first, among=among) for row, (one, rng, first), among in rows]
    plain = [number for number, one in enumerate(asked) if _whole(one[0], first=one[2])]
    logs, edges = np.empty((0, 0)), np.empty((0, 0))
    if plain:
        temperatures = np.array([asked[number][0].temperature for number in plain])
        logs = _normalised(logits[plain].astype(np.float64) / temperatures[:, None])
        if np.isnan(logs).any():
            raise ValueError(_DIVERGED)
        edges = np.cumsum(np.exp(logs), axis=-1)
    together = {number: place for place, number in enumerate(plain)}
    found = []
    for number, (sampling, rng, first) in enumerate(asked):
        if (place := together.get(number)) is None:
            found.append(draw(logits[number], sampling, rng, first=first))
            continue
        index = _index(edges[place], rng)
        found.append((index, float(logs[place, index])))
    return found


_DIVERGED = "the model's logits hold nan or no finite value: its weights have diverged"


def _whole(sampling: Sampling, *, first: bool) -> bool:
    restricted = first and sampling.allowed is not None
    return not restricted and sampling.temperature > 0 and sampling.top_p >= 1


def _normalised(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logits [..., V] as log-probabilities."""
    logs = logs - logs.max(axis=-1, keepdims=True)
    normalised: NDArray[np.float64] = logs - np.log(np.exp(logs).sum(axis=-1, keepdims=True))
    return normalised


def _index(edges: NDArray[np.float64], rng: np.random.Generator) -> int:
    """Where a uniform draw falls among cumulated masses."""
    return min(int(np.searchsorted(edges, float(rng.random() * edges[-1]), side="right")), len(edges) - 1)
