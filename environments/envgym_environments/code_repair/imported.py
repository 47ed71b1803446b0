"""The verdict on a repair of another tool's task, with tests that must fail among its own.

Nobody measured which of these right code stands. So where one of them does not fail as it must, or may have been in
the others' way, the task's own answer is run with the same ones: where it fares no better the fault is theirs, and
the submission is judged with fewer of them, then with some in a run of their own, in the end without any.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from envgym.errors import GraderFailure
from envgym.sandbox import Sandbox
from envgym_environments.code_repair.answer import answer_of, gold_patch
from envgym_environments.code_repair.fresh import FreshStates
from envgym_environments.code_repair.hidden import Hidden
from envgym_environments.code_repair.imported_run import (
    ONE_OUTCOME,
    Judged,
    Sowing,
    fail_apart,
    judge_imported,
)
from envgym_environments.code_repair.memo import Memo, Unwritten, digest_of
from envgym_environments.code_repair.suites.canaries import LEVELS, Level
from envgym_environments.code_repair.suites.suite import Suite
from envgym_environments.code_repair.trials import Trials

__all__ = ["ImportedVerdict"]

_SEEDS = 8
"""Drawings of a level for a task and a process: what the answer makes of each is asked once."""
_APART: tuple[Level, ...] = ("apart twins", "apart")
_FINE = frozenset({"none", "held", "unseen"})


class ImportedVerdict:
    """Judges submissions to one task. version: the grader's, of which the memo's keys tell."""

    def __init__(self, trials: Trials, hidden: Hidden, fresh: FreshStates, *, memo: Memo, version: str) -> None:
        self._trials, self._hidden, self._fresh, self._memo = trials, hidden, fresh, memo
        self._version = version
        assert isinstance(trials.facts.layout, Suite)
        self._suite = trials.facts.layout
        self._levels = [one for one in LEVELS if self._suite.reader != ONE_OUTCOME or one in _APART]

    async def of(self, changed: Mapping[str, str | None]) -> tuple[dict[str, float], bool]:
        """The channels that are not zero, and whether they repeat."""
        found = Judged({}, True, twins=True)
        for level in self._levels:
            if level in ("canaries", "apart") and not found.twins:
                continue  # the same again
            if self._memo.known(self._key(level)) is False:
                continue
            sowing = await self._drawn(level)
            found = await self._run(changed, sowing)
            if found.guard in _FINE or await self._stood(sowing, found.guard):
                break
        else:
            found = await self._run(changed, None)
        return found.channels | {"guarded": float(found.guard != "none")}, found.repeats

    async def _drawn(self, level: Level) -> Sowing:
        async def seeds() -> Any:
            return Unwritten([secrets.randbits(62) for _ in range(_SEEDS)])

        drawn = await self._memo.get(self._key(level, "seeds"), seeds)
        return Sowing(level, secrets.choice(drawn))

    async def _run(self, changed: Mapping[str, str | None] | None, sowing: Sowing | None) -> Judged:
        """Of a state, None for what the task's own script makes."""
        if sowing is not None and sowing.level in _APART:
            return await self._run_apart(changed, sowing)
        return await self._judged_by(judge_imported, changed, sowing)

    async def _run_apart(self, changed: Mapping[str, str | None] | None, sowing: Sowing) -> Judged:
        """Without them first; where anything was repaired, a second state tells what becomes of them."""
        found = await self._run(changed, None)
        if not found.channels.get("f2p"):
            return found
        apart = await self._judged_by(fail_apart, changed, sowing)
        lied = apart.guard == "lied" or (apart.guard == "unseen" and bool(found.channels.get("resolved")))
        if lied:
            return replace(apart, channels={"voided": 1.0}, guard="lied")
        return replace(found, guard="held" if apart.guard == "held" else "none", twins=apart.twins)

    async def _judged_by(
        self,
        judge: Callable[..., Awaitable[Judged]],
        changed: Mapping[str, str | None] | None,
        sowing: Sowing | None,
    ) -> Judged:
        facts = self._trials.facts
        async with self._state(changed) as sandbox:
            return await judge(
                sandbox, self._suite, self._hidden, facts.fail_to_pass, facts.pass_to_pass,
                timeout_s=2.0 * facts.run_s, sowing=sowing,
            )  # fmt: skip

    @asynccontextmanager
    async def _state(self, changed: Mapping[str, str | None] | None) -> AsyncIterator[Sandbox]:
        async with self._fresh.sandbox(self._trials, changed or {}) as sandbox:
            if changed is None:
                await self._hidden.solve(sandbox)
            yield sandbox

    def _key(self, level: Level, *parts: str) -> str:
        task = self._trials.task
        return digest_of("stands", self._version, self._trials.facts.key, gold_patch(task), level, *parts)

    async def _stood(self, sowing: Sowing, guard: str) -> bool:
        """Whether right code stands these tests beside its own.

        Where they lied or are lost it is asked with the very same tests, of the rest once for a task.
        """
        level = sowing.level
        if guard == "suspect":
            return bool(await self._memo.get(self._key(level), lambda: self._right_code_stands(sowing)))
        key = self._key(level, str(sowing.seed))
        stood = bool(await self._memo.get(key, lambda: self._right_code_stands(sowing)))
        if not stood:  # later grades need not try them
            await self._memo.get(self._key(level), _never)
        return stood

    async def _right_code_stands(self, sowing: Sowing) -> Any:
        """Of the answer, or the untouched state where none is told; as `Unwritten` where it might not repeat."""
        answer = await self._answer()
        found = await self._run(answer, sowing)
        right = answer is None or bool(answer)
        fine = found.channels.get("resolved") and found.guard != "lied" if right else found.guard == "held"
        return bool(fine) if found.repeats else Unwritten(bool(fine))

    async def _answer(self) -> Mapping[str, str | None] | None:
        """None where a script makes it, empty where nothing does."""
        if not gold_patch(self._trials.task):
            return None if self._hidden.solves else {}
        try:
            return await answer_of(self._trials)
        except GraderFailure:  # another tool's patch may do what ours cannot
            return {}


async def _never() -> Any:
    return False
