"""Tests that the agent never sees: laid over a submission when it is graded, and judged by the data set's rules.

They come with the task (``test_patch`` and ``files`` in its metadata), are written into a fresh sandbox after the
submission's own files, and decide by `Rules`. A patch of tests that does not fit is the world's fault, never the
submission's: it only meets files that no submission may change. Tests that must fail are put among them
(`canaries`): whether the task's own answer stands these is for the grader to find out.
"""

import base64
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from envgym.errors import GraderFailure
from envgym.sandbox import Sandbox
from envgym.task import Task
from envgym_environments.code_repair.matching import Rules, settle
from envgym_environments.code_repair.memo import digest_of
from envgym_environments.code_repair.patch import Malformed, apply_patch, parse_patch
from envgym_environments.code_repair.patch_text import patch_paths
from envgym_environments.code_repair.record import Attached
from envgym_environments.code_repair.report import ended
from envgym_environments.code_repair.runner import TestReport
from envgym_environments.code_repair.suites.canaries import Level, Sown, read_ground
from envgym_environments.code_repair.suites.look import Look, look_at
from envgym_environments.code_repair.suites.run import run_suite
from envgym_environments.code_repair.suites.suite import Suite

__all__ = ["Hidden", "Judged", "Sowing", "judge_imported"]

_PATCH = "/tmp/.envgym-tests"


@dataclass(frozen=True, slots=True)
class Hidden:
    """What is laid over a submission, and the rules of the lists. `digest` stands for all of it in a memo's key."""

    patch: str
    files: tuple[Attached, ...]
    rules: Rules

    @classmethod
    def of(cls, task: Task) -> "Hidden | None":
        """What a task carries; None for one of the factory, which hides nothing and has its rules."""
        data = task.metadata
        if not any(data.get(name) for name in ("test_patch", "files", "rules")):
            return None
        files = data.get("files", [])
        return cls(
            patch=str(data.get("test_patch", "")),
            files=tuple(Attached.model_validate(one) for one in (files if isinstance(files, list) else [])),
            rules=Rules.model_validate(data.get("rules", {})),
        )

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that it writes into a sandbox."""
        laid = [one.target for one in self.files if one.role == "test" and one.target]
        return tuple(dict.fromkeys([*(path for _, path in patch_paths(self.patch)), *laid]))

    @property
    def digest(self) -> str:
        """Equal for equal tests and rules."""
        return digest_of(self.patch, self.rules.model_dump_json(), *(one.model_dump_json() for one in self.files))

    async def lay(self, sandbox: Sandbox) -> None:
        """Write it into a sandbox. Raises GraderFailure when the patch does not fit."""
        for one in self.files:
            if one.role != "test" or not one.target:
                continue
            data = one.data.encode() if one.encoding == "utf-8" else base64.b64decode(one.data)
            await sandbox.exec(["mkdir", "-p", "--", posixpath.dirname(one.target) or "."])
            await sandbox.write(one.target, data)
            if one.executable:
                await sandbox.exec(["chmod", "755", "--", one.target])
        if self.patch:
            await self._apply(sandbox)

    async def _apply(self, sandbox: Sandbox) -> None:
        try:
            changed = await self._changed(sandbox)
        except Malformed:
            await self._apply_by_program(sandbox)  # renames, binary files, lines that moved
            return
        for path, text in changed.items():
            if text is None:
                await sandbox.exec(["rm", "-f", "--", path])
            else:
                await sandbox.exec(["mkdir", "-p", "--", posixpath.dirname(path) or "."])
                await sandbox.write(path, text.encode("utf-8", "surrogateescape"))

    async def _changed(self, sandbox: Sandbox) -> dict[str, str | None]:
        """Path -> text after the patch. Raises Malformed for what is more than changed lines."""
        parts = parse_patch(self.patch)
        if {part.path for part in parts} != {path for _, path in patch_paths(self.patch)}:
            raise Malformed("it renames or copies files")
        if "\nGIT binary patch\n" in self.patch or "\nBinary files " in self.patch:
            raise Malformed("it holds binary files")
        changed: dict[str, str | None] = {}
        for part in parts:
            before = changed[part.path] if part.path in changed else await _text(sandbox, part.path)
            changed[part.path] = apply_patch(part, before)
        return changed

    async def _apply_by_program(self, sandbox: Sandbox) -> None:
        await sandbox.write(_PATCH, self.patch.encode("utf-8", "surrogateescape"))
        programs = f"git apply --whitespace=nowarn {_PATCH} || patch -s -f -p1 --no-backup-if-mismatch -i {_PATCH}"
        done = await sandbox.exec(["sh", "-c", programs])
        await sandbox.exec(["rm", "-f", "--", _PATCH])
        if not done.ok:
            said = " ".join((done.text + " " + done.stderr.decode("utf-8", "replace")).split())[-300:]
            raise GraderFailure(f"the task's own test patch does not apply to its base state: {said}")


async def _text(sandbox: Sandbox, path: str) -> str | None:
    try:
        return (await sandbox.read(path)).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Sowing:
    """What the grader draws that it puts among the tests: the same again for the same seed and the same tests."""

    level: Level
    seed: int


@dataclass(frozen=True, slots=True)
class Judged:
    """What the run of an imported task's tests said.

    guarded: tests that must fail were among them; twins: some with twins; ran: all were seen to fail. lies: one of
    them did not fail as it must, or what must not be equal was. suspect: they ran, and what became of the others
    may be their doing.
    """

    channels: dict[str, float]
    repeats: bool
    guarded: bool = False
    twins: bool = False
    ran: bool = False
    lies: bool = False
    suspect: bool = False


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
        if ground is None or sowing is None or not ground.places:
            return Look(
                await run_suite(sandbox, suite, selection=selection, timeout_s=left_s), {}, frozenset()
            ), None
        sown = ground.sow(sowing.level, rng)
        await sown.lay(sandbox)
        wanted = None if selection is None else [*selection, *sown.ids]
        words = dict(sown.words)
        return await look_at(sandbox, suite, words, sown.canaries, selection=wanted, timeout_s=left_s), sown

    spent = 0.0
    selects = "{tests}" in suite.test and not (hidden.rules.truncated or hidden.rules.untimed)
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


def _judged(channels: dict[str, float], look: Look, sown: Sown | None, suspect: bool) -> Judged:
    """What a run is worth by what became of the tests that must fail in it."""
    if sown is None:
        return Judged(channels, look.report.repeats)
    lies = look.lies or bool(look.unseen and channels.get("resolved"))
    if look.unseen and not lies:  # they were not run, or were lost with others
        channels = {"f2p": 0.0, **{name: channels[name] for name in ("timeout", "out_of_memory", "crashed")}}
    none_ran = len(look.unseen) == len(sown.canaries) and sown.sure
    return Judged(
        {"voided": 1.0} if lies else channels,
        True if lies else look.report.repeats,
        guarded=True,
        twins=sown.twins,
        ran=not (look.unseen or look.passed),
        lies=lies,
        suspect=suspect and not none_ran,
    )


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
