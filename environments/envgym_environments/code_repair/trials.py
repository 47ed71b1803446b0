"""What the tests of one task do to a given state of its source: run in a fresh sandbox, remembered by state.

A state is the task's world plus a few edited files, so a result is a function of (task, edits); the task's
factory certified by repetition that it repeats. What time on the wall decided is not written to a memo's file.
Every run gets a sandbox of its own that is closed behind it, so nothing a test writes reaches another run. It holds
no episode and knows no answer.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from envgym.sandbox import SandboxBackend
from envgym.task import Task, World, evenly
from envgym_environments.code_repair.memo import Memo, Unwritten, digest_of
from envgym_environments.code_repair.runner import Layout, TestReport, Trace, run_tests
from envgym_environments.code_repair.suites.guards import Guards
from envgym_environments.code_repair.suites.run import run_suite
from envgym_environments.code_repair.suites.suite import Suite

__all__ = ["Facts", "Trials", "Verdict", "error_class", "layout_or_suite"]

_VERSION = "4"
"""Of the rules by which tests are run and judged: a change of them (a deadline, a plugin) makes another number."""

_TRACED, _TRACED_BESIDE = 16, 160
"""How many failing tests are traced at most, and how many others of their files."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a code-repair task says about itself, and the key of its world.

    errors: test id -> one line. suite_s: how long the whole suite takes, as the factory measured it once.
    kind: what is asked where it is no repair (see `kinds`), "" for one. writes: files that count as the agent's
    work beside the package's code. guards: of a suite (see `suites.guards`), None where it has none.
    """

    layout: Layout | Suite
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    errors: Mapping[str, str]
    tests: int
    suite_s: float
    key: str
    kind: str = ""
    writes: tuple[str, ...] = ()
    guards: Guards | None = None

    @classmethod
    def of(cls, task: Task) -> "Facts":
        """Read them. Raises ValueError when the task is not of this environment."""
        if task.world is None or not (task.metadata.get("fail_to_pass") or task.metadata.get("kind")):
            raise ValueError(f"task {task.id!r} has no world or no 'fail_to_pass'; it is not a code-repair task")
        layout = layout_or_suite(task)
        data: dict[str, Any] = dict(task.metadata)
        failing, passing = (tuple(map(str, data.get(name, ()))) for name in ("fail_to_pass", "pass_to_pass"))
        key = digest_of(_VERSION, task.world.model_dump_json(), layout.model_dump_json(), *failing, "|", *passing)
        # what is laid over when graded, and by which rules: known to a data set's tasks only
        laid = {
            name: data[name]
            for name in ("test_patch", "files", "rules", "kind", "goal", "guards")
            if data.get(name)
        }
        key = digest_of(key, json.dumps(laid, sort_keys=True)) if laid else key
        errors = {str(name): str(line) for name, line in dict(data.get("errors", {})).items()}
        count = int(data.get("tests", len(failing) + len(passing)))
        kind, writes = str(data.get("kind", "")), tuple(map(str, data.get("writes", ())))
        guards = Guards.model_validate(data["guards"]) if data.get("guards") else None
        suite_s = float(data.get("suite_s", 5.0))
        return cls(layout, failing, passing, errors, count, suite_s, key, kind, writes, guards)

    @property
    def test_s(self) -> float:
        """How much processor time one test may take: more than all tests of the unbroken package together."""
        return 1.0 + self.suite_s

    @property
    def run_s(self) -> float:
        """How long one run may take: generous, since what hangs is stopped test by test."""
        return 30.0 + 10.0 * self.suite_s


def layout_or_suite(task: Task) -> Layout | Suite:
    """How the task's tests are run: by a suite's commands where it has one. Raises ValueError for neither."""
    raw = task.metadata.get("suite")
    return Layout.of(task) if raw is None else Suite.model_validate(raw)


def error_class(line: str) -> str:
    """The exception's name in a report's error line ("IndexError: list index ..." -> "IndexError")."""
    return line.partition(":")[0].strip().rpartition(".")[2][:30]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the task's own tests said: the first that failed, its exception, and how many ran when all passed.

    timed_out: the run (or a test) was stopped; then the other numbers say little.
    repeats: see `TestReport.repeats`; what does not is not written to a file.
    """

    failing: tuple[str, ...]
    error: str
    total: int
    timed_out: bool = False
    repeats: bool = True

    @property
    def passed(self) -> bool:
        """Whether all passed."""
        return not self.failing and not self.timed_out

    @classmethod
    def of(cls, report: TestReport) -> "Verdict":
        """From a run of a selection of tests."""
        failing = tuple(test for test in report.failing if test in report.errors)[:1] or report.failing[:1]
        error = error_class(report.errors.get(failing[0], "")) if failing else ""
        stopped = report.timed_out or error == "TestDeadline"
        if report.doubt and not failing:
            failing, error = tuple(report.outcomes)[:1] or ("?",), "Crash"
        return cls(failing, error or "Error", len(report.outcomes), stopped, report.repeats)


@lru_cache(maxsize=512)
def _host_text(path: str) -> str | None:
    place = Path(path)
    return place.read_bytes().decode("utf-8", "replace") if place.is_file() else None


def world_text(world: World, path: str) -> str | None:
    """A file's text in the base state of a world without set-up commands, None where there is none."""
    place = str(PurePosixPath(world.workdir) / path)
    if place in world.files:
        return world.files[place]
    for tree in reversed(world.trees):
        if PurePosixPath(place).is_relative_to(tree.target):
            found = _host_text(str(Path(tree.source) / PurePosixPath(place).relative_to(tree.target)))
            if found is not None:
                return found
    return None


class Trials:
    """Runs one task's tests on edited states. Cheap to make; holds nothing open.

    begun: set once tests run: until then whoever computes here keeps them waiting.
    """

    def __init__(self, task: Task, backend: SandboxBackend, memo: Memo) -> None:
        self.facts = Facts.of(task)
        self.task = task
        assert task.world is not None
        self.world = task.world
        self.backend = backend
        self.memo = memo
        self.begun = asyncio.Event()

    async def source(self, path: str) -> str | None:
        """The text of a file (relative to the workdir) in the task's base state."""
        if not self.world.setup:
            return world_text(self.world, path)

        async def read() -> str | None:
            async with await self.backend.create(self.world) as sandbox:
                try:
                    return (await sandbox.read(path)).decode("utf-8", "replace")
                except FileNotFoundError:
                    return None

        text: str | None = await self.memo.get(digest_of("source", self.facts.key, path), read)
        return text

    async def verdict(self, edits: Mapping[str, str]) -> Verdict:
        """Run the failing tests and, once they pass, those that must go on passing, with `edits` (path -> text)."""

        async def run() -> Any:
            found = await self._judge(edits)
            value = [found.failing, found.error, found.total, found.timed_out]
            return value if found.repeats else Unwritten(value)

        key = digest_of("verdict", self.facts.key, json.dumps(sorted(edits.items())))
        failing, error, total, timed_out = await self.memo.get(key, run)
        return Verdict(tuple(failing), error, total, timed_out)

    async def _judge(self, edits: Mapping[str, str]) -> Verdict:
        first = Verdict.of(await self.run(edits, self.facts.fail_to_pass))
        if not first.passed or not self.facts.pass_to_pass:
            return first  # most fixes are wrong: they end at the first failure, in a fraction of a whole run
        second = Verdict.of(await self.run(edits, self.facts.pass_to_pass))
        repeats = first.repeats and second.repeats
        return Verdict(second.failing, second.error, first.total + second.total, second.timed_out, repeats)

    async def run(self, edits: Mapping[str, str], selection: Sequence[str]) -> TestReport:
        """One run of a selection up to its first failure, not remembered."""
        facts = self.facts
        async with await self.backend.create(self.world) as sandbox:
            for path, text in edits.items():
                await sandbox.write(path, text.encode("utf-8", "surrogatepass"))
            if isinstance(facts.layout, Suite):
                return await run_suite(
                    sandbox, facts.layout, selection=selection, fail_fast=True, timeout_s=facts.run_s
                )
            return await run_tests(
                sandbox,
                facts.layout,
                selection=selection,
                fail_fast=True,
                timeout_s=facts.run_s,
                test_timeout_s=facts.test_s,
            )

    @property
    def trace_key(self) -> str:
        """What a result that is made of `traced` is remembered by."""
        return digest_of("trace", self.facts.key, str(_TRACED), str(_TRACED_BESIDE))

    async def traced(self) -> TestReport:
        """What failing tests execute in the base state, and a fixed choice of the tests beside them.

        Raises ValueError for a suite: its commands tell no lines.
        """
        facts = self.facts
        if isinstance(facts.layout, Suite):
            raise ValueError(f"task {self.task.id!r} runs its tests by commands, which cannot be traced")
        failing = evenly(facts.fail_to_pass, _TRACED)
        files = {name.partition("::")[0] for name in failing}
        layout = facts.layout.model_copy(
            update={"tests": tuple(name for name in facts.layout.tests if name in files)}
        )
        async with await self.backend.create(self.world) as sandbox:
            return await run_tests(
                sandbox,
                layout,
                trace=Trace(tuple(failing), _TRACED_BESIDE),
                timeout_s=60.0 + 20.0 * facts.suite_s,
                test_timeout_s=2.0 + 4.0 * facts.suite_s,
            )
