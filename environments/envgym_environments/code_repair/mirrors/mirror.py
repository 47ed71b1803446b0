"""Make tasks of a pair of states: find its failing tests, sort bugs from features, find repairs, prove each.

A task leaves here only when the environment's own grader gives its gold patch 1 and nothing 0. Everything else is
counted by reason. What comes out depends on the pair and the bounds only. It fetches nothing (see `releases` and
`commits`) and stores nothing but trees.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from envgym.sandbox import SandboxBackend
from envgym.task import Task
from envgym_environments.code_repair.baseline import package_world
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.mirrors.classify import (
    Kind,
    kind_of,
    names_in,
    new_names,
    of_version,
)
from envgym_environments.code_repair.mirrors.groups import Bounds, Group, Survey, Unusable, bridge, groups, survey
from envgym_environments.code_repair.mirrors.hunks import Hunk
from envgym_environments.code_repair.mirrors.issue import asked, mirror_task, notes_for, sources_in
from envgym_environments.code_repair.mirrors.stage import Stage, laid, plain
from envgym_environments.code_repair.mirrors.states import States
from envgym_environments.code_repair.mirrors.trees import Pair, drop

__all__ = ["MirrorYield", "mirror_tasks"]


@dataclass(slots=True)
class MirrorYield:
    """What became of the pairs, of the later states' tests that fail without the change, and of their groups.

    pairs: reason -> pairs ("used" when at least one task came out). tests: "grouped" and the reasons why others
    are in no group. groups: verdict -> groups. said: why pairs could not be used, in words.
    """

    pairs: Counter[str] = field(default_factory=Counter)
    tests: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    seconds: float = 0.0
    said: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """As plain JSON."""
        counters = {"pairs": self.pairs, "tests": self.tests, "groups": self.groups}
        return {
            **{name: {str(reason): count for reason, count in found.items()} for name, found in counters.items()},
            "runs": self.runs,
            "seconds": round(self.seconds, 1),
            "said": self.said,
        }

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """The inverse of `row`."""
        return cls(
            Counter(row["pairs"]),
            Counter(row["tests"]),
            Counter(row["groups"]),
            row["runs"],
            row["seconds"],
            row["said"],
        )

    def add(self, other: "MirrorYield") -> None:
        """Count another's too."""
        self.pairs += other.pairs
        self.tests += other.tests
        self.groups += other.groups
        self.runs += other.runs
        self.seconds += other.seconds
        self.said += other.said


async def mirror_tasks(
    pair: Pair, backend: SandboxBackend, cache: Path, *, bounds: Bounds | None = None, counts: MirrorYield
) -> AsyncIterator[Task]:
    """The tasks of one pair; what was found is added to `counts`.

    Raises ValueError or EnvgymError when the pair's trees cannot be used at all.
    """
    bounds, made = bounds or Bounds(), 0
    try:
        stage = await _stage(pair, backend, cache, bounds)
        async for task in _tasks(pair, stage, backend, bounds, counts):
            made += 1
            yield task
    except Unusable as unusable:
        counts.pairs[unusable.reason] += 1
        counts.said.append(f"{pair.slug}: {unusable}")
        return
    if not made:
        await asyncio.to_thread(drop, stage.tree)
    counts.pairs["used" if made else "no_valid_group"] += 1


async def _stage(pair: Pair, backend: SandboxBackend, cache: Path, bounds: Bounds) -> Stage:
    """The earlier code under the later tests, with what those need to be collected at all."""
    try:
        stage = await asyncio.to_thread(plain, pair, cache)
    except ValueError as error:
        raise Unusable("other_layout", str(error)) from error
    if not stage.hunks:
        raise Unusable("no_change", "the package's code is the same in both states")
    async with await backend.create(package_world(stage.tree)) as base:
        states = States(base, stage.layout, stage.code)
        bridged = await bridge(states, stage.hunks, await states.run(()), bounds)
    return await asyncio.to_thread(laid, pair, stage, bridged, cache)


async def _tasks(
    pair: Pair, stage: Stage, backend: SandboxBackend, bounds: Bounds, counts: MirrorYield
) -> AsyncIterator[Task]:
    grader = CodeRepairGrader(backend, memo=Memo())
    known, taken = names_in(tuple(stage.code.values())), set[Hunk]()
    async with await backend.create(package_world(stage.tree)) as base:
        states = States(base, stage.layout, stage.code)
        try:
            found = await survey(states, stage.hunks, bounds)
            counts.tests["flaky"] += len(found.flaky)
            kinds = {test: kind_of(error, known) for test, error in found.failing.items()}
            counts.tests["feature"] += sum(kind is Kind.FEATURE for kind in kinds.values())
            bugs = [test for test, kind in kinds.items() if kind is Kind.BUG]
            if not bugs:
                raise Unusable(
                    "feature_only" if kinds else "no_failing_tests", "no test that fails is one of a bug"
                )
            async for group in groups(states, stage.hunks, found, bugs, bounds, counts.tests):
                counts.tests["grouped"] += len(group.tests)
                if taken & set(group.gold):  # much of the same repair again, for other tests: no bug of its own
                    counts.groups["overlaps"] += 1
                    continue
                verdict, task = await _judge(pair, stage, group, found, known, grader)
                counts.groups[verdict] += 1
                if task is not None:
                    taken |= set(group.gold)
                    yield task
        finally:
            counts.runs += states.runs


async def _judge(
    pair: Pair, stage: Stage, group: Group, found: Survey, known: frozenset[str], grader: CodeRepairGrader
) -> tuple[str, Task | None]:
    """A verdict on one group, and its task when it is valid."""
    errors = [found.failing[test] for test in group.tests]
    if of_version(group.gold, errors, (pair.old_name, pair.new_name)):
        return Kind.VERSION, None
    if any(hunk.whole for hunk in group.gold):
        return "whole_file", None
    notes = await asyncio.to_thread(notes_for, pair, stage.tree, group.tests, errors)
    texts = await asyncio.to_thread(sources_in, stage.tree, group.tests)
    told = names_in((*notes, *errors))
    if new_names(group.gold, names_in(texts), known | told):
        return Kind.FEATURE, None
    task = mirror_task(pair, stage, group.gold, asked(stage, group, found), notes)
    gold = task.metadata["gold"]
    assert isinstance(gold, dict)
    if (await grader.grade(task, "")).channels["resolved"]:
        return "passes_untouched", None
    if not (await grader.grade(task, str(gold["patch"]))).channels["resolved"]:
        return "not_repaired", None
    return "valid", task
