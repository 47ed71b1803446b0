"""What a supervisor said of a run of tests, read into a `TestReport`.

Every line is data from a sandbox: one that does not fit is counted, dropped, and makes the whole report doubtful. A
result that is not confirmed by the end of the process is never a pass.
"""

import base64
import binascii
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from envgym.sandbox import ExecResult

__all__ = ["Events", "Frame", "Outcome", "Said", "TestReport", "doubt_of", "ended", "read_said", "report_of"]

Outcome = Literal["passed", "failed", "error", "skipped"]
Frame = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TestReport:
    """What one run of the tests did.

    outcomes: test id -> outcome. A test that was running when the process ended or was killed is an "error", and
        so is a selected test that never ran; a test that outlived its own deadline is "failed".
    errors: id of each failed or broken test -> one line: exception class and first line of its message, without
        addresses, temporary paths and durations.
    frames: id -> (file, line) of the package's frames of that exception, innermost first.
    lines: with ``trace``, id -> file -> executed lines, ascending. `import_lines`: those that ran at import.
    collection_errors: test file -> one line.
    exit_code: of the process; None when the deadline killed it.
    doubt: why the results are not confirmed ("" when they are): killed, crashed, cut, or contradicting the
        exit code.
    seconds: id -> how long it took; not repeatable.
    running: the test that was running when the process ended early, if any.
    waited: a test was stopped by the clock on the wall, not by the processor time that it took.
    """

    __test__ = False

    outcomes: Mapping[str, Outcome]
    errors: Mapping[str, str] = field(default_factory=dict)
    frames: Mapping[str, tuple[Frame, ...]] = field(default_factory=dict)
    lines: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    import_lines: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    collection_errors: Mapping[str, str] = field(default_factory=dict)
    exit_code: int | None = 0
    timed_out: bool = False
    out_of_memory: bool = False
    doubt: str = ""
    running: str | None = None
    waited: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)
    wall_s: float = 0.0
    stderr: str = ""

    @property
    def repeats(self) -> bool:
        """Whether a busier machine would give the same outcomes.

        Not where the clock on the wall decided, nor where something killed the tests that was not the sandbox's
        own bound on memory, which is the same everywhere.
        """
        killed = self.exit_code == -9 and not self.out_of_memory
        return not (self.timed_out or self.waited or killed)

    @property
    def failing(self) -> tuple[str, ...]:
        """Ids of the tests that failed or broke, in running order."""
        return tuple(name for name, outcome in self.outcomes.items() if outcome in ("failed", "error"))

    @property
    def passing(self) -> tuple[str, ...]:
        """Ids of the tests that passed, in running order."""
        return tuple(name for name, outcome in self.outcomes.items() if outcome == "passed")

    @property
    def ok(self) -> bool:
        """Whether at least one test passed, none failed or broke, and the exit code confirms it."""
        return not self.doubt and not self.failing and not self.collection_errors and bool(self.passing)


@dataclass(slots=True)
class Events:
    """What the supervisor's lines said of one process, in order."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    frames: dict[str, tuple[Frame, ...]] = field(default_factory=dict)
    lines: dict[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    import_lines: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    collect: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    running: str | None = None
    waited: bool = False
    late: bool = False
    planned: int = 0
    exit: tuple[int, str] | None = None

    def take(self, event: list[Any]) -> None:
        """Add one event. Raises what a malformed one raises."""
        kind = event[0]
        if self.exit is not None and kind != "late":
            raise ValueError(f"{kind} after the end")
        if kind == "start":
            self.running = str(event[1])
        elif kind == "end":
            self._end(*event[1:])
        elif kind in ("waited", "late"):
            setattr(self, kind, True)
        elif kind in ("lines", "import"):
            self._lines(kind, _unpack(event[1]))
        elif kind == "collect":
            self.collect[str(event[1])] = str(event[2])
        elif kind == "plan":
            self.planned = int(event[1])
        elif kind == "exit":
            self.exit = (int(event[1]), str(event[2]))
        elif kind != "cut":
            raise ValueError(f"no such event: {kind}")

    def _lines(self, kind: str, lines: Mapping[str, tuple[int, ...]]) -> None:
        if kind == "import":
            self.import_lines = lines
        elif self.running is not None:
            self.lines[self.running] = lines

    def _end(self, outcome: Outcome, error: str, frames: list[Any], seconds: float) -> None:
        if self.running is None or self.running in self.outcomes or outcome not in _OUTCOMES:
            raise ValueError("a test ends that has not started, or twice")
        name, self.running = self.running, None
        self.outcomes[name], self.seconds[name] = outcome, float(seconds)
        if outcome in ("failed", "error"):
            self.errors[name] = str(error)
            self.frames[name] = tuple((str(file), int(line)) for file, line in frames)


_OUTCOMES = ("passed", "failed", "error", "skipped")


def _unpack(text: str) -> dict[str, tuple[int, ...]]:
    lines: dict[str, list[int]] = json.loads(zlib.decompress(base64.b85decode(text)))
    return {name: tuple(numbers) for name, numbers in lines.items()}


@dataclass(slots=True)
class Said:
    """All that a supervisor said: the events of its run, and why the grade is void."""

    events: Events = field(default_factory=Events)
    void: str = ""
    over: bool = False
    foreign: int = 0

    def take(self, event: list[Any]) -> None:
        """Add one event. Raises what a malformed one raises."""
        kind = event[0]
        if self.over:
            raise ValueError("an event after the last")
        if kind == "void":
            self.void = self.void or str(event[1])
        elif kind == "over":
            self.over = True
        else:
            self.events.take(event)


def read_said(stdout: bytes, nonce: str) -> Said:
    """What the supervisor said; a line without the nonce, or a broken one, is counted and dropped."""
    said, prefix = Said(), nonce.encode() + b" "
    for line in stdout.splitlines():
        if not line.startswith(prefix):
            said.foreign += 1
            continue
        try:
            said.take(json.loads(line[len(prefix) :]))
        except (ValueError, TypeError, KeyError, IndexError, RecursionError, zlib.error, binascii.Error):
            said.foreign += 1
    return said


def doubt_of(result: ExecResult, said: Said, fail_fast: bool) -> str:
    """Why the results are not confirmed; "" when the process's end and its results agree."""
    events = said.events
    if result.timed_out or events.late:
        return "the run was killed at its deadline"
    if result.out_of_memory:
        return "the run was killed for using too much memory"
    if events.exit is None:
        return f"the test process ended early with exit code {result.exit_code}"
    if events.exit[1]:
        return events.exit[1]
    if len(events.outcomes) < events.planned and not fail_fast:
        return f"the session stopped after {len(events.outcomes)} of {events.planned} tests"
    if result.lost_bytes[0] or said.foreign or not said.over or result.exit_code != 0:
        return f"what came back is not whole: {said.foreign} lines unreadable, {result.lost_bytes[0]} bytes cut"
    return ""


def report_of(
    result: ExecResult,
    said: Said,
    selection: Sequence[str] | None,
    *,
    fail_fast: bool = False,
) -> TestReport:
    """The report of one process; what was selected and has no result is an "error"."""
    events = said.events
    outcomes, errors = dict(events.outcomes), dict(events.errors)
    doubt = doubt_of(result, said, fail_fast)
    if events.running is not None:
        outcomes[events.running] = "error"
        errors[events.running] = doubt
    for name in selection or ():
        if name not in outcomes:
            outcomes[name] = "error"
            errors[name] = events.collect.get(name.partition("::")[0]) or doubt or "not run: no such test"
    timed_out = result.timed_out or events.late
    code = result.exit_code if events.exit is None else events.exit[0]
    return TestReport(
        outcomes=outcomes,
        errors=errors,
        frames=events.frames,
        lines=events.lines,
        import_lines=events.import_lines,
        collection_errors=events.collect,
        exit_code=None if timed_out else code,
        timed_out=timed_out,
        out_of_memory=result.out_of_memory,
        doubt=doubt,
        running=events.running,
        waited=events.waited,
        seconds=events.seconds,
        wall_s=result.wall_s,
        stderr=result.stderr.decode("utf-8", "replace")[-2000:],
    )


def ended(report: TestReport, *, by_command: bool = False) -> dict[str, float]:
    """The channels of a run that did not end by itself: timeout, out_of_memory, crashed (each 1.0 or 0.0).

    by_command: a suite ran it. What could not be built is no crash there, and no test has a deadline of its own.
    """
    late = not by_command and any(line.startswith("TestDeadline") for line in report.errors.values())
    unbuilt = by_command and bool(report.collection_errors)
    stopped = report.timed_out or late
    return {
        "timeout": float(stopped),
        "out_of_memory": float(report.out_of_memory),
        "crashed": float(bool(report.doubt) and not (stopped or report.out_of_memory or unbuilt)),
    }
