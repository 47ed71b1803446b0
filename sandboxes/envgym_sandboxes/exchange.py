"""What is asked of a sandbox's init, and how much of its answers is believed.

The other side may be in the hands of what runs there: every answer is checked for its form, its size and its time,
and a peer that breaks any of them is ended, which is a dead sandbox (`SandboxDied`). What it honestly met is an
OSError. It knows nothing of layers and snapshots.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from envgym.errors import SandboxDied
from envgym.limits import Resources
from envgym.sandbox import ExecResult
from envgym_sandboxes.channel import Peer
from envgym_sandboxes.shell import MOST_STATE
from envgym_sandboxes.transfer import PIECE, Arrival, Tally, about, check_size, pack

__all__ = ["MOST_HEAD", "Stand", "freeze", "get", "hold_still", "put", "read", "run", "write"]

MOST_HEAD = 1 << 20
"""The longest head that an init sends: a path or two, each character escaped."""
_GRACE_S = 20.0
"""How long after a command's deadline its sandbox may still be silent before it counts as dead."""
_PATIENCE_S = 120.0
"""How long one piece of a file may take: no deadline of a command stands over it."""
_MOST_COUNT, _MOST_STATUS = 1 << 62, 1 << 16  # what anybody can store; what a process can end with
_ANSWER = 4096  # an error's text and the like


def _lied(peer: Peer, what: object) -> NoReturn:
    peer.end(f"its answer is none: {what}")
    raise peer.died()


# -- commands ----------------------------------------------------------------------------------------------------


async def run(peer: Peer, head: Mapping[str, Any], body: bytes, *, out_of_memory: Callable[[], bool]) -> ExecResult:
    """Run a command to its end. Cancelled, it is killed.

    head: as `Init.do_exec` and `do_shell` take it, `timeout_s` and `limit` among it. out_of_memory: called once it
    has ended, says whether the kernel killed for memory.
    """
    limit_s: float = head["timeout_s"]
    with peer.open(dict(head), body, most=2 * head["limit"] + _ANSWER) as request:
        try:
            answer, output = await request.answer(within_s=limit_s + _GRACE_S)
        except asyncio.CancelledError:
            with suppress(SandboxDied):
                peer.send({"op": "cancel", "target": request.number})
            raise
    try:
        return _result(answer, output, out_of_memory() or answer.get("out_of_memory") is True)
    except (KeyError, TypeError, ValueError) as error:
        _lied(peer, error)


def _result(answer: Mapping[str, Any], output: bytes, out_of_memory: bool) -> ExecResult:
    """Raises KeyError, TypeError or ValueError for what is no result."""
    code, split, lost = answer["code"], _count(answer["out"]), [_count(size) for size in answer["lost"]]
    if code is not None and (type(code) is not int or not -_MOST_STATUS < code < _MOST_STATUS):
        raise ValueError("a status that is none")
    if split > len(output) or len(lost) != 2:
        raise ValueError(f"{split} bytes of {len(output)} are said to be the first output, {lost} lost")
    if out_of_memory and code == 137:  # how a shell reports a child killed by signal 9
        code = -9
    peak = answer.get("peak_bytes")
    return ExecResult(
        exit_code=code,
        stdout=output[:split],
        stderr=output[split:],
        wall_s=_seconds(answer["wall_s"]),
        timed_out=bool(answer["timed_out"]),
        out_of_memory=out_of_memory,
        out_of_cpu=bool(answer.get("out_of_cpu")),
        lost_bytes=(lost[0], lost[1]),
        cpu_s=None if answer.get("cpu_s") is None else _seconds(answer["cpu_s"]),
        peak_bytes=None if peak is None else _count(peak),
    )


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < _MOST_COUNT:
        raise ValueError("a count that is none")
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < _MOST_COUNT:
        raise ValueError("a duration that is none")
    return float(value)


# -- states ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stand:
    """What an init says of itself when it stands still: its shell's state, and how many other processes live."""

    cwd: str
    script: str
    background: int


async def freeze(peer: Peer) -> Stand:
    """Wait until the shell's state is written down, and ask for it."""
    with peer.open({"op": "freeze"}, most=MOST_STATE + _ANSWER) as request:
        head, script = await request.answer(within_s=_PATIENCE_S)
    try:
        cwd, background = head["cwd"], _count(head["background"])
        if not isinstance(cwd, str) or "\0" in cwd:
            raise ValueError(f"{cwd!r} is no directory")
    except (KeyError, ValueError) as error:
        _lied(peer, error)
    return Stand(cwd, script.decode("utf-8", "surrogateescape"), background)


async def hold_still(peer: Peer, *, still: bool) -> None:
    """Stop every process but the init, or let them go on."""
    with peer.open({"op": "pause" if still else "resume"}, most=_ANSWER) as request:
        await request.answer(within_s=_PATIENCE_S)


# -- files -------------------------------------------------------------------------------------------------------


def _weight(resources: Resources, entries: int) -> int:
    """What the answers of a transfer may weigh in all: its bytes, and a frame per entry and piece."""
    frames = entries + resources.transfer_bytes // PIECE + 2
    return resources.transfer_bytes + PIECE + frames * 256


async def read(peer: Peer, resources: Resources, path: str) -> bytes:
    """See `envgym.sandbox.Shell.read`."""
    most = resources.transfer_bytes
    content = bytearray()
    head = {"op": "read", "path": path, "most": most}
    with about(path), peer.open(head, most=_weight(resources, 1)) as request:
        while True:
            head, piece = await request.answer(within_s=_PATIENCE_S)
            content += piece
            check_size(path, len(content), most)
            if head.get("more") is not True:
                return bytes(content)


async def write(peer: Peer, resources: Resources, path: str, content: bytes) -> None:
    """See `envgym.sandbox.Shell.write`."""
    check_size(path, len(content), resources.transfer_bytes)
    for at in range(0, max(1, len(content)), PIECE):
        head = {"op": "write", "path": path, "at": at}
        with about(path), peer.open(head, content[at : at + PIECE], most=_ANSWER) as request:
            await request.answer(within_s=_PATIENCE_S)


async def put(peer: Peer, resources: Resources, source: str, target: str) -> None:
    """See `envgym.sandbox.Shell.put`."""
    with about(source):
        for piece, body in pack(source, Tally(resources.transfer_bytes, resources.inodes)):
            head = {"op": "put", "target": target, "piece": piece}
            with about(target), peer.open(head, body, most=_ANSWER) as request:
                await request.answer(within_s=_PATIENCE_S)


async def get(peer: Peer, resources: Resources, source: str, target: str) -> None:
    """See `envgym.sandbox.Shell.get`. Both sides count: the inside may stop early, it may not send more."""
    most_bytes, most_entries = resources.transfer_bytes, resources.inodes
    arrival = Arrival(target, Tally(most_bytes, most_entries))
    head = {"op": "get", "source": source, "most_bytes": most_bytes, "most_entries": most_entries}
    with peer.open(head, most=_weight(resources, most_entries)) as request:
        while True:
            with about(source):
                head, body = await request.answer(within_s=_PATIENCE_S)
            if head.get("more") is not True:
                return
            try:
                with about(target):
                    arrival.add(head.get("piece"), body)
            except ValueError as error:
                _lied(peer, error)
