"""One run of an imported task's tests, with tests that must fail among them (`canaries`), and what it says.

Where these cannot stand among the tests that decide (a runner stops at the first failure, a script has one outcome
for all), a run of its own says what becomes of them. Whether right code stands them is not asked here (`imported`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from envgym.sandbox import Sandbox
from envgym_environments.code_repair.hidden import Hidden
from envgym_environments.code_repair.matching import Rules, settle
from envgym_environments.code_repair.report import ended
from envgym_environments.code_repair.runner import TestReport
from envgym_environments.code_repair.suites.canaries import Level, Sown, read_ground
from envgym_environments.code_repair.suites.look import Look, look_at
from envgym_environments.code_repair.suites.run import run_suite
from envgym_environments.code_repair.suites.suite import Suite

__all__ = ["ONE_OUTCOME", "Guard", "Judged", "Sowing", "fail_apart", "judge_imported"]

Guard = Literal["none", "held", "unseen", "suspect", "lost", "lied"]
"""What became of the tests that must fail: there were none; all failed; some were not seen, and nothing else is
wrong; something is wrong that they may have done to the others; nothing of them was seen, and it may be that they
cannot be compiled; one did not fail as it must."""

ONE_OUTCOME = "exit-code"
"""The reader of scripts that pass or fail as a whole."""


@dataclass(frozen=True, slots=True)
class Sowing:
    """What the grader draws that it puts among the tests: the same again for the same seed and the same tests."""

    level: Level
    seed: int


@dataclass(frozen=True, slots=True)
class Judged:
    """What the run of an imported task's tests said. twins: some of those that must fail were twins."""

    channels: dict[str, float]
    repeats: bool
    guard: Guard = "none"
    twins: bool = False


async def judge_imported(
    sandbox: Sandbox,
    suite: Suite,
    hidden: Hidden,
    fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str],
    *,
    timeout_s: float | None = None,
    sowing: Sowing | None = None,
) -> Judged:
    """Lay the tests over the submission that is in the sandbox, and run them.

    The tests that must pass run first where the suite can select, and all that are listed when these pass. A run
    that is not confirmed resolves nothing, and repairs nothing unless some test in it failed.
    sowing: tests that must fail are put among them, others in each run.
    """
    await hidden.lay(sandbox)
    ground, rng = None, np.random.default_rng(0 if sowing is None else sowing.seed)
    if sowing is not None:
        ground = await read_ground(sandbox, suite, hidden.paths, fail_to_pass, pass_to_pass)

    async def seen(selection: Sequence[str] | None, left_s: float | None) -> tuple[Look, Sown | None]:
        if sowing is None or not ground:
            return Look(
                await run_suite(sandbox, suite, selection=selection, timeout_s=left_s), {}, frozenset()
            ), None
        sown = ground.sow(sowing.level, rng)
        await sown.lay(sandbox)
        wanted = None if selection is None else [*selection, *sown.ids]
        words = dict(sown.words)
        return await look_at(sandbox, suite, words, sown.canaries, selection=wanted, timeout_s=left_s), sown

    spent = 0.0
    selects = _selects(suite, hidden)
    if selects:
        look, sown = await seen(fail_to_pass, timeout_s)
        first = look.report
        spent = first.wall_s
        repaired = _channels(first, fail_to_pass, (), hidden.rules)["f2p"]
        if repaired < 1.0 or first.doubt:
            channels = {"f2p": repaired, **ended(first, by_command=True)}
            return _judged(channels, look, sown, _suspect(first, fail_to_pass, (), hidden.rules))
        if look.lies:
            return _judged({}, look, sown, suspect=False)
    listed = list(dict.fromkeys([*fail_to_pass, *pass_to_pass])) if selects and hidden.rules.only_listed else None
    left = None if timeout_s is None else max(1.0, timeout_s - spent)
    look, sown = await seen(listed, left)
    channels = _channels(look.report, fail_to_pass, pass_to_pass, hidden.rules)
    suspect = not channels["resolved"] and _suspect(look.report, fail_to_pass, pass_to_pass, hidden.rules)
    return _judged(channels, look, sown, suspect)


def _selects(suite: Suite, hidden: Hidden) -> bool:
    return "{tests}" in suite.test and not (hidden.rules.truncated or hidden.rules.untimed)


async def fail_apart(
    sandbox: Sandbox,
    suite: Suite,
    hidden: Hidden,
    fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str],
    *,
    timeout_s: float,
    sowing: Sowing,
) -> Judged:
    """What becomes of tests that must fail in a run that decides nothing else: it is enough that one fails."""
    await hidden.lay(sandbox)
    ground = await read_ground(sandbox, suite, hidden.paths, fail_to_pass, pass_to_pass)
    if not ground:
        return Judged({}, True)
    sown = ground.sow(sowing.level, np.random.default_rng(sowing.seed))
    await sown.lay(sandbox)
    listed = [*dict.fromkeys([*fail_to_pass, *pass_to_pass]), *sown.ids] if _selects(suite, hidden) else None
    look = await look_at(sandbox, suite, dict(sown.words), sown.canaries, selection=listed, timeout_s=timeout_s)
    seen = len(look.unseen) < len(sown.canaries)
    failed = bool(look.report.failing) if suite.reader == ONE_OUTCOME else seen
    guard: Guard = "lied" if look.lies else "held" if failed else "unseen"
    return Judged({}, look.report.repeats, guard, sown.twins)


def _judged(channels: dict[str, float], look: Look, sown: Sown | None, suspect: bool) -> Judged:
    """What a run is worth by what became of the tests that must fail in it."""
    if sown is None:
        return Judged(channels, look.report.repeats)
    lies = look.lies or bool(look.unseen and channels.get("resolved"))
    if look.unseen and not lies:  # they were not run, or were lost with others
        channels = {"f2p": 0.0, **{name: channels[name] for name in ("timeout", "out_of_memory", "crashed")}}
    return Judged(
        {"voided": 1.0} if lies else channels,
        True if lies else look.report.repeats,
        guard="lied" if lies else _guard(look, sown, suspect),
        twins=sown.twins,
    )


def _guard(look: Look, sown: Sown, suspect: bool) -> Guard:
    none_ran = len(look.unseen) == len(sown.canaries)
    if suspect and not (none_ran and sown.sure):
        return "lost" if none_ran else "suspect"
    return "unseen" if look.unseen or look.passed else "held"


def _suspect(report: TestReport, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str], rules: Rules) -> bool:
    """Whether something is wrong that tests beside the listed ones can do: to end a run early, or break another."""
    there = settle(dict.fromkeys(report.outcomes, "passed"), fail_to_pass, pass_to_pass, rules)
    kept = settle(report.outcomes, fail_to_pass, pass_to_pass, rules).p2p
    others = () if rules.only_listed else set(report.failing) - {*fail_to_pass, *pass_to_pass}
    return bool(report.doubt or others) or there.f2p < 1.0 or kept < 1.0


def _channels(
    report: TestReport, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str], rules: Rules
) -> dict[str, float]:
    settled = settle(report.outcomes, fail_to_pass, pass_to_pass, rules)
    unheard = bool(report.doubt) and not report.failing
    others = () if rules.only_listed else set(report.outcomes) - {*fail_to_pass, *pass_to_pass}
    fine = not report.doubt and all(report.outcomes[name] == "passed" for name in others)
    fine = fine and (rules.only_listed or not report.collection_errors)
    resolved = float(settled.resolved and fine)
    return {
        "f2p": 0.0 if unheard else settled.f2p,
        "p2p": 0.0 if unheard else settled.p2p,
        **ended(report, by_command=True),
        "reward": resolved,
        "resolved": resolved,
        "success": resolved,
    }
