"""A client's connection to one server: made when first needed, proved on both sides, watched, and made again.

A session outlives its link where the server gives it grace; otherwise a lost link is the end of what was made over
it, and the next connection is a new session.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from envgym.errors import InfrastructureFailure, SandboxDied, SandboxUnavailable
from envgym.sandbox import SandboxSnapshot
from envgym_sandboxes import protocol
from envgym_sandboxes.home_loop import HomeLock
from envgym_sandboxes.remote.address import Address
from envgym_sandboxes.remote.handshake import Refused, WrongToken, as_client
from envgym_sandboxes.remote.link import Link, LinkLost, keep_alive

if TYPE_CHECKING:
    from envgym_sandboxes.remote.sandbox import RemoteSandbox

__all__ = ["Connection"]

_PINGS = 5  # lost in a row, and the server is gone


class Connection:
    """One server, seen from one client. token_place: where the token came from, for messages.

    session: the server's name for what it keeps for this client, "" before there is one. inner: its backend's name.
    grace_s: how long it keeps that when the link is lost.
    """

    def __init__(
        self,
        address: str,
        token: str,
        tls: ssl.SSLContext | None,
        patience_s: float,
        *,
        token_place: str = "the token",
    ) -> None:
        self.address = address
        self._where = Address.parse(address)
        self._token, self._tls, self._patience_s = token, tls, patience_s
        self._token_place = token_place
        self._link: Link | None = None
        self._gate = HomeLock("this remote backend")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lost = ""
        self._closed = False
        self.session = ""
        self.inner = ""
        self.sandboxes: dict[str, RemoteSandbox] = {}
        self.grace_s = 0.0

    def check_loop(self) -> None:
        """Raise RuntimeError in another event loop than this connection's."""
        self._gate.home.check()

    async def link(self) -> Link:
        """A link that was alive a moment ago. Raises SandboxUnavailable, InfrastructureFailure."""
        async with self._gate:
            if self._closed:
                raise InfrastructureFailure("this remote backend is closed")
            if self._link is None or self._link.ended is not None:
                self._link = await self._connect()
            return self._link

    def check_open(self) -> None:
        """Raise SandboxDied when this client said goodbye: whatever was made meanwhile ended with the rest."""
        if self._closed:
            raise SandboxDied(f"the session at {self.address} is over: this client ended it")

    async def resumed(self, session: str) -> Link:
        """A link of that very session. Raises SandboxDied when it is over."""
        self.check_open()
        if not self.may_resume(session):
            raise SandboxDied(f"the session at {self.address} is over: {self._lost}")
        link = await self.link()
        if session != self.session:
            raise SandboxDied(f"the session at {self.address} is over: {self._lost}")
        return link

    def may_resume(self, session: str) -> bool:
        """Whether a session is not known to be over."""
        alive = self._link is not None and self._link.ended is None
        return session == self.session and not self._closed and (alive or self.grace_s > 0)

    async def _connect(self) -> Link:
        try:
            async with asyncio.timeout(self._patience_s):
                reader, writer = await asyncio.open_connection(
                    self._where.host, self._where.port, ssl=self._tls, limit=1 << 20
                )
                try:
                    keep_alive(writer.get_extra_info("socket"))
                    told = await as_client(reader, writer, self._token, _certificate(writer), self._wants())
                except BaseException:
                    writer.transport.abort()
                    raise
        except (OSError, EOFError, protocol.ProtocolError) as error:
            silent = f"no answer within {self._patience_s:g} s" if isinstance(error, TimeoutError) else ""
            raise SandboxUnavailable(
                f"no sandbox server at {self.address}: {silent or str(error) or type(error).__name__}; "
                "is `envgym sandboxes serve` running there, and does it listen on that address"
                f"{'' if self._tls else ', without TLS (else give tls_ca=)'}?"
            ) from error
        except Refused as error:
            raise SandboxUnavailable(f"the server at {self.address}: {error}; {self._advice(error)}") from error
        link = Link(reader, writer, on_end=self._over)
        link.watch(self._patience_s / _PINGS, _PINGS)
        self.inner, self.grace_s = str(told.get("backend")), float(told.get("grace_s", 0))
        if told.get("resumed") is True:
            await link.ask("keep", {"sandboxes": list(self.sandboxes)})
        else:
            self.sandboxes.clear()
            self.session = str(told.get("session"))
        return link

    def _advice(self, error: Refused) -> str:
        if isinstance(error, WrongToken):
            between = ", or somebody stands between" if self._tls else ""
            return (
                f"{self._token_place} is not its token{between}: copy the file that it was given as --token-file "
                "(`envgym sandboxes serve`)"
            )
        if self._tls is None:
            return "is it `envgym sandboxes serve` of the same version, without TLS (else give tls_ca=)?"
        return "is it `envgym sandboxes serve` of the same version?"

    def _wants(self) -> dict[str, Any]:
        return {"session": self.session} if self.session and self.grace_s else {}

    def _over(self, reason: str) -> None:
        self._lost = reason
        if self._link is not None:
            self._task(self._link.closed())

    def _task(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def undo(self, op: str, name: str, of: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], None]:
        """What gives back a thing that the server made for a caller who was cancelled meanwhile."""

        def give_back(done: dict[str, Any]) -> None:
            if self._link is not None and self._link.ended is None:
                self._task(_quietly(self._link, op, {name: of(done)}))

        return give_back

    def snapshot(self, raw: object) -> SandboxSnapshot:
        """A snapshot of the server's, as this backend's. Raises InfrastructureFailure for what is none."""
        try:
            return SandboxSnapshot.model_validate(raw).model_copy(update={"backend": "remote"})
        except ValueError as error:
            raise InfrastructureFailure(f"the server sent a snapshot that is none: {error}") from error

    async def close(self) -> None:
        """Say goodbye, so that nothing of this client's is there when this returns."""
        self.check_loop()
        self._closed = True
        async with self._gate:
            if self._link is not None and self._link.ended is None:
                with contextlib.suppress(LinkLost):
                    await self._link.ask("end", {})
                self._link.end("closed")
        for task in list(self._tasks):
            if not task.done():
                await asyncio.wait([task], timeout=self._patience_s)
        self._lost = self._lost or "closed"


async def _quietly(link: Link, op: str, arguments: dict[str, Any]) -> None:
    with contextlib.suppress(InfrastructureFailure):
        await link.ask(op, arguments)


def _certificate(writer: asyncio.StreamWriter) -> bytes:
    tls = writer.get_extra_info("ssl_object")
    return (tls.getpeercert(binary_form=True) or b"") if tls is not None else b""
