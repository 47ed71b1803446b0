"""Branches of one interpreter: for each, a process that runs its cells and a copy from after the last one.

The copy is what a fork becomes, and what a branch goes on from when a cell ends its process. So whatever a cell
does to its own process, the state before it is there, and while nothing goes wrong its threads and child processes
live on. Requests to one branch are carried out one after the other, those to several at the same time.
"""

import base64
import contextlib
import itertools
import os
import shutil
import signal
import time
from typing import Any, NamedTuple, Protocol

from envgym_sandboxes import protocol
from envgym_sandboxes.capture import Capture
from envgym_sandboxes.inside.branch import BROKEN
from envgym_sandboxes.inside.later import Turn
from envgym_sandboxes.inside.process import Answer, Process
from envgym_sandboxes.inside.spending import Spending
from envgym_sandboxes.tree import boot_ticks

__all__ = ["GRACE_S", "Failed", "Member", "Reply", "Settings", "Spawner", "moved"]

GRACE_S = 1.0
"""How long after its interrupt a cell may go on before its process is killed."""
_COPY_S = 30.0
_LOOK_S = 20.0
_IN_A_FRAME = 32 << 10  # what any socket's buffer takes at once


class Failed(Exception):
    """A request that cannot be carried out; the text says why, `kind` whose fault it is."""

    def __init__(self, text: str, kind: str = "failed") -> None:
        super().__init__(text)
        self.kind = kind


class Settings(NamedTuple):
    """What the host said.

    workdir: where the first interpreter finds itself. top: below which each has a directory of its own, if `own`.
    limit: of each output, in bytes. most: branches and kept states. cpu_s: of one cell. seed: of the generators.
    """

    workdir: str
    top: str
    own: bool
    copy_bytes: int
    limit: int
    most: int
    cpu_s: "float | None"
    seed: "int | None"


Reply = dict[str, Any]
"""The answer to a request, as JSON would hold it."""


class Spawner(Protocol):
    """What a branch needs of the server."""

    settings: Settings

    async def root(self, cwd: str) -> Process:
        """A process in the first state. Raises Failed."""
        ...

    async def split(self, process: Process) -> Process:
        """A copy of a process. Raises Failed."""
        ...


class Member:
    """One branch; or one kept state, which is a branch that runs nothing.

    live: the process that runs the cells. kept: its copy from after the last one, None where there could be none.
    Whoever calls a coroutine here holds `turn`.
    """

    def __init__(self, spawner: Spawner, directory: str, live: Process) -> None:
        self.spawner = spawner
        self.directory = directory
        self.live = live
        self.kept: Process | None = None
        self.turn = Turn()
        self.closed = False
        self._interrupted, self._poor, self._cell = False, False, 0
        self.unwanted: set[int] = set()  # cells that nobody waits for any more
        self._notes: list[str] = []
        self._loss = ""

    async def protect(self) -> None:
        """Replace the copy by one of the state as it is now. What goes wrong is said with the next result."""
        try:
            copy = await self.spawner.split(self.live)
        except Failed as error:
            if self.live.status is None:
                self._notes.append(f"no copy of this state could be made, a crash would lose it: {error}")
                self._drop_kept()
            else:
                await self.revive("it was not run, because the process of the cell before ended just after that")
            return
        self._drop_kept()
        self.kept = copy
        if self.closed:
            copy.drop()

    def _drop_kept(self) -> None:
        if self.kept is not None:
            self.kept.drop()
        self.kept = None

    async def revive(self, loss: str = "") -> None:
        """Go on from the copy if the process has ended since its last cell, as a thread of that may have made it.

        loss: what the next cell is told instead of being run. Raises Failed when there is no going on.
        """
        if self.live.status is None or self.closed:
            return
        if await self._go_back() == "lost":
            loss = "it was not run, because its process had ended, and with it all variables"
        elif not loss:
            self._notes.append(
                "the process had ended since the cell before; its threads and child processes are gone"
            )
        self._loss = self._loss or loss
        with contextlib.suppress(Failed):
            self.kept = await self.spawner.split(self.live)

    async def whole(self) -> None:
        """See that the state is there as its last cell left it. Raises Failed."""
        await self.revive()
        if self._loss:
            raise Failed(f"this state is not what the last result said: the next cell is told that {self._loss}")

    async def offspring(self, directory: str) -> "tuple[Process, list[str]]":
        """A process that goes on from this state, in a copy of its directory if one is named; see `moved`."""
        await self.whole()
        child, self.kept = self.kept or await self.spawner.split(self.live), None
        return child, await moved(child, self.directory, directory, self.spawner.settings.copy_bytes)

    async def run(self, source: bytes, timeout_s: float, cell: int = 0) -> Reply:
        """Run a cell. The caller then calls `protect`."""
        await self.revive()
        self._interrupted, self._poor, self._cell = False, False, cell
        began, limit = time.monotonic(), self.spawner.settings.limit
        if self._loss:
            why, self._loss = self._loss, ""
            lost = {"error": ["CellDied", why, [f"CellDied: {why}"]], "value": None, "images": [], "cpu_s": 0.0}
            return self._reply(lost | {"notes": [], "state": "rolled back"}, (Capture(2), Capture(2)), began)
        process = self.live
        process.drain()
        captures = process.captures = (Capture(limit), Capture(limit))
        since = boot_ticks() - 1
        answer = await self._ask(process, source, timeout_s)
        if self._interrupted:
            process.end_others(since)  # a cell's deadline is that of what it started, too
        process.drain()
        process.captures = None
        head = _result(answer)
        if head is None:
            if process.status is None:  # it said something, but no result
                process.kill()
                await process.expect(_COPY_S)
            head = {"error": _death(process, self._interrupted, timeout_s), "cpu_s": process.cpu_s, "value": None}
            head |= {"state": await self._go_back(), "notes": [], "images": []}
        images = [base64.b64encode(image).decode() for image in _pieces(answer, head["images"])]
        return self._reply({**head, "images": images}, captures, began)

    def _reply(self, head: Reply, captures: "tuple[Capture, Capture]", began: float) -> Reply:
        head |= {"timed_out": self._interrupted, "out_of_cpu": self._poor, "wall_s": time.monotonic() - began}
        head["notes"], self._notes = [*head["notes"], *self._notes], []
        head["out"], head["err"] = [_shown(capture) for capture in captures]
        return head | {"lost": [capture.lost for capture in captures]}

    async def _ask(self, process: Process, source: bytes, timeout_s: float) -> "Answer | None":
        if len(source) <= _IN_A_FRAME:
            asked = process.ask({"op": "run"}, timeout_s, body=source)
        else:
            fd = _in_memory(source)
            asked = process.ask({"op": "run"}, timeout_s, [fd])
            os.close(fd)
        process.late = lambda: self.interrupt(self._cell)
        if (limit_s := self.spawner.settings.cpu_s) is not None:
            process.poor = lambda: self.interrupt(self._cell, f"its {limit_s:g} s of processor time are used up")
            process.spending = Spending(process.pid, limit_s)
        answer = await asked
        process.spending = None
        return answer

    def interrupt(self, cell: int, why: str = "") -> None:
        """The cell's time is over, or what else `why` says: an interrupt, and after a grace the end."""
        if not self._interrupted and self.live.captures is not None and cell == self._cell:
            self._interrupted, self._poor = True, bool(why)
            self._notes += [why] if why else []
            self.live.deadline, self.live.late = time.monotonic() + GRACE_S, self.live.kill
            self.live.interrupt()

    async def _go_back(self) -> str:
        """Go on from the copy; without one, from nothing."""
        kept, self.kept = self.kept, None
        if kept is not None and kept.status is None:
            self.live = kept
            return "rolled back"
        self.live = await self.spawner.root(self.directory)
        return "lost"

    async def look(self, op: str) -> Any:
        """Ask a copy that is thrown away afterwards, since a repr may do anything."""
        await self.whole()
        copy = await self.spawner.split(self.live)
        answer = await copy.ask({"op": op}, _LOOK_S)
        copy.drop()
        if answer is None or op not in answer.head:
            raise Failed("the repr of a variable ended the process or did not come to an end")
        return answer.head[op]

    def close(self) -> None:
        """End its processes and remove its directory."""
        self.closed = True
        self.live.kill()
        if self.kept is not None:
            self.kept.drop()
        if self.spawner.settings.own:
            shutil.rmtree(self.directory, ignore_errors=True)


def _in_memory(source: bytes) -> int:
    """A file that holds a long cell: a socket's buffer might be too small, and the server must not wait."""
    fd = os.memfd_create("cell", os.MFD_CLOEXEC)
    with open(os.dup(fd), "wb") as file:
        file.write(source)
    return fd


async def moved(child: Process, old: str, new: str, most_bytes: int) -> list[str]:
    """Make a process a branch of its own, in `new`, a copy of `old`, if that is named. Raises Failed.

    Returns what it still shares with the one that it was split from, or lacks.
    """
    head = {"op": "become", "old": old, "new": new, "copy_bytes": most_bytes}
    answer = await child.ask(head, _COPY_S)
    if answer is None or not isinstance(answer.head.get("unforked"), list):
        child.drop()
        if new:
            shutil.rmtree(new, ignore_errors=True)
        raise Failed(
            str(answer.head.get("failed")) if answer else "the new process ended while its files were copied"
        )
    return [str(item) for item in answer.head["unforked"]]


def _pieces(answer: "Answer | None", sizes: list[int]) -> list[bytes]:
    """The images of an answer."""
    ends = list(itertools.accumulate(sizes))
    return [answer.body[end - size : end] for size, end in zip(sizes, ends, strict=True)] if answer else []


def _shown(capture: Capture) -> str:
    """An output as text, a mark where something is left out."""
    data = capture.value()
    if capture.lost:
        half = len(data) // 2
        data = data[:half] + b"\n... %d bytes are left out ...\n" % capture.lost + data[half:]
    return data.decode("utf-8", "replace")


def _result(answer: "Answer | None") -> "protocol.Head | None":
    """What a cell's process says of it, if that is a result; it may have been written by the cell."""
    if answer is None:
        return None
    head = answer.head
    error, value, images, notes = (head.get(name) for name in ("error", "value", "images", "notes"))
    if not isinstance(images, list) or not all(isinstance(size, int) and size > 0 for size in images):
        return None
    if sum(images) != len(answer.body) or not 0 <= _float(head.get("cpu_s")) < float("inf"):
        return None
    if not isinstance(notes, list) or not all(isinstance(text, str) for text in (*notes, value or "")):
        return None
    if error is not None and not _is_error(error):
        return None
    names = ("error", "value", "images", "notes", "cpu_s")
    return {name: head[name] for name in names} | {"state": "kept"}


def _float(found: object) -> float:
    return found if isinstance(found, float) else -1.0


def _is_error(error: object) -> bool:
    if not isinstance(error, list) or len(error) != 3 or not isinstance(error[2], list):
        return False
    return all(isinstance(text, str) for text in (*error[:2], *error[2]))


def _death(process: Process, interrupted: bool, timeout_s: float) -> list[Any]:
    """The error of a cell whose process ended."""
    status = process.status or 0
    if interrupted:
        why = f"it did not end within {timeout_s:g} s, nor within {GRACE_S:g} s of an interrupt, and was killed"
    elif status == BROKEN:
        why = "it broke the interpreter that it ran in"
    elif status < 0:
        hint = ", as happens when memory runs out" if status == -signal.SIGKILL else ""
        why = f"its process was ended by {signal.Signals(-status).name}{hint}"
    else:
        why = f"it ended its process with status {status}"
    return ["CellDied", why, [f"CellDied: {why}"]]
