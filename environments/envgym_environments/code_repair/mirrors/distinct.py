"""Which tasks of one change repeat one repair: the same edit, made in functions that stand side by side.

Pieces of a change tell places apart, not ideas: `match` that became `fullmatch` in eleven functions is one bug that
a person saw once. Two repairs are alike by their tokens, without comments, docstrings and layout; where one test
function asks for both with other parameters, less likeness is enough. Nothing here runs anything.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

from envgym.task import Task

__all__ = ["changed_tokens", "distinct", "likeness"]

_TOKEN: Final = re.compile(
    r"(?P<prose>\#[^\n]*|^[ \t]*[rRuU]?(?P<quotes>\"{3}|'{3})(?s:.*?)(?P=quotes))"
    r"|(?i:[rbuf]{0,2})(?:'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\")|\w+|[^\w\s]",
    re.MULTILINE,
)
_ALIKE: Final = 0.8
_ALIKE_BY_TEST: Final = 0.5

_Tokens = Counter[tuple[str, str]]


def _tokens(text: str) -> list[str]:
    return [found[0] for found in _TOKEN.finditer(text) if found["prose"] is None]


def changed_tokens(places: Iterable[Mapping[str, Any]]) -> _Tokens:
    """The tokens that a repair takes away ("-") and brings ("+"), each as often as it does.

    places: where it changes what, as `metadata["gold"]["bugs"]` has them.
    """
    found: _Tokens = Counter()
    for place in places:
        wrong, right = _tokens(place["wrong"]), _tokens(place["right"])
        for what, i, j, k, n in SequenceMatcher(a=wrong, b=right, autojunk=False).get_opcodes():
            if what != "equal":
                found.update(("-", token) for token in wrong[i:j])
                found.update(("+", token) for token in right[k:n])
    return found


def likeness(one: _Tokens, other: _Tokens) -> float:
    """The Jaccard index of two changes, in which a token counts as often as it occurs; 0 where one is empty."""
    return (one & other).total() / (one | other).total() if one and other else 0.0


def _functions(tests: Iterable[str]) -> frozenset[str]:
    """The test functions, whatever their parameters."""
    return frozenset(test.partition("[")[0] for test in tests)


def distinct(tasks: Sequence[Task]) -> list[Task]:
    """The tasks of one pair of states without those that repeat another's repair, in their order.

    Of several with one repair stays the one with the most failing tests, the first of such. Likeness is passed on:
    what resembles a task that resembles a third is of the same repair as both.
    """
    tokens = [changed_tokens(_places(task)) for task in tasks]
    tests = [_tests(task) for task in tasks]
    functions = [_functions(names) for names in tests]
    family = list(range(len(tasks)))
    for later in range(len(tasks)):
        for earlier in range(later):
            least = _ALIKE_BY_TEST if functions[earlier] & functions[later] else _ALIKE
            if likeness(tokens[earlier], tokens[later]) >= least:
                old, new = family[later], family[earlier]
                family = [new if one == old else one for one in family]
    best: dict[int, int] = {}
    for number, one in enumerate(family):
        if one not in best or len(tests[number]) > len(tests[best[one]]):
            best[one] = number
    return [tasks[number] for number in sorted(best.values())]


def _places(task: Task) -> Sequence[Mapping[str, Any]]:
    """Where the answer changes what; of an answer that is a patch alone (other languages), none."""
    gold: Any = task.metadata["gold"]
    return gold.get("bugs", ())  # type: ignore[no-any-return]


def _tests(task: Task) -> Sequence[str]:
    tests: Any = task.metadata["fail_to_pass"]
    return tests  # type: ignore[no-any-return]
