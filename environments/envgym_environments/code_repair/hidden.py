"""Tests that the agent never sees: laid over a submission when it is graded, and judged by the data set's rules.

They come with the task (``test_patch`` and ``files`` in its metadata), are written into a fresh sandbox after the
submission's own files, and decide by `Rules`. A patch of tests that does not fit is the world's fault, never the
submission's: it only meets files that no submission may change. Running them is not its business (`imported_run`).
"""

import base64
import posixpath
from dataclasses import dataclass

from envgym.errors import GraderFailure
from envgym.sandbox import Sandbox
from envgym.task import Task
from envgym_environments.code_repair.matching import Rules
from envgym_environments.code_repair.memo import digest_of
from envgym_environments.code_repair.patch import Malformed, apply_patch, parse_patch
from envgym_environments.code_repair.patch_text import patch_paths
from envgym_environments.code_repair.record import Attached

__all__ = ["Hidden"]

_PATCH = "/tmp/.envgym-tests"
_SOLVE = "/solution/solve.sh"


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
            await _write(sandbox, one)
        if self.patch:
            await self._apply(sandbox)

    @property
    def solves(self) -> bool:
        """Whether a script of the task's own makes its answer."""
        return any(one.role == "solution" and one.target == _SOLVE for one in self.files)

    async def solve(self, sandbox: Sandbox) -> None:
        """Run that script in a sandbox, and leave nothing of it but what it did."""
        for one in self.files:
            if one.role == "solution" and one.target:
                await _write(sandbox, one)
        await sandbox.exec(["bash", _SOLVE])
        await sandbox.exec(["rm", "-rf", "--", posixpath.dirname(_SOLVE)])

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


async def _write(sandbox: Sandbox, one: Attached) -> None:
    data = one.data.encode() if one.encoding == "utf-8" else base64.b64decode(one.data)
    await sandbox.exec(["mkdir", "-p", "--", posixpath.dirname(one.target) or "."])
    await sandbox.write(one.target, data)
    if one.executable:
        await sandbox.exec(["chmod", "755", "--", one.target])


async def _text(sandbox: Sandbox, path: str) -> str | None:
    try:
        return (await sandbox.read(path)).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None
