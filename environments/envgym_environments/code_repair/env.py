"""Repair a real package that was broken in one place: the environment, in two tool sets over the same tasks.

`CodeRepair` turns calls into steps, keeps the episode's end, and makes exact snapshots; what the calls do is in
`compact` and `full`, the verdict in `grade`. A state key is a digest of the edits to the source and of the failing
tests that the agent last saw, not of what it looked at; making it runs nothing.
"""

import asyncio
import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from envgym.env import Snapshot, Step, StopReason
from envgym.messages import Action, Message, ParseError, ToolCall, ToolSpec
from envgym.plain_text import visible
from envgym.registry import EnvSpec
from envgym.replay import forked
from envgym.sandbox import SandboxBackend
from envgym.task import Task, TaskSet
from envgym.tools import check_call, parse_call
from envgym_environments.code_repair.cheats import cheats
from envgym_environments.code_repair.compact import COMPACT_TOOLS, CompactPlay, compact_actions
from envgym_environments.code_repair.formats import import_tasks
from envgym_environments.code_repair.full import FullPlay
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.memo import Memo, digest_of
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.state import CompactState, FullState
from envgym_environments.code_repair.suites.suite import Suite
from envgym_environments.code_repair.taskset import is_task_file, load_tasks
from envgym_environments.code_repair.tools import FULL_TOOLS, clip
from envgym_environments.code_repair.trials import Trials

__all__ = ["SPEC", "CodeRepair", "code_repair_tasks"]

Tools = Literal["full", "compact"]

_MOST_TOLD = 1_000_000


class CodeRepair:
    """Implements `envgym.env.Env` whole.

    tools: "full" or "compact". test_budget: how often the compact `test` may be called. memo: where results of
    tests are kept and shared: a `Memo`, a file (shared by runs), or None (shared by all environments on this
    backend). types: grades also count type errors, see `CodeRepairGrader`. submission_bytes: by how much the files
    that count may grow together; what grew more is no patch, but `malformed`. The terminal step of a submitted
    episode carries the grade's channels, plus tests_run, and the submitted patch; a truncated episode has none.
    """

    def __init__(
        self,
        task: Task,
        backend: SandboxBackend,
        *,
        tools: Tools = "full",
        test_budget: int = 4,
        memo: Memo | str | Path | None = None,
        types: bool = False,
        submission_bytes: int = 1_000_000,
    ) -> None:
        if submission_bytes < 1:
            raise ValueError(f"submission_bytes is {submission_bytes}; it must be at least 1")
        if tools not in ("full", "compact"):
            raise ValueError(f"tools is {tools!r}; it must be 'full' or 'compact'")
        if test_budget < 0:
            raise ValueError(f"test_budget is {test_budget}; it must be at least 0")
        self.task = task
        self.tools: tuple[ToolSpec, ...] = COMPACT_TOOLS if tools == "compact" else FULL_TOOLS
        self._kind: Tools = tools
        self._budget = test_budget
        self._memo = memo if isinstance(memo, Memo) else Memo.of(backend) if memo is None else Memo.at(memo)
        self._backend = backend
        self._types = types
        self._most_bytes = submission_bytes
        self.grader = CodeRepairGrader(backend, memo=self._memo, types=types)
        trials = Trials(task, backend, self._memo)
        if tools == "compact" and trials.facts.kind:
            raise ValueError(
                f"tools is 'compact', which only undoes mistakes; task {task.id!r} is of the kind "
                f"{trials.facts.kind!r}: use tools='full'"
            )
        if tools == "compact" and isinstance(trials.facts.layout, Suite):
            raise ValueError(
                f"tools is 'compact', which needs the lines that tests execute; task {task.id!r} runs its tests by "
                "commands, which tell none: use tools='full'"
            )
        self._play: CompactPlay | FullPlay = (
            CompactPlay(trials, test_budget=test_budget) if tools == "compact" else FullPlay(trials)
        )
        self._seed: int | None = None

    @property
    def actions(self) -> tuple[str, ...] | None:
        """Every call that a step can ever list as legal; None for the full tools, whose calls hold free text."""
        return compact_actions() if self._kind == "compact" else None

    # -- the contract ------------------------------------------------------------------------------------------

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """See `Env.reset`. The task has no randomness of its own: the seed is kept, and changes nothing."""
        self._seed = None
        play = self._play
        if start is not None and (start.restore != "exact" or start.task_id != self.task.id):
            raise ValueError(
                f"cannot start task {self.task.id!r} from a {start.restore!r} snapshot of task {start.task_id!r}; "
                "this environment needs an exact snapshot of the same task"
            )
        if isinstance(play, CompactPlay):
            text = await play.begin(None if start is None else CompactState.model_validate(self._stored(start)))
        elif start is None:
            text = await play.begin()
        else:
            text = await play.begin(FullState.model_validate(self._stored(start)), start.sandbox)
        self._seed = seed if start is None else start.seed
        return self._step(Message(role="user", content=text))

    def _stored(self, start: Snapshot) -> Any:
        data = json.loads(start.state)
        if data["tools"] != self._kind:
            raise ValueError(
                f"the snapshot was taken with the {data['tools']!r} tools; this environment has {self._kind!r}"
            )
        return data["state"]

    async def step(self, action: Action) -> Step:
        """See `Env.step`."""
        self._playing("step")
        call = self._call(action)
        if isinstance(call, ParseError):
            return self._step(_answer(action, clip(call.message, 1000)))
        if call.name == "submit":
            return await self._submit(action)
        run_before = self._play.state.tests_run
        text = await self._play.act(call)
        step = self._step(_answer(action, text))
        return replace(step, cost={"tests_run": float(self._play.state.tests_run - run_before)})

    def _call(self, action: Action) -> ToolCall | ParseError:
        if action.error is not None:
            return action.error
        if len(action.calls) > 1:
            return ParseError(message=f"one call at a time, please: got {len(action.calls)}")
        if action.calls:
            return check_call(action.calls[0], self.tools)
        return parse_call(action.text, self.tools)

    async def _submit(self, action: Action) -> Step:
        patch = await self.submission()
        grade = await self.grader.grade(self.task, patch)
        self._play.state = self._play.state.model_copy(update={"ended": True})
        channels = grade.channels | {"tests_run": float(self._play.state.tests_run)}
        text = "resolved" if grade.channels["resolved"] else "not resolved"
        step = self._step(_answer(action, text))
        return replace(
            step,
            reward=grade.reward,
            channels=channels,
            stop=StopReason.SUBMITTED,
            legal=None,
            submission=patch,
        )

    async def submission(self) -> str:
        """What would be submitted now: a unified diff of the package's source against the task's base.

        A sentence, which is no patch, where the files have grown by more than `submission_bytes`.
        """
        play = self._play
        if isinstance(play, FullPlay) and play.grown > self._most_bytes:
            return f"no patch: the files grew by {play.grown} bytes, and at most {self._most_bytes} are submitted"
        after: Mapping[str, str | None] = play.edits() if isinstance(play, CompactPlay) else play.changes()
        before = {path: await play.trials.source(path) for path in after}
        return await asyncio.to_thread(make_patch, before, after)

    async def snapshot(self) -> Snapshot:
        """See `Env.snapshot`: exact, and still valid when this environment is closed."""
        return await self._snapshot(durable=False)

    async def durable_snapshot(self) -> Snapshot:
        """See `envgym.env.Durable`: what can be undone is part of it."""
        return await self._snapshot(durable=True)

    async def _snapshot(self, *, durable: bool) -> Snapshot:
        seed = self._playing("snapshot", ended=True)
        play, sandbox = self._play, None
        kept: CompactState | FullState = play.state
        if isinstance(play, FullPlay):
            sandbox, kept = await play.keep(durable=durable)
        state = json.dumps({"tools": self._kind, "state": kept.model_dump(mode="json")})
        return Snapshot(restore="exact", task_id=self.task.id, seed=seed, state=state, sandbox=sandbox)

    async def release(self, snapshot: Snapshot) -> None:
        """See `Env.release`."""
        if snapshot.sandbox is not None:
            await self._backend.release(snapshot.sandbox)
        if self._kind == "full":
            for one in FullState.model_validate(self._stored(snapshot)).undo:
                await self._backend.release(one)

    async def fork(self) -> "CodeRepair":
        """See `Env.fork`."""
        other = CodeRepair(
            self.task,
            self._backend,
            tools=self._kind,
            test_budget=self._budget,
            memo=self._memo,
            types=self._types,
            submission_bytes=self._most_bytes,
        )
        return other if self._seed is None else await forked(self, other)

    async def close(self) -> None:
        """See `Env.close`."""
        self._seed = None
        if isinstance(self._play, FullPlay):
            await self._play.close()

    # -- steps -------------------------------------------------------------------------------------------------

    def _playing(self, what: str, *, ended: bool = False) -> int:
        if self._seed is None:
            raise RuntimeError(f"{what} before reset in task {self.task.id!r}: call reset(seed=...) first")
        if self._play.state.ended and not ended:
            raise RuntimeError(f"{what} after the end in task {self.task.id!r}: call reset first")
        return self._seed

    def _step(self, message: Message) -> Step:
        legal = self._play.legal() if isinstance(self._play, CompactPlay) else None
        return Step(observation=(message,), state_key=self._state_key(), legal=legal)

    def _state_key(self) -> str:
        """Equal for equal edits to the source and equal failing tests as last seen. Runs nothing.

        It identifies what the agent made, not what it looked at: suspicious lines listed, the open line, the tests
        left and fixes tried are not in it, so `legal` may differ under one key. So peers that differ only in what
        they have looked at are compared.
        """
        play = self._play
        if isinstance(play, CompactPlay):
            edits: Mapping[str, str | None] = play.edits()
        else:
            edits = {path: _told(data) for path, data in play.sources().items()}
        changed = [part for path in sorted(edits) for part in (path, repr(edits[path]))]
        return digest_of(play.trials.facts.key, *changed, "failing", *sorted(play.state.failing))


def _told(data: bytes | None) -> str | None:
    """A file's content for a state key: a digest of what is long."""
    if data is None or len(data) <= _MOST_TOLD:
        return None if data is None else data.hex()
    return f"{len(data)} bytes {hashlib.blake2b(data, digest_size=16).hexdigest()}"


def _answer(action: Action, text: str) -> Message:
    """A tool's answer to a call, a user's to anything else."""
    if not action.calls:
        return Message(role="user", content=text)
    return Message(role="tool", content=text, tool_call_id=action.calls[0].id)


def code_repair_tasks(
    path: str | Path | None = None,
    *,
    split: str | None = None,
    format: str | None = None,
    images: str | Path | Mapping[str, str] | None = None,
    suite: Mapping[str, Any] | None = None,
    leave_out: bool = False,
) -> TaskSet:
    """The tasks of a built task file (default: the one in the cache) or of another tool's data set, or one split.

    format, images, suite, leave_out: of a data set, see `import_tasks`. What of it cannot be played is a warning.
    """
    place = None if path is None else Path(path)
    options = {"format": format, "images": images, "suite": suite, "leave_out": leave_out or None}
    if place is None or (format is None and is_task_file(place)):
        if given := [name for name, value in options.items() if value is not None]:
            raise ValueError(f"{given[0]} is for another tool's data set; {place or 'the cache'} holds built tasks")
        tasks = load_tasks(place)
    else:
        tasks = TaskSet(_imported(place, format, images=images, suite=suite, leave_out=leave_out))
    return tasks if split is None else tasks.split(split)


def _imported(place: Path, format: str | None, **options: Any) -> list[Task]:
    tasks, done = import_tasks(place, format, **options)
    if done.left_out:
        why = "; ".join(f"{one.times} because it {one.why}" for one in done.left_out.values())
        warnings.warn(f"{place}: {len(tasks)} {done.format} tasks; left out: {visible(why, 2000)}", stacklevel=2)
    return tasks


SPEC = EnvSpec(
    name="code-repair",
    tasks=code_repair_tasks,
    make=CodeRepair,
    description="Repair real projects that were broken in one place; tests decide.",
    sandbox=True,
    cheats=cheats,
)
