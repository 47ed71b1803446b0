"""How fast one process makes validated and certified code-repair tasks, and which operators give them.

    python benchmarks/task_factory.py --package toolz --count 200 --certified 60 --out result.json

The clock starts with a cold cache of sandboxes and includes the baseline runs, the search for candidates and all
validation; fetching the source distribution is set-up and is not included. The peer's figure for the same
package (SWE-smith 0.0.9, its 13 procedural operators, one run each, no sandbox): about 2,350 valid tasks an hour
per process, 56.7 % of candidates valid. Certified tasks were also run in another order, with another hash seed,
in another time zone and (where libfaketime is) on another date; the package's suite beside busy processes too.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _harness import facts, scratch_folder
from envgym_environments.code_repair.cli import yield_by_operator, yield_by_package
from envgym_environments.code_repair.conditions import clock_library
from envgym_environments.code_repair.factory import Plan, Yield, make_tasks
from envgym_environments.code_repair.sources import layout_of, packages, source_tree

from envgym.registry import make_backend

BAR_PER_HOUR = 2000
"""Valid tasks an hour of one process, on toolz."""

_CERTIFIED = ["toolz", "itsdangerous", "voluptuous"]
CERTIFIED_BAR_PER_HOUR = 500
"""Certified tasks an hour on two cores: 1,000 in two hours."""


def floor_per_hour(name: str) -> float:
    """Runs an hour of what no check can do without: one plain pytest process over the unbroken suite.

    A valid task needs more than one run, a rejected one too, so this rate can only be reached by running less than
    whole suites in processes that need not start.
    """
    package = next(one for one in packages() if one.name == name)
    tree = source_tree(package)
    layout = layout_of(package, tree)
    times = []
    with scratch_folder() as scratch:
        copy = shutil.copytree(tree, scratch / "tree")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir=."]
        skipped = [f"--deselect={one}" for one in layout.deselect]
        for _ in range(5):
            began = time.perf_counter()
            path = {"PYTHONPATH": str(copy / layout.source_root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
            subprocess.run(
                [*command, *skipped, *layout.tests],
                cwd=copy,
                env=os.environ | path,
                check=True,
                capture_output=True,
            )
            times.append(time.perf_counter() - began)
    return 3600.0 / statistics.median(times)


async def measure(name: str, plan: Plan, backend_name: str) -> tuple[Yield, int]:
    """The yield of one package and the number of tests failing in the median task."""
    package = next(one for one in packages() if one.name == name)
    source_tree(package)
    counts, failing = Yield(), []
    began = time.perf_counter()
    async with make_backend(backend_name) as backend:
        async for task in make_tasks(package, backend, plan, counts=counts):
            tests = task.metadata["fail_to_pass"]
            failing.append(len(tests) if isinstance(tests, list) else 0)
    counts.seconds = time.perf_counter() - began
    return counts, sorted(failing)[len(failing) // 2] if failing else 0


def certified(names: list[str], count: int, options: argparse.Namespace) -> dict[str, Any]:
    """Certified tasks an hour over some packages, baselines under all conditions included."""
    rows = []
    for name in names:
        plan = Plan(per_package=count, seed=options.seed, certify=True)
        counts, _ = asyncio.run(measure(name, plan, options.backend))
        rows += yield_by_package({name: counts})
    seconds = sum(float(row["seconds"]) for row in rows)
    made = sum(int(row["tasks"]) for row in rows)
    return {
        "packages": rows,
        "tasks": made,
        "seconds": seconds,
        "per_hour": round(made / seconds * 3600) if seconds else 0,
        "bar_per_hour": CERTIFIED_BAR_PER_HOUR,
        "date_shifted": clock_library() is not None,
    }


def _met(plain: dict[str, Any], several: dict[str, Any] | None) -> bool:
    made = several is None or int(several["per_hour"]) >= CERTIFIED_BAR_PER_HOUR
    return bool(made and int(plain["per_hour"]) >= BAR_PER_HOUR)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", action="append", default=None)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--certified", type=int, default=40, help="certified tasks of each package; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--out", "--json", type=Path, default=None)
    parser.add_argument("--quick", action="store_true", help="five tasks of one package")
    options = parser.parse_args()
    if options.quick:
        options.package, options.count, options.certified = ["inflection"], 5, 3
    yields, medians = {}, {}
    for name in options.package or ["toolz"]:
        plan = Plan(per_package=options.count, seed=options.seed)
        yields[name], medians[name] = asyncio.run(measure(name, plan, options.backend))
    rates = {}
    for row in yield_by_package(yields):
        floor = floor_per_hour(str(row["package"]))
        rates[str(row["package"])] = row | {
            "median_failing": medians[str(row["package"])],
            "suite_runs_per_hour": round(floor),
            "ratio": round(float(row["per_hour"]) / floor, 3),
        }
    for name, row in rates.items():
        runs = row["suite_runs_per_hour"]
        print(f"{name}: {row['per_hour']} valid tasks an hour, {row['ratio']} of {runs} bare suite runs")
    several = certified(options.package or _CERTIFIED, options.certified, options) if options.certified else None
    if several is not None:
        print(f"certified: {several['per_hour']} tasks an hour over {len(options.package or _CERTIFIED)} packages")
    result = {
        "benchmark": "task_factory",
        "quick": options.quick,
        "met": None if options.quick or "toolz" not in rates else _met(rates["toolz"], several),
        "bar_per_hour": BAR_PER_HOUR,
        "machine": facts(),
        "packages": list(rates.values()),
        "operators": yield_by_operator(yields),
        "certified": several,
    }
    text = json.dumps(result, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
