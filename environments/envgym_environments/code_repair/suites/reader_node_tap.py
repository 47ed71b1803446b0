"""TAP inside logs of JavaScript's runners: a test's name is its point's title, whatever it is nested in.

`reader_tap` spells ids by the path of subtests; Multi-SWE-bench's lists do not.
"""

import re
from dataclasses import dataclass, field

from envgym_environments.code_repair.runner import Outcome
from envgym_environments.code_repair.suites.results import Results, Tally

__all__ = ["Points", "announces"]

_POINT = re.compile(r"^(\s*)(not )?ok +(\d{1,9})(?!\d)(.*)$", re.IGNORECASE)
_DIRECTIVE = re.compile(r" # *(?:time=|skip\b|todo\b)", re.IGNORECASE)
_BEHIND = re.compile(r"\bok \d{1,9} - ", re.IGNORECASE)
_PLAN = re.compile(r"^(\s*)1\.\.(\d{1,9})(?: *#.*)?$")
_VERSION = re.compile(r"^TAP version \d+$")
_FAILS = re.compile(r"^# fail +(\d{1,9})$")


def announces(line: str) -> bool:
    """Whether a line is a sign of TAP: its version, or a plan that stands in no subtest."""
    return _VERSION.match(line) is not None or ((found := _PLAN.match(line)) is not None and not found[1])


@dataclass(slots=True)
class Points:
    """Points of TAP, nested ones too: each level is numbered from one and has one plan, which it keeps."""

    tally: Tally = field(default_factory=Tally)
    levels: dict[int, list[int]] = field(default_factory=dict)
    plans: dict[int, int] = field(default_factory=dict)
    failed: int = 0
    fails: list[int] = field(default_factory=list)

    def line(self, text: str) -> None:
        """One line; what is none of the protocol is somebody's print."""
        if found := _POINT.match(text):
            self._point(len(found[1]), found[2] is not None, int(found[3]), found[4])
        elif found := _PLAN.match(text):
            indent = len(found[1])
            if indent in self.plans:
                self.tally.doubt("there is more than one plan")
            self.plans[indent] = int(found[2])
        elif found := _FAILS.match(text):
            self.fails.append(int(found[1]))
        elif text.startswith("Bail out!"):
            self.tally.doubt(f"the run was given up: {text[:100]}")
        elif not text.lstrip().startswith("#") and _BEHIND.search(text):
            self.tally.doubt(f"a test point stands behind something else: {text.strip()[:60]}")

    def _point(self, indent: int, negative: bool, number: int, rest: str) -> None:
        self._close(indent + 1)
        points = self.levels.setdefault(indent, [])
        points.append(number)
        directive = _DIRECTIVE.search(rest)
        skipped = directive is not None and "time=" not in directive[0].lower()
        title = (rest[: directive.start()] if directive else rest).strip()
        outcome: Outcome = "skipped" if skipped else "failed" if negative else "passed"
        self.failed += outcome == "failed"
        self.tally.add(title.removeprefix("- ").strip(), outcome)

    def _close(self, least: int) -> None:
        """The levels that are indented by at least so much have ended."""
        for indent in [one for one in {*self.levels, *self.plans} if one >= least]:
            points, plan = self.levels.pop(indent, []), self.plans.pop(indent, None)
            if plan is None:
                self.tally.doubt(f"there is no plan for {len(points)} test points: the output was cut")
            elif points != list(range(1, len(points) + 1)):
                self.tally.doubt(f"test points are not numbered in order: {points[:5]}")
            else:
                self.tally.expect("planned tests", plan, len(points))

    def results(self) -> Results:
        """What was read, held against the plans and the summary."""
        if 0 not in self.plans:
            self.tally.doubt("there is no plan: the output was cut")
        self._close(0)
        if len(self.fails) > 1 or any(fails > self.failed for fails in self.fails):
            self.tally.doubt(f"the summary says {self.fails} tests failed, {self.failed} were read")
        return self.tally.results()
