"""The way from an episode's browser to a program in a sandbox: what is asked is noted, bytes pass both ways.

It listens where only that browser looks for it. Each connection carries one request, for what follows the first one
would not be looked at; web sockets and streams pass as they come. An answer that does not begin in time, or never
comes, is the application's fault; whatever it answers, an error too, is the page's matter.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from envgym.errors import EnvgymError
from envgym_environments.web.door import Door, asks_document
from envgym_environments.web.sockets import Listener

__all__ = ["Tap"]

_MOST_HEAD = 1 << 16
_CHUNK = 1 << 16
_LINE = re.compile(r"([A-Z]+) (\S+) HTTP/1\.[01]")
_LATE = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_GOES_ON = re.compile(rb"HTTP/1\.[01] 101 |.*?\r\ncontent-type: *text/event-stream", re.IGNORECASE | re.DOTALL)

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])\b")
_OF_A_CONNECTION = (b"connection", b"keep-alive")

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class _Head:
    """The head of a request. said: its first line, short."""

    said: str
    path: str
    is_document: bool
    cookies: str
    onward: bytes


def _read(head: bytes) -> _Head | None:
    """A request's head, told to be its connection's last; None where it makes no sense."""
    first, *rest = head[:-4].decode("latin-1").split("\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        return None
    fields = [(name.strip().lower(), value.strip()) for name, _, value in (one.partition(":") for one in rest)]
    said = dict(fields)
    changes = "upgrade" in said.get("connection", "").lower()
    kept = [f"{name}: {value}" for name, value in fields if changes or name not in ("connection", "keep-alive")]
    onward = "\r\n".join([first, *kept, *([] if changes else ["connection: close"]), "\r\n"]).encode("latin-1")
    is_document = asks_document(line[1], said.get("accept", ""), said.get("sec-fetch-dest", ""))
    return _Head(first[:200], line[2], is_document, said.get("cookie", ""), onward)


class Tap:
    """note: awaited with path and Cookie field of each document that is asked for, before it is passed on.

    Meanwhile nothing else is passed on, and what was is waited for: nobody changes what is noted. target: host and
    port of the program; without one, and where the door is shut, the answer is 502. answer_s: within which an
    answer begins. crashed: what went wrong.
    """

    def __init__(self, note: Callable[[str, str], Awaitable[None]], answer_s: float) -> None:
        self._note, self._answer_s = note, answer_s
        self._listener = Listener(self._talk, limit=_MOST_HEAD)
        self._answering: set[asyncio.Task[None]] = set()
        self._passed: set[asyncio.Task[None]] = set()
        self._noting = asyncio.Lock()
        self.door = Door()
        self.target: tuple[str, int] | None = None
        self.crashed: BaseException | None = None

    async def open(self) -> str:
        """Begin to listen, where it does not; the path of the unix socket."""
        self._listener.open()
        return self._listener.path

    async def quiet(self) -> None:
        """Wait until no answer is awaited or under way; for streams, and beyond `answer_s`, nobody waits."""
        if self._answering:
            await asyncio.wait(tuple(self._answering), timeout=self._answer_s)

    async def cut(self) -> None:
        """End all connections; it listens on."""
        await self._listener.cut()
        self.crashed = None

    async def close(self) -> None:
        """End it. Idempotent."""
        await self._listener.close()
        self.crashed = None

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            head = _read(await reader.readuntil(b"\r\n\r\n"))
            if head is not None:
                self._answering.add(task)
                await self._carry(head, (reader, writer))
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass  # the browser went away, or what it said is no request: nobody is left to be answered
        finally:
            self._over(task)

    async def _carry(self, head: _Head, browser: Ends) -> None:
        writer = browser[1]
        try:
            target = self.target if self.door.admits(head.is_document) else None
            if target is None:
                writer.write(_LATE)
                return
            await self._in_turn(head)
            inner, outer = await asyncio.open_connection(*target, limit=_MOST_HEAD)
        except (EnvgymError, OSError) as error:
            self.crashed = error
            writer.write(_LATE)
            return
        there = asyncio.ensure_future(_copied(browser[0], outer))
        try:
            outer.write(head.onward)
            await self._answered(head, inner, writer, there)
        finally:
            there.cancel()
            await asyncio.gather(there, return_exceptions=True)
            outer.close()
            with suppress(OSError):
                await outer.wait_closed()

    async def _in_turn(self, head: _Head) -> None:
        """From now on it counts as passed on; a document is noted before, while nothing is answered."""
        task = asyncio.current_task()
        assert task is not None
        async with self._noting:
            if head.is_document:
                if self._passed:
                    await asyncio.wait(tuple(self._passed), timeout=self._answer_s)
                await self._note(head.path, head.cookies)
            self._passed.add(task)

    def _over(self, task: "asyncio.Task[None]") -> None:
        """Nobody waits for it any more: it is answered, or goes on without end."""
        self._answering.discard(task)
        self._passed.discard(task)

    async def _answered(
        self, head: _Head, inner: asyncio.StreamReader, writer: asyncio.StreamWriter, there: "asyncio.Future[None]"
    ) -> None:
        """Pass the answer on. there: what the browser sends meanwhile; over when it has gone."""
        back = asyncio.ensure_future(_answer_of(inner))
        try:
            await asyncio.wait((back, there), timeout=self._answer_s, return_when=asyncio.FIRST_COMPLETED)
            if not back.done() and there.done():
                return
            crashed: Exception | None = None
            if not back.done():
                crashed = TimeoutError(f"{head.said} was not answered within {self._answer_s:g} s")
            elif (error := back.exception()) is not None:
                why = error if isinstance(error, ValueError) else "the connection ended"
                crashed = ConnectionError(f"{head.said} was not answered: {why}")
            if crashed is not None:
                self.crashed = crashed
                writer.write(_LATE)
                return
            begun = back.result()
        finally:
            back.cancel()
            await asyncio.gather(back, return_exceptions=True)
        if _GOES_ON.match(begun):
            task = asyncio.current_task()
            assert task is not None
            self._over(task)
        writer.write(begun)
        rest = asyncio.ensure_future(_copied(inner, writer))
        try:
            await asyncio.wait((rest, there), return_when=asyncio.FIRST_COMPLETED)
        finally:
            rest.cancel()
            await asyncio.gather(rest, return_exceptions=True)
        await writer.drain()


async def _answer_of(reader: asyncio.StreamReader) -> bytes:
    """The head of an answer, told to be its connection's last. Raises EOFError, OSError, ValueError.

    What only says that one will come is passed over: who asks here waits for none of that.
    """
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise ValueError(f"its head has more than {_MOST_HEAD} bytes") from error
        found = _STATUS.match(head)
        if found is None:
            raise ValueError(f"it begins with {head[:80]!r}")
        if found[1] == b"101":
            return head
        if not found[1].startswith(b"1"):
            first, *fields = head[:-4].split(b"\r\n")
            kept = [one for one in fields if one.partition(b":")[0].strip().lower() not in _OF_A_CONNECTION]
            return b"\r\n".join([first, *kept, b"Connection: close", b"\r\n"])


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
