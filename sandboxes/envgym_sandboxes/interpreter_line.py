"""The host's end of a mailbox inside a sandbox: requests are files, answers are lines; by the contract alone.

So an interpreter works in every sandbox, however far away. Answers come in any order; while any is awaited, one
task looks at the process. Nothing that comes from the inside is believed: who speaks nonsense is down.
"""

import asyncio
import hashlib
import itertools
import json
from errno import EDQUOT, ENOSPC
from signal import SIGUSR1
from typing import Any

from envgym.errors import SandboxDied
from envgym.sandbox import Sandbox
from envgym_sandboxes import protocol

__all__ = ["Down", "Line"]

_LOOK_S = 20.0
_LISTEN_S = 1.0  # a snapshot of the sandbox waits for a look to end
_NO_REQUEST = -1  # what is told under this number answers no request


class Down(Exception):
    """The other side has ended, is silent, or speaks nonsense, while its sandbox may be well."""


class Line:
    """Questions to one background process. `top` is its directory, known once it is ready."""

    def __init__(self, sandbox: Sandbox, process: str) -> None:
        self._sandbox = sandbox
        self.process = process
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._rest = b""
        self._places: list[int] = []  # files to write the next requests to: to overwrite costs less than to make
        self._read: list[int] = []  # answers in files, which may be removed
        self._errors = b""
        self._knock = False
        self._making_room = asyncio.Lock()
        self.top = ""
        self.down: str | None = None

    async def ready(self, within_s: float) -> None:
        """Wait until it has begun. Raises Down with what it said on standard error."""
        answer = await self._answer(0, within_s)
        if not isinstance(answer.get("ready"), str):
            raise Down(self._end("it does not say where it is"))
        self.top, self._knock = answer["ready"], answer.get("knock") is True

    async def ask(self, head: protocol.Head, body: bytes = b"", *, within_s: float) -> dict[str, Any]:
        """One request, one answer. Raises Down, SandboxDied; OSError as `Shell.write` does."""
        number = next(self._numbers)
        place = self._places.pop() if self._places else number
        read, self._read = self._read, []
        frame = protocol.encode(head | {"id": number, "read": read}, body)
        answer = asyncio.ensure_future(self._answer(number, within_s))
        answer.add_done_callback(_looked_at)
        try:
            try:
                await self._write(f"{self.top}/in/{place}", frame)
            except OSError:
                self._places.append(place)
                raise
            if self._knock:
                await self._sandbox.signal(self.process, SIGUSR1)
            found = await answer
            self._places.append(place)  # what was answered has been read
            return found
        finally:
            answer.cancel()

    async def _write(self, path: str, frame: bytes) -> None:
        try:
            await self._sandbox.write(path, frame)
            return
        except OSError as error:
            if error.errno not in (ENOSPC, EDQUOT) or self._knock:
                raise
        async with self._making_room:
            told = asyncio.ensure_future(self._answer(_NO_REQUEST, _LOOK_S))
            told.add_done_callback(_looked_at)
            try:
                await self._sandbox.signal(self.process, SIGUSR1)
                await told
            finally:
                told.cancel()
            try:
                await self._sandbox.write(path, frame)
            except OSError:
                await self._sandbox.write(path, b"")  # what was written of it took the room
                raise

    async def ended(self) -> None:
        """Wait for the end of a process that has said that it ends. Raises SandboxDied."""
        while self.down is None and (await self._sandbox.poll(self.process, wait_s=_LOOK_S)).running:
            continue
        self.down = self.down or "its process ended"

    async def _answer(self, number: int, within_s: float) -> dict[str, Any]:
        if self.down is not None:
            raise Down(self.down)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen())
        try:
            async with asyncio.timeout(within_s):
                return await self._waiting[number]
        except TimeoutError:
            raise Down(self._end(f"it is silent for {within_s:g} s")) from None
        finally:
            future = self._waiting.pop(number)
            if future.done() and not future.cancelled():
                future.exception()  # looked at, also when this was cancelled meanwhile

    async def _listen(self) -> None:
        """Look while anybody waits. Never cut short: what a look has found would be lost with it."""
        while any(not future.done() for future in self._waiting.values()):
            try:
                status = await self._sandbox.poll(self.process, wait_s=_LISTEN_S)
                self._errors = (self._errors + status.stderr)[-4000:]
                for line in self._lines(status.stdout):
                    await self._take(line)
            except SandboxDied as error:
                self.down = str(error)
                self._fail(error)
                return
            except (OSError, ValueError, TypeError, RecursionError) as error:  # no process of that name, no JSON
                self._fail(Down(self._end(f"{type(error).__name__}: {error}")))
                return
            if any(status.lost_bytes):
                self._fail(Down(self._end("its answers were cut")))
            elif not status.running:
                said = self._errors.decode("utf-8", "replace").strip()
                self._fail(Down(self._end(f"its process ended ({status.exit_code}): {said}")))

    def _lines(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines

    async def _take(self, line: bytes) -> None:
        answer = _parsed(line)
        if "ready" in answer:
            answer["id"] = 0
        number = answer.get("id")
        if type(number) is not int:
            raise ValueError("an answer to nothing")
        if "file" in answer:
            content = await self._sandbox.read(f"{self.top}/out/{number}")
            if hashlib.sha256(content).hexdigest() != answer["file"]:
                raise ValueError(f"another has written to the answer {number}")
            answer = _parsed(content)
            self._read.append(number)
        if number in self._waiting and not self._waiting[number].done():
            self._waiting[number].set_result(answer)

    def _end(self, reason: str) -> str:
        self.down = self.down or reason
        return self.down

    def _fail(self, error: Exception) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)


def _looked_at(task: asyncio.Task[dict[str, Any]]) -> None:
    """What it raised may be met elsewhere first; nobody need hear of it twice."""
    if not task.cancelled():
        task.exception()


def _parsed(text: bytes) -> dict[str, Any]:
    """One answer. Raises ValueError."""
    answer = json.loads(text)
    if not isinstance(answer, dict):
        raise ValueError(f"a {type(answer).__name__} instead of an answer")
    return answer
