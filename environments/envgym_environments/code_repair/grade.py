"""The verdict on a repair: a fresh sandbox that never saw the agent, pristine tests, confirmed results.

It judges (task, submission) and nothing else, so any stored episode can be graded again. What the submitted code
does to the tests is the agent's outcome, hangs and crashes included; a sandbox that dies is a GraderFailure.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from envgym.env import Grade
from envgym.errors import EnvgymError, GraderFailure
from envgym.sandbox import SandboxBackend
from envgym.task import Task
from envgym_environments.code_repair.answer import answer_of, gold_patch, named_paths
from envgym_environments.code_repair.comparisons import SITES
from envgym_environments.code_repair.disguise import Disguise, make_disguise
from envgym_environments.code_repair.fresh import FreshStates, over
from envgym_environments.code_repair.hidden import Hidden
from envgym_environments.code_repair.imported import ImportedVerdict
from envgym_environments.code_repair.kinds.judges import JUDGES
from envgym_environments.code_repair.memo import Memo, Unwritten, digest_of
from envgym_environments.code_repair.patch import Malformed, sort_patch
from envgym_environments.code_repair.quality import patch_lines, patch_similarity, problems
from envgym_environments.code_repair.report import ended
from envgym_environments.code_repair.runner import Graded, Layout, TestReport, run_graded, run_twins
from envgym_environments.code_repair.suites.suite import Suite
from envgym_environments.code_repair.suites.verdict import judge_by_suite, judge_guarded
from envgym_environments.code_repair.trials import Facts, Trials
from envgym_environments.code_repair.twins import make_twins
from envgym_environments.code_repair.type_errors import check_there_is_a_checker, new_type_errors

__all__ = ["CodeRepairGrader"]


class CodeRepairGrader:
    """Implements `envgym.env.Grader` for code-repair tasks; a submission is a unified diff against the task's base.

    Channels: reward, resolved and success (all three 1.0 when resolved, else 0.0), f2p (share of the failing tests
    that pass now), p2p (share of the passing tests that still do; 0.0 when they were not run), stripped (files
    of the patch that do not count and were left out), malformed (the patch does not apply), timeout, out_of_memory,
    crashed (the tests' process, or a suite's test command, ended early; a failed build is none), voided (a test
    that must fail was reported as anything else: what the tests said is worth nothing), patch_lines, lint (problems
    that the patch adds to Python's files, left out where it changes none, see `problems`), and, where the task has
    an answer, patch_similarity. Where commands run the tests, guarded: 1.0 if some that must fail were among them
    (see `suites.guards` and `suites.canaries`), 0.0 where what is submitted could forge the results. A kind of task
    has channels of its own (see `kinds`).
    types: also types, the type errors that the patch adds, left out where there is nothing to say; it takes seconds
    for each new submission. Raises ValueError where mypy is not installed. thorough: every comparison of disguises
    and twins is looked at, where else a few are that chance draws, and as many tests have twins as can: an answer
    that passes so is hardly voided by chance later, as it is where objects honestly equal everything.
    """

    name = "code-repair"
    version = "10"

    def __init__(
        self, backend: SandboxBackend, *, memo: Memo | None = None, types: bool = False, thorough: bool = False
    ) -> None:
        if types:
            check_there_is_a_checker()
        self._types, self._thorough = types, thorough
        self._sites = None if thorough else SITES
        self._backend = backend
        self._memo = Memo.of(backend) if memo is None else memo
        self._fresh = FreshStates(backend)

    async def grade(self, task: Task, submission: str) -> Grade:
        """A verdict. Raises GraderFailure when the sandbox or the runner broke."""
        trials = Trials(task, self._backend, self._memo)

        async def run() -> Any:
            try:
                return await self._judge(trials, submission)
            except EnvgymError as error:
                raise GraderFailure(f"task {task.id!r} could not be graded: {error}") from error

        asked = [name for name, on in (("types", self._types), ("thorough", self._thorough)) if on]
        key = digest_of("grade", self.version, trials.facts.key, submission, *asked)
        channels: dict[str, Any] = await self._memo.get(key, run)
        return Grade(grader=self.name, version=self.version, channels=dict(channels))

    async def _judge(self, trials: Trials, submission: str) -> Any:
        """The channels, as `Unwritten` where they might not repeat."""
        facts = trials.facts
        try:
            base = {path: await trials.source(path) for path in named_paths(submission)}
            changed, dropped = sort_patch(submission, facts.layout, base.get, writes=facts.writes)
        except Malformed:
            similarity = {"patch_similarity": -1.0} if gold_patch(trials.task) else {}
            return _channels(malformed=1.0) | similarity
        judge = self._suites_verdict if isinstance(facts.layout, Suite) else self._verdict
        before = {path: base.get(path) for path in changed}
        quality = asyncio.ensure_future(_quality(trials, before, changed))  # while the tests run
        try:
            if facts.kind in JUDGES:
                channels, repeats = await JUDGES[facts.kind](trials, changed, judge)
                channels = _channels(**channels)
            else:
                channels, repeats = await judge(trials, changed)
            trials.begun.set()  # there may have been none
            channels |= await quality
        finally:
            await over(quality)
        if self._types and (errors := await new_type_errors(before, changed, self._memo)) is not None:
            channels["types"] = float(errors)
        channels["stripped"] = float(len(dropped))
        return channels if repeats else Unwritten(channels)

    async def _verdict(self, trials: Trials, changed: Mapping[str, str | None]) -> tuple[dict[str, float], bool]:
        """The channels, and whether they repeat. The failing tests first; the whole suite only when they pass.

        Whatever passed without a disguise is believed only after twins of it, in a sandbox of their own, failed.
        """
        facts, wanted = trials.facts, trials.facts.fail_to_pass
        found, disguise = await self._run(trials, changed, frozenset())
        failed = _failed(found.report, wanted)
        if not found.void and failed and disguise.words:
            unfit = await self._unfit(trials)
            if unfit and (unfit & failed or failed - disguise.words.keys()):
                found, disguise = await self._run(trials, changed, unfit)
        bare = [test for test in wanted if test.partition("[")[0] not in disguise.words]
        passed = [test for test in bare if found.report.outcomes.get(test) == "passed"]
        if found.void or (passed and await self._twins(trials, changed, passed)):
            return _channels(voided=1.0), True
        first, repaired = found.report, _share(found.report, wanted)
        if repaired < 1.0 or not first.ok:
            return _channels(f2p=repaired, **ended(first)), first.repeats
        found = await self._graded(trials, changed)
        if found.void:
            return _channels(voided=1.0), True
        whole = found.report
        kept, again = _kept(whole, facts), _share(whole, wanted)
        resolved = float(whole.ok and kept == 1.0 and again == 1.0)
        channels = _channels(
            reward=resolved, resolved=resolved, success=resolved, f2p=again, p2p=kept, **ended(whole)
        )
        return channels, first.repeats and whole.repeats

    async def _run(
        self, trials: Trials, changed: Mapping[str, str | None], bare: frozenset[str]
    ) -> tuple[Graded, Disguise]:
        """The failing tests in a fresh sandbox, where the functions in `bare` have no disguise."""
        making = asyncio.ensure_future(_disguise(trials, bare, self._sites))  # while the sandbox begins
        try:
            return await self._graded(trials, changed, making), await making
        finally:
            await over(making)

    async def _graded(
        self, trials: Trials, changed: Mapping[str, str | None], making: Awaitable[Disguise] | None = None
    ) -> Graded:
        """The failing tests in this disguise; without one every test.

        The sandbox is a fresh one: nothing that an earlier run of tests wrote is there.
        """
        facts = trials.facts
        assert isinstance(facts.layout, Layout)
        async with self._fresh.sandbox(trials, changed) as sandbox:
            return await run_graded(
                sandbox,
                facts.layout,
                facts.fail_to_pass,
                None if making is None else await making,
                run_s=10.0 + 4.0 * facts.run_s if making is None else facts.run_s,
                test_timeout_s=facts.test_s,
            )

    async def _unfit(self, trials: Trials) -> frozenset[str]:
        """Functions of tests that stay without a disguise: in one, something fails even with the task's answer.

        Found once for a task, when a disguised run failed; none without an answer. Tests may read their
        own source, or count frames. All of them stay without one where a test fails that has none itself (it
        inherits its function from a file in disguise), or still fails beside those that have one.
        """

        async def run() -> Any:
            answer, wanted = await answer_of(trials), trials.facts.fail_to_pass
            found, disguise = await self._run(trials, answer, frozenset())
            failed, repeats = _failed(found.report, wanted), found.report.repeats
            left = failed - disguise.words.keys()
            if failed and not left:
                again, _ = await self._run(trials, answer, frozenset(failed))
                left, repeats = _failed(again.report, wanted), repeats and again.report.repeats
            unfit = set(disguise.words) if left else failed
            return sorted(unfit) if repeats else Unwritten(sorted(unfit))

        if not gold_patch(trials.task):
            return frozenset()
        key = digest_of("unfit", self.version, str(self._thorough), trials.facts.key, gold_patch(trials.task))
        return frozenset(await self._memo.get(key, run))

    async def _suites_verdict(
        self, trials: Trials, changed: Mapping[str, str | None]
    ) -> tuple[dict[str, float], bool]:
        """The same of tests that commands run: hidden ones are laid over, where another tool's task has some."""
        facts, hidden = trials.facts, Hidden.of(trials.task)
        suite, failing, passing = facts.layout, facts.fail_to_pass, facts.pass_to_pass
        assert isinstance(suite, Suite)
        if hidden is not None and facts.guards is None:
            imported = ImportedVerdict(trials, hidden, self._fresh, memo=self._memo, version=self.version)
            found, repeats = await imported.of(changed)
            return _channels(**found), repeats
        async with self._fresh.sandbox(trials, changed) as sandbox:
            if facts.guards is not None:
                found, repeats = await judge_guarded(
                    sandbox, suite, facts.guards, failing, passing, tests=facts.tests, run_s=facts.run_s
                )
            else:
                found, repeats = await judge_by_suite(
                    sandbox, suite, failing, passing, tests=facts.tests, run_s=facts.run_s
                )
        guarded = facts.guards is not None and bool(facts.guards.canaries or facts.guards.ends)
        return _channels(**found, guarded=float(guarded)), repeats

    async def _twins(self, trials: Trials, changed: Mapping[str, str | None], passed: Sequence[str]) -> str:
        """Why these passes are worth nothing, or ""."""
        facts = trials.facts
        assert isinstance(facts.layout, Layout)
        texts = {path: await trials.source(path) for path in {name.partition("::")[0] for name in passed}}
        twins = make_twins(passed, texts.get, sites=self._sites)
        if twins is None:
            return ""
        async with self._fresh.sandbox(trials, changed) as sandbox:
            return await run_twins(
                sandbox, facts.layout, passed, twins, run_s=facts.run_s, test_timeout_s=facts.test_s
            )


async def _disguise(trials: Trials, bare: frozenset[str], sites: int | None) -> Disguise:
    wanted = [test for test in trials.facts.fail_to_pass if test.partition("[")[0] not in bare]
    texts = {path: await trials.source(path) for path in {name.partition("::")[0] for name in wanted}}
    return make_disguise(wanted, texts.get, beside=bare, sites=sites)


async def _quality(
    trials: Trials, base: Mapping[str, str | None], changed: Mapping[str, str | None]
) -> dict[str, float]:
    """The channels that no test decides."""
    await trials.begun.wait()
    python = [path for path in changed if path.endswith(".py")]
    found = {"patch_lines": float(await asyncio.to_thread(patch_lines, base, changed))}  # seconds for a megabyte
    if python:
        found["lint"] = float(sum(problems(changed[path]) - problems(base.get(path)) for path in python))
    if patch := gold_patch(trials.task):
        try:
            gold = await answer_of(trials)
        except GraderFailure:
            if isinstance(trials.facts.layout, Suite):
                return found  # another tool's patch may do what ours cannot: rename, change bits
            raise
        texts = {path: await trials.source(path) for path in named_paths(patch)}
        found["patch_similarity"] = await asyncio.to_thread(patch_similarity, {**texts, **base}, changed, gold)
    return found


def _failed(report: TestReport, wanted: Sequence[str]) -> set[str]:
    """The functions of those of these tests that did not pass."""
    return {test.partition("[")[0] for test in wanted if report.outcomes.get(test) != "passed"}


def _share(report: TestReport, wanted: Sequence[str]) -> float:
    return sum(report.outcomes.get(test) == "passed" for test in wanted) / len(wanted)


def _kept(whole: TestReport, facts: Facts) -> float:
    """The share of tests, those that must pass and all others of the suite, that pass."""
    others = {*facts.pass_to_pass, *whole.outcomes} - set(facts.fail_to_pass)
    if not others:
        return 1.0
    passed = sum(whole.outcomes.get(test) == "passed" for test in others)
    return passed / max(len(others), facts.tests - len(facts.fail_to_pass))


def _channels(**given: float) -> dict[str, float]:
    names = ("reward", "resolved", "success", "f2p", "p2p", "stripped", "malformed", "timeout", "voided",
             "out_of_memory", "crashed", "patch_lines")  # fmt: skip
    return dict.fromkeys(names, 0.0) | given
