"""Chromium's debugging protocol over its pipe: commands go out at once, answers are futures, events go to handlers.

Commands need not wait for each other: several are sent in one go, and the answers awaited together.
"""

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

from envgym.errors import SandboxDied

__all__ = ["Handler", "Refused", "Wire"]

Handler = Callable[[str, dict[str, Any]], None]


class Refused(Exception):
    """Chromium refused a command; it says why."""


class Wire:
    """The pipe. commands, answers: its descriptors, which are closed by whoever opened them.

    sent: how many commands were. on_gone: called once when the other end is gone. Every command that waits then
    raises SandboxDied.
    """

    def __init__(self, commands: int, answers: int, on_gone: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._commands, self._answers = commands, answers
        self._on_gone = on_gone
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._handlers: dict[str, Handler] = {}
        self.sent = 0
        self._came: list[bytes] = []
        self._unsent = bytearray()
        self.gone = ""
        self._loop.add_reader(answers, self._read)

    def handle(self, session: str, handler: Handler | None) -> None:
        """Who hears the events of a session ("": the browser's own); None for nobody."""
        if handler is None:
            self._handlers.pop(session, None)
        else:
            self._handlers[session] = handler

    def call(self, method: str, session: str = "", /, **params: Any) -> "asyncio.Future[dict[str, Any]]":
        """Send a command; the future gives its result, or raises Refused or SandboxDied."""
        future: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        if self.gone:
            future.set_exception(SandboxDied(self.gone))
            future.add_done_callback(_looked_at)
            return future
        self.sent += 1
        self._waiting[self.sent] = future
        # a command whose answer nobody waits for any more is no error
        future.add_done_callback(_looked_at)
        self._send({"id": self.sent, "method": method, "params": params}, session)
        return future

    def tell(self, method: str, session: str = "", /, **params: Any) -> None:
        """Send a command whose answer does not matter."""
        if not self.gone:
            self.sent += 1
            self._send({"id": self.sent, "method": method, "params": params}, session)

    def _send(self, command: dict[str, Any], session: str) -> None:
        if session:
            command["sessionId"] = session
        waits = bool(self._unsent)
        self._unsent += json.dumps(command, separators=(",", ":")).encode() + b"\0"
        if not waits:
            self._write()

    def _write(self) -> None:
        try:
            while self._unsent:
                sent = os.write(self._commands, self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            self._loop.add_writer(self._commands, self._write)
            return
        except OSError:
            self._end()
            return
        self._loop.remove_writer(self._commands)

    def _read(self) -> None:
        try:
            data = os.read(self._answers, 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        *whole, rest = data.split(b"\0")
        for part in whole:
            self._came.append(part)
            message = b"".join(self._came)
            self._came.clear()
            self._take(json.loads(message))
        if rest:
            self._came.append(rest)

    def _take(self, message: dict[str, Any]) -> None:
        number = message.get("id")
        if number is None:
            handler = self._handlers.get(message.get("sessionId", ""))
            if handler is not None:
                handler(message["method"], message.get("params", {}))
            return
        future = self._waiting.pop(number, None)
        if future is None or future.done():
            return
        if "error" in message:
            future.set_exception(Refused(message["error"].get("message", "refused")))
        else:
            future.set_result(message.get("result", {}))

    def _end(self) -> None:
        if self.gone:
            return
        self.close("the browser is gone")
        self._on_gone()

    def close(self, why: str) -> None:
        """Stop reading; what waits raises SandboxDied. Idempotent."""
        if self.gone:
            return
        self.gone = why
        self._loop.remove_reader(self._answers)
        self._loop.remove_writer(self._commands)
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(SandboxDied(why))


def _looked_at(future: "asyncio.Future[dict[str, Any]]") -> None:
    if not future.cancelled():
        future.exception()
