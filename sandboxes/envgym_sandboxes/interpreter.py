"""The Python interpreter of the contract `envgym.interpreter`, inside any sandbox that has a Python of its own.

A fork server runs in the sandbox as a background process (`inside`); this file is what the host sees of it. Only
the contract of `Sandbox` is used. The state lives in processes of the sandbox: with the sandbox it is gone, and
`Sandbox.snapshot` does not hold it.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from signal import SIGKILL
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, TypeVar

from envgym.errors import EnvgymError, EnvironmentFailure, InfrastructureFailure, SnapshotGone
from envgym.interpreter import CellError, CellResult, InterpreterSnapshot, Variable
from envgym.sandbox import Sandbox
from envgym_sandboxes.interpreter_answers import Made, cell_result, digest, made, variables
from envgym_sandboxes.interpreter_line import Down, Line
from envgym_sandboxes.interpreter_server import Options, begin

__all__ = ["ForkingInterpreter", "open_interpreter"]

T = TypeVar("T")
_SLACK_S = 60.0
"""How much later than promised an answer may come from a busy machine."""


async def open_interpreter(
    sandbox: Sandbox,
    *,
    preload: Sequence[str] = (),
    files: Literal["own", "shared"] = "own",
    seed: int | None = None,
    branches: int = 64,
    copy_bytes: int = 64 << 20,
) -> "ForkingInterpreter":
    """Start a Python interpreter in a sandbox. Its branches and kept states end with the last of its branches.

    preload: modules that all branches share, imported once; never from the workdir. What `World.preload` names is
        there already where the backend has a warm interpreter.
    files: "own" gives each branch a directory of its own: the first one's begins as a copy of the workdir, a
        fork's as a copy of the directory of the branch that it is forked from. All other files are the sandbox's,
        shared by all. With "shared" all branches work in the workdir itself, and only variables are forked.
    seed: of `random` and, where numpy is preloaded, of its global generator; None: another one every time.
    branches: how many interpreters and kept states there may be at once; each takes up to two processes.
    copy_bytes: how large a directory may be that is copied.

    Raises ValueError for an option that cannot be; EnvironmentFailure when the world has no Python or not the
    modules of `preload`, or when its workdir is too large to be copied; SandboxDied.
    """
    if files not in ("own", "shared"):
        raise ValueError(f"files is {files!r}; it must be 'own' or 'shared'")
    for name, value, least in (("branches", branches, 1), ("copy_bytes", copy_bytes, 0)):
        if value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")
    if isinstance(preload, str):
        raise TypeError(f"preload is the string {preload!r}; it must be a sequence of module names")
    options = Options(tuple(preload), files == "own", seed, branches, copy_bytes)
    return await ForkingInterpreter.first(sandbox, options)


class Family:
    """All branches of one fork server."""

    def __init__(self, sandbox: Sandbox, options: Options, line: Line) -> None:
        self.sandbox = sandbox
        self.options = options
        self.line = line
        self.cells = itertools.count(1)
        self._background: set[asyncio.Task[None]] = set()

    async def ask(
        self, op: str, read: Callable[[dict[str, Any]], T], body: bytes = b"", *, within_s: float, **arguments: Any
    ) -> T:
        """One request. Raises Down, SandboxDied, and what the other side refuses."""
        answer = await self.line.ask({"op": op, **arguments}, body, within_s=within_s)
        if "failed" in answer:
            _refuse(str(answer["failed"]), answer.get("kind"))
        return read(answer)

    async def close(self, branch: int) -> None:
        """End a branch; with the last one the server ends. Raises like `ask`."""
        last = await self.ask("close", lambda answer: answer.get("last"), within_s=_SLACK_S, branch=branch)
        if last is True:
            await self.line.ended()

    def interrupt(self, **cell: int) -> None:
        """Nobody waits for a cell any more."""
        task = asyncio.create_task(self._interrupt(cell))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _interrupt(self, cell: dict[str, Any]) -> None:
        with suppress(Down, EnvgymError, OSError):  # whoever asks next meets it
            await self.ask("interrupt", bool, within_s=_SLACK_S, **cell)


class ForkingInterpreter:
    """See `envgym.interpreter.Interpreter`. Made by `open_interpreter` and by itself only."""

    def __init__(self, family: Family, state: Made) -> None:
        self._family = family
        self._branch = state.number
        self.directory = state.directory
        self.unforked = state.unforked
        self._closed = False
        self._lost = False
        self._turn = asyncio.Lock()

    @classmethod
    async def first(cls, sandbox: Sandbox, options: Options) -> Self:
        """The first branch of a new fork server."""
        line = await begin(sandbox, options)
        family = Family(sandbox, options, line)
        try:
            return cls(family, await family.ask("open", made, within_s=_SLACK_S))
        except BaseException as error:
            with suppress(EnvgymError, ValueError):
                await sandbox.signal(line.process, SIGKILL)
            if isinstance(error, Down) or type(error) is InfrastructureFailure:
                raise EnvironmentFailure(f"no Python interpreter in sandbox {sandbox.id}: {error}") from None
            raise

    # -- cells -------------------------------------------------------------------------------------------------

    async def run(self, code: str, *, timeout_s: float | None = None) -> CellResult:
        """See `envgym.interpreter.Interpreter.run`."""
        limit_s = self._family.sandbox.world.resources.command_s if timeout_s is None else timeout_s
        if limit_s <= 0:
            raise ValueError(f"timeout_s is {limit_s}; it must be positive")
        async with self._turn:
            await self._ready()
            cell = {"branch": self._branch, "cell": next(self._family.cells)}
            source, within_s = code.encode("utf-8", "surrogatepass"), limit_s + _SLACK_S
            try:
                return await self._family.ask(
                    "run", cell_result, source, timeout_s=limit_s, within_s=within_s, **cell
                )
            except asyncio.CancelledError:
                self._family.interrupt(**cell)
                raise
            except Down as error:
                why = f"{await self._ended(error)}; all variables are gone"
                return CellResult("", "", error=CellError("CellDied", why, (f"CellDied: {why}",)), state="lost")
            except OSError as error:  # a cell that is too long, or a disk that cells have filled
                why = f"the cell was not run, because it could not be written down: {error}"
                return CellResult("", "", error=CellError("OSError", why, (f"OSError: {why}",)))

    async def _ended(self, error: Down) -> str:
        """What to say when the server is gone though its sandbox is not: the next cell begins anew."""
        await self._family.sandbox.exec(["true"])  # raises SandboxDied if that is why
        self._lost = True
        return f"the interpreter was ended by something that runs in its sandbox: {error}"

    async def _ready(self) -> None:
        if self._closed:
            raise ValueError(f"the interpreter in {self.directory} is closed")
        if self._lost:
            other = await self.first(self._family.sandbox, self._family.options)
            self._family, self._branch, self.directory = other._family, other._branch, other.directory
            self._lost, self.unforked = False, ()

    # -- states ------------------------------------------------------------------------------------------------

    async def fork(self) -> "ForkingInterpreter":
        """See `envgym.interpreter.Interpreter.fork`."""
        return ForkingInterpreter(self._family, await self._ask("fork", made))

    async def snapshot(self) -> InterpreterSnapshot:
        """See `envgym.interpreter.Interpreter.snapshot`."""
        state = await self._ask("snapshot", made)
        return InterpreterSnapshot(self._name(state.number), unforked=state.unforked)

    async def restore(self, snapshot: InterpreterSnapshot) -> "ForkingInterpreter":
        """See `envgym.interpreter.Interpreter.restore`."""
        state = await self._ask("restore", made, state=self._number(snapshot))
        return ForkingInterpreter(self._family, state)

    async def release(self, snapshot: InterpreterSnapshot) -> None:
        """See `envgym.interpreter.Interpreter.release`."""
        await self._ask("release", bool, state=self._number(snapshot))

    def _name(self, number: int) -> str:
        return f"{self._family.sandbox.id}:{self._family.line.process}:{number}"

    def _number(self, snapshot: InterpreterSnapshot) -> int:
        number = snapshot.id.rpartition(":")[2]
        if not number.isdecimal() or snapshot.id != self._name(int(number)):
            raise SnapshotGone(
                f"snapshot {snapshot.id!r} is not of this family, whose begin like {self._name(1)!r}"
            )
        return int(number)

    async def names(self) -> tuple[Variable, ...]:
        """See `envgym.interpreter.Interpreter.names`."""
        return await self._ask("look", variables, what="names")

    async def digest(self) -> str:
        """See `envgym.interpreter.Interpreter.digest`."""
        return await self._ask("look", digest, what="digest")

    async def _ask(self, op: str, read: Callable[[dict[str, Any]], T], **arguments: Any) -> T:
        async with self._turn:
            await self._ready()
            try:
                return await self._family.ask(op, read, within_s=_SLACK_S, branch=self._branch, **arguments)
            except Down as error:
                raise InfrastructureFailure(await self._ended(error)) from None

    # -- the end -----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """See `envgym.interpreter.Interpreter.close`."""
        if not self._closed:
            self._closed = True
            with suppress(Down, EnvgymError, OSError):
                await self._family.close(self._branch)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()


def _refuse(why: str, kind: object) -> NoReturn:
    if kind == "full":
        raise ValueError(why)
    if kind == "closed":
        raise SnapshotGone(why)
    raise InfrastructureFailure(why)
