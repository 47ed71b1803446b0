"""Room in a container's group for one process more: the first one of the next life, which waits there.

A group counts who joins it and refuses nobody; it refuses only forks. So who waits would take one of the processes
that the life beside it may have. The bound is one higher from when it has joined until it becomes a life itself,
never sooner or longer: nobody gets more than a world allows.
"""

import errno
import os
from collections.abc import Sequence

__all__ = ["Seat"]


class Seat:
    """bounds: the files of groups that bound processes. most: what they hold while nobody waits."""

    def __init__(self, bounds: Sequence[str], most: int) -> None:
        self._bounds, self._most = tuple(bounds), most
        # Not the socket by which a spec comes: what is unread in it when one end closes is the other's error.
        self._joined = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Readable when it is time to `take` it."""
        return self._joined

    def join(self) -> None:
        """For the one who waits, in its own process: say that it has joined the group."""
        os.eventfd_write(self._joined, 1)
        os.close(self._joined)

    def take(self) -> None:
        """Who waits has joined. Raises OSError."""
        self._bound(self._most + 1)

    def leave(self) -> None:
        """Nobody waits any more. Raises OSError; no group is no error, since nothing is left then to be bounded."""
        os.close(self._joined)
        self._bound(self._most)

    def _bound(self, most: int) -> None:
        for bound in self._bounds:
            try:
                with open(bound, "w") as file:
                    file.write(str(most))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):
                    raise
