"""The file requests of a sandbox, answered inside it as its own user.

So a symlink leads nowhere that a command could not go. Only regular files are read and written: a pipe or a device
would block the one loop that serves everything.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

from envgym_sandboxes import protocol
from envgym_sandboxes.transfer import Tally, check_size, file_pieces, pack, unpack

__all__ = ["WRITING", "Files", "Places"]

WRITING = frozenset({"write", "put"})
"""The requests that add to what a sandbox holds."""

_LONGEST = 4096  # the kernel's PATH_MAX


def refuse_own(fd: int) -> None:
    """Raise PermissionError for a file of /proc about this very process: links of an agent's can lead there.

    A command may not open them, since this process is more than a command: what its memory and table of descriptors
    look like is nobody's business.
    """
    if os.readlink(f"/proc/self/fd/{fd}").startswith(f"/proc/{os.getpid()}/"):
        raise PermissionError(errno.EACCES, "Permission denied")


def _make_above(path: str) -> None:
    """Make the directories above a path. Not as os.makedirs does it: a long path is no recursion."""
    above = os.path.dirname(path)
    if os.path.isdir(above):
        return
    names = above.split("/")
    for end in range(2, len(names) + 1):
        with contextlib.suppress(FileExistsError):
            os.mkdir("/".join(names[:end]))


@dataclass(frozen=True, slots=True)
class Places:
    """Where a world's own directories are when they are a copy somewhere on the host.

    root: the copy of them all. tops: their names in the world; `tops[0]` of the world is `root + tops[0]` here.
    Empty: everything is where the world says.
    """

    root: str = ""
    tops: tuple[str, ...] = ()

    def here(self, path: str) -> str:
        """A path of the world as one of this host."""
        return self.root + path if any(f"{path}/".startswith(f"{top}/") for top in self.tops) else path

    def in_the_world(self, output: bytes) -> bytes:
        """Output with the world's names; the copy's own are other ones in every fork."""
        return output.replace(f"{self.root}/".encode(), b"/") if self.root else output


class Files:
    """Reads, writes and transfers. A request's name is a method `do_...`."""

    def __init__(self, workdir: str, places: Places, say: Callable[..., None]) -> None:
        self.workdir = workdir
        self.places = places
        self.say = say

    def path(self, name: str) -> str:
        """An absolute path of this host; relative names are the workdir's. Raises OSError for one too long."""
        if len(name) >= _LONGEST:
            raise OSError(errno.ENAMETOOLONG, f"a path of {len(name)} characters")
        return os.path.join(self.workdir, self.places.here(name)) if name else self.workdir

    def writable(self, name: str) -> str:
        """A path to write to: of a copy, only what is inside it, whatever else protects the host."""
        path = self.path(name)
        root = self.places.root
        if root and not os.path.realpath(path).startswith(os.path.realpath(root) + "/"):
            own = ", ".join(self.places.tops)
            raise PermissionError(13, f"outside {own}, which is all that this backend may change")
        return path

    def do_read(self, head: protocol.Head, _body: bytes) -> None:
        """Read a regular file, a piece per answer."""
        fd = os.open(self.path(head["path"]), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        came = 0
        with open(fd, "rb", buffering=0) as file:
            refuse_own(fd)
            for piece, last in file_pieces(file):
                came += len(piece)
                check_size(head["path"], max(came, os.fstat(fd).st_size), head["most"])
                self.say({"id": head["id"], "more": not last}, piece)

    def do_write(self, head: protocol.Head, body: bytes) -> None:
        """Write a regular file: a piece at a place in it, the first of which empties it."""
        path, at = self.writable(head["path"]), head["at"]
        if at == 0:
            _make_above(path)
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if at else os.O_CREAT), 0o644)
        with open(fd, "wb", buffering=0) as file:
            refuse_own(fd)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(22, "not a regular file")
            if at == 0:
                os.ftruncate(fd, 0)
            file.seek(at)
            view = memoryview(body)
            while view:
                view = view[file.write(view) :]
        self.say({"id": head["id"]})

    def do_put(self, head: protocol.Head, body: bytes) -> None:
        """One piece of a tree. It names its target itself, so that transfers may interleave."""
        target = self.writable(head["target"])
        if not head["piece"]["path"]:
            _make_above(target.rstrip("/"))
        unpack(target, head["piece"], body)
        self.say({"id": head["id"]})

    def do_get(self, head: protocol.Head, _body: bytes) -> None:
        """All pieces of a tree."""
        source = os.open(self.path(head["source"]), os.O_PATH | os.O_CLOEXEC)
        try:
            refuse_own(source)
            for piece, data in pack(f"/proc/self/fd/{source}", Tally(head["most_bytes"], head["most_entries"])):
                self.say({"id": head["id"], "piece": piece, "more": True}, data)
        finally:
            os.close(source)
        self.say({"id": head["id"], "more": False})
