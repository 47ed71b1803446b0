"""Version 2 of control groups: making a group that was delegated to us ready to hold groups of our own.

A group passes controllers on only while no process is directly in it, and whoever was started in a delegated group
(a service or scope with Delegate=yes, a container with a cgroup namespace) is directly in it. So this process, with
those it descends from and those below it, moves one group down; never a process of anybody else.
"""

import contextlib
import errno
import os
from collections.abc import Collection
from pathlib import Path

from envgym_sandboxes.tree import ancestors, processes

__all__ = ["OWNER", "enable"]

OWNER = "envgym-owner-"
"""How the group that this process moves into begins; it ends with the process's number."""


def enable(place: Path, wanted: Collection[str]) -> bool:
    """Let groups in `place` have the `wanted` controllers, as far as `place` has them; whether they have them all.

    Never raises: where this user may not, nothing changes.
    """
    try:
        has = set((place / "cgroup.controllers").read_text().split())
        gives = set((place / "cgroup.subtree_control").read_text().split())
        missing = (set(wanted) & has) - gives
        if missing:
            _give(place, missing)
    except OSError:
        return False
    return set(wanted) <= has


def _give(place: Path, controllers: set[str]) -> None:
    text = " ".join(f"+{name}" for name in sorted(controllers))
    try:
        (place / "cgroup.subtree_control").write_text(text)
    except OSError as error:
        if error.errno != errno.EBUSY or not _move_down(place):
            raise
        (place / "cgroup.subtree_control").write_text(text)


def _move_down(place: Path) -> bool:
    """Move what is directly in a group into one below it; False, and nothing done, if any of it is not ours."""
    me = os.getpid()
    ours = {*ancestors(me), *processes(me)}
    inside = {int(pid) for pid in (place / "cgroup.procs").read_text().split()}
    if not inside <= ours:
        return False
    for stale in place.glob(f"{OWNER}*"):  # of processes that have ended; others cannot be removed
        with contextlib.suppress(OSError):
            stale.rmdir()
    below = place / f"{OWNER}{me}"
    below.mkdir(exist_ok=True)
    for pid in inside:
        with contextlib.suppress(ProcessLookupError):
            (below / "cgroup.procs").write_text(str(pid))
    return True
