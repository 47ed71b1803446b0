"""The server of one episode: HTTP/1.1 on a unix socket of its own, in the event loop of the environment.

h11 reads and writes the protocol; the application is a coroutine from a WSGI environ to a response. No process, no
port: opening and closing one takes less than a millisecond.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from io import BytesIO
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import h11
from werkzeug.wrappers import Response

from envgym_environments.web.sockets import Listener

__all__ = ["Server"]

Respond = Callable[[dict[str, Any]], Coroutine[Any, Any, Response]]
_MOST_BODY = 1 << 20


class Server:
    """Serves one application until it is closed. crashed: what it raised, which is the world's fault."""

    def __init__(self, respond: Respond, host: str) -> None:
        self._respond, self._host = respond, host
        self._listener = Listener(self._talk)
        self.crashed: BaseException | None = None

    @property
    def path(self) -> str:
        """Of the unix socket. Raises RuntimeError before `open`."""
        return self._listener.path

    async def open(self) -> None:
        """Begin to listen; does nothing where it does already."""
        self._listener.open()

    async def close(self) -> None:
        """End all connections, what is being answered included, and the socket. Idempotent."""
        await self._listener.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        # the browser goes away, or what connected speaks no HTTP: nobody is left to be answered
        with suppress(ConnectionError, h11.RemoteProtocolError):
            while await self._answer(connection, reader, writer):
                connection.start_next_cycle()

    async def _answer(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; whether the connection stays."""
        request, body = None, bytearray()
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(65_536))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > _MOST_BODY:
                    return False
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                break
            else:
                return False
        writer.write(await self._said(connection, request, bytes(body)))
        await writer.drain()
        return connection.our_state is h11.DONE and connection.their_state is h11.DONE

    async def _said(self, connection: h11.Connection, request: h11.Request, body: bytes) -> bytes:
        try:
            response = await self._respond(_environ(request, body, self._host))
        except Exception as error:  # shown as what it is by the environment, after this answer
            self.crashed = error
            response = Response("the application failed", status=500)
        content = b"" if request.method == b"HEAD" else response.get_data()
        headers = [(name, value) for name, value in response.headers if name.lower() != "content-length"]
        headers.append(("Content-Length", str(len(response.get_data()))))
        said = connection.send(h11.Response(status_code=response.status_code, headers=headers)) or b""
        said += connection.send(h11.Data(data=content)) or b""
        return said + (connection.send(h11.EndOfMessage()) or b"")


def _environ(request: h11.Request, body: bytes, host: str) -> dict[str, Any]:
    """A WSGI environ (PEP 3333) of a request."""
    target = urlsplit(request.target.decode("latin-1"))
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method.decode("latin-1"),
        "SCRIPT_NAME": "",
        "REQUEST_URI": request.target.decode("latin-1"),
        "PATH_INFO": unquote_to_bytes(target.path).decode("latin-1") or "/",
        "QUERY_STRING": target.query,
        "CONTENT_LENGTH": str(len(body)),
        "SERVER_NAME": host,
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": BytesIO(body),
        "wsgi.errors": None,
        "wsgi.multithread": False,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in request.headers:
        key = name.decode("latin-1").upper().replace("-", "_")
        if key == "CONTENT_TYPE":
            environ[key] = value.decode("latin-1")
        elif key != "CONTENT_LENGTH":
            environ[f"HTTP_{key}"] = value.decode("latin-1")
    return environ
