"""Run the same tests under other conditions: order, hash seed, time zone, date, a busy machine.

A condition that a process takes from its environment is run in a fresh interpreter instead of a warm one. The
network is never there. Whether a condition really reached the tests is tested, not assumed; the date is shifted by
libfaketime where the host has it (`clock_library`), else not at all, and certificates say so.
"""

import os
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from envgym.sandbox import Shell
from envgym_environments.code_repair.runner import Layout, TestReport, run_tests

__all__ = [
    "PER_PACKAGE",
    "PER_TASK",
    "Condition",
    "Seen",
    "applied",
    "busy_machine",
    "clock_library",
    "disagreeing",
    "order_variables",
    "run_under",
    "shifted_date",
]

Seen = tuple[str, bool]
"""The condition of a run, and whether every test did in it what a task's lists say."""

_PLACE = "/tmp/envgym-conditions"  # below the sandbox's own root
_PLUGIN = "envgym_order"
_SHUFFLE = """import os, random

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.nodeid)  # however they were collected: a seed is one order
    random.Random(int(os.environ["ENVGYM_ORDER"])).shuffle(items)
    if os.environ["ENVGYM_REVERSE"]:
        items.reverse()
"""
_BUSY = "i=0; while [ $i -lt 200000000 ]; do i=$((i+1)); done"  # minutes, where nobody ends it
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Condition:
    """What is different from a plain run.

    order: seed of the order of all tests, None for their own; reverse: that order backwards. hash_seed: of `hash`
    for text. zone: a POSIX time zone. later_s: by how much the date is later. busy: processes that compute beside
    the tests.
    """

    name: str
    order: int | None = None
    reverse: bool = False
    hash_seed: int = 0
    zone: str = "UTC"
    later_s: int = 0
    busy: int = 0

    @property
    def fresh(self) -> bool:
        """Whether it needs an interpreter of its own."""
        return bool(self.order is not None or self.hash_seed or self.zone != "UTC" or self.later_s)


PER_PACKAGE = (
    Condition("shuffled order", order=1),
    Condition("that order reversed, other hash seed", order=1, reverse=True, hash_seed=4242),
    Condition("other time zone and date", zone="NPT-5:45", later_s=217 * _DAY_S + 11 * 3600),
    Condition("busy machine", busy=os.cpu_count() or 2),
)
"""What the whole suite of an unbroken package must pass, besides plain runs.

An order and its reverse have every two tests both ways round.
"""

PER_TASK = (
    Condition(
        "shuffled order, other hash seed, time zone and date, busy machine",
        order=3,
        hash_seed=77,
        zone="NST3:30",
        later_s=400 * _DAY_S,
        busy=os.cpu_count() or 2,
    ),
)
"""Under what the covering tests of a task must do the same as in plain runs."""


def clock_library() -> str | None:
    """Where libfaketime lies (Debian's package of that name), or None where this host does not have it."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return str(found[0]) if found else None


def applied(
    condition: Condition, *, order: bool = True, hash_seed: bool = True, date: bool | None = None
) -> Condition | None:
    """What of a condition reaches tests of which only so much can be changed, under a name that says no more.

    date: whether it can be shifted (None: where this host can). None where nothing of it reaches them.
    """
    later = clock_library() is not None if date is None else date
    left = replace(
        condition,
        order=condition.order if order else None,
        reverse=condition.reverse and order,
        hash_seed=condition.hash_seed if hash_seed else 0,
        later_s=condition.later_s if later else 0,
    )
    if left == condition:
        return condition
    changed = {
        "order": left.order is not None,
        "hash seed": left.hash_seed != 0,
        "time zone": left.zone != "UTC",
        "date": left.later_s != 0,
    }
    parts = [name for name, there in changed.items() if there]
    said = [f"other {' and '.join(parts)}"] * bool(parts) + ["busy machine"] * bool(left.busy)
    return replace(left, name=", ".join(said)) if said else None


def _variables(condition: Condition) -> dict[str, str]:
    return {"PYTHONHASHSEED": str(condition.hash_seed), "TZ": condition.zone} | shifted_date(condition.later_s)


async def order_variables(shell: Shell, seed: int, *, reverse: bool) -> dict[str, str]:
    """The variables by which pytest takes its tests in the order of this seed. The plugin stays in ``/tmp``."""
    await shell.write(f"{_PLACE}/{_PLUGIN}.py", _SHUFFLE.encode())
    order = {"ENVGYM_ORDER": str(seed), "ENVGYM_REVERSE": "1" if reverse else ""}
    return {**order, "PYTEST_PLUGINS": _PLUGIN, "PYTHONPATH": _PLACE}


def shifted_date(later_s: int) -> dict[str, str]:
    """The variables by which a process sees another date; none where the host cannot shift it, or by nothing."""
    library = clock_library()
    if not later_s or not library:
        return {}
    return {
        "LD_PRELOAD": library,
        "FAKETIME": f"+{later_s}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


@asynccontextmanager
async def busy_machine(shell: Shell, count: int) -> Any:
    """So many processes that compute, as long as the context lasts."""
    started = [await shell.start(["sh", "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for name in started:
            await shell.signal(name, 9)


async def run_under(shell: Shell, layout: Layout, condition: Condition, **options: Any) -> TestReport:
    """`run_tests` with these options under a condition. The files it needs stay in the sandbox's ``/tmp``."""
    env = _variables(condition) if condition.fresh else None
    if condition.order is not None:
        env = {**(env or {}), **await order_variables(shell, condition.order, reverse=condition.reverse)}
        drawn = np.random.default_rng(condition.order).permutation(np.array(layout.tests, dtype=object))
        files = tuple(map(str, drawn))
        layout = layout.model_copy(update={"tests": files[::-1] if condition.reverse else files})
    if condition.busy and options.get("timeout_s"):
        options["timeout_s"] = options["timeout_s"] * (1 + condition.busy)
    async with busy_machine(shell, condition.busy):
        return await run_tests(shell, layout, env=env, **options)


def disagreeing(runs: Sequence[tuple[str, TestReport]], tests: Sequence[str]) -> dict[str, str]:
    """Of `tests`, those that did not do the same in every (condition, run) -> what they did instead, and where."""
    (_, first), *others = runs
    found: dict[str, str] = {}
    for name, report in others:
        for test in tests:
            expected, got = first.outcomes.get(test), report.outcomes.get(test)
            if got != expected and test not in found:
                error = report.errors.get(test) or first.errors.get(test, "")
                found[test] = f"{got or 'not run'} under {name!r}, {expected or 'not run'} before: {error[:120]}"
    return found
