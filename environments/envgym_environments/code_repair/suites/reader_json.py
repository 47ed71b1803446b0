"""Results as JSON: jest and vitest, mocha, googletest, and the stream of events of `go test -json`.

Totals that a report states are held against what it lists; text before the JSON document of a report is skipped.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from envgym_environments.code_repair.runner import Outcome
from envgym_environments.code_repair.suites.results import Raw, Reader, Results, Tally, one_line

__all__ = ["GO_JSON", "GTEST_JSON", "JEST_JSON", "MOCHA_JSON"]

_MOST_BYTES = 64 << 20
_MOST_STARTS = 50
_DECODER = json.JSONDecoder()


def _documents(raw: Raw, tally: Tally, part: str) -> Iterator[dict[str, Any]]:
    """Each file's JSON object with a report's `part`, which ends an output (a test may print before the report).

    A second one before it, or within it, is a doubt: either could have been printed by a test.
    """
    for content in raw.contents():
        if len(content) > _MOST_BYTES:
            tally.doubt(f"a report has {len(content)} bytes; the bound is {_MOST_BYTES}")
            continue
        found, inside = _objects(content.decode("utf-8", "replace"))
        if not found or found[-1] is None:
            tally.doubt("a report is no JSON object, or was cut")
        elif part not in found[-1]:
            tally.doubt(f"the JSON object at the end is no report: it has no {part!r}")
        elif any(other is not None and part in other for other in [*found[:-1], *inside]):
            tally.doubt(f"there are several reports: JSON objects with {part!r}")
        else:
            yield found[-1]


def _objects(text: str) -> tuple[list[dict[str, Any] | None], list[dict[str, Any]]]:
    """The JSON objects that begin a line, and those of them that lie within another.

    The first list ends with None where none reaches to the end, and where more than 50 lines begin like one.
    """
    starts = [0, *(at + 1 for at, letter in enumerate(text) if letter == "\n")] if "{" in text else []
    starts = [at for at in starts if text.startswith("{", at)]
    found: list[dict[str, Any] | None] = []
    inside: list[dict[str, Any]] = []
    end = 0
    for start in starts[:_MOST_STARTS]:
        try:
            one, stop = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if start < end:
            inside.append(one)
        else:
            found.append(one)
            end = stop
    cut = text[end:].strip() or len(starts) > _MOST_STARTS
    return ([*found, None] if cut else found), inside


def _rows(value: Any) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _object_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _claimed(data: Mapping[str, Any], name: str) -> int:
    value = data.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _first(value: Any) -> str:
    return next((line for line in value if isinstance(line, str)), "") if isinstance(value, list) else ""


# -- jest and vitest -------------------------------------------------------------------------------------------


def _read_jest(raw: Raw) -> Results:
    tally = Tally()
    for report in _documents(raw, tally, "testResults"):
        passed = failed = 0
        for file in _rows(report.get("testResults")):
            path, cases = raw.relative(_text(file.get("name"))), _rows(file.get("assertionResults"))
            for case in cases:
                outcome = _jest_outcome(case)
                passed, failed = passed + (outcome == "passed"), failed + (outcome == "failed")
                titles = [*(_text(part) for part in case.get("ancestorTitles") or ()), _text(case.get("title"))]
                seconds = _number(case.get("duration"))
                error = _first(case.get("failureMessages"))
                name = f"{path}::{' > '.join(titles)}"
                tally.add(name, outcome, error, None if seconds is None else seconds / 1000)
            broken = file.get("status") == "failed" and not any(_jest_outcome(case) == "failed" for case in cases)
            if broken:
                said = _text(file.get("message")).replace("● Test suite failed to run", "")
                tally.broken[path] = one_line(said) or "the file could not be run"
        tally.expect("passed tests", _claimed(report, "numPassedTests"), passed)
        tally.expect("failed tests", _claimed(report, "numFailedTests"), failed)
        if report.get("success") is not (not failed and not tally.broken):
            tally.doubt(f"the report says success {report.get('success')!r} beside {failed} failures")
    return tally.results()


def _jest_outcome(case: Mapping[str, Any]) -> Outcome:
    status = case.get("status")
    known: dict[object, Outcome] = {"passed": "passed", "failed": "failed"}
    return known.get(status, "skipped")


# -- mocha -----------------------------------------------------------------------------------------------------


def _read_mocha(raw: Raw) -> Results:
    tally = Tally()
    for report in _documents(raw, tally, "stats"):
        stats = _object_of(report.get("stats"))
        listed: dict[str, Outcome] = {"passes": "passed", "failures": "failed", "pending": "skipped"}
        for field, outcome in listed.items():
            cases = _rows(report.get(field))
            tally.expect(field, _claimed(stats, field), len(cases))
            for case in cases:
                error = _object_of(case.get("err"))
                seconds = _number(case.get("duration"))
                file = raw.relative(_text(case.get("file")))
                name = f"{file}::{_text(case.get('fullTitle'))}" if file else _text(case.get("fullTitle"))
                line = _text(error.get("stack")) or _text(error.get("message"))
                tally.add(name, outcome, line, None if seconds is None else seconds / 1000)
    return tally.results()


# -- googletest ------------------------------------------------------------------------------------------------


def _read_gtest(raw: Raw) -> Results:
    tally = Tally()
    for report in _documents(raw, tally, "testsuites"):
        failed = found = 0
        for group in _rows(report.get("testsuites")):
            for case in _rows(group.get("testsuite")):
                outcome = _gtest_outcome(case)
                failed, found = failed + (outcome == "failed"), found + 1
                failures = _rows(case.get("failures"))
                error = _text(failures[0].get("failure")) if failures else ""
                seconds = _text(case.get("time")).removesuffix("s")
                took = float(seconds) if seconds.isascii() and seconds.replace(".", "", 1).isdigit() else None
                owner = _text(case.get("classname")) or _text(group.get("name"))
                tally.add(f"{owner}::{_text(case.get('name'))}", outcome, error, took)
        tally.expect("tests", _claimed(report, "tests"), found)
        tally.expect("failures", _claimed(report, "failures") + _claimed(report, "errors"), failed)
    return tally.results()


def _gtest_outcome(case: Mapping[str, Any]) -> Outcome:
    if case.get("failures"):
        return "failed"
    return "passed" if case.get("result") == "COMPLETED" and case.get("status") == "RUN" else "skipped"


# -- go test -json ---------------------------------------------------------------------------------------------


def _read_go(raw: Raw) -> Results:
    """Ids are "package::Test" and "package::Test/subtest". A package that could not be built is broken.

    One that was built and fails without a failed test (an `init` that ends the process, a `TestMain`) is a doubt.
    """
    tally, said, compiled = Tally(), dict[str, list[str]](), _compiler(raw)
    running: dict[str, None] = {}
    packages: dict[str, str] = {}
    for content in raw.contents():
        for line in content.decode("utf-8", "replace").splitlines():
            event = _event(line)
            if event is None:
                _take_plain(line, tally)
            else:
                _take(event, tally, said, running, packages)
    for package in tally.broken.keys() & compiled.keys():
        tally.broken[package] = compiled[package]
    for name in running:
        tally.add(name, "error", "it did not come to its end")
    for package, verdict in packages.items():
        _end_package(package, verdict, said.get(package, []), compiled, tally)
    started = {name.partition("::")[0] for name in tally.outcomes} | said.keys()
    for package in sorted(started - packages.keys()):
        tally.doubt(f"package {package.partition('::')[0]} did not come to its end")
        break
    return tally.results()


def _end_package(package: str, verdict: str, lines: list[str], compiled: Mapping[str, str], tally: Tally) -> None:
    """What became of a package, which said these lines besides its tests."""
    bad = [name for name in tally.outcomes if name.startswith(package + "::") and name in tally.errors]
    if verdict != "fail" and bad:
        tally.doubt(f"package {package} ended with {verdict!r} although {len(bad)} tests failed")
    elif verdict == "fail" and not bad:
        why = _go_error(lines) or "it failed outside its tests"
        if package in {*compiled, *tally.broken} or any(_UNBUILT.search(line) for line in lines):
            tally.broken[package] = compiled.get(package) or why
        else:
            tally.doubt(f"package {package} ended outside its tests: {why}")


_UNBUILT = re.compile(r"\[(?:build|setup) failed\]$")
"""How `go` marks a package whose tests it could not begin."""


def _compiler(raw: Raw) -> dict[str, str]:
    """What the compiler said of each package, first line each: it writes "# package" and then its errors."""
    found: dict[str, str] = {}
    package = ""
    for line in raw.stderr.decode("utf-8", "replace").splitlines():
        if line.startswith("# "):
            package = line[2:].partition(" [")[0]
        elif package and line.strip():
            found.setdefault(package, one_line(line))
    return found


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("Action"), str) else None


def _take_plain(line: str, tally: Tally) -> None:
    """What `go` itself says between the events: a package that was not built."""
    if line.startswith("FAIL\t"):
        tally.broken[line.split("\t")[1].partition(" [")[0]] = "it could not be built"
    elif line.strip():
        tally.broken.setdefault(".", line.strip()[:300])


def _take(
    event: Mapping[str, Any],
    tally: Tally,
    said: dict[str, list[str]],
    running: dict[str, None],
    packages: dict[str, str],
) -> None:
    package, test, action = _text(event.get("Package")), _text(event.get("Test")), event["Action"]
    name = f"{package}::{test}" if test else package
    outcomes: dict[str, Outcome] = {"pass": "passed", "fail": "failed", "skip": "skipped"}
    if action == "output":
        said.setdefault(name, []).append(_text(event.get("Output")))
        if test:
            said.setdefault(package, [])
    elif action == "run" and test:
        running[name] = None
    elif action in outcomes and not test:
        packages[package] = action
    elif action in outcomes:
        if running.pop(name, "absent") == "absent" and name not in tally.outcomes:
            tally.doubt(f"test {name} ended without having started")
        tally.add(name, outcomes[action], _go_error(said.pop(name, [])), _number(event.get("Elapsed")))


def _go_error(lines: list[str]) -> str:
    """The line that says why: the first that is not go's own frame around a test's output."""
    for line in "".join(lines).splitlines():
        text = line.strip()
        if text and not text.startswith(("=== ", "--- ", "FAIL", "ok ", "PASS", "exit status")):
            return text
    return ""


JEST_JSON = Reader("jest-json", _read_jest)
"""`jest --json`, `vitest --reporter=json`."""

MOCHA_JSON = Reader("mocha-json", _read_mocha)
"""`mocha --reporter json`."""

GTEST_JSON = Reader("gtest-json", _read_gtest)
"""`--gtest_output=json:FILE`."""

GO_JSON = Reader("go-json", _read_go)
"""`go test -json`."""
