"""A sandbox on another host, as the contract sees it: every call goes over its backend's link.

It checks nothing that the server checks; it keeps only what must be true when the server is gone: a closed sandbox,
or one whose session is over, is dead and says so at once.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from signal import SIGTERM
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from envgym import arguments
from envgym.arguments import AnyPath
from envgym.egress import EgressRecord
from envgym.errors import EnvgymError, InfrastructureFailure, SandboxDied
from envgym.sandbox import ExecResult, ProcessStatus, SandboxSnapshot
from envgym.task import World
from envgym_sandboxes import protocol
from envgym_sandboxes.forward import Forward
from envgym_sandboxes.remote.link import Link, LinkLost
from envgym_sandboxes.remote.ports import CallStream
from envgym_sandboxes.remote.results import diff_from_pieces, records_from_json, result_from_json
from envgym_sandboxes.transfer import Arrival, Tally, about, check_size, pack

if TYPE_CHECKING:
    from envgym_sandboxes.remote.connection import Connection

__all__ = ["RemoteSandbox"]

_GRACE_S = 60.0
"""How long after a command's deadline its server may be silent about it; the server's own bound is shorter."""


class RemoteSandbox:
    """See `envgym.sandbox.Sandbox`. Made by `RemoteBackend` only; `id` is the server's name for it."""

    backend = "remote"

    def __init__(self, connection: "Connection", name: str, world: World) -> None:
        self.id, self.world = name, world
        self._connection, self._session = connection, connection.session
        self._closed = False
        self._forwards: set[Forward] = set()
        connection.sandboxes[name] = self

    @asynccontextmanager
    async def _link(self) -> AsyncIterator[Link]:
        """The link, for one call. A lost one is this sandbox's end, unless its session may be gone on with."""
        if self._closed:
            raise SandboxDied(f"sandbox {self.id} is closed")
        try:
            yield await self._connection.resumed(self._session)
        except LinkLost as error:
            if self._connection.may_resume(self._session):
                raise InfrastructureFailure(
                    f"sandbox {self.id}: {error}; whether the call was carried out is not known"
                ) from error
            raise SandboxDied(f"sandbox {self.id} at {self._connection.address} is gone: {error}") from error

    async def _ask(self, op: str, body: bytes = b"", **arguments: Any) -> tuple[dict[str, Any], bytes]:
        async with self._link() as link:
            return await link.ask(op, {"sandbox": self.id, **arguments}, body)

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
        limit_s = arguments.time_bound(timeout_s, resources)
        options = {
            "env": given.env,
            "cwd": given.cwd,
            "timeout_s": limit_s,
            "output_bytes": arguments.output_bound(output_bytes, resources),
        }
        try:
            async with asyncio.timeout(limit_s + _GRACE_S) as timer:
                done, output = await self._ask("exec", given.stdin, command=given.command, options=options)
        except TimeoutError:
            if not timer.expired():
                raise
            await self.close()
            raise SandboxDied(
                f"sandbox {self.id}: its server was silent for {_GRACE_S:g} s after a deadline of {limit_s:g} s"
            ) from None
        return result_from_json(ExecResult, done, output)

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
        options = {"env": given.env, "cwd": given.cwd}
        done, _body = await self._ask("start", given.stdin, argv=given.command, options=options)
        return str(done["process"])

    async def poll(self, process: str, *, wait_s: float = 0.0) -> ProcessStatus:
        """See `envgym.sandbox.Shell.poll`."""
        process = arguments.checked_text("process", process)
        wait_s = arguments.checked_seconds("wait_s", wait_s, none_at_all=True)
        return result_from_json(ProcessStatus, *await self._ask("poll", process=process, wait_s=wait_s))

    async def signal(self, process: str, number: int = SIGTERM) -> None:
        """See `envgym.sandbox.Shell.signal`."""
        process, number = arguments.checked_text("process", process), arguments.checked_signal(number)
        await self._ask("signal", process=process, number=number)

    # -- the network -------------------------------------------------------------------------------------------

    def forward(self, port: int) -> Forward:
        """See `envgym.sandbox.Sandbox.forward`. It listens on this host."""
        return Forward(port, ready=self._checked, dial=self._dial, live=self._forwards)

    async def egress_log(self) -> tuple[EgressRecord, ...]:
        """See `envgym.sandbox.Sandbox.egress_log`."""
        return records_from_json((await self._ask("egress_log"))[1])

    async def _checked(self) -> None:
        await self._ask("alive")

    @asynccontextmanager
    async def _dial(self, port: int) -> AsyncIterator[CallStream]:
        async with self._link() as link, link.call("dial", {"sandbox": self.id, "port": port}) as call:
            yield CallStream(call)
            await call.result

    # -- files -------------------------------------------------------------------------------------------------

    async def read(self, path: AnyPath) -> bytes:
        """See `envgym.sandbox.Shell.read`."""
        path = arguments.checked_path("path", path)
        with about(path):
            return (await self._ask("read", path=path))[1]

    async def write(self, path: AnyPath, content: bytes) -> None:
        """See `envgym.sandbox.Shell.write`."""
        path, content = arguments.checked_path("path", path), arguments.checked_bytes("content", content)
        check_size(path, len(content), self.world.resources.transfer_bytes)
        with about(path):
            await self._ask("write", content, path=path)

    async def put(self, source: AnyPath, target: AnyPath) -> None:
        """See `envgym.sandbox.Shell.put`."""
        source, target = arguments.checked_path("source", source), arguments.checked_path("target", target)
        named = {"sandbox": self.id, "target": target}
        os.stat(source)  # what is not there is said before anything is sent
        async with self._link() as link, link.call("put", named) as call:
            with about(source):
                for piece, body in pack(source, self._tally()):
                    if not await call.send(piece, body):
                        break
            await call.end_input()
            with about(target):
                await call.result

    async def get(self, source: AnyPath, target: AnyPath) -> None:
        """See `envgym.sandbox.Shell.get`."""
        source, target = arguments.checked_path("source", source), arguments.checked_path("target", target)
        arrival = Arrival(target, self._tally())
        async with self._link() as link, link.call("get", {"sandbox": self.id, "source": source}, b"") as call:
            with about(source):
                async for piece, body in call.pieces():
                    try:
                        with about(target):
                            arrival.add(piece, body)
                    except ValueError as error:
                        raise InfrastructureFailure(
                            f"the server sent a piece of a tree that is none: {error}"
                        ) from error
                await call.result

    def _tally(self) -> Tally:
        return Tally(self.world.resources.transfer_bytes, self.world.resources.inodes)

    # -- states ------------------------------------------------------------------------------------------------

    async def snapshot(self, *, durable: bool = False) -> SandboxSnapshot:
        """See `envgym.sandbox.Sandbox.snapshot`. A durable one is kept on the server's host."""
        async with self._link() as link:
            undo = self._connection.undo("release", "snapshot", lambda done: done["snapshot"]["id"])
            done, _body = await link.ask("snapshot", {"sandbox": self.id, "durable": durable}, undo=undo)
        return self._connection.snapshot(done["snapshot"])

    async def fork(self) -> "RemoteSandbox":
        """See `envgym.sandbox.Sandbox.fork`."""
        async with self._link() as link:
            undo = self._connection.undo("close", "sandbox", lambda done: done["sandbox"])
            done, _body = await link.ask("fork", {"sandbox": self.id}, undo=undo)
        self._connection.check_open()
        return RemoteSandbox(self._connection, str(done["sandbox"]), self.world)

    async def digest(self) -> str:
        """See `envgym.sandbox.Sandbox.digest`."""
        return str((await self._ask("digest"))[0]["digest"])

    async def diff(self, since: SandboxSnapshot | None = None) -> dict[str, bytes | None]:
        """See `envgym.sandbox.Sandbox.diff`."""
        if since is not None and arguments.instance("since", since, SandboxSnapshot).backend != self.backend:
            raise ValueError(f"diff: since is a snapshot of backend {since.backend!r}, not of {self.backend!r}")
        named = {"snapshot": since.id, "durable": since.durable} if since else {}
        async with self._link() as link:
            done, body = await link.ask("diff", {"sandbox": self.id, **named}, most=2 * protocol.MAX_BODY)
        index_bytes = int(done["index_bytes"])
        return diff_from_pieces(body[:index_bytes], body[index_bytes:])

    # -- the end -----------------------------------------------------------------------------------------------

    async def end_forwards(self) -> None:
        """Stop listening on this host."""
        for forward in [*self._forwards]:
            await forward.close()

    async def close(self) -> None:
        """See `envgym.sandbox.Sandbox.close`."""
        self._connection.check_loop()
        if self._closed:
            return
        self._closed = True
        self._connection.sandboxes.pop(self.id, None)
        await self.end_forwards()
        with contextlib.suppress(EnvgymError):  # with its session or its server it is gone
            link = await self._connection.resumed(self._session)
            await link.ask("close", {"sandbox": self.id}, steady=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()
