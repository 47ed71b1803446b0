"""Run a package's tests in a sandbox and bring back structured results.

`run_tests` is the one way in. What the tests did is data, whatever it was: a hang, a crash, a lie. A result that
is not confirmed by the process's own exit code is never a pass. It does not judge a repair (see `grade`).
"""

import base64
import binascii
import json
import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, JsonValue

from envgym.sandbox import WARM_PYTHON, ExecResult, Shell
from envgym.task import Task

__all__ = ["GUEST", "PRELOAD", "WORKDIR", "Layout", "Outcome", "TestReport", "Trace", "run_tests"]

GUEST = "envgym_environments.code_repair.guest"
"""The module that runs inside the sandbox: preloaded by a warm interpreter, else sent as source."""

PRELOAD = ("pytest", GUEST)
"""What a backend's warm interpreter should have imported (`World.preload`)."""

_BOOT = f"""
import json, sys
request = json.loads(sys.stdin.buffer.read())
guest = sys.modules.get({GUEST!r})
if guest is None:
    import types
    guest = types.ModuleType("guest")
    exec(compile(request["source"], "guest.py", "exec"), guest.__dict__)
guest.main(request)
"""
_SOURCE = files("envgym_environments.code_repair").joinpath("guest.py").read_text()

WORKDIR = "/repo"
"""Where a package's tree lies inside the world."""

TEST_ENV = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
"""The environment variables of a world whose tests must repeat."""

Outcome = Literal["passed", "failed", "error", "skipped"]
Frame = tuple[str, int]


class Layout(BaseModel):
    """Where things lie in a package's tree; every path is relative to the world's workdir.

    source_root: the directory that goes on the import path ("." or "src").
    package: the package's directory, or its only file ("toolz", "src/semver", "xmltodict.py").
    tests: the test files, in the order they run.
    deselect: test ids that never run (``file``, ``file::Class`` or ``file::test``, without parameters or with).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source_root: str = "."
    package: str
    tests: tuple[str, ...]
    deselect: tuple[str, ...] = ()

    @classmethod
    def of(cls, task: Task) -> "Layout":
        """The layout that a code-repair task carries. Raises ValueError when it carries none."""
        raw: JsonValue = task.metadata.get("layout")
        if not isinstance(raw, dict):
            raise ValueError(f"task {task.id!r} has no 'layout' in its metadata; it is not a code-repair task")
        return cls.model_validate(raw)


class Trace(NamedTuple):
    """Which tests a traced run keeps: those of `around`, and `beside` others; all with None.

    Half of the others are the nearest in running order, half are spread evenly.
    """

    around: tuple[str, ...] = ()
    beside: int | None = None


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
class _Events:
    """What the guest's lines said, in order."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    frames: dict[str, tuple[Frame, ...]] = field(default_factory=dict)
    lines: dict[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    import_lines: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    collect: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    running: str | None = None
    waited: bool = False
    planned: int = 0
    done: tuple[int, int] | None = None
    foreign: int = 0

    def take(self, event: list[Any]) -> None:
        """Add one event."""
        kind = event[0]
        if kind == "start":
            self.running = event[1]
        elif kind == "end" and self.running is not None:
            name, (_, outcome, error, frames, seconds) = self.running, event
            self.outcomes[name], self.seconds[name] = outcome, seconds
            if outcome in ("failed", "error"):
                self.errors[name] = error
                self.frames[name] = tuple((file, line) for file, line in frames)
            self.running = None
        elif kind == "lines" and self.running is not None:
            self.lines[self.running] = _unpack(event[1])
        elif kind == "waited":
            self.waited = True
        elif kind == "import":
            self.import_lines = _unpack(event[1])
        elif kind == "collect":
            self.collect[event[1]] = event[2]
        elif kind == "plan":
            self.planned = event[1]
        elif kind == "done":
            self.done = (event[1], event[2])


def _unpack(text: str) -> dict[str, tuple[int, ...]]:
    lines: dict[str, list[int]] = json.loads(zlib.decompress(base64.b85decode(text)))
    return {name: tuple(numbers) for name, numbers in lines.items()}


def _read_events(stdout: bytes, nonce: str) -> _Events:
    """The events of this run; a line without the nonce, or a broken one, is counted and dropped."""
    events, prefix = _Events(), nonce.encode() + b" "
    for line in stdout.splitlines():
        if not line.startswith(prefix):
            events.foreign += 1
            continue
        try:
            events.take(json.loads(line[len(prefix) :]))
        except (ValueError, TypeError, KeyError, IndexError, zlib.error, binascii.Error):
            events.foreign += 1
    return events


def _doubt(result: ExecResult, events: _Events, fail_fast: bool) -> str:
    """Why the results are not confirmed; "" when exit code and results agree."""
    if result.timed_out:
        return "the run was killed at its deadline"
    if result.out_of_memory:
        return "the run was killed for using too much memory"
    if events.done is None:
        return f"the test process ended early with exit code {result.exit_code}"
    exit_code, count = events.done
    if count < events.planned and not fail_fast:
        return f"the session stopped after {count} of {events.planned} tests"
    bad = bool(events.collect) or any(outcome in ("failed", "error") for outcome in events.outcomes.values())
    if exit_code != result.exit_code:
        return f"the process ended with {result.exit_code} after reporting {exit_code}"
    if result.lost_bytes[0] or events.foreign or count != len(events.outcomes):
        return f"results of {count} tests announced, {len(events.outcomes)} read, {events.foreign} lines unreadable"
    if (exit_code == 0) == bad or exit_code not in (0, 1, 2, 5):
        return f"exit code {exit_code} contradicts the results ({'failures' if bad else 'no failure'})"
    return ""


def _report(
    result: ExecResult, events: _Events, selection: Sequence[str] | None, *, fail_fast: bool = False
) -> TestReport:
    outcomes, errors = dict(events.outcomes), dict(events.errors)
    doubt = _doubt(result, events, fail_fast)
    if events.running is not None:
        outcomes[events.running] = "error"
        errors[events.running] = doubt
    for name in selection or ():
        if name not in outcomes:
            outcomes[name] = "error"
            errors[name] = events.collect.get(name.partition("::")[0]) or doubt or "not run: no such test"
    return TestReport(
        outcomes=outcomes,
        errors=errors,
        frames=events.frames,
        lines=events.lines,
        import_lines=events.import_lines,
        collection_errors=events.collect,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        out_of_memory=result.out_of_memory,
        doubt=doubt,
        running=events.running,
        waited=events.waited,
        seconds=events.seconds,
        wall_s=result.wall_s,
        stderr=result.stderr.decode("utf-8", "replace")[-2000:],
    )


async def run_tests(
    shell: Shell,
    layout: Layout,
    *,
    selection: Sequence[str] | None = None,
    trace: Trace | None = None,
    fail_fast: bool = False,
    timeout_s: float | None = None,
    test_timeout_s: float | None = None,
) -> TestReport:
    """Run the package's tests, or the `selection` of test ids, in the shell's workdir.

    trace: also record which lines of the package each test executes (several times slower).
    fail_fast: stop at the first failure; tests that then do not run are "error" if they were selected.
    timeout_s: of the whole run (None: the sandbox's own). test_timeout_s: processor time of one test, which may
    wait four times as long; reaching either fails that test.
    Raises ValueError for an empty selection, SandboxDied when the sandbox itself is gone.
    """
    if selection is not None and not selection:
        raise ValueError("selection is empty: nothing would run; pass None to run every test")
    tests = layout.tests
    if selection is not None:
        wanted = {name.partition("::")[0] for name in selection}
        tests = tuple(name for name in layout.tests if name in wanted)
    nonce = secrets.token_hex(8)
    request = {
        "source": _SOURCE,
        "nonce": nonce,
        "source_root": layout.source_root,
        "package": layout.package,
        "files": tests,
        "selection": None if selection is None else list(selection),
        "deselect": layout.deselect,
        "trace": None if trace is None else trace._asdict(),
        "fail_fast": fail_fast,
        "test_timeout_s": test_timeout_s,
    }
    if not tests:
        empty = ExecResult(exit_code=5, stdout=b"", stderr=b"", wall_s=0.0)
        return _report(empty, _Events(done=(5, 0)), selection)
    result = await shell.exec([WARM_PYTHON, "-c", _BOOT], stdin=json.dumps(request).encode(), timeout_s=timeout_s)
    return _report(result, _read_events(result.stdout, nonce), selection, fail_fast=fail_fast)
