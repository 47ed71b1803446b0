"""The proxy of one context: the only way out of it, and it leads to its episode's sites alone.

It accepts on a socket that listens in Chromium's network namespace, where nobody but Chromium can connect, and a
context knows no other's. A request is for one of the sites or is refused and noted. A connection that leads to a
server carries one request, so that none can follow another to where it may not go; what is answered here, which is
a folder's files, may be followed by another one, which is looked at as the first was. `CONNECT` (web sockets) is a
tunnel to a site.
"""

import asyncio
import contextlib
import mimetypes
import os
import re
import socket
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from envgym.page import Folder, Site, Tcp, UnixSocket
from envgym_sandboxes.browser.heads import MOST_HEAD, Answer, Request, answer_of, onward, request_of

__all__ = ["BLANK_PATH", "Gate", "origin_of"]

BLANK_PATH = "/.envgym-blank"
"""Each site has an empty page of ours here, in which its storage is set."""
_BLANK = b'<!doctype html><link rel="icon" href="data:,">'  # else the site would be asked for one
_NOT_STORED = re.compile(rb"\r\ncache-control:[^\r\n]*\bno-store\b", re.IGNORECASE)

_PORTS = {"http": 80, "ws": 80}
_CHUNK = 1 << 16
_MOST_INTERIM = 20
_SAYS = {
    200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed", 502: "Bad Gateway"
}  # fmt: skip


def origin_of(url: str) -> str | None:
    """The origin of a URL as `PageSpec.sites` spells it, without the default port; None for what has none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"http://{host}" + (f":{port}" if port not in (None, 80) else "")


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Gate:
    """The proxy. refused: what was wanted outside, since it was last emptied; at most the first 50.

    stored: whether anything was passed that the browser's cache may hold: all but what is told not to be stored.
    """

    def __init__(self, listener: socket.socket, sites: Mapping[str, Site]) -> None:
        self._listener, self._sites = listener, dict(sites)
        self.refused: list[str] = []
        self.stored = False
        self._serving: dict[asyncio.Task[None], socket.socket] = {}
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            asyncio.get_running_loop().remove_reader(self._listener)
            return
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._serving[task] = connection
        task.add_done_callback(self._serving.pop)

    async def close(self) -> None:
        """End every connection."""
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listener)
        tasks, connections = [*self._serving], [*self._serving.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in connections:  # one whose task had not begun is nobody else's to close
            connection.close()
        self._listener.close()

    async def _serve(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection, limit=MOST_HEAD)
        try:
            while await self._answered(reader, writer):
                pass
        except (OSError, EOFError):
            pass  # the connection ends; what Chromium makes of that is the page's matter
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer the next request, one that makes no sense with 400; whether another one may come."""
        try:
            goes_on = await self._answer(request_of(await reader.readuntil(b"\r\n\r\n")), (reader, writer))
        except (ValueError, asyncio.LimitOverrunError) as error:
            writer.write(_response(400, f"The request makes no sense: {error}".encode()))
            goes_on = False
        await writer.drain()
        return goes_on

    async def _answer(self, request: Request, ends: Ends) -> bool:
        """Answer one request; whether another one may come on the same connection, as it may to what is ours."""
        tunnel, target, writer = request.method == "CONNECT", request.target, ends[1]
        url = f"http://{target}/" if tunnel else target
        site = self._sites.get(origin_of(url) or "")
        if site is None or (tunnel and isinstance(site, Folder)):
            self._refuse(f"https://{target.removesuffix(':443')}/" if target.endswith(":443") else url)
            writer.write(_response(403, b"This address is outside the episode's sites."))
            return False
        path, goes_on = _path(url), request.method in ("GET", "HEAD") and not request.has_body
        if path == BLANK_PATH:
            writer.write(_response(200, _BLANK, "text/html", goes_on=goes_on, stored=False))
        elif isinstance(site, Folder):
            self.stored = True
            writer.write(_file(site.path, request.method, path, goes_on))
        else:
            await self._pass(site, request, path, ends)
            goes_on = False
        return goes_on

    def _refuse(self, url: str) -> None:
        if url.endswith("/favicon.ico"):
            return  # nobody's wish, and nobody knows when it comes
        if len(self.refused) < 50 and url not in self.refused:
            self.refused.append(url[:300])

    async def _pass(self, site: UnixSocket | Tcp, request: Request, path: str, ends: Ends) -> None:
        reader, writer = ends
        tunnel = request.method == "CONNECT"
        head, length = (b"", 0) if tunnel else onward(request, path)
        try:
            if isinstance(site, UnixSocket):
                inner, outer = await asyncio.open_unix_connection(site.path, limit=MOST_HEAD)
            else:
                inner, outer = await asyncio.open_connection(site.host, site.port, limit=MOST_HEAD)
        except OSError as error:
            writer.write(_response(502, f"The site's server does not answer: {error}".encode()))
            return
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
                await _both(_copied(reader, outer), _copied(inner, writer))
                return
            outer.write(head)
            await _both(_copied(reader, outer, length), self._response_passed(inner, writer, request.method))
        finally:
            outer.close()
            with contextlib.suppress(OSError):
                await outer.wait_closed()

    async def _response_passed(
        self, inner: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str
    ) -> None:
        """Pass a response on; in the place of one that makes no sense, say so."""
        try:
            answer = await _last_answer(inner, method)
        except (ValueError, EOFError, OSError, asyncio.LimitOverrunError) as error:
            told = f"The site's server gave no response that can be understood: {error}"
            writer.write(_response(502, told.encode()))
            return
        self.stored = self.stored or _NOT_STORED.search(answer.head) is None
        writer.write(answer.head)
        await _copied(inner, writer, answer.length)


async def _both(there: Coroutine[Any, Any, None], back: Coroutine[Any, Any, None]) -> None:
    """Until the way back is over; the way there ends with it."""
    sending = asyncio.ensure_future(there)
    try:
        await back
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _last_answer(inner: asyncio.StreamReader, method: str) -> Answer:
    """The answer after those that only say that it will come. Raises ValueError, EOFError, OSError."""
    for _ in range(_MOST_INTERIM):
        answer = answer_of(await inner.readuntil(b"\r\n\r\n"), method)
        if answer.status >= 200:
            return answer
    raise ValueError(f"{_MOST_INTERIM} times that it will come")


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int | None = None) -> None:
    left = most
    while left is None or left > 0:
        data = await reader.read(_CHUNK if left is None else min(_CHUNK, left))
        if not data:
            break
        left = None if left is None else left - len(data)
        writer.write(data)
        await writer.drain()


def _path(url: str) -> str:
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _response(
    status: int,
    body: bytes,
    kind: str = "text/plain; charset=utf-8",
    *,
    length: int | None = None,
    goes_on: bool = False,
    stored: bool = True,
) -> bytes:
    size = len(body) if length is None else length
    head = [f"HTTP/1.1 {status} {_SAYS[status]}", f"Content-Type: {kind}", f"Content-Length: {size}"]
    head += [] if goes_on else ["Connection: close"]
    head += [] if stored else ["Cache-Control: no-store"]
    return "\r\n".join([*head, "\r\n"]).encode("latin-1") + body


def _file(root: str, method: str, path: str, goes_on: bool) -> bytes:
    """The response of a folder: the file at a path, or a directory's index.html."""
    if method not in ("GET", "HEAD"):
        return _response(405, b"Files are only read here.")
    top = Path(os.path.realpath(root))
    try:
        found = Path(os.path.realpath(top / unquote(path.partition("?")[0]).lstrip("/")))
        if found.is_dir():
            found = Path(os.path.realpath(found / "index.html"))
        inside = found.is_relative_to(top) and found.is_file()
        content = found.read_bytes() if inside else b""
    except (OSError, ValueError):
        inside, content = False, b""
    if not inside:
        return _response(404, b"There is no such file.", goes_on=goes_on)
    kind = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
    return _response(200, b"" if method == "HEAD" else content, kind, length=len(content), goes_on=goes_on)
