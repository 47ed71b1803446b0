"""Which lines to look at first: spectrum-based fault localisation from executed lines.

The score is Ochiai's (Abreu, Zoeteweij, van Gemund 2007, "On the accuracy of spectrum-based fault localization"):
``ef / sqrt((ef + nf) * (ef + ep))`` with ef, nf the failing tests that execute a line or not, and ep the passing
ones that do. It sees what any tool could see: tests, executed lines and tracebacks; never where the bug was put.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from envgym_environments.code_repair.memo import digest_of
from envgym_environments.code_repair.patch import counts
from envgym_environments.code_repair.runner import TestReport
from envgym_environments.code_repair.suggest import logical_lines, operations, suggest
from envgym_environments.code_repair.trials import Trials

__all__ = ["MOST", "Seen", "Suspect", "localise", "ochiai", "rank", "spectrum"]

MOST = 8
"""The longest list that is ever shown."""

_NO_FRAME = 99
_KEPT = 400
_SHORTLIST = 60


class Seen(NamedTuple):
    """What the tests tell of a logical line: how many failing (of `all_failing`) and passing ones execute it.

    depth: how many frames from the raise it stands in a traceback, `_NO_FRAME` where it is in none.
    """

    path: str
    line: int
    failing: int
    all_failing: int
    passing: int
    depth: int


@dataclass(frozen=True, slots=True)
class Suspect:
    """A logical line: file relative to the workdir, number of its first line, score in [0, 1]."""

    path: str
    line: int
    score: float


def ochiai(executed_failing: int, failing: int, executed_passing: int) -> float:
    """Ochiai's suspiciousness in [0, 1]; 0 for a line that no failing test executes."""
    if executed_failing == 0:
        return 0.0
    return executed_failing / math.sqrt(failing * (executed_failing + executed_passing))


Logical = Mapping[str, Mapping[int, int]]
"""file -> physical line -> first line of the logical line that covers it; other files and lines are left out."""


def _tests_by_line(report: TestReport, logical: Logical) -> dict[tuple[str, int], set[str]]:
    """(file, logical line) -> tests that execute it; what runs at import, every test executes."""
    found: dict[tuple[str, int], set[str]] = {}
    for test, of_file in report.lines.items():
        for path, numbers in of_file.items():
            first_of = logical.get(path, {})
            for first in {first_of[number] for number in numbers if number in first_of}:
                found.setdefault((path, first), set()).add(test)
    for path, numbers in report.import_lines.items():
        first_of = logical.get(path, {})
        for number in numbers:
            if number in first_of:
                found.setdefault((path, first_of[number]), set()).update(report.lines)
    return found


def spectrum(report: TestReport, failing: Sequence[str], logical: Logical) -> list[Seen]:
    """What is known of every line that a failing test executes, in file and line order."""
    failed = {test for test in failing if test in report.lines}
    passed = set(report.passing)
    depth = _depths(report, failed, logical)
    found = []
    for (path, line), tests in sorted(_tests_by_line(report, logical).items()):
        if tests & failed:
            place = depth.get((path, line), _NO_FRAME)
            found.append(Seen(path, line, len(tests & failed), len(failed), len(tests & passed), place))
    return found


def rank(seen: Iterable[Seen], operations: Callable[[str, int], int]) -> list[Suspect]:
    """Lines by score, highest first; `operations` counts what a line compares or computes.

    Ties: lines of the tracebacks, innermost frame first; then lines with more operations, since a line that only
    names and calls has less to be wrong in; then file and line order.
    """
    scored = [
        (-ochiai(one.failing, one.all_failing, one.passing), one.depth, -operations(one.path, one.line), one)
        for one in seen
    ]
    scored.sort(key=lambda row: (*row[:3], row[3].path, row[3].line))
    return [Suspect(one.path, one.line, round(-score, 6)) for score, _, _, one in scored]


def _depths(report: TestReport, failed: Iterable[str], logical: Logical) -> dict[tuple[str, int], int]:
    """(file, logical line) -> how far from the raise it stands in a traceback of a failing test, at the nearest."""
    depths: dict[tuple[str, int], int] = {}
    for test in failed:
        for depth, (path, number) in enumerate(report.frames.get(test, ())):
            first = logical.get(path, {}).get(number)
            if first is not None:
                depths[path, first] = min(depth, depths.get((path, first), depth))
    return depths


async def localise(trials: Trials, *, most: int = MOST) -> tuple[Suspect, ...]:
    """The `most` most suspicious lines of the task's base state for which at least one quick fix exists."""
    facts = trials.facts

    async def run() -> list[Seen]:
        report = await trials.traced()
        texts = {path: await trials.source(path) or "" for path in _paths(report) if counts(path, facts.layout)}
        logical = {path: logical_lines(text) for path, text in texts.items()}
        found = spectrum(report, facts.fail_to_pass, logical)
        found.sort(key=lambda one: -ochiai(one.failing, one.all_failing, one.passing))
        return found[:_KEPT]

    seen = [Seen(*row) for row in await trials.memo.get(digest_of("spectrum", trials.trace_key, str(_KEPT)), run)]
    texts = {path: await trials.source(path) or "" for path in {one.path for one in seen}}
    chosen: list[Suspect] = []
    for suspect in rank(seen, lambda path, line: operations(texts[path], line))[:_SHORTLIST]:
        if suggest(texts[suspect.path], suspect.line):
            chosen.append(suspect)
        if len(chosen) == most:
            break
    return tuple(chosen)


def _paths(report: TestReport) -> set[str]:
    return {path for of_file in report.lines.values() for path in of_file} | set(report.import_lines)
