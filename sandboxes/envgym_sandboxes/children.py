"""A sandbox's background processes seen from the host: their names, and what is known of those that ended.

Names are given here and never twice, because a snapshot may replace the init that ran them; what that one knew is
fetched before and kept, so that an ended process can still be looked at. It believes nothing about the answers'
shape. How processes run is `background`'s matter, inside.
"""

import asyncio
import contextlib
import itertools
import signal
from collections.abc import Mapping
from typing import Any, NoReturn, TypeGuard

from envgym.arguments import Program
from envgym.errors import SandboxDied
from envgym.sandbox import ProcessStatus, is_warm
from envgym_sandboxes.channel import Answer, Peer

__all__ = ["Children", "argv_head"]

_ENDED_KEPT = 32
_GRACE_S = 20.0
"""How late an init may answer before it counts as dead."""
_ANSWER = 4096  # an error's text and the like


def argv_head(given: Program) -> dict[str, Any]:
    """What init is told of a program to run."""
    return {"argv": given.command, "cwd": given.cwd, "env": given.env, "warm": is_warm(given.command)}


class Children:
    """Of one sandbox, over all of its inits."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._here: set[str] = set()  # those that the present init knows
        self._ended: dict[str, ProcessStatus] = {}

    async def start(self, peer: Peer, head: dict[str, Any], stdin: bytes) -> str:
        """Start one. Raises SandboxDied."""
        name = f"p{next(self._numbers)}"
        self._here.add(name)
        try:
            await _ask(peer, {"op": "start", "name": name} | head, stdin)
        except asyncio.CancelledError:  # nobody will know its name
            with contextlib.suppress(SandboxDied):
                peer.send({"op": "signal", "name": name, "signal": int(signal.SIGKILL)})
            raise
        return name

    async def poll(self, peer: Peer, name: str, *, wait_s: float, most: int) -> ProcessStatus:
        """Look at one, for up to `wait_s` if there is nothing new. Raises ValueError, SandboxDied.

        most: what it may have written and not lost, bytes.
        """
        if name in self._ended:
            status = self._ended[name]
            self._ended[name] = ProcessStatus(False, status.exit_code, b"", b"")
            return status
        self._check(name)
        head, body = await _ask(peer, {"op": "poll", "name": name, "wait_s": wait_s}, most=most, wait_s=wait_s)
        if head.get("known") is not True:
            self._forget(name)
        return _status(peer, head, body)

    async def signal(self, peer: Peer, name: str, number: int) -> None:
        """Signal one. Raises ValueError, SandboxDied."""
        if name in self._ended:
            return
        self._check(name)
        head, _body = await _ask(peer, {"op": "signal", "name": name, "signal": number})
        if head.get("known") is not True:
            self._forget(name)

    async def collect(self, peer: Peer, *, most: int) -> None:
        """Keep what an init knows that is about to end; all of its processes have. Raises SandboxDied.

        most: what each may have written and not lost, bytes.
        """
        if not self._here:
            return
        head, body = await _ask(peer, {"op": "collect"}, most=_ENDED_KEPT * most)
        try:
            at = 0
            for status in head["statuses"]:
                size = int(status["size"])
                if status["name"] in self._here:
                    self._ended[status["name"]] = _status(peer, status, body[at : at + size])
                at += size
        except (KeyError, TypeError, ValueError):
            _lied(peer, "collect")
        self._here.clear()
        for name in [*self._ended][:-_ENDED_KEPT]:
            del self._ended[name]

    def _check(self, name: str) -> None:
        if name not in self._here:
            raise ValueError(
                f"there is no background process {name!r} here: it was never started in this sandbox (forks have "
                f"none of their parent's), or more than {_ENDED_KEPT} others have ended since"
            )

    def _forget(self, name: str) -> None:
        self._here.discard(name)
        self._check(name)


async def _ask(
    peer: Peer, head: dict[str, Any], body: bytes = b"", *, most: int = 0, wait_s: float = 0.0
) -> Answer:
    with peer.open(head, body, most=most + _ANSWER) as request:
        try:
            return await request.answer(within_s=wait_s + _GRACE_S)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxDied):
                peer.send({"op": "cancel", "target": request.number})
            raise


def _status(peer: Peer, head: Mapping[str, Any], body: bytes) -> ProcessStatus:
    code, out, lost = head.get("code"), head.get("out"), head.get("lost")
    if not isinstance(lost, list) or len(lost) != 2 or not all(_is_number(count, 0, 1 << 62) for count in lost):
        _lied(peer, "poll")
    if not _is_number(out, 0, len(body)) or not (code is None or _is_number(code, -(1 << 16), 1 << 16)):
        _lied(peer, "poll")
    return ProcessStatus(code is None, code, body[:out], body[out:], (lost[0], lost[1]))


def _is_number(value: object, least: int, most: int) -> TypeGuard[int]:
    return type(value) is int and least <= value <= most


def _lied(peer: Peer, op: str) -> NoReturn:
    peer.end(f"its answer to {op!r} makes no sense")
    raise peer.died()
