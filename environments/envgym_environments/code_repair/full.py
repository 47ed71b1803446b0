"""An episode with the full tools: one sandbox that the agent's edits and commands live in.

The sandbox is made by the first call that needs it. Before every edit and command its state is kept, so that `undo`
goes back exactly. What counts as changed is read from the sandbox, whoever changed it and how.
"""

import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from envgym.errors import SnapshotGone
from envgym.messages import ToolCall
from envgym.sandbox import Sandbox, SandboxSnapshot
from envgym_environments.code_repair import symbol_tools, tools
from envgym_environments.code_repair.patch import counts, ignored
from envgym_environments.code_repair.state import FullState
from envgym_environments.code_repair.suites.suite import Suite
from envgym_environments.code_repair.trials import Trials

__all__ = ["MOST_UNDO", "FullPlay"]

MOST_UNDO = 32
"""How many edits and commands can be undone: each durable snapshot of an episode names them all."""


class FullPlay:
    """One episode with the full tools. It owns its sandbox and the states it may go back to.

    grown: bytes by which the files that count are longer than the task's base, together, as of the last call.
    """

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self.state = FullState()
        self._sandbox: Sandbox | None = None
        self._sources: Mapping[str, bytes | None] = {}
        self.grown = 0
        self._given: dict[str, SandboxSnapshot] = {}

    async def begin(self, state: FullState | None = None, sandbox: SandboxSnapshot | None = None) -> str:
        """Start afresh, or go on from a stored state; the observation that is answered next."""
        await self.close()
        task = self.trials.task
        fresh = FullState(failing=self.trials.facts.fail_to_pass, shown=task.prompt)
        self.state = fresh if state is None else state.model_copy(update={"undo": ()})
        for one in () if state is None else state.undo:
            self._update(undo=(*self.state.undo, await self._held(one)))
        if sandbox is not None:
            self._sandbox = await self.trials.backend.restore(sandbox)
            await self._look()
        return self.state.shown

    async def sandbox(self) -> Sandbox:
        """The sandbox, made now if it was not needed before."""
        if self._sandbox is None:
            self._sandbox = await self.trials.backend.create(self.trials.world)
        return self._sandbox

    async def keep(self, *, durable: bool = False) -> tuple[SandboxSnapshot | None, FullState]:
        """The states of the sandbox (None where there is none yet) and of the episode; what they name is held."""
        backend, held = self.trials.backend, list[SandboxSnapshot]()
        try:
            for one in self.state.undo:
                held.append(await self._lasting(one) if durable else await self._held(one))
            sandbox = None if self._sandbox is None else await self._sandbox.snapshot(durable=durable)
        except BaseException:
            for one in held:
                await backend.release(one)
            raise
        return sandbox, self.state.model_copy(update={"undo": tuple(held)})

    async def _held(self, one: SandboxSnapshot) -> SandboxSnapshot:
        """One more reference."""
        await self.trials.backend.retain(one)
        return one

    async def _lasting(self, one: SandboxSnapshot) -> SandboxSnapshot:
        """The same state, durable. No sandbox is started for it: who has one must not wait for another.

        What an earlier snapshot was given is given again while somebody holds it. The play itself holds none: what
        is durable outlives a killed process, and has to be somebody's who is stored.
        """
        backend = self.trials.backend
        if one.durable:
            return await self._held(one)
        if one.id in self._given:
            with suppress(SnapshotGone):
                return await self._held(self._given[one.id])
        with tempfile.TemporaryDirectory(prefix="envgym-") as folder:
            path = f"{folder}/state"
            await backend.export_snapshot(one, path)
            lasting = await backend.import_snapshot(path)
        kept = {each.id for each in self.state.undo}
        self._given = {name: each for name, each in self._given.items() if name in kept} | {one.id: lasting}
        return lasting

    async def act(self, call: ToolCall) -> str:
        """Do one checked call other than submit."""
        values: dict[str, Any] = dict(call.arguments)
        sandbox = await self.sandbox()
        match call.name:
            case "list_files":
                text = await tools.list_files(sandbox, values.get("path", "."))
            case "search":
                text = await tools.search(sandbox, values["pattern"], values.get("path", "."))
            case "symbols" | "definition" | "references":
                text = await _about_symbols(sandbox, call.name, values)
            case "view":
                text = await tools.view(sandbox, values["path"], values.get("start", 1), values.get("end", 0))
            case "run_tests":
                text = await self._test(sandbox, values.get("selection", ""))
            case "undo":
                text = await self._undo()
            case "edit":
                text = await self._edit(sandbox, values)
            case _:
                await self._remember(sandbox)
                text = await tools.run_shell(sandbox, values["command"])
                await self._look()
        self._update(shown=text)
        return text

    async def _test(self, sandbox: Sandbox, selection: str) -> str:
        text, failing = await tools.test(sandbox, self.trials.facts, selection)
        if failing is not None:
            self._update(failing=failing, tests_run=self.state.tests_run + 1)
            await self._look()
        return text

    async def _edit(self, sandbox: Sandbox, values: dict[str, Any]) -> str:
        kept = await sandbox.snapshot()
        text, changed = await tools.edit_file(sandbox, values["path"], values["old"], values["new"])
        if changed:
            await self._push(kept)
            await self._look()
        else:
            await self.trials.backend.release(kept)
        return text

    async def _remember(self, sandbox: Sandbox) -> None:
        await self._push(await sandbox.snapshot())

    async def _push(self, kept: SandboxSnapshot) -> None:
        older, undo = self.state.undo[: 1 - MOST_UNDO], self.state.undo[1 - MOST_UNDO :]
        self._update(undo=(*undo, kept), forgotten=self.state.forgotten or bool(older))
        for one in older:
            await self.trials.backend.release(one)

    async def _undo(self) -> str:
        if not self.state.undo and self.state.forgotten:
            return f"no older state is kept: the last {MOST_UNDO} edits and commands can be undone"
        if not self.state.undo:
            return "nothing to undo"
        last = self.state.undo[-1]
        restored = await self.trials.backend.restore(last)
        if self._sandbox is not None:
            await self._sandbox.close()
        self._sandbox = restored
        self._update(undo=self.state.undo[:-1])
        await self.trials.backend.release(last)
        await self._look()
        return f"undone; {len(self.state.undo)} more can be undone"

    async def _look(self) -> None:
        """Read what differs from the task's base below the workdir, without byte code and caches."""
        self.grown = 0
        if self._sandbox is None:
            self._sources = {}
            return
        root = PurePosixPath(self.trials.world.workdir)
        found: OrderedDict[str, bytes | None] = OrderedDict()
        for name, content in sorted((await self._sandbox.diff()).items()):
            if PurePosixPath(name).is_relative_to(root):
                path = str(PurePosixPath(name).relative_to(root))
                base = await self._base(path) if self._is_source(path) else content
                if content != base:
                    found[path] = content
                    if self._counts(path):
                        self.grown += max(0, len(content or b"") - len(base or b""))
        self._sources = found

    def _is_source(self, path: str) -> bool:
        """Whether a file is more than what running things leaves: of a suite, what it calls source or tests."""
        layout = self.trials.facts.layout
        if isinstance(layout, Suite):
            return layout.repairs(path) or layout.is_test(path)
        return not ignored(path)

    async def _base(self, path: str) -> bytes | None:
        base = await self.trials.source(path)
        return None if base is None else base.encode("utf-8", "surrogatepass")

    def _counts(self, path: str) -> bool:
        facts = self.trials.facts
        return path in facts.writes or counts(path, facts.layout)

    def sources(self) -> Mapping[str, bytes | None]:
        """Source files written or deleted since the task's base, as of the last call: path -> content."""
        return self._sources

    def changes(self) -> dict[str, str | None]:
        """The text files of the package that differ from the base and count as a repair: path -> text."""
        changed: dict[str, str | None] = {}
        for path, content in self._sources.items():
            if not self._counts(path):
                continue
            changed[path] = None if content is None else content.decode("utf-8", "replace")
        return changed

    def _update(self, **changes: object) -> None:
        self.state = self.state.model_copy(update=changes)

    async def close(self) -> None:
        """Give the sandbox and all kept states back; idempotent."""
        sandbox, self._sandbox, self._sources = self._sandbox, None, {}
        undo = self.state.undo
        self._update(undo=())
        if sandbox is not None:
            await sandbox.close()
        for one in undo:
            await self.trials.backend.release(one)


async def _about_symbols(sandbox: Sandbox, name: str, values: Mapping[str, str]) -> str:
    path, pattern, symbol = values.get("path", "."), values.get("pattern", ""), values.get("name", "a")
    if problem := tools.bad_path(path) or tools.bad_path(pattern or "a") or tools.bad_path(symbol):
        return problem.replace("path", "path, a pattern and a name")
    if name == "symbols":
        return tools.clip(await symbol_tools.symbols(sandbox, path, pattern))
    look = symbol_tools.definition if name == "definition" else symbol_tools.references
    return tools.clip(await look(sandbox, symbol))
