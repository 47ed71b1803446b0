"""Run a suite's commands under other conditions, and the certificate of a task that was run so.

A condition reaches the tests by the variables that their runner reads: time zone and date always, the order and the
number of threads where the language's runner has a variable for it. Go's programs ask the kernel for the date, past
any library, so for them it is not shifted. The build is made as always; the network is never there.
"""

import os
from collections.abc import Mapping, Sequence

from envgym.sandbox import Sandbox
from envgym.task import Task
from envgym_environments.code_repair.certify import Certificate, with_certificate
from envgym_environments.code_repair.conditions import Condition, busy_machine, clock_library, shifted_date
from envgym_environments.code_repair.runner import TestReport
from envgym_environments.code_repair.suites.run import build_suite, run_suite
from envgym_environments.code_repair.suites.suite import Suite

__all__ = ["ON_PROJECT", "ON_TASK", "programs", "run_suite_under", "suite_certificate"]

_DAY_S = 86_400

ON_PROJECT = (
    Condition("other order or threads, where the runner has them", order=7, hash_seed=4242),
    Condition("other time zone and date", zone="NPT-5:45", later_s=217 * _DAY_S + 11 * 3600),
    Condition("busy machine", busy=os.cpu_count() or 2),
)
"""What the suite of an unbroken project must pass, besides plain runs."""

ON_TASK = (
    Condition(
        "other order, time zone and date at once", order=3, hash_seed=77, zone="NST3:30", later_s=400 * _DAY_S
    ),
)
"""Under what a broken project must do the same as in plain runs."""


def _order(suite: Suite, condition: Condition) -> dict[str, str]:
    if condition.order is None:
        return {}
    flags = suite.env.get("GOFLAGS", "")
    return {
        "go": {"GOFLAGS": f"{flags} -shuffle={condition.order}".strip()},
        "rust": {"RUST_TEST_THREADS": "1"},
        "c++": {"GTEST_SHUFFLE": "1", "GTEST_RANDOM_SEED": str(condition.order)},
    }.get(suite.language, {"PYTHONHASHSEED": str(condition.hash_seed)})


def shifts_date(suite: Suite) -> bool:
    """Whether this host can show the suite's tests another date."""
    return suite.language != "go" and clock_library() is not None


async def run_suite_under(
    sandbox: Sandbox, suite: Suite, condition: Condition, *, timeout_s: float | None = None, built: bool = False
) -> TestReport:
    """One whole run of a suite under a condition; built: nothing has changed since it was built."""
    limit_s = suite.timeout_s if timeout_s is None else timeout_s
    if not built:
        _, broken = await build_suite(sandbox, suite, None, limit_s)
        if broken is not None:
            return broken
    date = shifted_date(condition.later_s) if shifts_date(suite) else {}
    changed = suite.model_copy(
        update={"env": {**suite.env, "TZ": condition.zone, **_order(suite, condition), **date}}
    )
    async with busy_machine(sandbox, condition.busy):
        return await run_suite(sandbox, changed, timeout_s=limit_s * (1 + condition.busy), built=True)


async def programs(sandbox: Sandbox, names: Sequence[str]) -> dict[str, str]:
    """What the programs that a project needs say of their version."""
    found = {}
    for name in names:
        if "/" not in name:
            said = await sandbox.exec(["sh", "-c", f"{name} --version 2>&1 || {name} version 2>&1"])
            found[name] = next(iter([*said.text.splitlines(), ""]))[:80]
    return found


def suite_certificate(
    task: Task,
    suite: Suite,
    *,
    gold: Sequence[str],
    untouched: Sequence[str],
    versions: Mapping[str, str],
    seconds: float,
) -> Task:
    """The task with the certificate of these good runs, each named by its condition."""
    certificate = Certificate(
        gold=_counted(gold),
        untouched=_counted(untouched),
        quarantined=dict(suite.deselect),
        date_shifted=shifts_date(suite),
        versions=dict(versions),
        seconds=round(seconds, 3),
        digest="",
    )
    return with_certificate(task, certificate)


def _counted(names: Sequence[str]) -> dict[str, tuple[int, int]]:
    return {name: (names.count(name), names.count(name)) for name in dict.fromkeys(names)}
