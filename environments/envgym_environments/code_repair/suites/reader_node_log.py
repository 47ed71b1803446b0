"""Logs of JavaScript's runners, with the ids that Multi-SWE-bench and Multi-SWE-RL list.

Their rows do not say how tests are run: `/home/run.sh` of the image does, and a log tells by itself which runner
wrote it (jest, vitest, mocha with its spec or json reporter, node's own, TAP). The data set spells an id by a
program for each repository (`multi_swe_bench/harness/repos`, `parse_log`); what these do comes to three spellings,
of which a row's own lists tell the right one (see `spelling_of`). It believes as little as the other readers: a log
without a closing line or with two groups of them, with more passes than it says, with failures that are listed
again and were not read, or with the signs of two runners confirms nothing, and a failure in any format is one.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from envgym_environments.code_repair.runner import Outcome
from envgym_environments.code_repair.suites.reader_node_tap import Points, announces
from envgym_environments.code_repair.suites.results import Raw, Reader, Results, Tally

__all__ = ["NODE_LOGS", "spelling_of"]

_MARKS: dict[str, Outcome] = {
    "✓": "passed", "✔": "passed", "✕": "failed", "\u00d7": "failed", "✖": "failed", "○": "skipped", "↓": "skipped",
    "﹣": "skipped",
}  # fmt: skip
_MARKED = re.compile(rf"^(\s*)([{''.join(_MARKS)}]|\d{{1,6}}\)) +(\S.*)$")
_NUMBER = re.compile(r"^\d+\)$")
_FILE = re.compile(r"^(PASS|FAIL) +(\S.*)$")
_UNREAD = re.compile(r"^ FAIL  (\S+) \[ .* \]$")
"""What vitest says of a file that it could not collect."""

_AGAIN = re.compile(r"^ FAIL  (\S.*? > .*)$")
_JEST_AGAIN = re.compile(r"^\s+\u25cf (\S.*)$")
"""How vitest and jest list a failure again, with all that it stands under."""

_TIMES = (
    re.compile(r"\s\(\d{1,9}(?:\.\d{1,9})?\s?m?s\)$"),  # what runners print
    re.compile(r"\s\(\d{0,9}\.?\d{1,9}\s?\w{1,20}\)$"),  # jest's
    re.compile(r"\s\(\d{0,9}\.?\d{0,9}\s?\w{1,20}\)$"),  # mocha's, which takes "(sync)" for a time too
)
"""What programs of the data set take for a duration at the end of a title; one takes all behind a bracket."""

_BRACKET = re.compile(r"\s\(")
_VITEST_TIME = re.compile(r"\s?\d{0,9}\.?\d{1,9}\s?(?:ms|s|m)$")
_VITEST_FILE = re.compile(r" \(\d{1,9} tests?(?: \|[^)]*)?\)$")
_TAIL, _MOST_LINE, _MOST_PATH, _MOST_REPORTS = 40, 4000, 1000, 4
"""Characters at a line's end where a duration is looked for, of a line, of a path; reports of JSON read."""

_TITLES = 5
"""How far mocha indents what stands below a failure that is listed again."""

_COUNTED = re.compile(r"(\d{1,9}) (passed|failed)")
_CLOSING = (
    re.compile(r"^(?P<jest>Tests|Test Suites):\s+(?P<counts>\d.*)\btotal$"),
    re.compile(r"^\s*(?P<vitest>Tests|Test Files) {2,}(?P<counts>\d.*\(\d+\)|no tests?)$"),
    re.compile(r"^\s+(?P<passed>\d{1,9}) (?P<mocha>passing)\b(?: \(.*\))?$"),
    re.compile(r"^\s+(?P<failed>\d{1,9}) (?P<mocha>failing)$"),
    re.compile(r"^\u2139 (?P<node>pass) (?P<passed>\d{1,9})$"),
    re.compile(r"^\u2139 (?P<node>fail) (?P<failed>\d{1,9})$"),
)
_VITEST_LOG = re.compile(r"^\s*Test Files {2,}\d")
_RUNNERS = ("jest", "vitest", "mocha", "node")

_STATS = re.compile(r'\{\s*"stats"\s*:')


def spelling_of(names: Sequence[str]) -> str:
    """The reader for a row's listed tests: by files ("test/a.test.js:adds"), by paths ("a > b"), else by titles."""
    half = len(names) / 2
    files = sum(re.match(r"\S+\.[cm]?[jt]sx?(?::|$)", name) is not None for name in names)
    if files > half and any(re.match(r"\S+\.[cm]?[jt]sx?:", name) for name in names):
        return "multi-swe-files"
    return "multi-swe-paths" if sum(" > " in name for name in names) > half else "multi-swe-titles"


@dataclass(slots=True)
class _Path:
    """Where a line stands among the lines above it, by how far it is indented."""

    levels: dict[int, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    def at(self, indent: int, name: str) -> str:
        """The names of the lines that a line stands under, and its own."""
        if indent not in self.levels:
            above = [one for one in self.levels if one < indent]
            self.levels[indent] = self.levels[max(above)] + 1 if above else 0
        self.names = [*self.names[: self.levels[indent]], name]
        return " > ".join(self.names)[-_MOST_PATH:]


def _beside(text: str) -> bool:
    """Whether a line says why a runner ends badly though each of its tests may have passed."""
    if text.startswith("Jest: "):
        return "not met" in text and ("threshold" in text or "coverage" in text)
    return re.match(r"ERROR: Coverage for |Vitest caught \d+ unhandled error", text) is not None


@dataclass(slots=True)
class _Log:
    """What was read: by the lines of jest, vitest, mocha and node, and by the documents of mocha.

    other: second names of tests. said: by the closing lines. read: how many ended so. suites: failed file -> how
    many of its tests failed. numbered: number of a failure -> its titles. again: titles of the failures that a
    runner lists again, each with its number where it has one. open: the lines of such a title, as far as they go.
    """

    spelling: str
    vitest: bool
    tally: Tally = field(default_factory=Tally)
    other: Tally = field(default_factory=Tally)
    path: _Path = field(default_factory=_Path)
    suite: str = ""
    listing: bool = False
    at: int = 0
    ends: dict[tuple[str, str], int] = field(default_factory=dict)
    said: dict[str, int] = field(default_factory=lambda: {"passed": 0, "failed": 0})
    read: dict[str, int] = field(default_factory=lambda: {"passed": 0, "failed": 0, "skipped": 0})
    suites: dict[str, int] = field(default_factory=dict)
    numbered: dict[str, set[str]] = field(default_factory=dict)
    again: list[tuple[str, list[str]]] = field(default_factory=list)
    open: list[str] | None = None

    def line(self, text: str) -> None:
        """One line; what is no runner's is somebody's print, and only says where the next lines stand."""
        self.at += 1
        if found := _MARKED.match(text):
            self._marked(len(found[1]), found[2], found[3].rstrip())
        elif not self._title(text) and not self._closing(text) and text.strip():
            self._other(text)
            self.path.at(len(text) - len(text.lstrip()), _untimed(text.strip(), _TIMES[0]))

    def _other(self, text: str) -> None:
        if found := _FILE.match(text):
            self.suite = _untimed(found[2], _TIMES[1])
            self.tally.add(self.suite, "passed" if found[1] == "PASS" else "failed")
            if found[1] == "FAIL":
                self.suites.setdefault(self.suite, 0)
        elif found := _UNREAD.match(text):
            self.tally.broken[found[1]] = "it could not be collected"
            self.read["failed"] += 1
        elif found := _AGAIN.match(text):
            if found[1] not in self.tally.outcomes:
                self.suites.setdefault(found[1], 0)
            self.tally.add(found[1], "failed")
        elif found := _JEST_AGAIN.match(text):
            self.again.append(("", found[1].split(" \u203a ")))
        elif _beside(text):
            self.tally.broken[text.partition(":")[0][:60]] = text[:200]

    def _title(self, text: str) -> bool:
        """Mocha gives each title that a failure stands under a line, two columns further in than the one above."""
        indent = len(text) - len(text.lstrip())
        if self.open is None or not text.strip() or indent != _TITLES + 2 * len(self.open):
            self.open = None
            return False
        self.open.append(text.strip())
        return True

    def _closing(self, text: str) -> bool:
        found = next((one for pattern in _CLOSING if (one := pattern.match(text))), None)
        if found is None:
            return False
        told = found.groupdict()
        runner, what = next((runner, told[runner]) for runner in _RUNNERS if told.get(runner))
        near = [at for (other, _), at in self.ends.items() if other == runner]
        if (runner, what) in self.ends or (near and self.at - max(near) > 2):
            self.tally.doubt(f"there is more than one group of closing lines: {text.strip()[:60]}")
        self.ends[runner, what] = self.at
        for word in ("passed", "failed"):
            self.said[word] += int(told.get(word) or 0)
        for number, word in _COUNTED.findall(told.get("counts") or ""):
            if word == "failed" or what == "Tests":
                self.said[word] += int(number)
        self.listing = self.listing or bool(told.get("failed"))
        self.suite = "" if runner == "jest" else self.suite
        return True

    def _marked(self, indent: int, mark: str, rest: str) -> None:
        number = mark[:-1] if _NUMBER.match(mark) else ""
        self.open = None
        if rest == "failing tests:":
            self.listing = True
            return
        if self.listing and (number or mark == "✖"):  # mocha and node list their failures again
            titles = [rest if number else _untimed(rest, _TIMES[0])]
            self.again.append((number or mark, titles))
            self.open = titles if number else None
            return
        outcome = _MARKS.get(mark, "failed")
        if outcome == "failed":
            self.numbered.setdefault(number or mark, set()).add(rest if number else _untimed(rest, _TIMES[0]))
            if self.suite in self.suites:
                self.suites[self.suite] += 1
        if self.vitest and not self.suite and mark in "✓\u00d7↓":
            self._vitest(rest, outcome)
            return
        if mark == "○":
            rest = rest.removeprefix("skipped ")
        names = [*(_untimed(rest, pattern) for pattern in _TIMES), _unbracketed(rest)]
        first = self.path.at(indent, names[0])
        self.read[outcome] += 1
        self._add([first] if self.spelling == "paths" else map(self._spelled, names), outcome)

    def _spelled(self, title: str) -> str:
        return f"{self.suite}:{title}" if self.spelling == "files" and self.suite else title

    def _vitest(self, rest: str, outcome: Outcome) -> None:
        name = _untimed(rest, _VITEST_TIME)
        at = name.rfind(" (")
        if at > 0 and _VITEST_FILE.match(name, at):  # a file, by a reporter that names no tests
            self._add([name[:at], name], outcome)
            return
        self.read[outcome] += 1
        self._add([name], outcome)

    def _add(self, names: Iterable[str], outcome: Outcome) -> None:
        """The first is the test's id; the others, where no test is called so, may be what a list calls it."""
        first, *others = names
        self.tally.add(first, outcome)
        for name in others:
            self.other.add(name, outcome)

    def document(self, report: Any) -> None:
        """One report of mocha's json reporter: ids are the full titles."""
        outcomes: dict[str, Outcome] = {"passes": "passed", "pending": "skipped", "failures": "failed"}
        stats = report.get("stats") if isinstance(report, dict) else None
        if not isinstance(stats, dict):
            return
        self.ends["mocha's json", "stats"] = 0
        for key, outcome in outcomes.items():
            rows = report.get(key)
            rows = rows if isinstance(rows, list) else []
            titles = [row["fullTitle"] for row in rows if isinstance(row, dict) and "fullTitle" in row]
            self.tally.expect(key, stats.get(key, 0), len(titles))
            for title in titles:
                self.tally.add(str(title), outcome)
            self.said[outcome] = self.said.get(outcome, 0) + len(titles)
            self.read[outcome] += len(titles)

    def _listed_again(self) -> None:
        """Who has a title that is listed again has failed: a print may have given the failure another path."""
        named: dict[str, list[str]] = {}
        for name in self.tally.outcomes:
            of_file = name.partition(":")[2] if self.spelling == "files" else ""
            for title in {name, name.rpartition(" > ")[2], of_file} - {""}:
                named.setdefault(title, []).append(name)
        for number, above in self.again:
            titles = [*above[:-1], above[-1].removesuffix(":") if number.isdigit() else above[-1]]
            read = self.numbered.get(number, set())
            if number and not read & set(titles):
                self.tally.doubt(f"a failure is listed again that was not read: {titles[-1][:60]}")
            for title in {titles[-1], *(read & set(titles))}:
                for name in named.get(title, ()):
                    self.tally.add(name, "failed")
                if title in self.other.outcomes:
                    self.other.add(title, "failed")
        listed = sum(number.isdigit() for number, _ in self.again)
        if ("mocha", "passing") in self.ends and listed != self.said["failed"]:
            self.tally.doubt(f"the closing lines say {self.said['failed']} failures, {listed} are listed again")

    def results(self) -> Results:
        """What was read, held against what the closing lines say."""
        self._listed_again()
        hooks = any(title.startswith(('"before ', '"after ')) for read in self.numbered.values() for title in read)
        whole = not self.tally.broken and all(self.suites.values()) and not hooks
        for name, outcome in self.other.outcomes.items():
            if name not in self.tally.outcomes and (whole or outcome != "passed"):
                self.tally.add(name, outcome)
        bad = self.read["failed"] + self.tally.count("failed", "error")
        if not self.ends:
            self.tally.doubt("there is no closing line: the run did not come to its end")
        elif self.read["passed"] > self.said["passed"]:
            self.tally.doubt(f"the closing lines say {self.said['passed']} passed, {self.read['passed']} were read")
        elif (self.said["failed"] > 0) != (bad > 0):
            self.tally.doubt(f"the closing lines say {self.said['failed']} failures, {bad} were read")
        return self.tally.results()


def _untimed(text: str, pattern: re.Pattern[str]) -> str:
    tail = text[-_TAIL:]
    found = pattern.search(tail)
    at = len(text) - len(tail) + found.start() if found else 0
    return text[:at] or text


def _unbracketed(text: str) -> str:
    found = _BRACKET.search(text) if text.endswith(")") else None
    return text[: found.start()].rstrip() or text if found and found.end() < len(text) - 1 else text


def _read(spelling: str, raw: Raw) -> Results:
    """By the format of which the log has the signs; one with those of two is doubted, and their failures count."""
    text = "\n".join(raw.lines())
    lines = [line[:_MOST_LINE].rstrip() for line in text.split("\n")]
    log, tap, document = _Log(spelling, any(map(_VITEST_LOG.match, lines))), Points(), _Log(spelling, False)
    for line in lines:
        log.line(line)
        tap.line(line)
    reports = list(islice(_STATS.finditer(text), _MOST_REPORTS))
    for start in reports:
        try:
            document.document(json.JSONDecoder().raw_decode(text, start.start())[0])
        except (ValueError, RecursionError):
            document.tally.doubt("a report of mocha ends early")
    signs = {runner for runner, _ in log.ends}
    signs |= {"tap"} if any(map(announces, lines)) else set()
    signs |= {"mocha's json"} if reports else set()
    if len(reports) > 1:
        document.tally.doubt("there is more than one report of mocha")
    if signs == {"tap"}:
        found = tap.results()
    elif signs == {"mocha's json"}:
        found = document.results()
    else:
        found = log.results()
    failed = {
        name for one in (log, document, tap) for name, ended in one.tally.outcomes.items() if ended == "failed"
    }
    several = f"the log has the signs of several runners: {', '.join(sorted(signs))}" if len(signs) > 1 else ""
    return replace(
        found,
        outcomes={**found.outcomes, **dict.fromkeys(failed, "failed")},
        errors={**dict.fromkeys(failed, "failed"), **found.errors},
        problem=several or found.problem,
    )


NODE_LOGS = tuple(
    Reader(f"multi-swe-{spelling}", partial(_read, spelling), structured=False)
    for spelling in ("files", "paths", "titles")
)
