"""Which lines to look at first: spectrum-based fault localisation from executed lines.

The score is Ochiai's (Abreu, Zoeteweij, van Gemund 2007, "On the accuracy of spectrum-based fault localization"):
``ef / sqrt((ef + nf) * (ef + ep))`` with ef, nf the failing tests that execute a line or not, and ep the passing
ones that do. It sees what any tool could see: tests, executed lines and tracebacks; never where the bug was put.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from envgym_environments.code_repair.memo import digest_of
from envgym_environments.code_repair.patch import counts
from envgym_environments.code_repair.runner import TestReport
from envgym_environments.code_repair.suggest import logical_lines, suggest
from envgym_environments.code_repair.trials import Trials

__all__ = ["MOST", "Suspect", "localise", "ochiai", "rank"]

MOST = 8
"""The longest list that is ever shown."""

_KEPT = 80


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


def _spectrum(report: TestReport, logical: Logical) -> dict[tuple[str, int], set[str]]:
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


def rank(report: TestReport, failing: Sequence[str], logical: Logical) -> list[Suspect]:
    """Every line that a failing test executes, most suspicious first.

    Ties: lines of the tracebacks first, innermost frame first; then in file and line order.
    """
    failed = {test for test in failing if test in report.lines}
    passed = set(report.passing)
    depth = _depths(report, failed, logical)
    scored: list[tuple[float, int, str, int]] = []
    for (path, line), tests in _spectrum(report, logical).items():
        score = ochiai(len(tests & failed), len(failed), len(tests & passed))
        if score:
            scored.append((-score, depth.get((path, line), 99), path, line))
    return [Suspect(path, line, round(-score, 6)) for score, _, path, line in sorted(scored)]


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

    async def run() -> list[list[object]]:
        report = await trials.traced()
        texts = {path: await trials.source(path) or "" for path in _paths(report) if counts(path, facts.layout)}
        logical = {path: logical_lines(text) for path, text in texts.items()}
        ranked = rank(report, facts.fail_to_pass, logical)[:_KEPT]
        return [[suspect.path, suspect.line, suspect.score] for suspect in ranked]

    chosen: list[Suspect] = []
    for path, line, score in await trials.memo.get(digest_of("localise", facts.key), run):
        if suggest(await trials.source(path) or "", line):
            chosen.append(Suspect(path, line, score))
        if len(chosen) == most:
            break
    return tuple(chosen)


def _paths(report: TestReport) -> set[str]:
    return {path for of_file in report.lines.values() for path in of_file} | set(report.import_lines)
