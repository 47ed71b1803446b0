"""Token ids between turns, which store what they add, and formats that store whole contexts or message nodes."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envgym.episode import Turn

__all__ = ["Context", "contexts", "finite_floats", "ids_of"]

_TOP = 2**31


def ids_of(raw: Any, name: str) -> NDArray[np.int32]:
    """Token ids of a JSON list. Raises ValueError for anything else than ints that int32 holds."""
    good = isinstance(raw, list) and all(type(one) is int and -_TOP <= one < _TOP for one in raw)
    if not good:
        raise ValueError(f"{name} is {repr(raw)[:80]}; it must be a list of token ids (int32)")
    return np.array(raw, np.int32)


def finite_floats(raw: Any, name: str, length: int) -> NDArray[np.float32]:
    """Log-probs of a JSON list, one for each of `length` tokens. Raises ValueError for anything else."""
    good = isinstance(raw, list) and all(isinstance(one, int | float) and type(one) is not bool for one in raw)
    if not good or len(raw) != length:
        raise ValueError(f"{name} is {repr(raw)[:80]}; it must be a list of {length} numbers")
    with np.errstate(over="ignore"):
        return np.array(raw, np.float32)


def contexts(turns: Iterable[Turn]) -> list[list[int] | None]:
    """The whole prompt that each turn was sampled from; None for a turn without tokens."""
    held: dict[int, list[int]] = {}
    found: list[list[int] | None] = []
    for turn in turns:
        if not len(turn.prompt_ids) and not len(turn.sampled_ids):
            found.append(None)
            continue
        before = held.get(turn.segment, [])
        prompt = [*before, *turn.prompt_ids.tolist()]
        held = {turn.segment: [*prompt, *turn.sampled_ids.tolist()]}
        found.append(prompt)
    return found


class Context:
    """Turns whole prompts back into what each turn added: the same segment as long as prompts only grow."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._segment = 0

    def turn(
        self, prompt: Sequence[int], sampled: NDArray[np.int32], logprobs: NDArray[np.float32]
    ) -> dict[str, Any]:
        """The token fields of a turn that was sampled from `prompt`."""
        position = len(self._held)
        if list(prompt[:position]) != self._held:
            self._segment, position = self._segment + 1, 0
        self._held = [*prompt, *sampled.tolist()]
        return {
            "prompt_ids": np.array(prompt[position:], np.int32),
            "sampled_ids": sampled,
            "logprobs": logprobs,
            "segment": self._segment,
            "position": position,
        }
