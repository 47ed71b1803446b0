"""What a runner wrote, and what a reader makes of it: plain values between `run_suite` and the readers.

A reader believes nothing: whatever bytes it gets, it answers with `Results` and never raises. What contradicts
itself (a summary with other counts, a plan that was not kept, a file that ends early) is named in `problem`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from envgym_environments.code_repair.runner import Outcome

__all__ = ["Raw", "Reader", "Results", "Tally", "first_number", "one_line"]

_WORST: tuple[Outcome, ...] = ("passed", "skipped", "failed", "error")
_MOST_ERROR = 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NOISE = (
    (_COLOUR, ""),
    (re.compile(r"0x[0-9a-f]{6,}"), "0x?"),
    (re.compile(r"/tmp/[^\s'\":]+"), "/tmp/?"),
    (re.compile(r"\b\d+(\.\d+)?\s?(ms|µs|us|ns|s|secs?|seconds)\b"), "? s"),
)
_PLACE = re.compile(r"^[\w./\\+-]+:\d+$")
"""A line that names a place and nothing else: what stands behind it says why."""


@dataclass(frozen=True, slots=True)
class Raw:
    """What one run of a test command left: its output, its exit code and the files that the suite names.

    files: path relative to the workdir -> content. exit_code: None when a deadline killed it. workdir: where it
    ran; runners that write absolute paths are given relative ones.
    """

    stdout: bytes = b""
    stderr: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    exit_code: int | None = 0
    workdir: str = ""

    def relative(self, path: str) -> str:
        """A path as ids have it: below the workdir."""
        return path.removeprefix(self.workdir + "/") if self.workdir else path

    @property
    def text(self) -> str:
        """Standard output as text (invalid UTF-8 replaced)."""
        return self.stdout.decode("utf-8", "replace")

    def lines(self) -> list[str]:
        """The lines of the files, or of both outputs without any, without terminal codes."""
        parts = self.contents() if self.files else [self.stdout, self.stderr]
        return _COLOUR.sub("", b"\n".join(parts).decode("utf-8", "replace")).split("\n")

    def contents(self) -> list[bytes]:
        """What a structured reader reads: the files in order of their names, or standard output without any."""
        return [self.files[name] for name in sorted(self.files)] or ([self.stdout] if self.stdout.strip() else [])


@dataclass(frozen=True, slots=True)
class Results:
    """What a reader found.

    broken: what could not be built or collected (a package, a file) -> one line.
    problem: why these results are not to be believed; "" when they agree with themselves.
    """

    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Reader:
    """One way of writing results.

    structured: whether the runner writes the results in a format of their own; what else is printed then counts
        for nothing. A log is read by its lines, so a test that prints like its runner can add to them.
    """

    name: str
    read: Callable[[Raw], Results] = field(repr=False)
    structured: bool = True


@dataclass(slots=True)
class Tally:
    """Collects results while a reader goes through its input; the worst outcome of a repeated id counts."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, name: str, outcome: Outcome, error: str = "", seconds: float | None = None) -> None:
        """One test's end."""
        known = self.outcomes.get(name)
        if known is None or _WORST.index(outcome) > _WORST.index(known):
            self.outcomes[name] = outcome
            if outcome in ("failed", "error"):
                self.errors[name] = one_line(error) or outcome
        if seconds is not None and 0.0 <= seconds < 1e6:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def doubt(self, reason: str) -> None:
        """Something that does not fit."""
        self.problems.append(reason)

    def expect(self, what: str, claimed: int, found: int) -> None:
        """A summary's count beside what was read."""
        if claimed != found:
            self.doubt(f"the summary says {claimed} {what}, {found} were read")

    def count(self, *outcomes: Outcome) -> int:
        """How many tests ended so."""
        return sum(outcome in outcomes for outcome in self.outcomes.values())

    def results(self) -> Results:
        """What was collected."""
        return Results(self.outcomes, self.errors, self.seconds, self.broken, "; ".join(self.problems[:3]))


def one_line(text: str, *, most: int = _MOST_ERROR) -> str:
    """The first line that says something, without addresses, durations, temporary paths and terminal codes."""
    for line in text.splitlines()[:200]:
        line = line.strip()
        for pattern, replacement in _NOISE:
            line = pattern.sub(replacement, line)
        if line.strip(" -=*~^|●") and not _PLACE.match(line):
            return line[:most]
    return ""


def first_number(pattern: str, text: str) -> int | None:
    """The last match's first group as a number: summaries stand at the end."""
    found: Sequence[str] = re.findall(pattern, text, re.MULTILINE)
    return int(found[-1][:9]) if found else None
