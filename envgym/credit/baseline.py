"""What value is compared with: one centring function whose peer key is the algorithm.

Values that share a key are peers. NaN marks a value that does not exist (the world failed): it gets zero
credit and its peers are centred as if it were not there (the declared policy "drop and re-baseline").
"""

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["centre"]


def centre(
    values: NDArray[np.float64],
    peers: Sequence[Hashable],
    *,
    baseline: Literal["mean", "leave_one_out"] = "mean",
    scale: Literal["none", "std"] = "none",
) -> NDArray[np.float64]:
    """Subtract from each value what its peers achieved.

    Shapes: values [K], peers K keys; returns [K]. Values without a peer get 0, whatever they are; so do peers
    that are all equal. "leave_one_out" leaves the value itself out of its baseline; "std" divides by the
    peers' population standard deviation (a known bias towards nearly-solved and nearly-unsolved tasks, Liu et
    al. 2025: off by default).

    Raises ValueError when the lengths differ.
    Sources: group mean, GRPO (Shao et al. 2024, eq. 3, without the division unless scale="std");
    leave-one-out, RLOO (Ahmadian et al. 2024, eq. 5); no division, Dr. GRPO (Liu et al. 2025).
    """
    if len(values) != len(peers):
        raise ValueError(f"{len(values)} values but {len(peers)} peer keys; one key per value")
    credit = np.zeros(len(values))
    for members in _by_key(peers):
        index = members[~np.isnan(values[members])]
        if len(index) < 2 or np.ptp(values[index]) == 0:
            continue
        centred = values[index] - values[index].mean()
        if baseline == "leave_one_out":
            centred *= len(index) / (len(index) - 1)
        if scale == "std":
            centred /= values[index].std()
        credit[index] = centred
    return credit


def _by_key(peers: Sequence[Hashable]) -> list[NDArray[np.intp]]:
    found: dict[Hashable, list[int]] = {}
    for index, key in enumerate(peers):
        found.setdefault(key, []).append(index)
    return [np.array(members, np.intp) for members in found.values()]
