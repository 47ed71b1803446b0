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
import socket
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from envgym.page import Folder, Site, Tcp, UnixSocket

__all__ = ["BLANK_PATH", "Gate", "origin_of"]

BLANK_PATH = "/.envgym-blank"
"""Each site has an empty page of ours here, in which its storage is set."""

_PORTS = {"http": 80, "ws": 80}
_HEAD = 1 << 16
_CHUNK = 1 << 16
_DROPPED = {b"proxy-connection", b"connection", b"keep-alive", b"proxy-authorization", b"upgrade"}


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


class Gate:
    """The proxy. refused: what was wanted outside, since it was last emptied; at most the first 50."""

    def __init__(self, listener: socket.socket, sites: Mapping[str, Site]) -> None:
        self._listener, self._sites = listener, dict(sites)
        self.refused: list[str] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError:
                return
            task = loop.create_task(self._serve(connection))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        """End every connection."""
        tasks = [self._accepting, *self._serving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    async def _serve(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection, limit=_HEAD)
        try:
            while await self._answer(await reader.readuntil(b"\r\n\r\n"), reader, writer):
                pass
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            pass  # the connection ends; what Chromium makes of that is the page's matter
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether another one may come on the same connection, as it may to what is ours."""
        line, *fields = head[:-4].split(b"\r\n")
        method, target, _ = line.decode("latin-1").split(" ")
        tunnel = method == "CONNECT"
        url = f"http://{target}/" if tunnel else target
        site = self._sites.get(origin_of(url) or "")
        if site is None or (tunnel and isinstance(site, Folder)):
            self._refuse(f"https://{target.removesuffix(':443')}/" if target.endswith(":443") else url)
            writer.write(_response(403, b"This address is outside the episode's sites."))
            await writer.drain()
            return False
        path, goes_on = _path(url), method in ("GET", "HEAD") and not any(map(_of_a_body, fields))
        if path == BLANK_PATH:
            writer.write(_response(200, b"<!doctype html>", "text/html", goes_on=goes_on))
        elif isinstance(site, Folder):
            writer.write(_file(site.path, method, path, goes_on))
        else:
            await self._pass(site, tunnel, (method, path, fields), (reader, writer))
            goes_on = False
        await writer.drain()
        return goes_on

    def _refuse(self, url: str) -> None:
        if url.endswith("/favicon.ico"):
            return  # nobody's wish, and nobody knows when it comes
        if len(self.refused) < 50 and url not in self.refused:
            self.refused.append(url[:300])

    async def _pass(
        self,
        site: UnixSocket | Tcp,
        tunnel: bool,
        request: tuple[str, str, list[bytes]],
        ends: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        reader, writer = ends
        try:
            if isinstance(site, UnixSocket):
                inner, outer = await asyncio.open_unix_connection(site.path)
            else:
                inner, outer = await asyncio.open_connection(site.host, site.port)
        except OSError as error:
            writer.write(_response(502, f"The site's server does not answer: {error}".encode()))
            return
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
                await _both(_copied(reader, outer), _copied(inner, writer))
                return
            head, length = _onward(request)
            outer.write(head)
            await _both(_copied(reader, outer, length), _response_passed(inner, writer))
        finally:
            outer.close()
            with contextlib.suppress(OSError):
                await outer.wait_closed()


async def _both(there: Coroutine[Any, Any, None], back: Coroutine[Any, Any, None]) -> None:
    """Until the way back is over; the way there ends with it."""
    sending = asyncio.ensure_future(there)
    try:
        await back
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


def _onward(request: tuple[str, str, list[bytes]]) -> tuple[bytes, int]:
    """A request's head as the site's server gets it, and its body's length. Raises ValueError for what is odd."""
    method, path, fields = request
    kept, length = [], 0
    for field in fields:
        name, colon, value = field.partition(b":")
        if not colon or name != name.strip():
            raise ValueError(f"a header is {field[:80]!r}")
        if name.lower() == b"transfer-encoding":
            raise ValueError("a request's body of unknown length")
        if name.lower() == b"content-length":
            length = int(value)
        if name.lower() not in _DROPPED:
            kept.append(field)
    lines = [f"{method} {path} HTTP/1.1".encode("latin-1"), *kept, b"Connection: close"]
    return b"\r\n".join(lines) + b"\r\n\r\n", length


async def _response_passed(inner: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass a response on, told to be the connection's last, whatever the server says of that."""
    while True:
        head = await inner.readuntil(b"\r\n\r\n")
        line, *fields = head[:-4].split(b"\r\n")
        if line.split(b" ")[1] != b"100":
            break
    kept = [field for field in fields if field.partition(b":")[0].lower() not in _DROPPED]
    lengths = [field.partition(b":")[2] for field in kept if field.lower().startswith(b"content-length:")]
    writer.write(b"\r\n".join([line, *kept, b"Connection: close"]) + b"\r\n\r\n")
    await _copied(inner, writer, int(lengths[0]) if lengths else None)


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


def _of_a_body(field: bytes) -> bool:
    return field.partition(b":")[0].strip().lower() in (b"content-length", b"transfer-encoding")


def _response(
    status: int,
    body: bytes,
    kind: str = "text/plain; charset=utf-8",
    *,
    length: int | None = None,
    goes_on: bool = False,
) -> bytes:
    says = {200: "OK", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed", 502: "Bad Gateway"}[status]
    size = len(body) if length is None else length
    head = [f"HTTP/1.1 {status} {says}", f"Content-Type: {kind}", f"Content-Length: {size}"]
    head += [] if goes_on else ["Connection: close"]
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
