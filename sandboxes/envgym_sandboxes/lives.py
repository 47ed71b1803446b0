"""The life of a process that the zygote forks: it prepares, waits for its spec, and becomes an init."""

import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from envgym_sandboxes import protocol
from envgym_sandboxes.init import Init
from envgym_sandboxes.seat import Seat

__all__ = ["Spare", "fail", "run_init", "wait_for_spec"]


@dataclass(frozen=True, slots=True)
class Spare:
    """A process that waits to become an init. seat: what it takes of a container's processes meanwhile."""

    pid: int
    sock: socket.socket
    seat: Seat | None = None


def wait_for_spec(sock: socket.socket, prepare: Callable[[], None], confine: Callable[..., None]) -> NoReturn:
    """A spare's whole life. What fails before there is anybody to tell is told then."""
    failure: OSError | None = None
    try:
        signal.set_wakeup_fd(-1)
        os.dup2(1, 2)
        prepare()
        _rehearse()
    except OSError as error:
        failure = error
    try:
        spec, _body, fds = protocol.receive(sock)
        sock.close()
    except BaseException:
        os._exit(70)
    if failure is not None:
        run_init(spec, fds[0], fail, failure)
    groups, counters = fds[2 : 2 + len(spec["cgroups"])], fds[2 + len(spec["cgroups"]) :]
    spec["meters"] = dict(zip(spec["meters"], counters, strict=True))
    run_init(spec, fds[0], confine, spec, fds[1], groups)


def fail(error: OSError) -> NoReturn:
    """What went wrong before there was anybody to tell."""
    raise error


def run_init(spec: dict[str, Any], fd: int, enter: Callable[..., None], *given: Any) -> NoReturn:
    """An init's whole life; it never returns into the zygote's stack."""
    sock = socket.socket(fileno=fd)
    try:
        enter(*given)
        Init(sock, spec).loop()
    except BaseException as error:
        try:
            sock.sendall(protocol.encode({"dead": f"{type(error).__name__}: {error}"}))
        finally:
            os._exit(70)
    os._exit(0)


def _rehearse() -> None:
    """Do once what a start does: a fork's first writes to shared pages cost most of it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    packet = protocol.encode({"workdir": "/", "python": None, "lowers": ["a"] * 8, "limits": {}})
    socket.send_fds(ours, [packet], [0])
    spec, _body, fds = protocol.receive(theirs)
    init = Init(ours, spec)
    init.add(ours.fileno(), init.on_request)
    init.say({"ready": True})
    for fd in (fds[0], init.wake_r, init.wake_w):
        os.close(fd)
    with open("/proc/self/comm", "rb") as file:
        file.read()
    theirs.close()
    ours.close()
