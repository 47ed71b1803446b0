"""The full tool set: what an engineer would have, with bounded answers. Each call acts in the agent's own sandbox.

A tool's answer is text; what a command did, its failure and its timeout included, is data. Paths are relative to
the tree's root. `CodeRepair` keeps score and state; nothing here decides about rewards.
"""

import re
import shlex
from collections.abc import Sequence
from itertools import accumulate

from envgym.messages import ToolSpec
from envgym.sandbox import ExecResult, Sandbox
from envgym.tools import tool_spec
from envgym_environments.code_repair.runner import Layout, TestReport, run_tests
from envgym_environments.code_repair.suites.run import run_suite
from envgym_environments.code_repair.suites.suite import Suite
from envgym_environments.code_repair.trials import Facts

__all__ = [
    "FULL_TOOLS",
    "bad_path",
    "clip",
    "clip_row",
    "clip_rows",
    "edit_file",
    "list_files",
    "report_text",
    "run_shell",
    "search",
    "test",
    "view",
]

_MOST_CHARACTERS = 6000
_MOST_LINES = 200
_MOST_COLUMNS = 300
_MOST_BROKEN = 5
_SHELL_S = 30.0
_PRUNE = r"-name __pycache__ -o -name .git -o -name '*.pyc' -o -name .hypothesis -o -name '*.egg-info'"
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_NOISE = (
    (re.compile(r"\b0x[0-9a-fA-F]{6,}\b"), "0x..."),
    (re.compile(r"\bin \d+\.\d+ ?s(?:econds)?\b"), "in <time>"),
    (re.compile(r"\b\d+\.\d+s\b"), "<time>"),
    (re.compile(r"\breal\s+\S+\nuser\s+\S+\nsys\s+\S+"), "<times>"),
    (re.compile(r"\bpid[ =:]+\d+", re.IGNORECASE), "pid <pid>"),
    (re.compile(r"/tmp/(?:tmp\.?|pytest-)[\w.-]+"), "/tmp/<tmp>"),
    (re.compile(rf"\b(?:{_MONTHS}) [ \d]\d \d\d:\d\d(?::\d\d)?\b"), "<date>"),
    (re.compile(r"\b20\d\d-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?"), "<date>"),
)
"""What no world can repeat. A process id or a time that a program prints bare is beyond it."""


def _list_files(path: str = ".") -> None:
    """List files below a directory (byte code and caches left out)."""


def _search(pattern: str, path: str = ".") -> None:
    """Search files for a regular expression (extended grep); answers file:line:text."""


def _symbols(path: str = ".", pattern: str = "") -> None:
    """Outline the code below a path: classes, functions, constants whose name holds `pattern`, with their lines."""


def _definition(name: str) -> None:
    """Show where a name ("load", "Store.load") is defined: its code, or a class's members with inherited ones."""


def _references(name: str) -> None:
    """List the lines of code that use a name (not strings, not comments)."""


def _view(path: str, start: int = 1, end: int = 0) -> None:
    """Show numbered lines `start` to `end` of a file (end 0: as many as fit)."""


def _edit(path: str, old: str, new: str) -> None:
    """Replace `old`, which must occur exactly once in the file, by `new`. An empty `old` creates a file."""


def _run_tests(selection: str = "") -> None:
    """Run the tests: all of them, or those named (ids as in the issue, or test files, separated by blanks)."""


def _undo() -> None:
    """Go back to the state before the last edit or shell command."""


def _submit() -> None:
    """End the episode: the changes of the package's source are the submission."""


def _shell(command: str) -> None:
    """Run a command in a persistent shell at the tree's root (no network, at most 30 s)."""


FULL_TOOLS: tuple[ToolSpec, ...] = tuple(
    tool_spec(function, name=function.__name__[1:])
    for function in (
        _list_files,
        _search,
        _symbols,
        _definition,
        _references,
        _view,
        _edit,
        _run_tests,
        _undo,
        _submit,
        _shell,
    )
)


def clip(text: str, most: int = _MOST_CHARACTERS) -> str:
    """Head and tail of a text, and between them how much was cut."""
    if len(text) <= most:
        return text
    head, tail = most * 2 // 3, most // 3
    return f"{text[:head]}\n... {len(text) - head - tail} characters cut ...\n{text[-tail:]}"


def clip_row(row: str, most: int = _MOST_COLUMNS) -> str:
    """The same of one line: what was cut is said in its middle."""
    if len(row) <= most:
        return row
    head, tail = most * 2 // 3, most // 3
    return f"{row[:head]} ... {len(row) - head - tail} characters cut ... {row[-tail:]}"


def clip_rows(rows: Sequence[str], name: str, *, most: int = _MOST_CHARACTERS, lines: int = _MOST_LINES) -> str:
    """The first and the last of these rows, at most `lines` of at most `most` characters, and how many were cut.

    name: what the rows are, in the plural.
    """
    rows = [clip_row(row) for row in rows]
    if len(rows) <= lines and sum(len(row) + 1 for row in rows) <= most:
        return "\n".join(rows)
    head = _fitting(rows[: lines * 2 // 3], most * 2 // 3)
    tail = _fitting(rows[::-1][: lines // 3], most // 3)
    cut = f"... {len(rows) - head - tail} of {len(rows)} {name} cut ..."
    return "\n".join([*rows[:head], cut, *rows[len(rows) - tail :]])


def _fitting(rows: Sequence[str], most: int) -> int:
    """How many of these rows, from the first on, have at most `most` characters."""
    lengths = accumulate(len(row) + 1 for row in rows)
    return sum(length <= most for length in lengths)


def _normal(text: str) -> str:
    """Without what the world cannot repeat: durations, addresses, process ids, temporary names."""
    for pattern, replacement in _NOISE:
        text = pattern.sub(replacement, text)
    return text


def bad_path(path: str) -> str | None:
    """What is wrong with a path, if anything."""
    if not path or "\0" in path or len(path) > 1000:
        return "a path must have 1 to 1000 characters and no NUL"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "a path must be valid Unicode"
    return None


async def list_files(sandbox: Sandbox, path: str) -> str:
    """Files below a directory, sorted."""
    if problem := bad_path(path):
        return problem
    command = rf"find {shlex.quote(_below(path))} \( {_PRUNE} \) -prune -o -type f -print"
    found = await sandbox.exec(["sh", "-c", command], timeout_s=_SHELL_S)
    if not found.stdout:
        return _normal(clip(found.text.strip())) or "no files"
    names = sorted(name.removeprefix("./") for name in found.stdout.decode("utf-8", "replace").splitlines())
    return clip("\n".join(names))


def _below(path: str) -> str:
    """A path that `find` cannot take for an option."""
    return f"./{path}" if path.startswith(("-", "(", "!", ",")) else path


async def search(sandbox: Sandbox, pattern: str, path: str) -> str:
    """Matching lines, sorted by file: the first and the last of them, and how many were cut."""
    if problem := bad_path(path):
        return problem
    if not pattern or "\0" in pattern or len(pattern) > 1000 or bad_path(pattern):
        return "a pattern must have 1 to 1000 characters, valid Unicode and no NUL"
    argv = ["grep", "-rnIE", "--exclude-dir=__pycache__", "--exclude-dir=.git", "-e", pattern, "--", path]
    found = await sandbox.exec(argv, timeout_s=_SHELL_S)
    if found.exit_code == 0:
        rows = sorted(found.stdout.decode("utf-8", "replace").splitlines(), key=_file_and_line)
        return clip_rows([row.removeprefix("./") for row in rows], "matches") + _lost(found)
    if found.timed_out:
        return clip(f"killed after {_SHELL_S:g} s\n{found.text}".strip()) + _lost(found)
    return "no match" if found.exit_code == 1 else clip(found.text.strip()) + _lost(found)


def _lost(result: ExecResult) -> str:
    """What a command wrote and the sandbox did not keep."""
    lost = sum(result.lost_bytes)
    return f"\n({lost} bytes cut)" if lost else ""


def _file_and_line(row: str) -> tuple[str, int, str]:
    name, _, rest = row.partition(":")
    number = rest.partition(":")[0]
    return name, int(number) if number.isdigit() else 0, rest


async def _read(sandbox: Sandbox, path: str) -> tuple[str, str]:
    """(text, problem): one of them is empty unless the file is."""
    if problem := bad_path(path):
        return "", problem
    try:
        return (await sandbox.read(path)).decode(), ""
    except OSError as error:
        return "", f"cannot read {path}: {type(error).__name__}"
    except UnicodeDecodeError:
        return "", f"{path} is not text"


async def view(sandbox: Sandbox, path: str, start: int, end: int) -> str:
    """Numbered lines from `start` on, as many as fit, and how many of those asked for do not."""
    text, problem = await _read(sandbox, path)
    if problem:
        return problem
    rows = text.split("\n")
    first = min(max(start, 1), len(rows))
    asked = min(end if end >= first else len(rows), len(rows))
    last = min(asked, first + _MOST_LINES - 1)
    shown = [f"{number:5d} {rows[number - 1]}" for number in range(first, last + 1)]
    cut = f"{asked - last} lines behind line {last} cut; " if asked > last else ""
    rest = f"\n({cut}{len(rows)} lines in all)" if last < len(rows) or first > 1 else ""
    return clip_rows(shown, "lines", most=2 * _MOST_CHARACTERS) + rest


async def edit_file(sandbox: Sandbox, path: str, old: str, new: str) -> tuple[str, bool]:
    """(answer, whether it was changed)."""
    try:
        new.encode()
    except UnicodeEncodeError:
        return "the new text is not valid Unicode; nothing changed", False
    text, problem = await _read(sandbox, path)
    if not old:
        if not problem.endswith("FileNotFoundError"):
            return problem or f"{path} exists: `old` must not be empty; nothing changed", False
    elif problem:
        return problem, False
    elif text.count(old) != 1:
        return f"`old` occurs {text.count(old)} times in {path}, it must occur once; nothing changed", False
    try:
        await sandbox.write(path, (text.replace(old, new) if old else new).encode())
    except OSError as error:
        return f"cannot write {path}: {type(error).__name__}; nothing changed", False
    at = text.find(old) if old else 0
    return f"edited {path} at line {text.count(chr(10), 0, at) + 1}", True


async def run_shell(sandbox: Sandbox, command: str) -> str:
    """Exit status and output."""
    if "\0" in command or len(command) > 20_000:
        return "a command must have at most 20000 characters and no NUL"
    try:
        command.encode()
    except UnicodeEncodeError:
        return "a command must be valid Unicode"
    return _result_text(await sandbox.exec(command, timeout_s=_SHELL_S))


def _result_text(result: ExecResult) -> str:
    if result.timed_out:
        status = f"killed after {_SHELL_S:g} s"
    elif result.out_of_memory:
        status = "killed: out of memory"
    else:
        status = f"exit {result.exit_code}"
    return clip(_normal(f"{status}\n{result.text}".rstrip())) + _lost(result)


async def test(sandbox: Sandbox, facts: Facts, selection: str) -> tuple[str, tuple[str, ...] | None]:
    """(answer, the failing tests that it shows; None when nothing was run)."""
    if isinstance(facts.layout, Suite):
        return await _test_suite(sandbox, facts, facts.layout, selection)
    words = selection.split()[:200]
    layout, ids = facts.layout, [word for word in words if "::" in word]
    files = [word for word in words if "::" not in word]
    unknown = [word for word in words if word.partition("::")[0] not in layout.tests]
    if unknown or (ids and files):
        return _unknown_text(unknown, layout), None
    if files:
        layout = layout.model_copy(update={"tests": tuple(name for name in layout.tests if name in files)})
    limit_s = 10.0 + 4.0 * facts.run_s
    report = await run_tests(sandbox, layout, selection=ids or None, timeout_s=limit_s, test_timeout_s=facts.test_s)
    return clip(report_text(report)), report.failing


async def _test_suite(
    sandbox: Sandbox, facts: Facts, suite: Suite, selection: str
) -> tuple[str, tuple[str, ...] | None]:
    """The same by a suite's commands; ids may hold spaces, so they stand on lines of their own."""
    ids = [line.strip() for line in selection.splitlines() if line.strip()][:200]
    limit_s = 10.0 + 4.0 * facts.run_s
    report = await run_suite(sandbox, suite, selection=ids or None, timeout_s=min(limit_s, suite.timeout_s))
    return clip(report_text(report)), report.failing


def _unknown_text(unknown: Sequence[str], layout: Layout) -> str:
    if not unknown:
        return "name either test ids or test files, not both"
    return clip(f"no such test file: {unknown[0][:200]}; test files: {' '.join(layout.tests)}", 2000)


def report_text(report: TestReport, *, most: int = 20) -> str:
    """A run of the tests as text: the failures with their exceptions, then the counts."""
    rows = [f"{name}\n  {clip_row(report.errors.get(name, ''), 200)}" for name in report.failing[:most]]
    if len(report.failing) > most:
        rows.append(f"and {len(report.failing) - most} more")
    broken = list(report.collection_errors.items())
    rows += [f"cannot collect {name}: {clip_row(line)}" for name, line in broken[:_MOST_BROKEN]]
    if len(broken) > _MOST_BROKEN:
        rows.append(f"and {len(broken) - _MOST_BROKEN} more that cannot be collected")
    if report.doubt:
        rows.append(f"not confirmed: {report.doubt}")
    rows.append(f"{len(report.passing)} passed, {len(report.failing)} failed")
    return "\n".join(rows)
