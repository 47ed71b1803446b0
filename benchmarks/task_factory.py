"""How fast one process makes validated code-repair tasks, and which operators give them.

    python benchmarks/task_factory.py --package toolz --count 200 --out result.json

The clock starts with a cold cache of sandboxes and includes the baseline runs, the search for candidates and all
validation; fetching the source distribution is set-up and is not included. The peer's figure for the same
package (SWE-smith 0.0.9, its 13 procedural operators, one run each, no sandbox): about 2,350 valid tasks an hour
per process, 56.7 % of candidates valid.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from pathlib import Path

from envgym_environments.code_repair.cli import yield_by_operator, yield_by_package
from envgym_environments.code_repair.factory import Plan, Yield, make_tasks
from envgym_environments.code_repair.sources import packages, source_tree

from envgym.registry import make_backend


def facts() -> dict[str, object]:
    """What the figures depend on."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 2),
    }


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", action="append", default=None)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--out", "--json", type=Path, default=None)
    parser.add_argument("--quick", action="store_true", help="five tasks of one package")
    options = parser.parse_args()
    if options.quick:
        options.package, options.count = ["inflection"], 5
    machine, yields, medians = facts(), {}, {}
    for name in options.package or ["toolz"]:
        plan = Plan(per_package=options.count, seed=options.seed)
        yields[name], medians[name] = asyncio.run(measure(name, plan, options.backend))
    result = {
        "benchmark": "task_factory",
        "machine": machine,
        "packages": [row | {"median_failing": medians[str(row["package"])]} for row in yield_by_package(yields)],
        "operators": yield_by_operator(yields),
    }
    text = json.dumps(result, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
