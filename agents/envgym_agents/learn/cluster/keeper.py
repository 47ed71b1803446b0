"""The parent of a Ray cluster that a run has started: when the run is gone, so is the cluster, and its folder.

``kill -9`` of a driver leaves some of Ray's processes and its folder behind (seen with Ray 2.60: two agents). This
one is told by a pipe, is given every orphan of the cluster, and ends when all of them have ended.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["ENDED", "SAID"]

SAID, ENDED = "said", "ended"
"""Files in the cluster's folder: what its first process printed, and that it has ended by itself."""

_PR_SET_CHILD_SUBREAPER = 36
_LEAVE_S = 10.0
"""How long what is not Ray's (a worker's sandboxes, which end with their owner) may take to clean up."""


def main(arguments: Sequence[str]) -> int:
    """``keeper LIFELINE FOLDER COMMAND...``: run the command until it ends, or until the other end is closed."""
    line, folder, command = int(arguments[0]), Path(arguments[1]), arguments[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    try:
        with open(folder / SAID, "wb") as said:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        ended = os.pidfd_open(child.pid)
        ready, _, _ = select.select([line, ended], [], [])
        if line not in ready:
            (folder / ENDED).touch()
            select.select([line], [], [])  # who started us reads what was said, and then lets go
        return child.poll() or 0
    finally:
        _end(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _end(folder: Path) -> None:
    """Kill what is Ray's, wait for what cleans up after it, kill what does not end. Nothing below us is left."""
    until = time.monotonic() + _LEAVE_S
    while below := _below(os.getpid()):
        late = time.monotonic() > until
        for pid in below:
            if late or _of_ray(pid, folder):
                _kill(pid)
        _reap()
        time.sleep(0.05)


def _below(pid: int) -> list[int]:
    """All descendants that have not been waited for."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue  # it has ended meanwhile
        for child in children:
            found += [child, *_below(child)]
    return found


def _of_ray(pid: int, folder: Path) -> bool:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return line.startswith(b"ray::") or os.fsencode(folder) in line


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
