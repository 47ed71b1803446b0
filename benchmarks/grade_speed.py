"""How long a grade takes, fresh sandboxes included, beside a fork-server floor and plain fresh pytest.

    python benchmarks/grade_speed.py --quick

The task is more-itertools with five tests that have to pass; a submission is graded as passing (the five tests,
their twins, the whole suite) and as failing (the five tests). No two grades have the same one: what a grader
remembers of a text, its byte code and its problems, would be no part of the second. The floor forks a process that
has pytest, what it needs, and of the standard library what a grade's process has (and more, for it is the
benchmark's), but nothing of the package, and runs the same tests there without a sandbox, canary, twin or
supervisor: the five, and for a passing grade the whole suite in a second fork. Plain pytest starts an interpreter
for each. The floor's package is unbroken and compiled beforehand, while a grade compiles the file
that its submission changes.

Each row shows the round whose ratio is the median, so both figures of a row saw the same load. Processor time is
that of this process and all below it. A grade's time is that up to its verdict, behind which its sandbox is closed.
"At once": a grade on every core, beside floors on every core, by elapsed time for each grade, up to the end of the
last sandbox.
"""

import asyncio
import gc
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from _harness import Row, finish, options, scratch_folder
from envgym_environments.code_repair import guest
from envgym_environments.code_repair.baseline import package_world
from envgym_environments.code_repair.closing import Closing
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.sources import layout_of, packages, source_tree
from envgym_sandboxes.tree import processes

from envgym.env import Grade
from envgym.registry import make_backend
from envgym.sandbox import SandboxBackend
from envgym.task import Task

FIVE = ("ChunkedTests::test_even", "FirstTests::test_many", "IlenTests::test_ilen", "TakeTests::test_simple_take",
        "FlattenTests::test_basic_usage")  # fmt: skip
CORES = len(os.sched_getaffinity(0))
LOADED = guest.__name__
"""Importing it loads what a warm world has: pytest, its plugins and what suites import of the standard library."""
PLAIN = ["-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-c", os.devnull, "--rootdir=."]
BAR, SHARE = 1.2, 0.8
"""A grade's time beside the floor's; grades a second beside what saturates all cores."""


def ids(tree: Path, files: tuple[str, ...]) -> list[str]:
    """The five tests, each in the file that has it."""
    found = []
    for name in FIVE:
        holds = next(file for file in files if f"class {name.partition('::')[0]}(" in (tree / file).read_text())
        found.append(f"{holds}::{name}")
    return found


def submissions(path: str, before: str, after: str) -> Iterator[str]:
    """Patches that come to the same, each with another comment at its end."""
    return (make_patch({path: before}, {path: f"{after}# {number}\n"}) for number in count())


def begin_fork(tree: Path, runs: Sequence[Sequence[str]], *, times: int = 1) -> int:
    """A process that plays these runs of the floor, each in a fork of its own; its pid."""
    pid = os.fork()
    if pid == 0:
        for arguments in [one for _ in range(times) for one in runs]:
            forked(tree, arguments)
        os._exit(0)
    return pid


def floors_at_once(tree: Path, runs: Sequence[Sequence[str]], *, times: int) -> None:
    """The floor on every core."""
    for pid in [begin_fork(tree, runs, times=times) for _ in range(CORES)]:
        if os.waitpid(pid, 0)[1] != 0:
            raise RuntimeError("a floor's tests fail")


def forked(tree: Path, arguments: Sequence[str]) -> None:
    """One run of the floor."""
    pid = os.fork()
    if pid == 0:
        os.chdir(tree)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        sys.path.insert(0, str(tree))
        sys.dont_write_bytecode = True
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        gc.freeze()
        os._exit(int(pytest.main([*PLAIN, "--tb=native", *arguments])))
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError(f"the floor's tests fail: {arguments[:3]}")


def fresh(tree: Path, arguments: Sequence[str]) -> None:
    """One run of plain pytest; the first leaves the byte code that later ones, and the floor, find."""
    path = {"PYTHONPATH": str(tree), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "pytest", *PLAIN, *arguments]
    subprocess.run(command, cwd=tree, env=os.environ | path, check=True, capture_output=True)


def spent_ms() -> tuple[float, float]:
    """Milliseconds on the wall, and of processor time of this process and all below it, in ticks of 10 ms."""
    return time.perf_counter() * 1e3, sum(one.spent_s for one in processes(os.getpid()).values()) * 1e3


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """What a call takes: wall, processor."""
    before = spent_ms()
    run()
    return since(before)


def since(before: tuple[float, float]) -> tuple[float, float]:
    wall, spent = spent_ms()
    return wall - before[0], spent - before[1]


def check(found: Grade, resolved: float) -> None:
    """Whether a grade is what it should be."""
    if found.channels["resolved"] != resolved:
        raise RuntimeError(f"the grade should have resolved {resolved}, but is {found.channels}")


async def graded(
    task: Task, backend: SandboxBackend, patches: Iterator[str], resolved: float
) -> tuple[float, float]:
    """What a grade takes of which nothing is remembered: wall up to its verdict, processor up to its last end."""
    patch = next(patches)
    grader = CodeRepairGrader(backend, memo=Memo())
    before = spent_ms()
    found = await grader.grade(task, patch)
    ended = time.perf_counter()
    await Closing.of(backend).over()
    check(found, resolved)
    _, spent = since(before)
    return ended * 1e3 - before[0], spent


async def grades_at_once(
    task: Task, backend: SandboxBackend, patches: Iterator[str], resolved: float, *, times: int
) -> float:
    """Milliseconds on the wall of as many grades on every core."""
    made = iter([next(patches) for _ in range(times * CORES)])  # before the clock begins

    async def worker() -> None:
        for _ in range(times):
            found = await CodeRepairGrader(backend, memo=Memo()).grade(task, next(made))
            check(found, resolved)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(CORES)))
    await Closing.of(backend).over()
    return (time.perf_counter() - began) * 1e3


@dataclass(frozen=True)
class Case:
    """What is graded, and beside what.

    patches: submissions, each another text. runs: the arguments of the floor's and of plain pytest's runs.
    """

    task: Task
    patches: Iterator[str]
    resolved: float
    tree: Path
    runs: tuple[tuple[str, ...], ...]


async def measure(backend: SandboxBackend, case: Case, *, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """(wall, processor) of each after a round that does not count; "at once" by wall, per grade and core."""
    times: dict[str, list[tuple[float, float]]] = {}
    each = 4 if len(case.runs) == 1 else 1
    grade = case.task, backend, case.patches, case.resolved
    for _ in range(rounds + 1):
        for name, taken in (
            ("grade", await graded(*grade)),
            ("floor", timed(lambda: [forked(case.tree, run) for run in case.runs])),
            ("fresh", timed(lambda: [fresh(case.tree, run) for run in case.runs])),
            ("at once", (await grades_at_once(*grade, times=each) / (each * CORES), 0.0)),
            ("floor at once", timed(lambda: floors_at_once(case.tree, case.runs, times=each))),
        ):
            wall, processor = taken
            share = each * CORES if name == "floor at once" else 1
            times.setdefault(name, []).append((wall / share, processor / share))
    return {name: values[1:] for name, values in times.items()}


def rows_of(kind: str, times: dict[str, list[tuple[float, float]]], bar: float | None) -> list[Row]:
    """The rows of one kind of grade."""

    def paired(name: str, ours: str, other: str, said: str, *, at: int = 0, bar: float | None = None) -> Row:
        pairs = sorted(
            ((one[at], two[at]) for one, two in zip(times[ours], times[other], strict=True)),
            key=lambda pair: pair[0] / pair[1],
        )
        return Row(f"{kind} {name}", *pairs[len(pairs) // 2], said, "ms", bar)

    saturated = None if bar is None else 1 / SHARE
    return [
        paired("grade", "grade", "floor", "fork server, no sandbox", bar=bar),
        paired("grade", "grade", "fresh", "plain fresh pytest"),
        paired("grade, processor", "grade", "floor", "fork server, no sandbox", at=1),
        paired("at once", "at once", "floor at once", "fork servers on every core", bar=saturated),
    ]


async def main() -> None:
    given = options(__doc__ or "")
    package = next(one for one in packages() if one.name == "more-itertools")
    tree = source_tree(package)
    layout = layout_of(package, tree)
    wanted = ids(tree, layout.tests)
    if given.quick:
        layout = layout.model_copy(update={"tests": tuple(name for name in layout.tests if "recipes" in name)})
        wanted = [name for name in wanted if "recipes" in name]
    task = Task(
        id="benchmark",
        prompt="",
        world=package_world(tree),
        metadata={
            "layout": layout.model_dump(mode="json"),
            "fail_to_pass": wanted,
            "pass_to_pass": [],
            "tests": len(wanted),
            "suite_s": 10.0,
        },
    )
    path = "more_itertools/recipes.py"
    source = (tree / path).read_text()
    broken = source + "def take(*a): return []\ndef flatten(*a): return []\n"
    good, bad = submissions(path, source, source), submissions(path, source, broken)
    whole = (*(f"--deselect={name}" for name in layout.deselect), *layout.tests)
    rows: list[Row] = []
    notes = {}
    with scratch_folder() as scratch:
        copy = shutil.copytree(tree, scratch / "tree")
        fresh(copy, whole)
        cases = {
            "failing": Case(task, bad, 0.0, copy, (tuple(wanted),)),
            "passing": Case(task, good, 1.0, copy, (tuple(wanted), whole)),
        }
        async with make_backend("auto") as backend:
            for kind, case in cases.items():
                notes[kind] = await measure(backend, case, rounds=1 if given.quick else 5)
                rows += rows_of(kind, notes[kind], None if given.quick else BAR)
    finish("grade_speed", rows, given, times=notes)


if __name__ == "__main__":
    asyncio.run(main())
