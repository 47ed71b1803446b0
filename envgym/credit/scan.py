"""The one recursion of credit, over ragged rows: ``A_k = x_k + decay_k * A_(k+1)``, anew from every row's end.

Long rows with one decay go block by block through a matrix of its powers, so that the work is a matrix product and
the recursion runs over blocks only; short ones go column by column over all rows at once. Nothing is padded to the
longest row.
"""

import numpy as np
from numpy.typing import NDArray

from envgym.credit.ledger import Floats, Ints, offsets

__all__ = ["scan"]

_BLOCK = 32
_STACK = 64
"""Blocks of one matrix product."""
_SLAB = 1 << 18
"""Elements worked on at a time: memory stays bounded, and the matrix products are long enough to pay."""


def scan(values_K: Floats, rows: Ints, decay: float | Floats, *, out: Floats | None = None) -> Floats:
    """Backward discounted sums within each row; an array of the same shape and kind, a new one but for `out`.

    Shapes: values [K]; rows [R + 1] offsets into K; decay a number, or [K] with one factor for every place;
    out [K], which may be `values_K` itself.
    Source: the recursion of returns and of GAE (Schulman et al. 2016); the blocking is our own.
    """
    if isinstance(decay, np.ndarray):
        return _by_column(values_K, rows, decay, out)
    lengths = np.diff(rows)
    if len(lengths) == 0 or lengths.max(initial=0) <= 4 * _BLOCK:
        return _by_column(values_K, rows, decay, out)
    found = np.empty_like(values_K) if out is None else out
    tall = rows // _SLAB
    first = 0
    while first < len(lengths):
        after = max(first + 1, int(np.searchsorted(tall, tall[first], side="right")) - 1)
        _blocked(values_K, rows[first : after + 1], decay, found)
        first = after
    return found


def _by_column(values_K: Floats, rows: Ints, decay: float | Floats, out: Floats | None) -> Floats:
    """One step of the recursion for all rows at once, from their ends backward."""
    found = values_K.copy() if out is None else out
    found[...] = values_K
    lengths = np.diff(rows)
    order = np.argsort(-lengths, kind="stable")
    ends = rows[1:][order]
    counts = len(lengths) - np.searchsorted(np.sort(lengths), np.arange(1, lengths.max(initial=0) + 1))
    for back in range(1, len(counts)):
        place = ends[: counts[back]] - back - 1
        factor = decay[place] if isinstance(decay, np.ndarray) else decay
        found[place] += factor * found[place + 1]
    return found


def _blocked(values_K: Floats, rows: Ints, decay: float, out_K: Floats) -> None:
    """The same for a slab of rows, block by block: within a block a matrix product, between them a smaller scan."""
    lengths = np.diff(rows)
    blocks = offsets(-(-lengths // _BLOCK))
    padded = np.zeros((-(-int(blocks[-1]) // _STACK) * _STACK, _BLOCK), values_K.dtype)
    flat = padded.reshape(-1)
    for row, start in enumerate((blocks[:-1] * _BLOCK).tolist()):
        flat[start : start + lengths[row]] = values_K[rows[row] : rows[row + 1]]
    totals = np.einsum("bi,i->b", padded[: blocks[-1]], _powers(decay, values_K.dtype))
    carried = scan(totals, blocks, decay**_BLOCK)
    follows = np.ones(len(carried), np.bool_)
    follows[blocks[1:][lengths > 0] - 1] = False
    inner = np.flatnonzero(follows)
    padded[inner, -1] += decay * carried[inner + 1]
    # a stack of small products: large ones are shared among threads, which wait for each other on a busy machine
    swept = (padded.reshape(-1, _STACK, _BLOCK) @ _triangle(decay, values_K.dtype)).reshape(-1)
    for row, start in enumerate((blocks[:-1] * _BLOCK).tolist()):
        out_K[rows[row] : rows[row + 1]] = swept[start : start + lengths[row]]


def _powers(decay: float, kind: np.dtype[np.floating]) -> NDArray[np.floating]:
    return (float(decay) ** np.arange(_BLOCK)).astype(kind)


def _triangle(decay: float, kind: np.dtype[np.floating]) -> NDArray[np.floating]:
    """[i, j] = decay ** (i - j) where i is not before j: what place i gives to place j."""
    apart = np.subtract.outer(np.arange(_BLOCK), np.arange(_BLOCK))
    return np.where(apart >= 0, float(decay) ** np.maximum(apart, 0), 0.0).astype(kind)
