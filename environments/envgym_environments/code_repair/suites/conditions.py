"""Run a suite's commands under other conditions, and the certificate of a task that was run so.

A condition reaches the tests by variables: the time zone always, the order where the runner takes one (go and
pytest do, a suite says it of others), the date by a library, or for Go, whose programs ask the kernel past any
library, by a standard package that is later (see `go_clock`). What reaches no test is not run and not named. The
build is made as always; the network is never there.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from envgym.sandbox import Sandbox
from envgym.task import Task
from envgym_environments.code_repair.certify import Certificate, counted, with_certificate
from envgym_environments.code_repair.conditions import (
    Condition,
    Seen,
    applied,
    busy_machine,
    clock_library,
    order_variables,
    shifted_date,
)
from envgym_environments.code_repair.runner import TestReport
from envgym_environments.code_repair.suites.go_clock import go_clock, knows_clock
from envgym_environments.code_repair.suites.run import build_suite, run_suite
from envgym_environments.code_repair.suites.suite import Suite

__all__ = [
    "ON_PROJECT",
    "ON_TASK",
    "dates",
    "on_suite",
    "programs",
    "programs_of",
    "run_suite_under",
    "shifts_date",
    "suite_certificate",
]

_DAY_S = 86_400

ON_PROJECT = (
    Condition("other order and hash seed", order=7, hash_seed=4242),
    Condition("that order reversed", order=7, reverse=True),
    Condition("other time zone and date", zone="NPT-5:45", later_s=217 * _DAY_S + 11 * 3600),
    Condition("busy machine", busy=os.cpu_count() or 2),
)
"""What the suite of an unbroken project must pass, besides plain runs, as far as it reaches that suite.

An order and its reverse have every two tests both ways round; where a runner cannot reverse one, another is drawn.
"""

ON_TASK = (
    Condition(
        "other order and hash seed and time zone and date, busy machine",
        order=3,
        hash_seed=77,
        zone="NST3:30",
        later_s=400 * _DAY_S,
        busy=os.cpu_count() or 2,
    ),
)
"""Under what a broken project must do the same as in plain runs."""


_BY_READER = {"go-json": {"GOFLAGS": "-shuffle={seed}"}}
"""What the runners behind these readers take of a variable, in every suite."""


def _by_pytest(suite: Suite) -> bool:
    return suite.reader.startswith("pytest") and not suite.shuffle


def on_suite(conditions: Sequence[Condition], suite: Suite, *, date: bool = True) -> tuple[Condition, ...]:
    """What of these conditions reaches the suite's tests, each named by no more than that.

    date: whether they can be shown another date where they run (`dates`).
    """
    order = bool(suite.shuffle) or suite.reader in _BY_READER or _by_pytest(suite)
    reverses = _by_pytest(suite) or any("{reverse}" in value for value in suite.shuffle.values())
    conditions = [one if reverses or not one.reverse else _drawn_anew(one) for one in conditions]
    options = {"order": order, "hash_seed": suite.language == "python", "date": date and shifts_date(suite)}
    return tuple(left for one in conditions if (left := applied(one, **options)) is not None)


def _drawn_anew(condition: Condition) -> Condition:
    """Another order in the place of the reverse of one."""
    assert condition.order is not None
    return replace(condition, name="a third order", order=condition.order + 1, reverse=False)


async def _order(sandbox: Sandbox, suite: Suite, seed: int, reverse: bool) -> dict[str, str]:
    if _by_pytest(suite):
        return await order_variables(sandbox, seed, reverse=reverse)
    given, said = suite.shuffle or _BY_READER.get(suite.reader, {}), "1" if reverse else ""
    return {name: value.replace("{seed}", str(seed)).replace("{reverse}", said) for name, value in given.items()}


async def _date(sandbox: Sandbox, suite: Suite, later_s: int) -> dict[str, str]:
    return await go_clock(sandbox, suite, later_s) if suite.language == "go" else shifted_date(later_s)


def _joined(name: str, given: str, value: str) -> str:
    """A variable that the suite has too keeps what it says: lists of places and of flags are continued."""
    between = {"PYTHONPATH": ":", "PYTEST_PLUGINS": ",", "GOFLAGS": " ", "JAVA_TOOL_OPTIONS": " "}.get(name)
    return f"{given}{between}{value}" if given and between else value


def shifts_date(suite: Suite) -> bool:
    """Whether the suite's tests can be shown another date: by the host's library, Go's where `go` compiles them."""
    if suite.language == "go":
        return re.search(r"\bgo test\b", suite.test) is not None
    return clock_library() is not None


async def dates(sandbox: Sandbox, suite: Suite) -> bool:
    """Whether the suite's tests can be shown another date in this sandbox: `go` may not be found, or be unknown."""
    return shifts_date(suite) and (suite.language != "go" or await knows_clock(sandbox, suite))


async def run_suite_under(
    sandbox: Sandbox,
    suite: Suite,
    condition: Condition,
    *,
    timeout_s: float | None = None,
    built: bool = False,
    **options: Any,
) -> TestReport:
    """One whole run of a suite under a condition; built: nothing has changed since it was built.

    options: as of `run_suite`.
    """
    limit_s = suite.timeout_s if timeout_s is None else timeout_s
    if not built:
        _, broken = await build_suite(sandbox, suite, None, limit_s)
        if broken is not None:
            return broken
    env = {**suite.env, "TZ": condition.zone}
    added = []
    if condition.order is not None:
        added.append(await _order(sandbox, suite, condition.order, condition.reverse))
    if condition.later_s and shifts_date(suite):
        added.append(await _date(sandbox, suite, condition.later_s))
    for name, value in (item for variables in added for item in variables.items()):
        env[name] = _joined(name, env.get(name, ""), value)
    if suite.language == "python":
        env["PYTHONHASHSEED"] = str(condition.hash_seed)
    changed = suite.model_copy(update={"env": env})
    async with busy_machine(sandbox, condition.busy):
        return await run_suite(sandbox, changed, timeout_s=limit_s * (1 + condition.busy), built=True, **options)


async def programs(sandbox: Sandbox, names: Sequence[str]) -> dict[str, str]:
    """What the programs that a project needs say of their version."""
    found = {}
    for name in names:
        if "/" not in name:
            said = await sandbox.exec(["sh", "-c", f"{name} --version 2>&1 || {name} version 2>&1"])
            found[name] = next(iter([*said.text.splitlines(), ""]))[:80]
    return found


_TOOLCHAIN = {
    "python": "python3", "javascript": "node", "typescript": "node", "go": "go", "rust": "rustc", "java": "javac",
    "c": "cc", "c++": "c++",
}  # fmt: skip


async def programs_of(sandbox: Sandbox, suite: Suite) -> dict[str, str]:
    """What the compiler or the interpreter of a suite's language says of its version."""
    return await programs(sandbox, [_TOOLCHAIN[suite.language]])


def suite_certificate(
    task: Task,
    suite: Suite,
    *,
    gold: Sequence[Seen],
    untouched: Sequence[Seen],
    versions: Mapping[str, str],
    seconds: float,
    date: bool,
) -> Task:
    """The task with the certificate of these runs; date: whether some were of another date."""
    certificate = Certificate(
        gold=counted(gold),
        untouched=counted(untouched),
        quarantined=dict(suite.deselect),
        date_shifted=date,
        versions=dict(versions),
        seconds=round(seconds, 3),
        digest="",
    )
    return with_certificate(task, certificate)
