"""How right tool calls are: their names, their parameters' names, their parameters' values.

The rules are those of ToolRL (Qian et al. 2025, arXiv 2504.13958) as its released code applies them:
each gold call takes the best call of its name that no earlier gold call took.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from envgym.messages import ToolCall

__all__ = ["ToolMatch", "match_calls"]


@dataclass(frozen=True, slots=True)
class ToolMatch:
    """names, parameter_names, parameter_values: in [0, 1], 1 when all agree. exact: the lists are equal.

    share: of the most that could be reached, in [0, 1]. correctness: ToolRL's R_correct, in [-3, 3].
    """

    names: float
    parameter_names: float
    parameter_values: float
    share: float
    exact: bool

    @property
    def correctness(self) -> float:
        """``6 * share - 3``; ToolRL's R_correct."""
        return 6.0 * self.share - 3.0

    @property
    def channels(self) -> dict[str, float]:
        """As named scores."""
        return {
            "tool_names": self.names,
            "parameter_names": self.parameter_names,
            "parameter_values": self.parameter_values,
            "tool_correctness": self.correctness,
        }


def match_calls(said: Sequence[ToolCall], gold: Sequence[ToolCall]) -> ToolMatch:
    """Compare calls with those that are right, in whatever order.

    With gold calls G and said calls P: r_name is the Jaccard index of the multisets of names; per matched pair,
    r_param the Jaccard index of the parameters' names and r_value the number of equal values; the most is
    ``1 + sum over G of (1 + number of parameters)``. Calls that equal the gold ones in order have all of it, two
    empty lists included.
    """
    pairs_said = [(call.name, call.arguments) for call in said]
    pairs_gold = [(call.name, call.arguments) for call in gold]
    if _equal(pairs_said, pairs_gold):
        return ToolMatch(1.0, 1.0, 1.0, 1.0, exact=True)
    names = _jaccard([name for name, _ in pairs_said], [name for name, _ in pairs_gold])
    used: set[int] = set()
    keys = values = 0.0
    for name, right in pairs_gold:
        best, best_key, best_value = -1, 0.0, 0.0
        for at, (other, given) in enumerate(pairs_said):
            if at in used or other != name:
                continue
            key = _jaccard(list(given), list(right))
            value = float(sum(k in given and _same(given[k], v) for k, v in right.items()))
            if key + value > best_key + best_value:
                best, best_key, best_value = at, key, value
        if best >= 0:
            used.add(best)
            keys, values = keys + best_key, values + best_value
    parameters = sum(len(right) for _, right in pairs_gold)
    most = 1.0 + sum(1.0 + len(right) for _, right in pairs_gold)
    return ToolMatch(
        names,
        keys / len(pairs_gold) if pairs_gold else 0.0,
        values / parameters if parameters else float(bool(pairs_gold) and keys == len(pairs_gold)),
        (names + keys + values) / most,
        exact=False,
    )


def _jaccard(one: Sequence[str], other: Sequence[str]) -> float:
    """Of multisets; of two empty ones 1."""
    if not one and not other:
        return 1.0
    common = sum((Counter(one) & Counter(other)).values())
    return common / (len(one) + len(other) - common)


def _same(one: JsonValue, other: JsonValue) -> bool:
    """Equal as JSON: True is not 1, and 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


def _equal(
    one: Sequence[tuple[str, dict[str, JsonValue]]], other: Sequence[tuple[str, dict[str, JsonValue]]]
) -> bool:
    return len(one) == len(other) and all(
        a[0] == b[0] and _same(a[1], b[1]) for a, b in zip(one, other, strict=True)
    )
