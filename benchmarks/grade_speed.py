"""How long a grade takes, fresh sandboxes included, beside a fork-server floor and plain fresh pytest.

    python benchmarks/grade_speed.py --quick

The task is more-itertools with five tests that have to pass; the submission is graded as passing (the five tests,
their twins, the whole suite) and as failing (the five tests). The floor forks a process that has pytest and what it
needs, nothing of the package, loaded, and runs the same tests there without a sandbox, canary, twin or supervisor:
the five, and for a passing grade the whole suite in a second fork. Plain pytest starts an interpreter for each.
"""

import asyncio
import gc
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from _harness import Row, finish, options, scratch_folder
from envgym_environments.code_repair import guest
from envgym_environments.code_repair.baseline import package_world
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.sources import layout_of, packages, source_tree

from envgym.registry import make_backend
from envgym.sandbox import SandboxBackend
from envgym.task import Task

FIVE = ("ChunkedTests::test_even", "FirstTests::test_many", "IlenTests::test_ilen", "TakeTests::test_simple_take",
        "FlattenTests::test_basic_usage")  # fmt: skip
LOADED = guest.__name__
"""Importing it loads pytest, its plugins and what they need: the floor's forks have these, as a warm world has."""
PLAIN = ["-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-c", os.devnull, "--rootdir=."]
BAR = 1.2


def ids(tree: Path, files: tuple[str, ...]) -> list[str]:
    """The five tests, each in the file that has it."""
    found = []
    for name in FIVE:
        holds = next(file for file in files if f"class {name.partition('::')[0]}(" in (tree / file).read_text())
        found.append(f"{holds}::{name}")
    return found


def forked(tree: Path, arguments: list[str]) -> None:
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


def fresh(tree: Path, arguments: list[str]) -> None:
    """One run of plain pytest; the first leaves the byte code that later ones, and the floor, find."""
    path = {"PYTHONPATH": str(tree), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "pytest", *PLAIN, *arguments]
    subprocess.run(command, cwd=tree, env=os.environ | path, check=True, capture_output=True)


def timed(run: Callable[[], object]) -> float:
    """Milliseconds of a call."""
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) * 1e3


async def graded(task: Task, backend: SandboxBackend, patch: str, resolved: float) -> float:
    """Milliseconds of a grade that nobody remembers."""
    grader = CodeRepairGrader(backend, memo=Memo())
    began = time.perf_counter()
    found = await grader.grade(task, patch)
    spent = (time.perf_counter() - began) * 1e3
    if found.channels["resolved"] != resolved:
        raise RuntimeError(f"the grade should have resolved {resolved}, but is {found.channels}")
    return spent


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
    good = make_patch({path: source}, {path: source + "# graded\n"})
    bad = make_patch({path: source}, {path: source + "def take(*a): return []\ndef flatten(*a): return []\n"})
    skipped = [f"--deselect={name}" for name in layout.deselect]
    times: dict[str, list[float]] = {}
    with scratch_folder() as scratch:
        copy = shutil.copytree(tree, scratch / "tree")
        whole = [*skipped, *layout.tests]
        fresh(copy, whole)
        async with make_backend("auto") as backend:
            for _ in range(3 if given.quick else 6):
                for name, spent in (
                    ("failing", await graded(task, backend, bad, 0.0)),
                    ("failing floor", timed(lambda: forked(copy, wanted))),
                    ("failing fresh", timed(lambda: fresh(copy, wanted))),
                    ("passing", await graded(task, backend, good, 1.0)),
                    ("passing floor", timed(lambda: (forked(copy, wanted), forked(copy, whole)))),
                    ("passing fresh", timed(lambda: (fresh(copy, wanted), fresh(copy, whole)))),
                ):
                    times.setdefault(name, []).append(spent)
    median = {name: statistics.median(values[1:]) for name, values in times.items()}
    rows = [
        Row(f"{kind} grade", median[kind], median[f"{kind} {other}"], said, "ms", bar if not given.quick else None)
        for kind in ("failing", "passing")
        for other, said, bar in (("floor", "fork server, no sandbox", BAR), ("fresh", "plain fresh pytest", None))
    ]
    finish("grade_speed", rows, given, times=times)


if __name__ == "__main__":
    asyncio.run(main())
