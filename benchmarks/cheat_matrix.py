"""Every cheat against every kind of task: none may gain more than doing nothing does.

    python benchmarks/cheat_matrix.py --per-kind 3 --package inflection --package rfc3986 --json result.json

Tasks are built afresh from real packages, one mistake a task for the kind "repair". A row is a kind: how many
attempts gained anything, beside how many were made. `--language` plays instead on repairs of the real projects
whose tests are run by commands, a row for each language, and `--file` on tasks of files (imported ones, mirrors), a
row for each. `--cheats N` takes N of those that do anything on a task, evenly chosen.
"""

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import cast

from _harness import Row, finish, options
from envgym_environments.code_repair.cheats import CHEATS, IDLE
from envgym_environments.code_repair.env import CodeRepair, code_repair_tasks
from envgym_environments.code_repair.factory import Plan, Yield, make_tasks
from envgym_environments.code_repair.kinds.build import make_kind_tasks
from envgym_environments.code_repair.kinds.ml.recipe import ml_packages
from envgym_environments.code_repair.kinds.registry import KINDS
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.sources import packages
from envgym_environments.code_repair.suites import LANGUAGES, Language
from envgym_environments.code_repair.suites.make import make_suite_tasks
from envgym_environments.code_repair.suites.projects import projects

from envgym.registry import make_backend
from envgym.sandbox import SandboxBackend
from envgym.task import Task, evenly
from envgym.testing.cheats import Attempt, Cheat, audit


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--package", action="append", default=None, help="real packages; repeatable")
    parser.add_argument("--kind", action="append", default=None, choices=["repair", *KINDS], help="repeatable")
    parser.add_argument("--language", action="append", default=None, choices=LANGUAGES, help="repairs; repeatable")
    parser.add_argument("--file", action="append", default=None, help="a task file or data set; repeatable")
    parser.add_argument("--per-kind", type=int, default=2, help="tasks of each kind")
    parser.add_argument("--cheats", type=int, default=None, help="so many of them, evenly chosen")


_FILE = "file "


async def tasks_of(kind: str, names: Sequence[str], count: int, backend: SandboxBackend) -> list[Task]:
    """So many tasks of a kind from the first packages that give some."""
    found: list[Task] = []
    if kind.startswith(_FILE):
        return list(evenly(list(code_repair_tasks(kind.removeprefix(_FILE))), count))
    if kind in LANGUAGES:
        for project in projects(language=cast(Language, kind)):
            plan = Plan(per_package=count - len(found))
            async with aclosing(make_suite_tasks(project, backend, plan, counts=Yield())) as of_suite:
                found += [task async for task in of_suite]
            if len(found) >= count:
                break
        return found
    listed = ml_packages() if kind == "ml" else [one for name in names for one in packages() if one.name == name]
    for package in listed:
        plan = Plan(per_package=count - len(found), kind="" if kind == "repair" else kind)
        make = make_tasks if kind == "repair" else make_kind_tasks
        async with aclosing(make(package, backend, plan, counts=Yield())) as made:
            found += [task async for task in made]
        if len(found) >= count:
            break
    return found


async def matrix(
    kinds: Sequence[str], names: Sequence[str], count: int, cheats: Sequence[Cheat], most: int | None
) -> dict[str, list[Attempt]]:
    """Kind -> its attempts; those that do the same as doing nothing are not played."""
    found: dict[str, list[Attempt]] = {}
    async with make_backend("namespace") as backend:
        for kind in kinds:
            found[kind] = []
            for task in await tasks_of(kind, names, count, backend):
                idle, memo = [*IDLE.script(task)], Memo()
                played = evenly([cheat for cheat in cheats if [*cheat.script(task)] != idle], most)

                def make(one: Task, memo: Memo = memo) -> CodeRepair:
                    return CodeRepair(one, backend, memo=memo)

                found[kind] += await audit([task], make, played, idle=IDLE.script)
    return found


def main() -> None:
    given = options(__doc__ or "", more=more)
    names = given.package or ["inflection", "rfc3986", "itsdangerous"]
    files = [_FILE + path for path in given.file or ()]
    kinds = [*(given.kind or ()), *(given.language or ()), *files] or ["repair", *KINDS]
    count, cheats = given.per_kind, list(CHEATS)
    if given.quick:
        names, kinds, count = ["inflection"], ["debug"], 1
        cheats = [
            cheat for cheat in CHEATS if cheat.name in ("explanation-only", "program-edited", "reports-passed")
        ]
    found = asyncio.run(matrix(kinds, names, count, cheats, given.cheats))
    for kind, attempts in found.items():
        for attempt in attempts:
            if attempt.gains or attempt.failed:
                did = "gains" if attempt.gains else "failed"
                print(f"{kind}: {attempt.cheat} {did} on {attempt.task}: {attempt.evidence}")
    rows = [
        Row(
            f"{kind}: attempts that gained",
            ours=float(sum(one.gains for one in attempts)),
            reference=float(len(attempts)),
            reference_name="attempts",
            unit="number",
            bar=0,
            absolute=True,
        )
        for kind, attempts in found.items()
    ]
    rows += [
        Row(f"{kind}: attempts that failed", float(sum(one.failed for one in attempts)), float(len(attempts)),
            "attempts", "number", bar=0, absolute=True)
        for kind, attempts in found.items()
    ]  # fmt: skip
    finish(
        "cheat_matrix", rows, given, packages=list(names), tasks_of_each=count, cheats=given.cheats or len(cheats)
    )


if __name__ == "__main__":
    main()
