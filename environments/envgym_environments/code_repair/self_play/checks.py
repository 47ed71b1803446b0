"""Whether an artifact of self-play is consistent: SSR's checks, each by running tests in forks of one sandbox.

Names and order are the paper's (Wei et al., arXiv 2512.18552): the test files, what parses their results, what runs
them, the bug's scope, its validity, the weakening, and inverse mutation. The first that fails is the verdict.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from envgym.errors import SandboxDied
from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import Task
from envgym_environments.code_repair.runner import Layout, TestReport, run_tests
from envgym_environments.code_repair.self_play.artifact import Artifact
from envgym_environments.code_repair.trials import world_text

__all__ = ["CHECKS", "Consistency", "Rules", "check_artifact"]

CHECKS = (
    "test_files",
    "test_parser",
    "test_script",
    "bug_scope",
    "bug_validity",
    "test_weakening",
    "inverse_mutation",
)


class Rules(BaseModel):
    """How much a bug has to be.

    min_passing: tests of the named files that must pass before. min_files: files of the package that must be
    changed. min_failing: tests that must fail with the bug. min_hidden: of those, how many the weakening must hide.
    max_failing: largest share of the named tests that may fail. repetitions: runs that must agree.
    higher_order: whether a failed repair becomes one more bug to repair (of second order, as in the paper).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_passing: int = Field(default=1, ge=1)
    min_files: int = Field(default=1, ge=1)
    min_failing: int = Field(default=1, ge=1)
    min_hidden: int = Field(default=1, ge=1)
    max_failing: float = Field(default=1.0, gt=0, le=1)
    repetitions: int = Field(default=2, ge=1)
    higher_order: bool = True


@dataclass(frozen=True, slots=True)
class Consistency:
    """The verdict: the check that failed and why, or "" and the tests that fail with the bug.

    passed: names of the checks that held.
    """

    failed: str = ""
    why: str = ""
    failing: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()

    @property
    def consistent(self) -> bool:
        """Whether all held."""
        return not self.failed


class _Wrong(Exception):
    def __init__(self, check: str, why: str) -> None:
        super().__init__(why)
        self.check, self.why = check, why


class _States:
    """Runs of the named tests in states of the repository."""

    def __init__(self, base: Sandbox, repository: Task, artifact: Artifact) -> None:
        data: dict[str, Any] = dict(repository.metadata)
        whole = Layout.of(repository)
        self.layout = whole.model_copy(update={"tests": artifact.test_files})
        self.base, self._suite_s = base, float(data.get("suite_s", 5.0))
        known = set(map(str, data["passing"]))
        self.known = known

    async def run(self, texts: Mapping[str, str]) -> TestReport:
        """With these files; a state that kills its sandbox has no outcome."""
        try:
            async with await self.base.fork() as sandbox:
                for path, text in texts.items():
                    await sandbox.write(path, text.encode())
                return await run_tests(
                    sandbox,
                    self.layout,
                    timeout_s=30.0 + 10.0 * self._suite_s,
                    test_timeout_s=1.0 + self._suite_s,
                )
        except SandboxDied:
            return TestReport(outcomes={}, exit_code=None, doubt="the state killed its sandbox")


async def check_artifact(
    backend: SandboxBackend, repository: Task, artifact: Artifact, *, rules: Rules
) -> Consistency:
    """The verdict on one artifact. The world's faults pass through as EnvgymError."""
    assert repository.world is not None
    done: list[str] = []
    try:
        _named(repository, artifact)
        done.append("test_files")
        async with await backend.create(repository.world) as base:
            states = _States(base, repository, artifact)
            failing, hidden = await _proved(states, repository, artifact, rules, done)
    except _Wrong as wrong:
        return Consistency(wrong.check, wrong.why, passed=tuple(done))
    return Consistency(failing=failing, hidden=hidden, passed=tuple(done))


def _named(repository: Task, artifact: Artifact) -> None:
    """Every named test file is there, and every changed one is named."""
    known = set(Layout.of(repository).tests)
    if not artifact.test_files:
        raise _Wrong("test_files", "no test file is named, and none was changed")
    for path in artifact.test_files:
        if path not in known:
            raise _Wrong("test_files", f"{path} is no test file of the repository")
    left = sorted(set(artifact.weakened) - set(artifact.test_files))
    if left:
        raise _Wrong("test_files", f"the weakening changes {left[0]}, which is not among the test files")


async def _proved(
    states: _States, repository: Task, artifact: Artifact, rules: Rules, done: list[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tests that fail with the bug, and those that the weakening hides. Raises _Wrong."""
    before = await states.run({})
    if before.doubt or before.collection_errors:
        raise _Wrong("test_parser", "the tests' results could not be read before any change")
    done.append("test_parser")
    tests = [name for name in before.passing if name in states.known]
    if len(tests) < rules.min_passing or before.failing:
        raise _Wrong(
            "test_script", f"{len(tests)} tests pass before, at least {rules.min_passing} must, all of them"
        )
    done.append("test_script")
    if len(artifact.bug) < rules.min_files:
        raise _Wrong(
            "bug_scope", f"{len(artifact.bug)} files of the package are changed, at least {rules.min_files} must be"
        )
    done.append("bug_scope")
    failing = await _failing(states, artifact, tests, rules)
    done.append("bug_validity")
    weak = await states.run({**artifact.bug, **artifact.weakened})
    hidden = tuple(name for name in failing if weak.outcomes.get(name, "gone") in ("passed", "gone", "skipped"))
    if weak.doubt or len(hidden) < rules.min_hidden or not artifact.weakened:
        raise _Wrong("test_weakening", f"the weakened tests hide {len(hidden)} of the {len(failing)} that fail")
    done.append("test_weakening")
    await _needed(states, repository, artifact, failing)
    done.append("inverse_mutation")
    return failing, hidden


async def _failing(states: _States, artifact: Artifact, tests: list[str], rules: Rules) -> tuple[str, ...]:
    """The tests that fail with the bug, in every run."""
    found: list[tuple[str, ...]] = []
    for _ in range(rules.repetitions):
        report = await states.run(artifact.bug)
        if report.timed_out or report.out_of_memory or not report.outcomes:
            raise _Wrong("bug_validity", "with the bug the tests do not run to their end")
        found.append(tuple(name for name in tests if report.outcomes.get(name) != "passed"))
    failing = found[0]
    if any(other != failing for other in found):
        raise _Wrong("bug_validity", "other tests fail with the bug in another run")
    if len(failing) < rules.min_failing:
        raise _Wrong("bug_validity", f"{len(failing)} tests fail with the bug, at least {rules.min_failing} must")
    if len(failing) > rules.max_failing * len(tests):
        raise _Wrong("bug_validity", f"{len(failing)} of {len(tests)} tests fail with the bug: it breaks too much")
    return failing


async def _needed(states: _States, repository: Task, artifact: Artifact, failing: tuple[str, ...]) -> None:
    """Inverse mutation: with any one file of the bug put back, a failing test passes."""
    assert repository.world is not None
    if len(artifact.bug) == 1:
        return  # with the only file put back the repository is unbroken, and all tests pass
    for path in sorted(artifact.bug):
        original = world_text(repository.world, path) or ""
        report = await states.run({**artifact.bug, path: original})
        if not any(report.outcomes.get(name) == "passed" for name in failing):
            raise _Wrong("inverse_mutation", f"the change of {path} adds nothing: without it the same tests fail")
