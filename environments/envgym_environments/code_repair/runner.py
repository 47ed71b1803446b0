"""Run a package's tests in a sandbox and bring back structured results.

`run_tests` is the one way in. What the tests did is data, whatever it was: a hang, a crash, a lie. A result that
is not confirmed by the process's own exit code is never a pass. It does not judge a repair (see `grade`).
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, JsonValue

from envgym.sandbox import WARM_PYTHON, ExecResult, Shell
from envgym.task import Task
from envgym_environments.code_repair.boot import BOOT, Program
from envgym_environments.code_repair.disguise import Disguise
from envgym_environments.code_repair.report import Events, Outcome, Said, TestReport, read_said, report_of
from envgym_environments.code_repair.twins import Twins

__all__ = [
    "GUEST",
    "PRELOAD",
    "WORKDIR",
    "Graded",
    "Layout",
    "Outcome",
    "TestReport",
    "Trace",
    "run_graded",
    "run_tests",
    "run_twins",
]

GUEST = "envgym_environments.code_repair.guest"
"""The module that runs inside the sandbox: preloaded by a warm interpreter, else sent as source."""

PRELOAD = ("pytest", GUEST)
"""What a backend's warm interpreter should have imported (`World.preload`)."""

_PROGRAM = Program(("referee", "pristine", "session", "queued", "supervisor", "guest"))

WORKDIR = "/repo"
"""Where a package's tree lies inside the world."""

TEST_ENV = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
"""The environment variables of a world whose tests must repeat."""


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


async def run_tests(  # noqa: PLR0913  # one parameter per bound or condition
    shell: Shell,
    layout: Layout,
    *,
    selection: Sequence[str] | None = None,
    trace: Trace | None = None,
    fail_fast: bool = False,
    timeout_s: float | None = None,
    test_timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
) -> TestReport:
    """Run the package's tests, or the `selection` of test ids, in the shell's workdir.

    trace: also record which lines of the package each test executes (several times slower).
    fail_fast: stop at the first failure; tests that then do not run are "error" if they were selected.
    timeout_s: of the whole run (None: the sandbox's own). test_timeout_s: processor time of one test, which may
    wait four times as long, and longer by what it waited for a processor; reaching either fails that test. env:
    variables that a process takes when it starts, such as a hash seed: with any, a fresh interpreter runs the tests
    in the place of the warm one.
    Raises ValueError for an empty selection, SandboxDied when the sandbox itself is gone.
    """
    if selection is not None and not selection:
        raise ValueError("selection is empty: nothing would run; pass None to run every test")
    tests = layout.tests
    if selection is not None:
        wanted = {name.partition("::")[0] for name in selection}
        tests = tuple(name for name in layout.tests if name in wanted)
    if not tests:
        empty = ExecResult(exit_code=0, stdout=b"", stderr=b"", wall_s=0.0)
        return report_of(empty, Said(Events(exit=(5, "")), over=True), selection)
    stage = _stage(selection, graded=False)
    known = _known(layout, tests, trace=trace, fail_fast=fail_fast, test_timeout_s=test_timeout_s)
    result, said = await _play(shell, known, stage, timeout_s=timeout_s, env=env)
    return report_of(result, said, selection, fail_fast=fail_fast)


@dataclass(frozen=True, slots=True)
class Graded:
    """What a graded run found. void: why it is worth nothing ("" when it counts): a canary passed."""

    report: TestReport
    void: str = ""


async def run_graded(
    shell: Shell,
    layout: Layout,
    wanted: Sequence[str],
    disguise: Disguise | None = None,
    *,
    run_s: float,
    test_timeout_s: float,
) -> Graded:
    """Run the `wanted` tests in disguise, or every test undisguised; with secret canaries, see `referee`.

    run_s: limit of the run. The shell's sandbox must be one in which nothing ran before.
    """
    stage = _stage(None if disguise is None else wanted, graded=True, must=wanted, limit_s=run_s)
    if disguise is not None:
        stage |= {"texts": disguise.files, "words": disguise.words}
    known = _known(layout, layout.tests, test_timeout_s=test_timeout_s)
    result, said = await _play(shell, known, stage, timeout_s=10.0 + run_s)
    return Graded(report_of(result, said, stage["selection"]), said.void)


async def run_twins(
    shell: Shell, layout: Layout, wanted: Sequence[str], twins: Twins, *, run_s: float, test_timeout_s: float
) -> str:
    """Run tests that must fail in the place of the real ones: why these' passes are void, or "".

    A twin that was not seen to fail, whatever became of it, is a reason.

    The shell's sandbox must be one in which nothing ran before: what is run cannot tell that it is not the first.
    """
    for path, text in twins.files.items():
        await shell.write(path, text.encode("utf-8", "surrogatepass"))
    selection = [name for name in wanted if name.partition("[")[0] in twins.held]
    stage = _stage(selection, graded=False, twins=twins.held, limit_s=run_s)
    known = _known(layout, layout.tests, test_timeout_s=test_timeout_s)
    result, said = await _play(shell, known, stage, timeout_s=10.0 + run_s)
    report = report_of(result, said, selection)
    missed = [name for name in selection if report.outcomes[name] != "failed"]
    return said.void or report.doubt or (f"{missed[0]} did not fail although it was changed" if missed else "")


def _stage(
    selection: Sequence[str] | None,
    *,
    graded: bool,
    must: Sequence[str] = (),
    twins: Mapping[str, str] | None = None,
    limit_s: float | None = None,
) -> dict[str, Any]:
    chosen = None if selection is None else list(selection)
    return {"selection": chosen, "graded": graded, "must": list(must), "twins": twins, "limit_s": limit_s} | {
        "texts": {},
        "words": {},
    }


def _known(layout: Layout, tests: Sequence[str], *, trace: Trace | None = None, **given: Any) -> dict[str, Any]:
    """What tested processes may know."""
    return {
        "source_root": layout.source_root,
        "package": layout.package,
        "files": list(tests),
        "deselect": layout.deselect,
        "trace": None if trace is None else trace._asdict(),
        "fail_fast": False,
    } | given


async def _play(
    shell: Shell,
    known: dict[str, Any],
    stage: dict[str, Any],
    *,
    timeout_s: float | None,
    env: Mapping[str, str] | None = None,
) -> tuple[ExecResult, Said]:
    nonce = secrets.token_hex(16)
    stdin = _PROGRAM.input(known, {"nonce": nonce, "stage": stage})
    python = "python3" if env else WARM_PYTHON
    result = await shell.exec([python, "-c", BOOT], stdin=stdin, env=env, timeout_s=timeout_s)
    return result, read_said(result.stdout, nonce)
