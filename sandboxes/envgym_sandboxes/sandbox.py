"""One sandbox as the contract sees it, for every backend of this package.

It holds a stack of frozen layers, one writable layer, and a connection to the init process above them. A snapshot
ends init, turns the writable layer into a frozen one and starts another init above it; the shell goes on from its
written state. How layers are made and inits are started is the `engine.Engine`'s matter.
"""

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from signal import SIGTERM
from types import TracebackType
from typing import Any, Self

from envgym import arguments
from envgym.arguments import AnyPath, Program
from envgym.egress import EgressRecord
from envgym.errors import EnvgymError, SandboxDied
from envgym.sandbox import ExecResult, ProcessStatus, Sandbox, SandboxSnapshot
from envgym_sandboxes import exchange
from envgym_sandboxes.bases import naming_image
from envgym_sandboxes.children import Children, argv_head
from envgym_sandboxes.engine import Engine, Frozen, Started
from envgym_sandboxes.finishing import finish
from envgym_sandboxes.forward import Forward
from envgym_sandboxes.home_loop import HomeLock
from envgym_sandboxes.streams import Stream
from envgym_sandboxes.way_out import WayOut

__all__ = ["LayeredSandbox"]


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
        self._still: Started | None = None
        self._settling: asyncio.Future[Any] | None = None
        self._ending: list[asyncio.Future[int]] = []
        self._touched = False
        self._closed = False
        self._end: asyncio.Task[None] | None = None
        self._ran = False
        self._dead: str | None = None
        self._forking = 0
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._gate = HomeLock(f"sandbox {name}")
        self._shell = asyncio.Lock()
        self._writing = asyncio.Lock()  # a long write is many requests
        self._children = Children()
        self._forwards: set[Forward] = set()
        self._way_out = WayOut(frozen.world, name)

    # -- life --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start an init above the frozen layers, without waiting for it."""
        self._starting = asyncio.create_task(self._engine.start(self.id, self._frozen))

    def _check(self) -> None:
        if self._closed:
            raise SandboxDied(f"sandbox {self.id} is closed")
        if self._dead is not None:
            raise SandboxDied(f"sandbox {self.id} is gone: {self._dead}")

    async def _live(self) -> Started:
        self._check()
        if self._started is None and self._starting is None:
            self._resume()  # its forks may not all be there yet
        if self._starting is not None:
            starting = self._starting
            try:
                self._started = await asyncio.shield(starting)
                self._way_out.serve(self._started.peer.streams)  # before anything runs inside
                self._ran = True
            except Exception as error:
                self._dead = str(error)
                if self._ran:  # it could not go on above what it wrote
                    raise SandboxDied(f"sandbox {self.id} is gone: {error}") from error
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
        cwd: AnyPath | None = None,
        timeout_s: float | None = None,
        output_bytes: int | None = None,
    ) -> ExecResult:
        """See `envgym.sandbox.Shell.exec`."""
        resources = self.world.resources
        given = arguments.program(command, resources, stdin=stdin, env=env, cwd=cwd)
        head: dict[str, Any] = {"timeout_s": arguments.time_bound(timeout_s, resources)}
        head |= {"limit": arguments.output_bound(output_bytes, resources)}
        head |= {"cpu_s": resources.command_cpu_s, "cpus": resources.cpus}
        if isinstance(given.command, str):
            text = _shell_text(given, given.command)
            arguments.check_input(resources, len(text))
            with naming_image(self.world):
                async with self._shell, self._using() as started:
                    head |= {"op": "shell", "size": len(text)}
                    text += given.stdin
                    return await exchange.run(started.peer, head, text, out_of_memory=self._ran_out_of_memory)
        head |= {"op": "exec"} | argv_head(given)
        async with self._using() as started:
            return await exchange.run(started.peer, head, given.stdin, out_of_memory=self._ran_out_of_memory)

    def _ran_out_of_memory(self) -> bool:
        return self._engine.ran_out_of_memory(self.id)

    # -- background processes ----------------------------------------------------------------------------------

    async def start(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: AnyPath | None = None,
    ) -> str:
        """See `envgym.sandbox.Shell.start`."""
        resources = self.world.resources
        given = arguments.program(argv, resources, stdin=stdin, env=env, cwd=cwd, argv_only=True)
        head = argv_head(given) | {"limit": resources.output_bytes}
        async with self._using() as started:
            return await self._children.start(started.peer, head, given.stdin)

    async def poll(self, process: str, *, wait_s: float = 0.0) -> ProcessStatus:
        """See `envgym.sandbox.Shell.poll`."""
        process = arguments.checked_text("process", process)
        wait_s = arguments.checked_seconds("wait_s", wait_s, none_at_all=True)
        async with self._using() as started:
            most = 2 * self.world.resources.output_bytes
            return await self._children.poll(started.peer, process, wait_s=wait_s, most=most)

    async def signal(self, process: str, number: int = SIGTERM) -> None:
        """See `envgym.sandbox.Shell.signal`."""
        process, number = arguments.checked_text("process", process), arguments.checked_signal(number)
        async with self._using() as started:
            await self._children.signal(started.peer, process, number)

    # -- the network -------------------------------------------------------------------------------------------

    def forward(self, port: int) -> Forward:
        """See `envgym.sandbox.Sandbox.forward`."""
        port = arguments.checked_port(port)
        if self._engine.no_loopback and not self.world.network:
            raise ValueError(
                f"port {port} cannot be forwarded: nothing can listen there without network; "
                "take World(network=True), which is the host's, or the 'namespace' backend"
            )
        return Forward(port, ready=self.started, dial=self._dial, live=self._forwards)

    async def egress_log(self) -> tuple[EgressRecord, ...]:
        """See `envgym.sandbox.Sandbox.egress_log`."""
        return self._way_out.records()

    @asynccontextmanager
    async def _dial(self, port: int) -> AsyncIterator[Stream]:
        async with self._using() as started:
            stream = await started.peer.streams.open(port)
        try:
            yield stream
        finally:
            stream.reset()

    # -- files -------------------------------------------------------------------------------------------------

    async def read(self, path: AnyPath) -> bytes:
        """See `envgym.sandbox.Shell.read`."""
        path = arguments.checked_path("path", path)
        async with self._using() as started:
            return await exchange.read(started.peer, self.world.resources, path)

    async def write(self, path: AnyPath, content: bytes) -> None:
        """See `envgym.sandbox.Shell.write`."""
        path, content = arguments.checked_path("path", path), arguments.checked_bytes("content", content)
        async with self._writing, self._using() as started:
            await exchange.write(started.peer, self.world.resources, path, content)

    async def put(self, source: AnyPath, target: AnyPath) -> None:
        """See `envgym.sandbox.Shell.put`."""
        source, target = arguments.checked_path("source", source), arguments.checked_path("target", target)
        async with self._using() as started:
            await exchange.put(started.peer, self.world.resources, source, target)

    async def get(self, source: AnyPath, target: AnyPath) -> None:
        """See `envgym.sandbox.Shell.get`."""
        source, target = arguments.checked_path("source", source), arguments.checked_path("target", target)
        async with self._using() as started:
            await exchange.get(started.peer, self.world.resources, source, target)

    # -- states ------------------------------------------------------------------------------------------------

    async def snapshot(self, *, durable: bool = False) -> SandboxSnapshot:
        """See `envgym.sandbox.Sandbox.snapshot`."""
        return await finish(self._snapshot(durable), self._engine.release)

    async def _snapshot(self, durable: bool) -> SandboxSnapshot:
        states = self._engine.states
        async with self._gate:
            frozen = await self._freeze()
            await self._settled()
            states.use(frozen.chain)
            self._resume()
        try:  # the sandbox goes on meanwhile
            return await states.hold(frozen, durable=durable)
        finally:
            await states.unuse(frozen.chain)

    async def fork(self) -> Sandbox:
        """See `envgym.sandbox.Sandbox.fork`. Forks of one state start side by side."""
        return await finish(self._fork(), lambda child: child.close())

    async def _fork(self) -> Sandbox:
        async with self._gate:
            freezing = asyncio.ensure_future(self._freeze())
            await asyncio.sleep(0)  # it has asked now: the place is made while it waits
            place = None
            try:
                place = self._engine.reserve(self.world)
            finally:
                try:
                    frozen = await freezing
                except BaseException:
                    if place is not None:
                        place.remove()
                    raise
            self._engine.states.use(frozen.chain)
            self._forking += 1
        try:
            child = await self._engine.adopt(frozen, place)  # first, since its caller waits for it
            await self._settled(child)
            return child
        finally:
            self._forking -= 1
            if not self._forking:
                self._resume()
            await self._engine.states.unuse(frozen.chain)

    async def _settled(self, child: Sandbox | None = None) -> None:
        """Wait until the state is in a frozen layer. A child that began without it ends."""
        try:
            if self._settling is not None:
                await self._settling
        except BaseException as error:
            self._dead = f"its layers could not be frozen: {error}"
            if child is not None:
                await child.close()
            raise
        finally:
            self._settling = None

    def _resume(self) -> None:
        """End the init that stands still and start another one above what it wrote."""
        if self._still is not None:
            self._ending = [ended for ended in self._ending if not ended.done()] + [self._still.ended]
            self._engine.end(self._still)
            self._still = None
        if self._started is None and self._starting is None and self._dead is None and not self._closed:
            self.begin()
            self._engine.states.tidy(self._frozen)  # after whatever somebody waits for

    async def _freeze(self) -> Frozen:
        await self._idle.wait()
        self._check()
        if not self._touched:
            return self._frozen
        started = await self._live()
        try:
            stand = await exchange.freeze(started.peer)
            if not stand.background:
                await self._children.collect(started.peer, most=2 * self.world.resources.output_bytes)
        except SandboxDied:
            raise self._died(started) from None
        shell = {"cwd": stand.cwd, "layer": started.upper, "script": stand.script}
        if stand.background:
            try:
                await exchange.hold_still(started.peer, still=True)
                await self._engine.bring(started)
                layer = await self._engine.states.copy(self._frozen, started.upper)
            finally:
                await exchange.hold_still(started.peer, still=False)
            return replace(self._frozen, chain=(*self._frozen.chain, layer), shell=shell, partial=True)
        await self._engine.bring(started)
        self._started, self._still, self._touched = None, started, False
        self._settling = self._engine.settle(started)
        try:
            chain = await self._engine.states.freeze(self._frozen, started.upper)
            self._frozen = replace(self._frozen, chain=chain, shell=shell, partial=False)
        except BaseException as error:
            self._dead = f"its layers could not be frozen: {error}"
            raise
        return self._frozen

    async def digest(self) -> str:
        """See `envgym.sandbox.Sandbox.digest`."""
        async with self._using() as started:
            await self._engine.bring(started)
            return await self._engine.states.digest(self._frozen, started.upper)

    async def diff(self, since: SandboxSnapshot | None = None) -> dict[str, bytes | None]:
        """See `envgym.sandbox.Sandbox.diff`."""
        async with self._using() as started:
            await self._engine.bring(started)
            return await self._engine.states.diff(self._frozen, started.upper, since)

    async def close(self) -> None:
        """See `envgym.sandbox.Sandbox.close`. Done to its end, once, whoever waits for it."""
        self._gate.home.check()
        if self._end is None:
            self._closed = True
            if self._started is not None:
                self._started.peer.end("closed")  # open calls fail now, so that the gate below is free soon
            self._end = asyncio.create_task(self._close())
        await asyncio.shield(self._end)

    async def _close(self) -> None:
        for forward in [*self._forwards]:
            await forward.close()
        await self._way_out.close()
        async with self._gate:
            if self._starting is not None:
                with contextlib.suppress(EnvgymError):
                    self._started = await self._starting
            upper = None
            if self._still is not None:
                still, self._still = self._still, None
                await self._engine.stop(still)
            if self._started is not None:
                upper = self._started.upper
                await self._engine.stop(self._started)
            for ended in self._ending:
                await ended
            await self._engine.discard(self, self._frozen, upper)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()


def _shell_text(given: Program, command: str) -> bytes:
    """The shell command. An environment and a directory given with it end with it, and so does a `cd` in it."""
    if given.env or given.cwd:
        names = " ".join(f"{name}={shlex.quote(value)}" for name, value in given.env.items())
        run = f"{names} builtin eval {shlex.quote(command)}"
        go = f"builtin cd -- {shlex.quote(given.cwd)} && {run}" if given.cwd else run
        back = '__envgym_q=$?; builtin cd -- "$__envgym_d"; __envgym_r "$__envgym_q"'
        command = f"__envgym_d=$PWD; {go}; {back}"
    return command.encode("utf-8", "surrogateescape")
