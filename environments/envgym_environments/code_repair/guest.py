"""What a tested process does: one pytest session that tells its supervisor what happens, over a pipe.

It holds nothing that leads out of the sandbox and no secret: standard output goes nowhere, and a test is told only
when its body has come to its end whether it has to fail (see `referee`). Test files and what lies beside them are
read before anything of the package is imported, so that tested code cannot change what is still to be collected.
Imports only the standard library and pytest, and nothing of this project.
"""

import ast
import base64
import gc
import json
import os
import random
import re
import signal
import socket
import sys
import threading
import time
import zlib
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NoReturn

import pytest
from _pytest.assertion.rewrite import rewrite_asserts
from _pytest.unittest import TestCaseFunction, UnitTestCase

from envgym_environments.code_repair.pristine import Pristine
from envgym_environments.code_repair.queued import queued_s
from envgym_environments.code_repair.session import make_way, play
from envgym_environments.code_repair.supervisor import main as supervise

_WALL_FACTOR = 4.0
"""A test's deadline counts its processor time, which a busy machine does not stretch; waiting may take longer.

Waiting for a processor is none of a test's doing, and is not counted (`queued_s`).
"""
_SELDOM_S = 0.05
"""How often that is looked at: a file for each test costs as much as many a test."""

_MAX_ERROR = 300
_MAX_FRAMES = 8
_NOISE = (
    (re.compile(r"\b0x[0-9a-fA-F]+"), "0x..."),
    (re.compile(r"/(?:tmp|var/tmp|dev/shm)/[^\s'\":,)]*"), "<tmp>"),
    (re.compile(r"\b\d+(?:\.\d+)?(?:e-?\d+)? ?(?:ms|seconds|sec|s)\b"), "<time>"),
)


class Told(BaseException):
    """The failure that a test was told to have after its body."""


class TestDeadline(BaseException):
    """A test outlived its deadline; not an `Exception`, so that tested code does not swallow it by habit."""

    __test__ = False


class LineTracer:
    """Executed lines of the package's files, per test; a code object that is fully seen is no longer traced."""

    def __init__(self, root: str, package: str) -> None:
        self._root = root.rstrip("/") + "/"
        self._prefix = os.path.join(root, package)
        self._seen: dict[CodeType, set[int]] = {}
        self._full: dict[CodeType, int | None] = {}

    def start(self) -> None:
        """Begin a new record and trace this thread and those it starts."""
        self._seen = {}
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def stop(self) -> dict[str, list[int]]:
        """End the record: file relative to the root -> sorted lines."""
        sys.settrace(None)
        threading.settrace(None)
        lines: dict[str, set[int]] = {}
        for code, seen in self._seen.items():
            lines.setdefault(code.co_filename.removeprefix(self._root), set()).update(seen)
        return {name: sorted(seen) for name, seen in sorted(lines.items())}

    def _lines_of(self, code: CodeType) -> int | None:
        """How many lines a code object of the package has; None for a foreign one."""
        if not _is_source(code.co_filename, self._root, self._prefix):
            return None
        return len({line for _, _, line in code.co_lines() if line})

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if code not in self._full:
            self._full[code] = self._lines_of(code)
        total = self._full[code]
        if total is None:
            return None
        seen = self._seen.setdefault(code, set())
        seen.add(frame.f_lineno)
        if len(seen) >= total:
            return None

        def step(inner: FrameType, event: str, argument: object) -> Any:
            seen.add(inner.f_lineno)
            return step

        return step


class Recorder:
    """The pytest plugin: tells the supervisor one line per event."""

    def __init__(self, request: dict[str, Any], sock: socket.socket) -> None:
        self._sock = sock
        self._answers = sock.makefile("rb")
        self._graded: bool = request["graded"]
        self._root: str = request["root"]
        self._prefix = os.path.join(self._root, request["package"])
        files = [Path(self._root, name) for name in request["files"]]
        self._wanted_paths = {str(path) for file in files for path in (file, *file.parents)}
        self._selection = None if request["selection"] is None else set(request["selection"])
        self._on_the_way = {part for nodeid in self._selection or () for part in _leading(nodeid)}
        self._deselect = tuple(request["deselect"])
        self._deadline_s: float | None = request["test_timeout_s"]
        self._trace = request["trace"]
        self._tracer = None if self._trace is None else LineTracer(self._root, request["package"])
        self._worst = ""
        self._called = False
        self._waited = False
        self._began = self._looked = self._queued_s = 0.0
        self._error = ""
        self._frames: list[list[Any]] = []
        self.count = 0
        self._held = b""

    def write(self, *event: Any) -> None:
        """Send one event, behind those that were held back."""
        self._sock.sendall(self._held + json.dumps(event).encode() + b"\n")
        self._held = b""

    def _hold(self, *event: Any) -> None:
        """Send one event with the next: no other code runs before that one, and each wakes the supervisor."""
        self._held += json.dumps(event).encode() + b"\n"

    def send_lines(self, kind: str, lines: dict[str, list[int]]) -> None:
        """Send executed lines, packed."""
        packed = zlib.compress(json.dumps(lines, separators=(",", ":")).encode(), 1)
        self.write(kind, base64.b85encode(packed).decode())

    def pytest_sessionstart(self) -> None:
        """Lines that run while the package is imported belong to every test."""
        if self._tracer:
            self._tracer.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool:
        """Look at nothing but the requested files and the folders they lie in."""
        return str(collection_path) not in self._wanted_paths

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, collector: pytest.Collector, name: str) -> list[pytest.Item] | None:
        """Collect no class and no function that holds nothing of the selection."""
        unwanted = self._selection is not None and f"{collector.nodeid}::{name}" not in self._on_the_way
        return [] if unwanted else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the selection; in a graded run, tests that must fail are hidden in it."""
        if self._tracer:
            self.send_lines("import", self._tracer.stop())
        items[:] = [item for item in items if self._wanted(item.nodeid)]
        if self._trace and self._trace["beside"] is not None:
            around = set(self._trace["around"])
            chosen = _beside([item.nodeid in around for item in items], self._trace["beside"])
            items[:] = [item for item, kept in zip(items, chosen, strict=True) if kept]
        self.write("items", [item.nodeid for item in items])
        if self._graded:
            _hide(items, json.loads(self._answers.readline()), config)

    def _wanted(self, nodeid: str) -> bool:
        if self._selection is not None:
            return nodeid in self._selection
        return not any(nodeid == name or nodeid.startswith((name + "[", name + "::")) for name in self._deselect)

    def pytest_internalerror(self, excrepr: object) -> None:
        """A hook that broke is told on standard error, the one output that is kept."""
        os.write(2, str(excrepr).encode("utf-8", "replace")[-1500:])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that could not be collected."""
        if report.failed:
            self.write("collect", report.nodeid, self._short(_last_error(report.longreprtext)))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """One test from start to outcome."""
        self._worst, self._error, self._frames, self._called, self._waited = "", "", [], False, False
        item.repr_failure = _one_line  # type: ignore[method-assign]
        self.write("start", item.nodeid)
        random.seed(0)
        began = time.perf_counter()
        if self._tracer:
            self._tracer.start()
        if self._deadline_s:
            self._begin(self._deadline_s)
        try:
            return (yield)
        finally:
            if self._deadline_s:
                _set_timers(0.0)
            if self._tracer:
                self.send_lines("lines", self._tracer.stop())
            self.count += 1
            if self._worst in ("", "passed") and not self._called:
                self._worst, self._error = "error", "the test did not come to its end"
            if self._waited:
                self._hold("waited")
            self._hold("end", self._worst, self._error, self._frames, time.perf_counter() - began)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """In a graded run, ask after the body whether this test has to fail."""
        result = yield
        if self._graded:
            self.write("body")
            word = self._answers.readline().strip().decode()
            if word:
                raise Told(word)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Take the outcome of one phase; the worst phase counts."""
        report = yield
        outcome: str = report.outcome
        self._called |= call.when == "call"
        if outcome == "failed" and call.when != "call":
            outcome = "error"
        order = ("", "passed", "skipped", "failed", "error")
        if order.index(outcome) > order.index(self._worst):
            self._worst = outcome
            told = call.excinfo is not None and isinstance(call.excinfo.value, Told)
            if (told or outcome in ("failed", "error")) and call.excinfo is not None:
                self._error = self._short(_describe(call.excinfo.value))
                self._frames = self._package_frames(call.excinfo.value.__traceback__)
            elif outcome in ("failed", "error"):
                self._error = self._short(_last_error(report.longreprtext))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A subtest that failed fails its test, whatever the test itself says."""
        if report.failed and self._worst in ("", "passed", "skipped"):
            self._worst = "failed"
            self._error = self._short(_last_error(report.longreprtext))

    def _begin(self, deadline_s: float) -> None:
        """Begin a test's deadlines."""
        self._began = time.perf_counter()
        if self._began - self._looked > _SELDOM_S:
            self._looked, self._queued_s = self._began, queued_s()
        _set_timers(deadline_s)

    def on_alarm(self, number: int, frame: FrameType | None) -> None:
        """A test's deadline. Which one is told apart from the exception, whose text agents see."""
        if number == signal.SIGALRM:
            limit_s = _WALL_FACTOR * (self._deadline_s or 0.0)
            ends = self._began + limit_s + max(0.0, queued_s() - self._queued_s)
            if (left_s := ends - time.perf_counter()) > 0.01:
                signal.setitimer(signal.ITIMER_REAL, left_s, limit_s)
                return
            self._waited = True
        raise TestDeadline("the test did not end within its deadline")

    def _short(self, text: str) -> str:
        text = text.replace(self._root + "/", "")
        for pattern, replacement in _NOISE:
            text = pattern.sub(replacement, text)
        return text[:_MAX_ERROR]

    def _package_frames(self, trace: TracebackType | None) -> list[list[Any]]:
        """(file, line) of the package's frames, innermost first."""
        frames: list[list[Any]] = []
        while trace is not None:
            name = trace.tb_frame.f_code.co_filename
            if _is_source(name, self._root + "/", self._prefix):
                frames.append([name.removeprefix(self._root + "/"), trace.tb_lineno])
            trace = trace.tb_next
        return frames[::-1][:_MAX_FRAMES]


def _beside(marked: list[bool], most: int) -> list[bool]:
    """The marked places, and `most` others: the nearest to a marked one for one half, evenly spread the other."""
    marks = [index for index, mark in enumerate(marked) if mark] or [0]
    others = sorted(
        (index for index, mark in enumerate(marked) if not mark),
        key=lambda index: (min(abs(index - mark) for mark in marks), index),
    )
    near, far = others[: most // 2], sorted(others[most // 2 :])
    rest = most - len(near)
    spread = [far[place * len(far) // rest] for place in range(rest)] if len(far) > rest else far
    chosen = {*marks, *near, *spread}
    return [index in chosen for index in range(len(marked))]


def _leading(nodeid: str) -> list[str]:
    """What holds a test, and itself without its parameters: "f::C::t[1]" -> "f", "f::C", "f::C::t"."""
    parts = nodeid.partition("[")[0].split("::")
    return ["::".join(parts[: end + 1]) for end in range(len(parts))]


def _is_source(name: str, root: str, prefix: str) -> bool:
    """Whether a file belongs to the package and is not one of its tests. `root` ends with a slash."""
    if name != prefix and not name.startswith(prefix + "/"):
        return False
    return not {"tests", "test"} & set(name.removeprefix(root).split("/")[:-1])


def _describe(error: BaseException) -> str:
    """The class name and the first line of the message."""
    try:
        lines = str(error).strip().splitlines()
    except Exception as broken:  # an exception whose own __str__ is broken is still a result
        lines = [f"<str() raised {type(broken).__name__}>"]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _one_line(excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
    """A failure as a report's text: nobody reads the traceback, and making it costs more than most tests."""
    return f"E {_describe(excinfo.value)}"


def _last_error(text: str) -> str:
    """The last line that pytest marks as an error ("E   ..."), else the last line."""
    lines = text.strip().splitlines()
    marked = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (marked or lines or [""])[-1]


def _set_timers(seconds: float) -> None:
    """Begin a test's deadlines; 0 ends them. What catches the first alarm meets the next one."""
    for timer, limit in ((signal.ITIMER_PROF, seconds), (signal.ITIMER_REAL, _WALL_FACTOR * seconds)):
        signal.setitimer(timer, limit, limit)


def _prepare(request: dict[str, Any]) -> None:
    """Paths and environment of the session; refuses a package that is already imported."""
    root = request["root"]
    top = request["package"].removeprefix(request["source_root"] + "/").split("/")[0].removesuffix(".py")
    make_way(root, [request["source_root"], *request["files"]])
    if top in sys.modules:
        raise SystemExit(f"package {top!r} is already imported in the interpreter that should test it")
    sys.dont_write_bytecode = True
    sys.path[:] = [path for path in sys.path if path not in ("", root)]
    sys.path.insert(0, root)
    if request["source_root"] != ".":
        sys.path.insert(0, os.path.join(root, request["source_root"]))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ["TZ"] = "UTC"


def _hide(items: list[pytest.Item], hidden: list[dict[str, Any]], config: pytest.Config) -> None:
    """Put tests that must fail behind the items that they follow, in the modules of these."""
    made: dict[int, list[pytest.Item]] = {}
    for one in hidden:
        module = items[one["after"]].getparent(pytest.Module)
        if module is None:
            raise ValueError(f"test {items[one['after']].nodeid} is in no module")
        made.setdefault(one["after"], []).append(_canary(module, one, config))
    items[:] = [one for index, item in enumerate(items) for one in (item, *made.get(index, ()))]


def _canary(module: pytest.Module, one: dict[str, Any], config: pytest.Config) -> pytest.Item:
    """A test from source, as if it stood in the module's file, assertions rewritten."""
    source = one["source"].encode()
    tree = ast.parse(source, filename=str(module.path))
    rewrite_asserts(tree, source, str(module.path), config)
    space = module.obj.__dict__
    exec(compile(tree, str(module.path), "exec", dont_inherit=True), space)
    if one["klass"]:
        case = UnitTestCase.from_parent(module, name=one["klass"], obj=space[one["klass"]])
        return TestCaseFunction.from_parent(case, name=one["name"])
    function: pytest.Function = pytest.Function.from_parent(module, name=one["name"])
    return function


def start(request: dict[str, Any]) -> NoReturn:
    """The supervisor's life: the test files are read once, before any process is forked that runs them."""
    request["root"] = os.path.realpath(os.getcwd())
    request["pristine"] = Pristine(request["root"], request["package"], request["files"])
    supervise(request, main)


def main(request: dict[str, Any], sock: socket.socket) -> NoReturn:
    """Run the tests, say what happens, leave without running anyone's exit hooks."""
    _prepare(request)
    pristine: Pristine = request["pristine"]
    for name, text in request["texts"].items():
        pristine.replace(os.path.join(request["root"], name), text)
    pristine.install()
    files = request["files"]
    if request["selection"] is not None:
        wanted = {name.partition("::")[0] for name in request["selection"]}
        files = [name for name in files if name in wanted]
    request["files"] = files
    gc.freeze()  # what a warm interpreter holds is never garbage: no collection needs to look at it
    recorder = Recorder(request, sock)
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, recorder.on_alarm)
    arguments = ["-q", "-c", os.devnull, f"--rootdir={request['root']}", "--continue-on-collection-errors"]
    arguments += ["--tb=native"]  # nobody reads the text of a traceback, and pytest's own costs as much as a test
    if request["fail_fast"]:
        arguments.append("-x")
    code = play([*arguments, *files], recorder)
    recorder.write("done", code, recorder.count)
    os._exit(code)
