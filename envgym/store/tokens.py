"""The columns that training reads, of whole stores, drawn from at random: views of mapped shards, cut by offsets.

Hot shards are not copied until a minibatch is made; cold ones are decoded once and then held. An episode's turns
lie side by side, so that an episode costs one slice of each column, whatever the number of its turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from envgym.store.schema import TOKENS

__all__ = ["TokenBatch", "Tokens"]


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The tokens of B episodes with N turns in all.

    turns_B: turns of each episode. prompts_N, samples_N: lengths of each turn. prompt_ids [sum of prompts_N] int32,
    sampled_ids and logprobs [sum of samples_N] int32 and float32, turn after turn.
    """

    turns_B: NDArray[np.int64]  # axes are named
    prompts_N: NDArray[np.int64]
    samples_N: NDArray[np.int64]
    prompt_ids: NDArray[np.int32]
    sampled_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        """Bytes of its tokens."""
        return self.prompt_ids.nbytes + self.sampled_ids.nbytes + self.logprobs.nbytes


class _Block:
    """The flat values of one block of turns, and where each turn's begin."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.values = {name: batch.column(name).values.to_numpy() for name in TOKENS}
        self.offsets = {name: batch.column(name).offsets.to_numpy() for name in TOKENS}


class Tokens:
    """The tokens of the episodes of a store, in the order of `ids`."""

    def __init__(self, ids: Sequence[str], blocks: Sequence[pa.RecordBatch], places: NDArray[np.int64]) -> None:
        """Places [episodes, 3]: block, first row there, and turns of each."""
        self.ids = tuple(ids)
        self._blocks = [_Block(batch) for batch in blocks]
        self._places = places

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, episodes: Sequence[int] | NDArray[np.int64]) -> TokenBatch:
        """The tokens of some episodes, copied, by their numbers in `ids`. Raises IndexError."""
        chosen = np.asarray(episodes, np.int64)
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < len(self.ids)):
            wrong = next(int(one) for one in chosen if not 0 <= one < len(self.ids))
            raise IndexError(f"episode {wrong} of {len(self.ids)}; they are numbered from 0")
        places = self._places[chosen].tolist()
        parts: dict[str, list[NDArray[np.generic]]] = {name: [] for name in TOKENS}
        cuts: dict[str, list[NDArray[np.generic]]] = {name: [] for name in TOKENS[:2]}
        for block, first, turns in places:
            found = self._blocks[block]
            for name, values in found.values.items():
                offsets = found.offsets[name]
                parts[name].append(values[offsets[first] : offsets[first + turns]])
                if name in cuts:
                    cuts[name].append(offsets[first : first + turns + 1])
        return TokenBatch(
            self._places[chosen, 2],
            _lengths(cuts["prompt_ids"]),
            _lengths(cuts["sampled_ids"]),
            *(np.concatenate(parts[name]) if parts[name] else np.zeros(0, kind)
              for name, kind in zip(TOKENS, (np.int32, np.int32, np.float32), strict=True)),
        )  # fmt: skip


def _lengths(offsets: list[NDArray[np.generic]]) -> NDArray[np.int64]:
    """What lies between the offsets of each part, one after another."""
    if not offsets:
        return np.zeros(0, np.int64)
    lengths = np.diff(np.concatenate(offsets).astype(np.int64))
    ends = np.cumsum([len(part) for part in offsets])[:-1] - 1  # from the end of a part to the next one's beginning
    return np.delete(lengths, ends)
