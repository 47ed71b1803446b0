"""Landlock above the walls of a namespace, where the kernel has it: a second no to what mounts already refuse.

Inside, everything may be read and run; written to is only what is the world's own, not what the host shows
read-only, and of /dev and /proc what is there. Device nodes are made nowhere. Abstract sockets and signals end at
the sandbox, which matters where it shares the host's network. Which places are the world's own is the caller's
matter.
"""

import os
from collections.abc import Iterable

from envgym_sandboxes import landlock

__all__ = ["OLDEST", "enter"]

OLDEST = 2
"""The first version of Landlock knows no renames between directories, and would forbid them all."""
_OWN = landlock.ALL & ~landlock.DEVICES
_OPENED = landlock.WRITE_FILE | landlock.TRUNCATE


def enter(writable: Iterable[str]) -> None:
    """Restrict this process and all it starts, in its new root, which must be in place. Raises OSError.

    writable: the places that are the world's own; one that is not there is left out.
    """
    if landlock.abi() < OLDEST:
        return
    rules = [("/", landlock.READ_EXECUTE), ("/proc", _OPENED), ("/dev", _OPENED | landlock.IOCTL)]
    rules += [(path, _OWN) for path in writable if os.path.exists(path)]
    landlock.restrict(landlock.Ruleset(tuple(rules), tcp=True))
