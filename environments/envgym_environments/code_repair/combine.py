"""Several mistakes for one task: bugs that were proved one by one and lie at the wanted distance.

Each of them has a failing test of its own, which all the others leave passing, so that no repair of one repairs
another. Pure: whether they are valid together is judged afterwards.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Generic, TypeVar

from envgym_environments.code_repair.judge import Candidate, Judged, Plan

__all__ = ["Pool", "apart", "interacting", "own_tests", "together"]

_Bug = TypeVar("_Bug", bound=Judged)


def own_tests(bugs: Sequence[Judged]) -> list[frozenset[str]]:
    """For each bug the tests that it fails and no other one does."""
    failing = [frozenset(bug.failing) for bug in bugs]
    return [
        mine.difference(*(other for index, other in enumerate(failing) if index != at))
        for at, mine in enumerate(failing)
    ]


def apart(one: Candidate, other: Candidate, plan: Plan) -> bool:
    """Whether two mistakes lie at the plan's distance and do not touch."""
    same_file, function, file = one.path == other.path, plan.distance == "function", plan.distance == "file"
    if same_file != (function or file):
        return False
    if not same_file:
        return True
    if (one.mutation.function == other.mutation.function) != function:
        return False
    first, second = sorted((one.mutation, other.mutation), key=lambda found: (found.line, found.column))
    return (first.end_line, first.end_column) <= (second.line, second.column)


class Pool(Generic[_Bug]):
    """Valid bugs that wait for partners; each is part of one task at most."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._waiting: list[_Bug] = []

    def add(self, bug: _Bug) -> tuple[_Bug, ...]:
        """A bug with its partners; empty while there are none, and it waits for some.

        The partners that waited longest are taken first, and wait no more.
        """
        fitting = [one for one in self._waiting if apart(one.candidate, bug.candidate, self._plan)]
        for partners in combinations(fitting[:12], self._plan.bugs - 1):
            group = (bug, *partners)
            pairs = combinations(group, 2)
            if not all(apart(one.candidate, other.candidate, self._plan) for one, other in pairs):
                continue
            if all(own_tests(group)):
                self._waiting = [one for one in self._waiting if one not in partners]
                return group
        self._waiting.append(bug)
        return ()


def interacting(bugs: Sequence[Judged], failing: Sequence[str]) -> bool:
    """Whether the bugs together fail other tests than each for itself."""
    return set(failing) != {test for bug in bugs for test in bug.failing}


def together(bugs: Sequence[Judged], tests: Sequence[str]) -> Candidate:
    """The bugs as one candidate. tests: the suite, in running order, as far as it is known what covers them."""
    covering = {test for bug in bugs for test in bug.candidate.covering}
    first, *others = sorted((bug.candidate for bug in bugs), key=lambda one: (one.path, one.mutation.line))
    return Candidate(
        first.path,
        first.source,
        first.mutation,
        tuple(test for test in tests if test in covering),
        tuple(others),
    )
