"""Run a suite's commands in a sandbox and bring back the same `TestReport` as a Python package's tests give.

Nothing is a pass unless the runner's own results say so, agree with themselves and with the exit code, and were
written by this run. It does not judge a repair (see `grade`), and it cannot tell results that a runner wrote from
results that hostile tested code wrote into the same file: a grader adds guards for that (see `guards`).
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from envgym.sandbox import ExecResult, Shell
from envgym_environments.code_repair.runner import Outcome, TestReport
from envgym_environments.code_repair.suites.readers import reader
from envgym_environments.code_repair.suites.results import Raw, Results, one_line
from envgym_environments.code_repair.suites.suite import Suite, matches

__all__ = ["build_suite", "command_of", "run_suite"]

_MOST_ARGUMENTS = 60_000
"""Characters of selected tests in one command; the kernel takes 128 KiB as one argument."""
_MOST_FILES = 5_000
_MOST_RESULT_MIB = 64
_OUTPUT_BYTES = 32 << 20
_ENV = {"CI": "1", "NO_COLOR": "1", "FORCE_COLOR": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8"}


def command_of(suite: Suite, selection: Sequence[str] | None) -> str:
    """The test command with `selection` written into it; without a selection `{tests}` is left empty.

    Where several are joined by a space, what stands for `id`, `file` and `name` is quoted each time and the rest of
    `select` is the shell's; where they are joined by anything else, the whole is one quoted word.
    """
    if "{tests}" not in suite.test:
        return suite.test
    quote = shlex.quote if suite.joined == " " else str
    pieces: dict[str, None] = {}
    for name in selection or ():
        file, _, rest = name.partition("::")
        pieces[suite.select.format(id=quote(name), file=quote(file), name=quote(rest or file))] = None
    joined = suite.joined.join(pieces)
    return suite.test.replace("{tests}", joined if suite.joined == " " or not joined else shlex.quote(joined))


def _parts(suite: Suite, selection: Sequence[str] | None) -> list[Sequence[str] | None]:
    """The selection in pieces that a command line can hold."""
    if selection is None or "{tests}" not in suite.test:
        return [selection]
    parts: list[Sequence[str] | None] = []
    piece: list[str] = []
    size = 0
    for name in selection:
        if piece and size + len(name) > _MOST_ARGUMENTS:
            parts.append(piece)
            piece, size = [], 0
        piece.append(name)
        size += len(name) + len(suite.select) + 8
    return [*parts, piece]


async def run_suite(
    shell: Shell,
    suite: Suite,
    *,
    selection: Sequence[str] | None = None,
    fail_fast: bool = False,
    timeout_s: float | None = None,
    built: bool = False,
    raws: list[Raw] | None = None,
) -> TestReport:
    """Build, run all tests or the `selection` of test ids, and read the results.

    built: nothing has changed since this sandbox built it, so nothing is built again.
    raws: gets what each test command left.
    fail_fast: nothing is run behind a part of the selection that failed; a command itself runs to its end.
    timeout_s: of the whole run, build included (None: the suite's own).
    A build that fails makes every selected test an "error"; so is a selected test that the results do not name.
    Raises ValueError for an empty selection and an unknown reader, SandboxDied when the sandbox itself is gone.
    """
    if selection is not None and not selection:
        raise ValueError("selection is empty: nothing would run; pass None to run every test")
    reader(suite.reader)
    left_s = suite.timeout_s if timeout_s is None else timeout_s
    spent_s, broken = (0.0, None) if built else await build_suite(shell, suite, selection, left_s)
    if broken is not None:
        return broken
    reports: list[TestReport] = []
    for part in _parts(suite, selection):
        report, raw = await _run_part(shell, suite, part, left_s - spent_s)
        if raws is not None:
            raws.append(raw)
        spent_s += report.wall_s
        reports.append(report)
        if fail_fast and not report.ok:
            break
    return replace(_merged(reports, selection), wall_s=spent_s)


async def build_suite(
    shell: Shell, suite: Suite, selection: Sequence[str] | None, timeout_s: float
) -> tuple[float, TestReport | None]:
    """The build alone: the seconds it took, and the report of one that failed."""
    spent_s = 0.0
    for line in suite.build:
        done = await _exec(shell, suite, line, timeout_s - spent_s)
        spent_s += done.wall_s
        if not done.ok:
            return spent_s, _unbuilt(done, line, selection)
    return spent_s, None


async def _exec(shell: Shell, suite: Suite, line: str, timeout_s: float) -> ExecResult:
    if timeout_s <= 0.05:
        return ExecResult(exit_code=None, stdout=b"", stderr=b"", wall_s=0.0, timed_out=True)
    env = {**_ENV, **suite.env}
    return await shell.exec(["sh", "-c", line], env=env, timeout_s=timeout_s, output_bytes=_OUTPUT_BYTES)


async def _run_part(
    shell: Shell, suite: Suite, part: Sequence[str] | None, timeout_s: float
) -> tuple[TestReport, Raw]:
    stale = await _result_files(shell, suite)
    for start in range(0, len(stale), 200):
        await shell.exec(["rm", "-f", "--", *(f"./{path}" for path in stale[start : start + 200])])
    result = await _exec(shell, suite, command_of(suite, part), timeout_s)
    files = {path: await shell.read(path) for path in await _result_files(shell, suite)}
    raw = Raw(result.stdout, result.stderr, files, result.exit_code, await _workdir(shell))
    read = Results() if suite.results and not files else reader(suite.reader).read(raw)
    return _report(suite, result, read, part), raw


async def _workdir(shell: Shell) -> str:
    return (await shell.exec(["pwd"])).stdout.decode("utf-8", "replace").strip()


async def _result_files(shell: Shell, suite: Suite) -> list[str]:
    """The regular files below the workdir that the suite's `results` names, in order."""
    if not suite.results:
        return []
    plain = re.split(r"[*?\[]", suite.results, maxsplit=1)[0]
    fixed = plain if plain == suite.results else plain.rpartition("/")[0] or "."
    size = f"-{_MOST_RESULT_MIB * 1024}k"
    found = await shell.exec(["find", f"./{fixed}", "-type", "f", "-size", size], output_bytes=8 << 20)
    paths = [str(PurePosixPath(line)) for line in found.stdout.decode("utf-8", "surrogateescape").splitlines()]
    return sorted(path for path in set(paths) if matches(path, suite.results))[:_MOST_FILES]


def _unbuilt(built: ExecResult, line: str, selection: Sequence[str] | None) -> TestReport:
    """What a failed build leaves: every selected test is an error that says so."""
    said = _build_error(built)
    why = f"the build {'was stopped at its deadline' if built.timed_out else 'failed'}: {line[:60]}: {said}"
    return TestReport(
        outcomes=dict.fromkeys(selection or (), "error"),
        errors=dict.fromkeys(selection or (), why),
        collection_errors={"build": why},
        exit_code=built.exit_code,
        timed_out=built.timed_out,
        out_of_memory=built.out_of_memory,
        doubt=why,
        wall_s=built.wall_s,
        stderr=built.stderr.decode("utf-8", "replace")[-2000:],
    )


def _build_error(built: ExecResult) -> str:
    """The first line of a build's output that a compiler calls an error, else the last one."""
    lines = [line for line in built.text.splitlines() if line.strip()]
    marked = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    return one_line((marked or lines[-1:] or [f"exit code {built.exit_code}"])[0])


def _doubt(suite: Suite, result: ExecResult, read: Results) -> str:
    """Why the results are not confirmed; "" when output, results and exit code agree."""
    bad = bool(_failures(read) or read.broken)
    if result.timed_out:
        return "the run was killed at its deadline"
    if result.out_of_memory:
        return "the run was killed for using too much memory"
    if not read.outcomes:
        return f"no result was found (exit code {result.exit_code}{': ' + read.problem if read.problem else ''})"
    if read.problem:
        return read.problem
    if result.lost_bytes[0] and not suite.results:
        return f"{result.lost_bytes[0]} bytes of the output are lost"
    ended = result.exit_code  # mocha's is the number of failures
    if ended is None or ended < 0 or (ended > 128 and ended != min(255, _failures(read))):
        return f"the test command ended with {result.exit_code}"
    if (result.exit_code == 0) == bad:
        return f"exit code {result.exit_code} contradicts the results ({'failures' if bad else 'no failure'})"
    return ""


def _failures(read: Results) -> int:
    return sum(outcome in ("failed", "error") for outcome in read.outcomes.values())


def _report(suite: Suite, result: ExecResult, read: Results, selection: Sequence[str] | None) -> TestReport:
    doubt = _doubt(suite, result, read)
    outcomes = {name: outcome for name, outcome in read.outcomes.items() if name not in suite.deselect}
    errors = dict(read.errors)
    if selection is not None:
        outcomes = _selected(outcomes, errors, selection, read, doubt)
    return TestReport(
        outcomes=outcomes,
        errors={name: errors[name] for name in outcomes if name in errors},
        collection_errors=read.broken,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        out_of_memory=result.out_of_memory,
        doubt=doubt,
        seconds={name: read.seconds[name] for name in outcomes if name in read.seconds},
        wall_s=result.wall_s,
        stderr=result.stderr.decode("utf-8", "replace")[-2000:],
    )


def _selected(
    outcomes: dict[str, Outcome],
    errors: dict[str, str],
    selection: Sequence[str],
    read: Results,
    doubt: str,
) -> dict[str, Outcome]:
    """The selected tests alone; one that the results do not name is an error."""
    found: dict[str, Outcome] = {}
    for name in selection:
        found[name] = outcomes.get(name, "error")
        if name not in outcomes:
            of_file = read.broken.get(name.partition("::")[0])
            errors[name] = of_file or doubt or next(iter(read.broken.values()), "") or "not run: no such test"
    return found


def _merged(reports: Sequence[TestReport], selection: Sequence[str] | None) -> TestReport:
    """One report of the parts; what no part ran is an error."""
    last = reports[-1]
    if len(reports) == 1:
        return last
    outcomes = {name: outcome for report in reports for name, outcome in report.outcomes.items()}
    errors = {name: line for report in reports for name, line in report.errors.items()}
    for name in selection or ():
        if name not in outcomes:
            outcomes[name], errors[name] = "error", "not run: an earlier part failed"
    return replace(
        last,
        outcomes=outcomes,
        errors=errors,
        collection_errors={key: line for report in reports for key, line in report.collection_errors.items()},
        seconds={name: took for report in reports for name, took in report.seconds.items()},
        timed_out=any(report.timed_out for report in reports),
        out_of_memory=any(report.out_of_memory for report in reports),
        doubt=next((report.doubt for report in reports if report.doubt), ""),
    )
