"""Results from logs, with the ids that data sets made elsewhere have for their tests.

SWE-bench, R2E-Gym and Multi-SWE-bench list tests as their own log parsers once spelled them: cut at the first
space, without the file, or a whole class as one. These readers spell them so, and otherwise believe as little as
the others: a log without its runner's closing line confirms nothing. Of several tests with one id the worst counts.
"""

import re
from collections.abc import Callable

from envgym_environments.code_repair.runner import Outcome
from envgym_environments.code_repair.suites.results import Raw, Reader, Results, Tally

__all__ = ["FOREIGN"]

_SPELLED: dict[str, Outcome] = {
    "PASSED": "passed", "XPASS": "passed", "XFAIL": "passed", "FAILED": "failed", "ERROR": "error",
    "SKIPPED": "skipped",
}  # fmt: skip
"""pytest's words. An expected failure is as good as a pass, in the lists that SWE-bench made."""

_FIRST = re.compile(rf"^({'|'.join(_SPELLED)}) (?!\[\d+\])(\S.*)$")
_LAST = re.compile(rf"^(\S.*?) ({'|'.join(_SPELLED)})(?: \(.*\))?\s*(?:\[ *\d+%\])?$")
_CLOSING = re.compile(r"^=* ?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+ ?s(?:econds)?(?: \([\d:]+\))? ?=*$")


# -- pytest ------------------------------------------------------------------------------------------------------


def _pytest(spell: Callable[[str], str], *, verbose: bool = False) -> Callable[[Raw], Results]:
    """A reader of pytest's summary (``-rA``) and, with `verbose`, of its lines with the outcome behind the id."""

    def read(raw: Raw) -> Results:
        tally, lines = Tally(), [line.rstrip("\r") for line in raw.lines()]
        ends = [at for at, line in enumerate(lines) if _CLOSING.match(line.strip())]
        if not ends:
            tally.doubt("there is no closing line: the run did not come to its end")
            return tally.results()
        for line in lines[: ends[-1]]:
            if found := _FIRST.match(line):
                _add(tally, spell, found[2], found[1])
            elif verbose and (found := _LAST.match(line)):
                _add(tally, spell, found[1], found[2])
        _check(lines[ends[-1]].strip(), tally)
        return tally.results()

    return read


def _add(tally: Tally, spell: Callable[[str], str], name: str, word: str) -> None:
    error = ""
    if word in ("FAILED", "ERROR"):
        name, _, error = name.partition(" - ")
    name = spell(name)
    if word == "ERROR" and "::" not in name:
        tally.broken[name] = error or "it could not be collected"
    elif name:
        tally.add(name, _SPELLED[word], error)


def _check(closing: str, tally: Tally) -> None:
    """The closing line beside what was read. Several tests may have one id, so only more than it says is odd."""
    found = _CLOSING.match(closing)
    said = {word: int(number[:9]) for number, word in re.findall(r"(\d+) ([a-z]+)", found[1] if found else "")}
    passed = said.get("passed", 0) + said.get("xpassed", 0) + said.get("xfailed", 0)
    if tally.count("passed") > passed:
        tally.doubt(f"the closing line says {passed} passed, {tally.count('passed')} were read")
    bad = said.get("failed", 0) + said.get("error", 0) + said.get("errors", 0)
    if (bad > 0) != bool(tally.count("failed", "error") or tally.broken):
        tally.doubt(f"the closing line says {bad} failures and errors, which were not read")


def _cut(name: str) -> str:
    """As a parser spells it that ends an id at the first space."""
    return name.split()[0] if name.split() else ""


def _without_paths(name: str) -> str:
    """A parameter that is an absolute path is its last part."""
    main, bracket, rest = _cut(name).partition("[")
    option, closed, _ = rest.rpartition("]")
    if bracket and closed and option.startswith("/") and not option.startswith("//") and "*" not in option:
        return f"{main}[/{option.rpartition('/')[2]}]"
    return _cut(name)


def _buttons(name: str) -> str:
    return _cut(name.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def _without_file(name: str) -> str:
    return ".".join(_cut(name).split("::")[1:]) if "::" in name else name


# -- unittest as django runs it ----------------------------------------------------------------------------------

_ENDED = re.compile(r"^(?:.*\W)?(ok|OK|FAIL|ERROR|skipped\b.*|expected failure|unexpected success)$")


def _outcome(word: str) -> Outcome:
    if word in ("ok", "OK", "expected failure"):
        return "passed"
    return "skipped" if word.startswith("skipped") else "error" if word == "ERROR" else "failed"


def _django(raw: Raw) -> Results:
    """Ids are what stands before " ... ": "test_a (module.Class)", or a test's first sentence."""
    tally, waiting = Tally(), ""
    lines = [line.strip() for line in raw.lines()]
    for line in lines:
        name, dots, rest = line.partition(" ... ")
        if dots:
            found, waiting = _ENDED.match(rest.strip()), name
            if found:
                tally.add(name, _outcome(found[1]))
                waiting = ""
        elif waiting and re.fullmatch(r"ok|OK|FAIL|ERROR", line):
            tally.add(waiting, _outcome(line))
            waiting = ""
        elif blamed := re.match(r"^(FAIL|ERROR): (.+)$", line):
            tally.add(blamed[2], "failed" if blamed[1] == "FAIL" else "error")
    _check_unittest(lines, tally)
    return tally.results()


def _check_unittest(lines: list[str], tally: Tally) -> None:
    ran = [int(found[1][:9]) for line in lines if (found := re.match(r"^Ran (\d+) tests? in ", line))]
    verdicts = [line for line in lines if re.match(r"^(OK|FAILED)( \(.*\))?$", line)]
    if not ran or not verdicts:
        tally.doubt("there is no closing line ('Ran N tests'): the run did not come to its end")
        return
    if tally.count("passed") > ran[-1]:
        tally.doubt(f"the closing line says {ran[-1]} tests ran, {tally.count('passed')} passed in the log")
    if verdicts[-1].startswith("FAILED") != bool(tally.count("failed", "error")):
        tally.doubt(f"the closing line says {verdicts[-1]}, {tally.count('failed', 'error')} failures were read")


# -- others ------------------------------------------------------------------------------------------------------


def _sympy(raw: Raw) -> Results:
    """The runner of sympy: "test_name ok", and a heading for each failure. Ids have no file."""
    tally, words = Tally(), dict[str, Outcome]()
    words |= {"ok": "passed", "F": "failed", "E": "error", "f": "passed", "s": "skipped"}
    closing = ""
    for line in raw.lines():
        if found := re.match(r"^(test_\w+)(?: .*)? (ok|F|E|f|s)$", line.strip()):
            tally.add(found[1], words[found[2]])
        elif found := re.match(r"^_+ (\S+\.py):(test_\w+) _+$", line.strip()):
            tally.add(f"{found[1]}:{found[2]}", "failed")
        elif "tests finished:" in line:
            closing = line
    if not closing:
        tally.doubt("there is no closing line ('tests finished'): the run did not come to its end")
    elif bool(re.search(r"\d+ (failed|exceptions?)\b", closing)) != bool(tally.count("failed", "error")):
        tally.doubt("the closing line and the tests do not agree on whether any failed")
    return tally.results()


def _go(raw: Raw) -> Results:
    """`go test -v`: ids are the names of tests and subtests, whatever their package."""
    tally, packages, failed = Tally(), 0, False
    words: dict[str, Outcome] = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}
    for line in raw.lines():
        if found := re.match(r"^\s*--- (PASS|FAIL|SKIP): (.+) \([\d.]+s\)$", line):
            tally.add(found[2], words[found[1]])
        elif found := re.match(r"^(ok|FAIL)\s*\t(\S+)", line):
            packages, failed = packages + 1, failed or found[1] == "FAIL"
            if "[build failed]" in line or "[setup failed]" in line:
                tally.broken[found[2]] = "the build failed"
    if not packages:
        tally.doubt("no package came to its end")
    elif tally.count("failed") and not failed:
        tally.doubt("tests failed, and every package says that it is fine")
    return tally.results()


def _cargo(raw: Raw) -> Results:
    """Lines of libtest: ids are the paths of tests, whatever their target."""
    tally, words = Tally(), dict[str, Outcome]()
    words |= {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}
    ends, claimed, read = 0, 0, 0
    for line in raw.lines():
        if found := re.match(r"^test (\S+)(?: - .*)? \.\.\. (ok|FAILED|ignored)(?:, .*)?$", line):
            tally.add(found[1], words[found[2]])
            read += 1
        elif found := re.match(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", line):
            ends, claimed = ends + 1, claimed + sum(int(found[at][:9]) for at in (1, 2, 3))
        elif line.startswith("error: could not compile"):
            tally.broken["."] = line
    if not ends:
        tally.doubt("there is no closing line ('test result'): the run did not come to its end")
    else:
        tally.expect("tests", claimed, read)
    return tally.results()


_MAVEN = re.compile(
    r"Tests run: (\d+), Failures: (\d+), Errors: (\d+), Skipped: (\d+),? Time elapsed: .*? ?-{1,2} in (\S+)$"
)


def _maven(raw: Raw) -> Results:
    """Maven's log: a class is one test, which passes when all in it do."""
    tally, ended = Tally(), ""
    for line in raw.lines():
        if found := _MAVEN.search(line.rstrip()):
            run, failures, errors, skipped = (int(found[at][:9]) for at in (1, 2, 3, 4))
            bad: Outcome = "failed" if failures else "error"
            tally.add(found[5], bad if failures or errors else "skipped" if run == skipped else "passed")
        elif found := re.search(r"BUILD (SUCCESS|FAILURE)", line):
            ended = found[1]
    if not ended:
        tally.doubt("there is no closing line ('BUILD ...'): the run did not come to its end")
    elif ended == "SUCCESS" and tally.count("failed", "error"):
        tally.doubt("classes failed, and the build says that it is fine")
    return tally.results()


_CTEST = re.compile(r"^\s*\d+/\d+ Test +#\d+: (.+?) \.*\s*(Passed|\*\*\*[A-Za-z ]+?|Not Run)\b.*? sec\b")


def _ctest(raw: Raw) -> Results:
    """The log of ctest: ids are the names of its tests."""
    tally, closing = Tally(), None
    for line in raw.lines():
        if found := _CTEST.match(line):
            word = found[2].strip("* ")
            skipped = word.startswith(("Skipped", "Not Run"))
            tally.add(found[1], "passed" if word == "Passed" else "skipped" if skipped else "failed", word)
        elif found := re.match(r"^\d+% tests passed, (\d+) tests? failed out of (\d+)", line):
            closing = int(found[1][:9]), int(found[2][:9])
    if closing is None:
        tally.doubt("there is no closing line ('tests passed'): the run did not come to its end")
    elif len(tally.outcomes) > closing[1] or bool(closing[0]) != bool(tally.count("failed")):
        tally.doubt(f"the closing line says {closing[0]} of {closing[1]} failed, which was not read")
    return tally.results()


FOREIGN = tuple(
    Reader(name, read, structured=False)
    for name, read in (
        ("swebench-pytest", _pytest(_cut)),
        ("swebench-pytest-options", _pytest(_without_paths)),
        ("swebench-pytest-verbose", _pytest(str.strip, verbose=True)),
        ("swebench-seaborn", _pytest(_cut, verbose=True)),
        ("swebench-matplotlib", _pytest(_buttons)),
        ("swebench-django", _django),
        ("swebench-sympy", _sympy),
        ("swebench-go", _go),
        ("swebench-cargo", _cargo),
        ("r2e-gym", _pytest(_without_file)),
        ("maven-log", _maven),
        ("ctest-log", _ctest),
    )
)
