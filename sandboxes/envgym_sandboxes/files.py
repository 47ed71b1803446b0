"""The file requests of a sandbox, answered inside it as its own user.

So a symlink leads nowhere that a command could not go. Only regular files are read and written: a pipe or a device
would block the one loop that serves everything.
"""

import os
import stat
from collections.abc import Callable

from envgym_sandboxes import protocol
from envgym_sandboxes.transfer import Unpacker, pack

__all__ = ["Files"]


class Files:
    """Reads, writes and transfers. A request's name is a method `do_...`.

    alias: the workdir's name in the world, where the workdir itself is a copy somewhere on the host.
    """

    def __init__(self, workdir: str, alias: str | None, say: Callable[..., None]) -> None:
        self.workdir = workdir
        self.alias = alias
        self.say = say

    def under_alias(self, output: bytes) -> bytes:
        """Output with the workdir's name in the world; the copy's own path is another one in every fork."""
        return output.replace(self.workdir.encode(), self.alias.encode()) if self.alias else output

    def path(self, name: str) -> str:
        """An absolute path; relative ones are the workdir's, and so are those below its alias."""
        if self.alias and (name + "/").startswith(self.alias + "/"):
            name = name[len(self.alias) :].lstrip("/")
        return os.path.join(self.workdir, name) if name else self.workdir

    def writable(self, name: str) -> str:
        """A path to write to. Where nothing protects the host, only the workdir's."""
        path = self.path(name)
        if self.alias and not os.path.realpath(path).startswith(os.path.realpath(self.workdir) + "/"):
            raise PermissionError(13, f"{name} is outside the workdir, and this backend does not isolate")
        return path

    def do_read(self, head: protocol.Head, _body: bytes) -> None:
        """Read a regular file; a pipe or device would block the loop."""
        fd = os.open(self.path(head["path"]), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            info = os.fstat(fd)
            if stat.S_ISDIR(info.st_mode):
                raise IsADirectoryError(21, "Is a directory")
            if not stat.S_ISREG(info.st_mode):
                raise OSError(22, "not a regular file")
            if info.st_size > protocol.MAX_BODY:
                raise OSError(27, f"a file of {info.st_size} bytes; the bound of one read is {protocol.MAX_BODY}")
            with open(fd, "rb", closefd=False) as file:
                content = file.read()
        finally:
            os.close(fd)
        self.say({"id": head["id"]}, content)

    def do_write(self, head: protocol.Head, body: bytes) -> None:
        """Write a regular file."""
        path = self.writable(head["path"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        with open(fd, "wb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(22, "not a regular file")
            os.ftruncate(fd, 0)
            file.write(body)
        self.say({"id": head["id"]})

    def do_put(self, head: protocol.Head, body: bytes) -> None:
        """One piece of a tree. It names its target itself, so that transfers may interleave."""
        target = self.writable(head["target"])
        if not head["piece"]["path"]:
            os.makedirs(os.path.dirname(target.rstrip("/")), exist_ok=True)
        Unpacker(target).add(head["piece"], body)
        self.say({"id": head["id"]})

    def do_get(self, head: protocol.Head, _body: bytes) -> None:
        """All pieces of a tree."""
        for piece, data in pack(self.path(head["source"])):
            self.say({"id": head["id"], "piece": piece, "more": True}, data)
        self.say({"id": head["id"], "more": False})
