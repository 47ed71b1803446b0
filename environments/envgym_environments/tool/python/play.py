"""An episode of `python`: cells in an interpreter of a sandbox, then one answer; forks are forks of its processes.

A snapshot is the list of actions, played again and checked step by step, as an interpreter's kept state does not
outlive its sandbox; `fork` copies the running interpreter instead, and plays nothing.
"""

import hashlib
import re
from collections.abc import Callable
from fractions import Fraction

from envgym.env import Snapshot, Step, StopReason, answered, observation_digest
from envgym.errors import ReplayDiverged
from envgym.interpreter import CellResult, Interpreter
from envgym.limits import Resources
from envgym.messages import Action, Message, ParseError, ToolCall, ToolSpec
from envgym.registry import open_interpreter
from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import Task, World
from envgym.tools import check_call, parse_call, tool_spec
from envgym_environments.played import bounded, clean

__all__ = ["PythonEnv", "agrees"]

_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


def python(code: str) -> None:
    """Run Python and show what it prints and its last expression. Variables stay for the next call."""


def answer(value: str) -> None:
    """Give the answer: a number, a fraction or a word. This ends the episode."""


class _Home:
    """A sandbox that the branches of one interpreter share; it closes with the last of them."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.users = sandbox, 0

    async def leave(self) -> None:
        self.users -= 1
        if not self.users:
            await self.sandbox.close()


class PythonEnv:
    """Implements `envgym.env.Env`. Reward 1.0 for the right answer (GOAL), 0.0 for another (SUBMITTED).

    cells: how many there may be before only `answer` does something. cell_s: wall-clock seconds of one.
    """

    tools: tuple[ToolSpec, ...] = (tool_spec(python), tool_spec(answer))
    uses_seed = False

    def __init__(self, task: Task, *, backend: SandboxBackend, cells: int = 12, cell_s: float = 30.0) -> None:
        if cells < 0 or cell_s <= 0:
            raise ValueError(f"cells is {cells} and cell_s {cell_s}; they must be at least 0 and positive")
        self.task = task
        self._backend, self._cells, self._cell_s = backend, cells, cell_s
        self._home: _Home | None = None
        self._interpreter: Interpreter | None = None
        self._seed, self._left = 0, cells
        self._key = ""
        self._last: Step | None = None
        self._actions: tuple[Action, ...] = ()
        self._digests: tuple[str, ...] = ()

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """A fresh interpreter, or the state of `start` reached by replay. Raises ReplayDiverged."""
        if start is not None and (start.restore != "replay" or start.task_id != self.task.id):
            raise ValueError(
                f"cannot start task {self.task.id!r} from a {start.restore!r} snapshot of task {start.task_id!r}; "
                "it needs a replay snapshot of the same task"
            )
        await self.close()
        home = _Home(await self._backend.create(_world(self.task)))
        home.users = 1
        self._home = home
        self._interpreter = await open_interpreter(home.sandbox, seed=0)
        self._seed, self._left, self._key = seed if start is None else start.seed, self._cells, "fresh"
        self._actions, self._digests = (), ()
        step = self._kept(Step((Message(role="user", content=self.task.prompt),), state_key=self._state_key()))
        return step if start is None else await self._replay(start, step)

    async def _replay(self, start: Snapshot, step: Step) -> Step:
        for index, action in enumerate(start.actions, 1):
            step = answered(await self.step(action))
            if self._digests[-1] != start.digests[index]:
                raise ReplayDiverged(
                    f"replay of task {self.task.id!r} diverged at step {index} of {len(start.actions)}: a cell did "
                    "another thing this time (time, chance, processes)"
                )
        return step

    async def step(self, action: Action) -> Step:
        """Run a cell, or take the answer; of several calls those up to the answer."""
        self._going("step")
        messages: list[Message] = []
        reward: float | None = None
        submission: str | None = None
        for call, origin in _read(action, self.tools):
            text = f"error: {call.message[:500]}" if isinstance(call, ParseError) else ""
            if isinstance(call, ToolCall) and call.name == "python":
                text = await self._run(clean(str(call.arguments["code"])))
            elif isinstance(call, ToolCall):
                submission = clean(str(call.arguments["value"]))
                reward = float(agrees(submission, str(self.task.metadata["answer"])))
                text = "right" if reward else "wrong"
            messages.append(
                Message(role="user", content=text)
                if origin is None
                else Message(role="tool", content=text, tool_call_id=origin.id)
            )
            if reward is not None:
                break
        self._actions = (*self._actions, action)
        stop = None if reward is None else StopReason.GOAL if reward else StopReason.SUBMITTED
        channels = {} if reward is None else {"reward": reward}
        return self._kept(Step(tuple(messages), reward, channels, stop, self._state_key(), None, submission))

    async def _run(self, code: str) -> str:
        if not self._left:
            return "error: no cells are left; call answer"
        self._left -= 1
        interpreter = self._interpreter
        assert interpreter is not None
        result = await interpreter.run(code, timeout_s=self._cell_s)
        # the same cells in the same order give the same state; the variables' digest would cost more than the cell
        self._key = hashlib.blake2b(f"{self._key}\0{code}".encode(), digest_size=12).hexdigest()
        return _shown(result, interpreter.directory)

    def _state_key(self) -> str:
        return f"{self._key}/{self._left}"

    def _kept(self, step: Step) -> Step:
        self._last = step
        self._digests = (*self._digests, observation_digest(step))
        return step

    def _going(self, what: str) -> None:
        if self._last is None or self._interpreter is None:
            raise RuntimeError(f"{what} before reset in task {self.task.id!r}: call reset(seed=...) first")
        if self._last.stop is not None and what == "step":
            raise RuntimeError(f"step after the end ({self._last.stop}) in task {self.task.id!r}: call reset first")

    async def snapshot(self) -> Snapshot:
        """The actions so far, with a digest of every step."""
        self._going("snapshot")
        return Snapshot(
            restore="replay", task_id=self.task.id, seed=self._seed, actions=self._actions, digests=self._digests
        )

    async def release(self, snapshot: Snapshot) -> None:
        """A replay snapshot owns nothing."""

    async def fork(self) -> "PythonEnv":
        """An environment with a fork of the interpreter, in the same sandbox; raises like `Interpreter.fork`."""
        other = PythonEnv(self.task, backend=self._backend, cells=self._cells, cell_s=self._cell_s)
        if self._interpreter is not None and self._home is not None:
            other._interpreter = await self._interpreter.fork()
            other._home = self._home
            self._home.users += 1
            other._seed, other._left, other._key, other._last = self._seed, self._left, self._key, self._last
            other._actions, other._digests = self._actions, self._digests
        return other

    async def close(self) -> None:
        """Close the interpreter, and the sandbox with the last that uses it."""
        interpreter, home = self._interpreter, self._home
        self._interpreter = self._home = self._last = None
        try:
            if interpreter is not None:
                await interpreter.close()
        finally:
            if home is not None:
                await home.leave()


def _world(task: Task) -> World:
    """Where the cells run.

    Far more output is kept than is shown: an answer longer than a 64th of the bound comes in a file, at the cost of
    a second way into the sandbox and back (`envgym_sandboxes.inside.mailbox`), and most cells would be that.
    """
    files = {"/work/data.csv": str(task.metadata["data"])} if task.metadata.get("data") else {}
    return World(files=files, resources=Resources(output_bytes=1 << 18, memory_bytes=1 << 30))


def _read(action: Action, tools: tuple[ToolSpec, ...]) -> list[tuple[ToolCall | ParseError, ToolCall | None]]:
    if action.error is not None:
        return [(action.error, None)]
    if action.calls:
        return [(check_call(call, tools), call) for call in action.calls]
    call = parse_call(clean(action.text), tools)
    return [(call, None if isinstance(call, ParseError) else call)]


def _shown(result: CellResult, directory: str) -> str:
    """What a prompt would show, without what no two runs share: addresses, the name of the branch's directory."""
    text = _ADDRESS.sub("0x...", result.text.replace(directory, "/work"))
    if result.timed_out:
        text += "\n[stopped: its time was up]"
    if result.state != "kept":
        text += f"\n[variables: {result.state}]"
    return bounded(text, 8000) or "[no output]"


def agrees(given: str, wanted: str) -> bool:
    """Whether an answer is right: numbers by value (floats to a millionth), anything else as text.

    Thousands may be set apart, by commas or blanks: groups of three. Of a text neither case counts nor blanks
    beside a comma between digits.
    """
    one, two = _number(given), _number(wanted)
    if one is None or two is None:
        return _text(given) == _text(wanted)
    if "." in wanted:
        return abs(one - two) <= max(abs(two), Fraction(1)) / 1_000_000
    return one == two


_WHOLE = r"(\d{1,3}(,\d{3}){1,130}|\d{1,3}( \d{3}){1,130}|\d{1,400})"
_NUMBER: Callable[[str], re.Match[str] | None] = re.compile(
    rf"[+-]? ?{_WHOLE}(\.\d{{1,400}})?( ?/ ?{_WHOLE})?"
).fullmatch


def _number(text: str) -> Fraction | None:
    text = text.strip()
    if _NUMBER(text) is None:
        return None
    text = text.replace(",", "").replace(" ", "")
    return None if re.search(r"/0+$|\..*/", text) else Fraction(text)


def _text(text: str) -> str:
    return re.sub(r"(?<=\d) *, *(?=\d)", ",", text.strip()).casefold()
