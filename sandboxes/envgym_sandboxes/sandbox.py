"""One sandbox as the contract sees it, for every backend of this package.

It holds a stack of frozen layers, one writable layer, and a connection to the init process above them. A snapshot
ends init, turns the writable layer into a frozen one and starts another init above it; the shell goes on from its
written state. How layers are made and inits are started is the `Engine`'s matter.
"""

import asyncio
import contextlib
import os
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from envgym.errors import EnvgymError, SandboxDied
from envgym.sandbox import ExecResult, SandboxSnapshot, is_warm
from envgym.task import World
from envgym_sandboxes.channel import Peer, Request, ZygoteClient
from envgym_sandboxes.transfer import Unpacker, pack

__all__ = ["Engine", "Frozen", "LayeredSandbox", "Started"]

_GRACE_S = 20.0
"""How long after a command's deadline its sandbox may still be silent before it counts as dead."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """A state that nothing can write to: layers above the world's base, lowest first, and the shell's state."""

    world: World
    chain: tuple[str, ...] = ()
    shell: Mapping[str, str] | None = None
    partial: bool = False


@dataclass(slots=True)
class Started:
    """A running init: its writable layer, its connection, and the future of its end."""

    upper: str
    peer: Peer
    ended: "asyncio.Future[int]"
    zygote: ZygoteClient


class Engine(Protocol):
    """What a backend does for its sandboxes."""

    name: str

    async def start(self, sandbox: str, frozen: Frozen) -> Started:
        """A running init in a frozen state."""
        ...

    async def stop(self, started: Started) -> None:
        """End an init; nothing writes to its layer afterwards."""
        ...

    async def settle(self, started: Started) -> None:
        """End an init that said its state, without waiting; its writable layer is a frozen one from then on."""
        ...

    async def freeze(self, frozen: Frozen, upper: str) -> tuple[str, ...]:
        """The layers of a stopped sandbox with its writable one on top."""
        ...

    async def copy(self, upper: str) -> str:
        """A frozen copy of a layer that is still written to."""
        ...

    async def digest(self, frozen: Frozen, upper: str | None) -> str:
        """A digest of what is written above the world's base."""
        ...

    async def diff(self, frozen: Frozen, upper: str | None) -> dict[str, bytes | None]:
        """What is written above the world's base."""
        ...

    async def hold(self, frozen: Frozen) -> SandboxSnapshot:
        """A handle of a frozen state, with one reference."""
        ...

    async def adopt(self, frozen: Frozen) -> "LayeredSandbox":
        """A running sandbox in a frozen state."""
        ...

    async def discard(self, sandbox: "LayeredSandbox", chain: tuple[str, ...], upper: str | None) -> None:
        """Remove what a closed sandbox had."""
        ...

    def ran_out_of_memory(self, sandbox: str) -> bool:
        """Whether the kernel killed for memory since the last call."""
        ...


class LayeredSandbox:
    """See `envgym.sandbox.Sandbox`. Made by a backend only."""

    def __init__(self, engine: Engine, name: str, frozen: Frozen) -> None:
        self.id = name
        self.backend = engine.name
        self.world = frozen.world
        self._engine = engine
        self._frozen = frozen
        self._started: Started | None = None
        self._starting: asyncio.Task[Started] | None = None
        self._ending: list[asyncio.Future[int]] = []
        self._touched = False
        self._closed = False
        self._dead: str | None = None
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._gate = asyncio.Lock()
        self._shell = asyncio.Lock()

    # -- life --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start an init above the frozen layers, without waiting for it."""
        self._starting = asyncio.create_task(self._engine.start(self.id, self._frozen))

    async def _live(self) -> Started:
        if self._closed:
            raise SandboxDied(f"sandbox {self.id} is closed")
        if self._dead is not None:
            raise SandboxDied(f"sandbox {self.id} is gone: {self._dead}")
        if self._starting is not None:
            starting = self._starting
            try:
                self._started = await asyncio.shield(starting)
            except Exception as error:
                self._dead = str(error)
                raise
            finally:
                if starting.done():
                    self._starting = None
        assert self._started is not None
        if self._started.peer.ended is not None:
            raise self._died(self._started)
        return self._started

    async def started(self) -> Self:
        """Wait until it runs."""
        await self._live()
        return self

    def _died(self, started: Started) -> SandboxDied:
        memory = " (it ran out of memory)" if self._engine.ran_out_of_memory(self.id) else ""
        self._dead = f"{started.peer.ended}{memory}"
        return SandboxDied(f"sandbox {self.id} of backend {self.backend} is gone: {self._dead}")

    @asynccontextmanager
    async def _using(self) -> AsyncIterator[Started]:
        """Hold the sandbox open for one operation; a snapshot waits until all of them are over."""
        async with self._gate:
            started = await self._live()
            self._running += 1
            self._idle.clear()
        self._touched = True
        try:
            yield started
        except SandboxDied:
            raise self._died(started) from None
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    # -- the shell ---------------------------------------------------------------------------------------------

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float | None = None,
    ) -> ExecResult:
        """See `envgym.sandbox.Shell.exec`."""
        limit_s = self.world.resources.command_s if timeout_s is None else timeout_s
        head: dict[str, Any] = {"timeout_s": limit_s, "limit": self.world.resources.output_bytes}
        if limit_s <= 0:
            raise ValueError(f"timeout_s is {limit_s}; it must be positive")
        if isinstance(command, str):
            text = _shell_text(command, env, cwd)
            async with self._shell, self._using() as started:
                head |= {"op": "shell", "size": len(text)}
                return await self._result(started, head, text + stdin, limit_s)
        argv = [os.fspath(word) for word in command]
        if not argv or any("\0" in word for word in argv):
            raise ValueError(f"argv is {argv!r}; it must have a program and no NUL")
        head |= {"op": "exec", "argv": argv, "cwd": cwd, "env": dict(env or {}), "warm": is_warm(argv)}
        async with self._using() as started:
            return await self._result(started, head, stdin, limit_s)

    async def _result(self, started: Started, head: dict[str, Any], body: bytes, limit_s: float) -> ExecResult:
        with started.peer.open(head, body) as request:
            try:
                async with asyncio.timeout(limit_s + _GRACE_S):
                    answer, output = await request.answer()
            except TimeoutError:
                started.peer.end(f"silent for {_GRACE_S:g} s after a deadline of {limit_s:g} s")
                raise started.peer.died() from None
            except asyncio.CancelledError:
                self._cancel(started, request)
                raise
        code = answer["code"]
        out_of_memory = self._engine.ran_out_of_memory(self.id)
        if out_of_memory and code == 137:  # how a shell reports a child killed by signal 9
            code = -9
        return ExecResult(
            exit_code=code,
            stdout=output[: answer["out"]],
            stderr=output[answer["out"] :],
            wall_s=answer["wall_s"],
            timed_out=answer["timed_out"],
            out_of_memory=out_of_memory,
            lost_bytes=(answer["lost"][0], answer["lost"][1]),
            cpu_s=answer.get("cpu_s"),
            peak_bytes=answer.get("peak_bytes"),
        )

    @staticmethod
    def _cancel(started: Started, request: Request) -> None:
        with contextlib.suppress(SandboxDied):
            started.peer.send({"op": "cancel", "target": request.number})

    # -- files -------------------------------------------------------------------------------------------------

    async def read(self, path: str) -> bytes:
        """See `envgym.sandbox.Shell.read`."""
        async with self._using() as started:
            return (await started.peer.ask({"op": "read", "path": path}))[1]

    async def write(self, path: str, content: bytes) -> None:
        """See `envgym.sandbox.Shell.write`."""
        async with self._using() as started:
            await started.peer.ask({"op": "write", "path": path}, content)

    async def put(self, source: str, target: str) -> None:
        """See `envgym.sandbox.Shell.put`."""
        async with self._using() as started:
            for piece, body in pack(source):
                await started.peer.ask({"op": "put", "target": target, "piece": piece}, body)

    async def get(self, source: str, target: str) -> None:
        """See `envgym.sandbox.Shell.get`."""
        unpacker = Unpacker(target)
        async with self._using() as started:
            with started.peer.open({"op": "get", "source": source}) as request:
                while True:
                    head, body = await request.answer()
                    if not head["more"]:
                        return
                    unpacker.add(head["piece"], body)

    # -- states ------------------------------------------------------------------------------------------------

    async def snapshot(self) -> SandboxSnapshot:
        """See `envgym.sandbox.Sandbox.snapshot`."""
        async with self._gate:
            frozen = await self._freeze()
            self._resume()
            return await self._engine.hold(frozen)

    async def fork(self) -> "LayeredSandbox":
        """See `envgym.sandbox.Sandbox.fork`."""
        async with self._gate:
            frozen = await self._freeze()
            try:
                return await self._engine.adopt(frozen)  # first, since its caller waits for it
            finally:
                self._resume()

    def _resume(self) -> None:
        if self._started is None and self._starting is None:
            self.begin()

    async def _freeze(self) -> Frozen:
        await self._idle.wait()
        started = await self._live()
        if not self._touched:
            return self._frozen
        try:
            state, script = await started.peer.ask({"op": "freeze"})
        except SandboxDied:
            raise self._died(started) from None
        shell = {"cwd": str(state["cwd"]), "layer": started.upper}
        shell["script"] = script.decode("utf-8", "surrogateescape")
        if state["background"]:
            await started.peer.ask({"op": "pause"})
            try:
                layer = await self._engine.copy(started.upper)
            finally:
                await started.peer.ask({"op": "resume"})
            return Frozen(self.world, (*self._frozen.chain, layer), shell, partial=True)
        self._started, self._touched = None, False
        self._ending = [ended for ended in self._ending if not ended.done()] + [started.ended]
        try:
            await self._engine.settle(started)
            self._frozen = Frozen(self.world, await self._engine.freeze(self._frozen, started.upper), shell)
        except BaseException as error:
            self._dead = f"its layers could not be frozen: {error}"
            raise
        return self._frozen

    async def digest(self) -> str:
        """See `envgym.sandbox.Sandbox.digest`."""
        async with self._using() as started:
            return await self._engine.digest(self._frozen, started.upper)

    async def diff(self) -> dict[str, bytes | None]:
        """See `envgym.sandbox.Sandbox.diff`."""
        async with self._using() as started:
            return await self._engine.diff(self._frozen, started.upper)

    async def close(self) -> None:
        """See `envgym.sandbox.Sandbox.close`."""
        if self._closed:
            return
        self._closed = True
        if self._started is not None:
            self._started.peer.end("closed")  # open calls fail now, so that the gate below is free soon
        async with self._gate:
            if self._starting is not None:
                with contextlib.suppress(EnvgymError):
                    self._started = await self._starting
            upper = None
            if self._started is not None:
                upper = self._started.upper
                await self._engine.stop(self._started)
            for ended in self._ending:
                await ended
            await self._engine.discard(self, self._frozen.chain, upper)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()


def _shell_text(command: str, env: Mapping[str, str] | None, cwd: str | None) -> bytes:
    """The shell command. An environment and a directory given with it end with it, and so does a `cd` in it."""
    if "\0" in command:
        raise ValueError("a shell command cannot hold a NUL")
    if env or cwd:
        names = " ".join(f"{name}={shlex.quote(value)}" for name, value in (env or {}).items())
        run = f"{names} builtin eval {shlex.quote(command)}"
        go = f"builtin cd -- {shlex.quote(cwd)} && {run}" if cwd else run
        back = '__envgym_q=$?; builtin cd -- "$__envgym_d"; __envgym_r "$__envgym_q"'
        command = f"__envgym_d=$PWD; {go}; {back}"
    return command.encode("utf-8", "surrogateescape")
