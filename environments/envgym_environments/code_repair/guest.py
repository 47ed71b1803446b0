"""What runs inside the sandbox: one pytest session whose results leave by a private descriptor.

The request was read from standard input before anything of the package is imported. Standard
output is moved to a descriptor of its own and every line on it starts with the request's nonce, so printing is
no result; pytest's own report goes nowhere. This narrows what tested code can forge, it does not rule it out:
code in the same process can reach anything, so a verdict that matters is taken in a sandbox the agent never had.
Imports only the standard library and pytest, and nothing of this project.
"""

import base64
import gc
import importlib
import json
import os
import random
import re
import signal
import sys
import threading
import time
import zlib
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NoReturn

import pytest
from _pytest.config import default_plugins

for _name in ("unittest", "doctest", "pdb", "difflib", "xml.etree.ElementTree", "pickle", "decimal", "datetime"):
    importlib.import_module(_name)  # what every run needs anyway: a warm interpreter then has it
for _name in default_plugins:
    importlib.import_module(f"_pytest.{_name}")

_LEFT_OUT = (
    "cacheprovider",
    "faulthandler",
    "unraisableexception",
    "threadexception",
    "pastebin",
    "stepwise",
)
"""Plugins of pytest's own that no outcome depends on and that cost time in every run."""

_WALL_FACTOR = 4.0
"""A test's deadline counts its processor time, which a busy machine does not stretch; waiting may take longer."""

_MAX_ERROR = 300
_MAX_FRAMES = 8
_NOISE = (
    (re.compile(r"\b0x[0-9a-fA-F]+"), "0x..."),
    (re.compile(r"/(?:tmp|var/tmp|dev/shm)/[^\s'\":,)]*"), "<tmp>"),
    (re.compile(r"\b\d+(?:\.\d+)?(?:e-?\d+)? ?(?:ms|seconds|sec|s)\b"), "<time>"),
)


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
    """The pytest plugin: writes one line per event to the private descriptor."""

    def __init__(self, request: dict[str, Any], descriptor: int) -> None:
        self._nonce: bytes = request["nonce"].encode() + b" "
        self._out = descriptor
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
        self._error = ""
        self._frames: list[list[Any]] = []
        self.count = 0

    def write(self, *event: Any) -> None:
        """Send one event."""
        data = memoryview(self._nonce + json.dumps(event).encode() + b"\n")
        while data:
            data = data[os.write(self._out, data) :]

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
        """Keep the selection."""
        if self._tracer:
            self.send_lines("import", self._tracer.stop())
        items[:] = [item for item in items if self._wanted(item.nodeid)]
        if self._trace and self._trace["beside"] is not None:
            around = set(self._trace["around"])
            chosen = _beside([item.nodeid in around for item in items], self._trace["beside"])
            items[:] = [item for item, kept in zip(items, chosen, strict=True) if kept]
        self.write("plan", len(items))

    def _wanted(self, nodeid: str) -> bool:
        if self._selection is not None:
            return nodeid in self._selection
        return not any(nodeid == name or nodeid.startswith((name + "[", name + "::")) for name in self._deselect)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that could not be collected."""
        if report.failed:
            self.write("collect", report.nodeid, self._short(_last_error(report.longreprtext)))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """One test from start to outcome."""
        self._worst, self._error, self._frames, self._called, self._waited = "", "", [], False, False
        self.write("start", item.nodeid)
        random.seed(0)
        began = time.perf_counter()
        if self._tracer:
            self._tracer.start()
        if self._deadline_s:
            _set_timers(self._deadline_s)
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
                self.write("waited")
            self.write("end", self._worst, self._error, self._frames, time.perf_counter() - began)

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
            if outcome in ("failed", "error") and call.excinfo is not None:
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

    def on_alarm(self, number: int, frame: FrameType | None) -> NoReturn:
        """A test's deadline. Which one is told apart from the exception, whose text agents see."""
        self._waited |= number == signal.SIGALRM
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


def main(request: dict[str, Any]) -> NoReturn:
    """Run the tests, answer, leave without running anyone's exit hooks."""
    request["root"] = os.path.realpath(os.getcwd())
    channel = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    _prepare(request)
    gc.freeze()  # what a warm interpreter holds is never garbage: no collection needs to look at it
    recorder = Recorder(request, channel)
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, recorder.on_alarm)
    arguments = ["-q", "-c", os.devnull, f"--rootdir={request['root']}", "--continue-on-collection-errors"]
    arguments += ["--tb=native"]  # nobody reads the text of a traceback, and pytest's own costs as much as a test
    arguments += [part for name in _LEFT_OUT for part in ("-p", f"no:{name}")]
    if request["fail_fast"]:
        arguments.append("-x")
    code = int(pytest.main([*arguments, *request["files"]], plugins=[recorder]))
    recorder.write("done", code, recorder.count, sys.flags.hash_randomization)
    os._exit(code)
