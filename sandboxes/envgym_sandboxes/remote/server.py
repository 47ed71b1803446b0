"""A backend of this host, served to clients that know its token.

It accepts, lets both sides prove the token within seconds, and gives every client a session. Who has no token gets
nothing, and can hold no more than a bounded number of connections for a bounded time: the oldest one goes for the
newest. What a session does is not its matter.
"""

import asyncio
import errno
import logging
import secrets
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from envgym.sandbox import SandboxBackend
from envgym_sandboxes import protocol
from envgym_sandboxes.remote.address import Address, is_loopback
from envgym_sandboxes.remote.handshake import Refused, as_server, check_token
from envgym_sandboxes.remote.link import Link, keep_alive
from envgym_sandboxes.remote.parcels import disk_root
from envgym_sandboxes.remote.session import Session
from envgym_sandboxes.remote.trees import Trees
from envgym_sandboxes.state import StateDirectory, default_root, reap

__all__ = ["SandboxServer", "ServerBounds"]

_LOG = logging.getLogger("envgym.sandboxes")


@dataclass(frozen=True, slots=True)
class ServerBounds:
    """What clients may take.

    handshake_s: seconds until a new connection has proved its token. strangers: connections that have not yet.
    connections: those that have. grace_s: how long the sandboxes of a client whose connection broke wait for it to
    come back (0: they end at once). tree_bytes: kept of clients' directories beyond those in use. sandboxes: that
    one client may have at a time. held_bytes: what one client's open calls may hold in the server's memory.
    """

    handshake_s: float = 5.0
    strangers: int = 64
    connections: int = 256
    grace_s: float = 0.0
    tree_bytes: int = 4 << 30
    sandboxes: int = 4096
    held_bytes: int = 2 << 30

    def __post_init__(self) -> None:
        for name in ("handshake_s", "strangers", "connections", "sandboxes", "held_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"ServerBounds.{name} is {getattr(self, name)}; it must be positive")
        if self.grace_s < 0 or self.tree_bytes < 0:
            raise ValueError(
                f"ServerBounds: grace_s {self.grace_s} and tree_bytes {self.tree_bytes} must be at least 0"
            )


@dataclass(slots=True)
class _Client:
    """A session, the link that it is driven over now, and the timer that ends it when there is none."""

    session: Session
    link: Link | None = None
    timer: asyncio.TimerHandle | None = None


class SandboxServer:
    """Serves `backend` at `listen` ("127.0.0.1:0": any free port). An async context manager; it owns the backend.

    tls: a server-side context, and `certificate` its certificate in DER; without, `listen` must be a loopback
    address, or `plain` must say that anybody on the way may read and change what is said.
    Raises ValueError for a token that can be guessed, and for a plain text that was not asked for.
    """

    def __init__(
        self,
        backend: SandboxBackend,
        token: str,
        *,
        listen: str = "127.0.0.1:0",
        tls: tuple[ssl.SSLContext, bytes] | None = None,
        plain: bool = False,
        bounds: ServerBounds | None = None,
    ) -> None:
        self._backend, self._token, self._tls = backend, check_token(token), tls
        self._listen = Address.parse(listen)
        self._bounds = bounds or ServerBounds()
        if tls is None and not plain and not is_loopback(self._listen.host):
            raise ValueError(
                f"listen is {listen!r}, which is not a loopback address, and there is no TLS: anybody on the way "
                "could read and change what is said; give a certificate, or ask for it with plain=True (--plain)"
            )
        self._clients: dict[str, _Client] = {}
        self._strangers: dict[asyncio.Task[None], None] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._state: StateDirectory | None = None
        self._disk: StateDirectory | None = None

    # -- life --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        for root in (default_root(), disk_root()):
            reap(root)
        self._state, self._disk = StateDirectory(default_root(), []), StateDirectory(disk_root(), [])
        try:
            self._trees = Trees(self._state.path / "trees", self._bounds.tree_bytes)
            self._listener = _listening(self._listen)
            await self._backend.__aenter__()
        except BaseException:
            self._state.remove()
            self._disk.remove()
            if self._listener is not None:
                self._listener.close()
            raise
        self._accepting = asyncio.create_task(self._accept(self._listener))
        return self

    @property
    def address(self) -> str:
        """Where it listens, as "host:port"."""
        assert self._listener is not None, "the server was not entered"
        return str(Address(*self._listener.getsockname()[:2]))

    async def serve(self) -> None:
        """Wait until accepting ends, which it does by cancellation or by an error of the listening socket."""
        assert self._accepting is not None, "the server was not entered"
        await asyncio.shield(self._accepting)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        assert self._accepting is not None
        assert self._listener is not None
        assert self._state is not None
        assert self._disk is not None
        for task in (self._accepting, *self._strangers):
            task.cancel()
        await asyncio.gather(self._accepting, *self._strangers, return_exceptions=True)
        self._listener.close()
        for name in list(self._clients):
            self._end(name, "the server ends")
        while self._ending:
            await asyncio.gather(*self._ending, return_exceptions=True)
        await self._backend.__aexit__(kind, error, trace)
        self._state.remove()
        self._disk.remove()

    # -- connections -------------------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _peer = await loop.sock_accept(listener)
            except ConnectionError:
                continue  # it hung up while it waited
            except OSError as error:
                if not self._strangers:
                    raise
                _LOG.warning("no connection can be accepted: %s; the oldest stranger goes", error)
                await self._drop_stranger()
                continue
            if len(self._strangers) >= self._bounds.strangers:
                await self._drop_stranger()
            task = asyncio.create_task(self._meet(sock))
            self._strangers[task] = None
            task.add_done_callback(lambda done: self._strangers.pop(done, None))

    async def _drop_stranger(self) -> None:
        oldest = next(iter(self._strangers))
        oldest.cancel()
        await asyncio.wait([oldest])

    async def _meet(self, sock: socket.socket) -> None:
        """Everything before a client is one."""
        writer: asyncio.StreamWriter | None = None
        met = False
        try:
            async with asyncio.timeout(self._bounds.handshake_s):
                keep_alive(sock)
                reader, writer = await _stream(sock, self._tls[0] if self._tls else None, self._bounds.handshake_s)
                told: dict[str, Any] = {}
                certificate = self._tls[1] if self._tls else b""
                await as_server(reader, writer, self._token, certificate, lambda wants: self._welcome(wants, told))
            self._attach(told["session"], reader, writer)
            met = True
        except (OSError, EOFError, ssl.SSLError, protocol.ProtocolError, Refused) as error:
            _LOG.warning("a connection was refused: %s", error or type(error).__name__)
        finally:
            if not met:
                if writer is not None:
                    writer.transport.abort()
                sock.close()

    def _welcome(self, wants: Mapping[str, Any], told: dict[str, Any]) -> dict[str, Any]:
        """What a client that proved itself is told: its session, which may be the one it had."""
        wanted = wants.get("session")
        resumed = isinstance(wanted, str) and wanted in self._clients
        if not resumed and len(self._clients) >= self._bounds.connections:
            raise Refused(f"{self._bounds.connections} clients are connected, which is its bound")
        told["session"] = wanted if resumed else secrets.token_hex(16)
        grace_s = self._bounds.grace_s
        return {"session": told["session"], "resumed": resumed, "backend": self._backend.name, "grace_s": grace_s}

    def _attach(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._state is not None
        client = self._clients.get(name)
        if client is None:
            assert self._disk is not None
            places = [state.path / f"files-{name}" for state in (self._state, self._disk)]
            for place in places:
                place.mkdir(mode=0o700)
            session = Session(self._backend, self._trees, *places, most_sandboxes=self._bounds.sandboxes)
            client = self._clients[name] = _Client(session)
        if client.timer is not None:
            client.timer.cancel()
            client.timer = None
        before, client.link = client.link, None
        if before is not None:
            before.end("its client came back another way")
        link = Link(
            reader,
            writer,
            serve=client.session.answer,
            on_end=lambda reason: self._left(name, link, reason),
            most_held=self._bounds.held_bytes,
        )
        client.link = link

    def _left(self, name: str, link: Link, reason: str) -> None:
        """A link is over: its client's things end now, or later if it may come back."""
        client = self._clients.get(name)
        self._later(link.closed())
        if client is None or client.link is not link:
            return
        client.link = None
        if self._bounds.grace_s and not client.session.ended:
            loop = asyncio.get_running_loop()
            client.timer = loop.call_later(self._bounds.grace_s, self._end, name, reason)
        else:
            self._end(name, reason)

    def _end(self, name: str, reason: str) -> None:
        client = self._clients.pop(name)
        if client.timer is not None:
            client.timer.cancel()
        if client.link is not None:
            client.link.end(reason)
        self._later(client.session.close())

    def _later(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _listening(address: Address) -> socket.socket:
    """A bound socket. Raises OSError, with the address in the place of a file."""
    try:
        info = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise OSError(error.errno, f"cannot listen there: {error.strerror}", str(address)) from None
    sock = socket.socket(info[0], info[1])
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(info[4])
        sock.listen(1024)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        advice = "; listen on another port, or on 0 for any free one" if error.errno == errno.EADDRINUSE else ""
        raise OSError(error.errno, f"cannot listen there: {error.strerror}{advice}", str(address)) from None
    return sock


async def _stream(
    sock: socket.socket, tls: ssl.SSLContext | None, handshake_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An accepted socket as streams, TLS begun."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 17)  # a stranger fills no more than twice that
    made = asyncio.StreamReaderProtocol(reader)
    options: dict[str, Any] = {"ssl_handshake_timeout": handshake_s, "ssl_shutdown_timeout": 1.0} if tls else {}
    transport, _ = await loop.connect_accepted_socket(lambda: made, sock, ssl=tls, **options)
    return reader, asyncio.StreamWriter(transport, made, reader, loop)
