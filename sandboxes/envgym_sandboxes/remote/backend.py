"""The contract over a connection: sandboxes of another host's backend.

A world's directories are this host's; they are sent once per server, by content. What the server's backend
isolates, bounds and refuses is what this one does.
"""

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from envgym.arguments import instance
from envgym.errors import EnvgymError, InfrastructureFailure
from envgym.sandbox import BackendReport, MemoryUse, SandboxSnapshot
from envgym.task import World, checked_world
from envgym_sandboxes.new_file import check_new_file
from envgym_sandboxes.remote.address import Address, is_loopback
from envgym_sandboxes.remote.connection import Connection
from envgym_sandboxes.remote.handshake import check_token, read_token_file
from envgym_sandboxes.remote.link import Link
from envgym_sandboxes.remote.parcels import disk_root, receive_file, send_file
from envgym_sandboxes.remote.sandbox import RemoteSandbox
from envgym_sandboxes.remote.tls import client_tls
from envgym_sandboxes.remote.trees import digest_tree, tree_pieces
from envgym_sandboxes.state import reap

__all__ = ["RemoteBackend"]


class RemoteBackend:
    """See `envgym.sandbox.SandboxBackend`.

    address: "host:port" of a server (`envgym sandboxes serve`). token or token_file: what both sides know.
    tls_ca: a file with the certificate, or that of the authority, by which the server is known; without it the
    connection is plain text, which must be asked for (plain=True) where it leaves this machine.
    patience_s: seconds until a server that says nothing counts as gone, while connecting and afterwards.
    Raises TypeError, ValueError, OSError for what could never work. That there is no server, or one that knows
    another token, is found out when one is needed: SandboxUnavailable.
    """

    name = "remote"

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        plain: bool = False,
        patience_s: float = 20.0,
    ) -> None:
        if address is not None:
            Address.parse(address)
        if address is not None and (token is None) == (token_file is None):
            raise ValueError("RemoteBackend: give token or token_file, and not both")
        if address is not None and tls_ca is None and not plain and not is_loopback(Address.parse(address).host):
            raise ValueError(
                f"address {address!r} is not of this machine, and there is no TLS: anybody on the way could read "
                "and change what is said; give tls_ca, or ask for plain text with plain=True"
            )
        if patience_s <= 0:
            raise ValueError(f"patience_s is {patience_s}; it must be positive")
        self._address, self._patience_s = address, patience_s
        self._token = read_token_file(token_file) if token_file else ""
        if token is not None:
            self._token = check_token(token)
        self._token_place = f"the token in {os.fspath(token_file)}" if token_file else "what was given as token="
        self._tls = client_tls(tls_ca) if tls_ca is not None else None
        self._opened: Connection | None = None
        self._closed = False
        self._trees: dict[tuple[str, str], asyncio.Task[str]] = {}
        self._sources: dict[str, str] = {}

    def _connection(self) -> Connection:
        if self._address is None:
            raise ValueError("RemoteBackend: address is missing; give that of `envgym sandboxes serve`, HOST:PORT")
        self._check_open()
        if self._opened is None:
            self._opened = self._connect(self._address)
        return self._opened

    def _connect(self, address: str) -> Connection:
        return Connection(address, self._token, self._tls, self._patience_s, token_place=self._token_place)

    def _check_open(self, cause: Exception | None = None) -> None:
        if self._closed:
            raise InfrastructureFailure("this remote backend is closed") from cause

    @contextlib.contextmanager
    def _making(self) -> Iterator[None]:
        """While a sandbox is made: what is met of this backend's end is said as that, and nothing comes of it."""
        try:
            yield
        except EnvgymError as error:
            self._check_open(error)
            raise
        self._check_open()

    # -- create and restore ------------------------------------------------------------------------------------

    async def create(self, world: World) -> RemoteSandbox:
        """See the contract."""
        _check_trees(world)
        connection = self._connection()
        with self._making():
            link = await connection.link()
            session = connection.session
            trees = []
            for tree in world.trees:
                trees.append(tree.model_copy(update={"source": await self._sent(link, session, tree.source)}))
            text = json.dumps(world.model_copy(update={"trees": tuple(trees)}).model_dump()).encode()
            done, _said = await self._made(connection, "create", {}, text)
        return RemoteSandbox(connection, str(done["sandbox"]), world)

    async def restore(self, snapshot: SandboxSnapshot) -> RemoteSandbox:
        """See the contract."""
        connection = self._connection()
        arguments = _named(snapshot)
        with self._making():
            done, said = await self._made(connection, "restore", arguments)
        try:
            world = World.model_validate(json.loads(said))
        except (ValueError, RecursionError) as error:
            raise InfrastructureFailure(f"the server sent a world that is none: {error}") from error
        trees = tuple(
            tree.model_copy(update={"source": self._sources.get(tree.source, tree.source)}) for tree in world.trees
        )
        return RemoteSandbox(connection, str(done["sandbox"]), world.model_copy(update={"trees": trees}))

    async def _made(
        self, connection: Connection, op: str, arguments: dict[str, Any], body: bytes = b""
    ) -> tuple[Any, bytes]:
        undo = connection.undo("close", "sandbox", lambda done: str(done["sandbox"]))
        return await (await connection.link()).ask(op, arguments, body, undo=undo)

    # -- trees -------------------------------------------------------------------------------------------------

    async def _sent(self, link: Link, session: str, source: str) -> str:
        """The digest of a directory that the server has; each is read once and sent at most once per session."""
        key = (session, source)
        if key not in self._trees:
            self._trees[key] = asyncio.create_task(self._send(link, source))
        sending = self._trees[key]
        try:
            return await asyncio.shield(sending)
        except BaseException:
            if sending.done():
                self._trees.pop(key, None)
            if sending.cancelled():
                self._check_open()  # it was this backend's end, and not the caller's
            raise

    async def _send(self, link: Link, source: str) -> str:
        digest = await asyncio.to_thread(digest_tree, source)
        self._sources[digest] = source
        done, _body = await link.ask("tree", {"digest": digest})
        if not done.get("there"):
            async with link.call("send_tree", {"digest": digest}) as call:
                for piece, body in tree_pieces(source):
                    if not await call.send(piece, body):
                        break
                await call.end_input()
                await call.result
        return digest

    # -- references --------------------------------------------------------------------------------------------

    async def _ask(self, op: str, snapshot: SandboxSnapshot, *, steady: bool = False) -> None:
        link = await self._connection().link()
        await link.ask(op, _named(snapshot), steady=steady)

    async def retain(self, snapshot: SandboxSnapshot) -> None:
        """See the contract."""
        await self._ask("retain", snapshot)

    async def release(self, snapshot: SandboxSnapshot) -> None:
        """See the contract."""
        await self._ask("release", snapshot, steady=True)

    # -- durable snapshots -------------------------------------------------------------------------------------

    async def snapshots(self) -> list[SandboxSnapshot]:
        """See the contract: those on the server's host."""
        connection = self._connection()
        done, _body = await (await connection.link()).ask("snapshots", {})
        found = done.get("snapshots")
        return [connection.snapshot(one) for one in found] if isinstance(found, list) else []

    async def export_snapshot(self, snapshot: SandboxSnapshot, path: str) -> None:
        """See the contract. The file is this host's."""
        named, target = _named(snapshot), Path(path)
        await asyncio.to_thread(check_new_file, target)  # before anything is asked for
        link = await self._connection().link()
        async with link.call("export", named, b"") as call:
            await receive_file(call.pieces(), target)
            await call.result

    async def import_snapshot(self, path: str) -> SandboxSnapshot:
        """See the contract. The file is this host's, the snapshot the server's."""
        connection = self._connection()
        await asyncio.to_thread(os.stat, path)  # what is not there is said before anything is sent
        link = await connection.link()
        undo = connection.undo("release", "snapshot", lambda done: done["snapshot"]["id"])
        async with link.call("import", {"name": os.fspath(path)}, undo=undo) as call:
            await send_file(call, Path(path))
            await call.end_input()
            done, _body = await call.result
        return connection.snapshot(done.get("snapshot"))

    # -- what it is --------------------------------------------------------------------------------------------

    async def memory(self, sandboxes: Collection[str]) -> MemoryUse:
        """See `envgym.sandbox.MeteredBackend`: the server's host."""
        link = await self._connection().link()
        done, _body = await link.ask("memory", {"sandboxes": list(sandboxes)})
        try:
            used = {str(name): int(size) for name, size in done["used"].items()}
            return MemoryUse(int(done["total"]), int(done["available"]), used)
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise InfrastructureFailure(f"the server sent a use of memory that is none: {error}") from error

    def report(self) -> BackendReport:
        """See the contract. It asks the server."""
        if self._address is None:
            return BackendReport(
                backend=self.name,
                works=False,
                missing=("an address: sandboxes are made by another host's server",),
                fix=("run `envgym sandboxes serve` there, and give address= and token_file=",),
            )
        found: list[BackendReport] = []
        thread = threading.Thread(target=lambda: found.append(asyncio.run(self._asked())))
        thread.start()
        thread.join()
        return found[0]

    async def _asked(self) -> BackendReport:
        assert self._address is not None
        connection = self._connect(self._address)
        try:
            done, _body = await (await connection.link()).ask("report", {})
            inner = BackendReport.model_validate(done["report"])
        except (EnvgymError, ValueError, KeyError) as error:
            return BackendReport(
                backend=self.name,
                works=False,
                missing=(str(error),),
                fix=(f"let `envgym sandboxes serve` listen on {self._address}, with the token that is here",),
            )
        finally:
            await connection.close()
        said = f"on {self._address}, by its {inner.backend} backend, over {'TLS' if self._tls else 'plain text'}"
        return inner.model_copy(update={"backend": self.name, "isolates": (f"where: {said}", *inner.isolates)})

    def reap(self) -> list[str]:
        """See the contract. Of remote sandboxes nothing is on this host; of dead servers there may be files."""
        return reap(disk_root())

    # -- the end -----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """See the contract."""
        if self._opened is not None:
            self._opened.check_loop()
        self._closed = True
        for task in self._trees.values():
            task.cancel()
        await asyncio.gather(*self._trees.values(), return_exceptions=True)
        self._trees.clear()
        if self._opened is not None:
            for sandbox in [*self._opened.sandboxes.values()]:
                await sandbox.end_forwards()
            await self._opened.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()


def _named(snapshot: SandboxSnapshot) -> dict[str, Any]:
    given = instance("snapshot", snapshot, SandboxSnapshot)
    return {"snapshot": given.id, "durable": given.durable}


def _check_trees(world: World) -> None:
    for tree in checked_world(world).trees:
        if not os.path.isdir(tree.source):
            raise ValueError(f"World.trees: source {tree.source!r} is not a directory of this host")
