"""What stands in the sandbox above code that is measured: it forks a process per job and counts what that costs.

The measured process gets a script and one job, knows no secret and holds no way out; what it says comes over a
pipe, each line stamped here with the time. It can start no process (see `alone`), so its processor time, as the
kernel counts it, is all that the work took. Standard library only: it may have come as source.
"""

import base64
import contextlib
import gc
import json
import os
import pickle
import resource
import select
import socket
import sys
import time
import traceback
from typing import Any, NoReturn

from envgym_environments.code_repair.kinds.measured.alone import forbid_processes
from envgym_environments.code_repair.supervisor import Tested, close_memory, kill_strays

__all__ = ["start"]

_MOST_BYTES, _MOST_LINES = 2 << 20, 64
"""What one process may say; a host reads all of it."""


def start(request: dict[str, Any]) -> NoReturn:
    """Run the jobs that standard input holds, one after another; say what each did and cost."""
    close_memory()
    waiting: list[Tested] = []
    for _ in range(request["jobs"]):
        waiting.append(Tested(_run, request, waiting))
    status = 1
    try:
        with open(0, "rb", closefd=False) as rest:
            secret: dict[str, Any] = json.loads(rest.read())
        for job in secret["jobs"]:
            tested = waiting.pop()
            told = _told(tested, job, {one.pid for one in waiting})
            _say(secret["nonce"], told)
        status = 0
    except Exception:  # what broke here is told, and no result is confirmed
        traceback.print_exc()
    finally:
        for one in waiting:
            one.end()
        kill_strays({0})
        os._exit(status)


def _say(nonce: str, told: dict[str, Any]) -> None:
    data = memoryview(nonce.encode() + b" " + json.dumps(told).encode() + b"\n")
    while data:
        data = data[os.write(1, data) :]


def _told(tested: Tested, job: dict[str, Any], spared: set[int]) -> dict[str, Any]:
    """One job: [seconds since it began, what was said] for each line, the status, and what it cost."""
    before, began = _reaped_s(), time.monotonic()
    with contextlib.suppress(BrokenPipeError):  # it has ended already
        tested.go(job)
    lines, late = _listen(tested, began, began + job["limit_s"])
    status = tested.end() if late else _wait(tested, began + job["limit_s"])
    kill_strays(spared)
    return {"lines": lines, "status": status, "late": late, "cpu_s": _reaped_s() - before}


def _reaped_s() -> float:
    """Processor seconds of every process that ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _wait(tested: Tested, until: float) -> int:
    while not tested.ended():
        if time.monotonic() > until:
            return tested.end()
        select.poll().poll(1)
    return tested.wait()


def _listen(tested: Tested, began: float, until: float) -> tuple[list[list[Any]], bool]:
    """What it said until it closed its pipe, ended or said too much; whether its time was up."""
    poller, buffer, total, lines = select.poll(), b"", 0, list[list[Any]]()
    poller.register(tested.sock, select.POLLIN)
    while True:
        if time.monotonic() > until:
            return lines, True
        if not poller.poll(20):
            if tested.ended() and not poller.poll(0):
                return lines, False
            continue
        try:
            data = tested.sock.recv(1 << 18)
        except ConnectionResetError:
            data = b""
        total += len(data)
        if not data or total > _MOST_BYTES:
            return lines, total > _MOST_BYTES
        *whole, buffer = (buffer + data).split(b"\n")
        stamp = round(time.monotonic() - began, 6)
        for line in whole:
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, list) and len(lines) < _MOST_LINES:
                    lines.append([stamp, event])


def _run(request: dict[str, Any], sock: socket.socket) -> NoReturn:
    """The measured process: the script runs with `job` and `say`, the package on its path."""
    root = os.path.realpath(os.getcwd())
    sys.path.insert(0, os.path.normpath(os.path.join(root, request["source_root"])))
    sys.dont_write_bytecode = True

    def say(*event: Any) -> None:
        sock.sendall(json.dumps(event).encode() + b"\n")

    gc.freeze()
    if request["alone"]:
        forbid_processes()
    job = pickle.loads(base64.b64decode(request["job"]))
    try:
        exec(compile(request["script"], "<job>", "exec"), {"job": job, "say": say})
    except BaseException as error:  # whatever measured code raises is told
        with contextlib.suppress(OSError):
            say("error", f"{type(error).__name__}: {error}"[:300])
        os._exit(1)
    os._exit(0)
