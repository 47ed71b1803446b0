"""Pid 1 of a container that cannot be entered: an init that is spoken to over its standard streams.

For engines elsewhere, rootless ones, and runtimes with a kernel of their own. The workspace is in the container's
own memory; it comes in and goes out as a stream, a directory at a time. One life, then the container ends.
"""

import json
import os
import signal
import sys
from typing import Any, NoReturn

from envgym_sandboxes import fence, protocol, root, seccomp, syscalls
from envgym_sandboxes.durable import packing
from envgym_sandboxes.init import Init

__all__ = ["main"]

_CHUNK = 1 << 20
_SIDE = ".envgym-links"


class Streams:
    """The container's standard streams as the one socket that an init has."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing

    def fileno(self) -> int:
        """What is to be watched."""
        return self._reading

    def recv(self, size: int) -> bytes:
        """What has come; nothing at the end."""
        return os.read(self._reading, size)

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._writing, view) :]


class Cargo:
    """Brings the workspace in and out. A request's name is a method `do_...`."""

    def __init__(self, life: Init) -> None:
        self._life = life
        self._coming = os.memfd_create("coming", os.MFD_CLOEXEC)

    def do_load(self, head: protocol.Head, body: bytes) -> None:
        """A piece of a directory's content; the last one puts it there. Not answered: it comes first.

        There is no life in a part of a state.
        """
        try:
            self._load(head["top"], body, last=head["last"])
        except (OSError, ValueError, MemoryError) as error:
            self._life.say({"dead": f"{head['top']} could not be brought into it: {error or 'out of memory'}"})
            self._life.leave()

    def _load(self, top: str, body: bytes, *, last: bool) -> None:
        os.write(self._coming, body)
        if last:
            os.lseek(self._coming, 0, os.SEEK_SET)
            with open(self._coming, "rb", closefd=False) as file:
                packing.unpack_whole(file, top, (os.getuid(), os.getgid()), f"{top}/{_SIDE}")
            os.ftruncate(self._coming, 0)
            os.lseek(self._coming, 0, os.SEEK_SET)

    def do_dump(self, head: protocol.Head, _body: bytes) -> None:
        """A directory's content, in pieces."""
        going = os.memfd_create("going", os.MFD_CLOEXEC)
        packing.pack(head["top"], None, os.getuid(), "", [going])
        os.lseek(going, 0, os.SEEK_SET)
        with open(going, "rb") as file:
            while piece := file.read(_CHUNK):
                self._life.say({"id": head["id"], "more": True}, piece)
        self._life.say({"id": head["id"], "more": False})


def _harden(spec: dict[str, Any]) -> None:
    """What every sandbox gives up, as far as this container's settings have not taken it."""
    os.umask(0o022)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as pid 1 it gets no signal from inside that has no handler
    root.limit(spec["limits"])
    syscalls.drop_capabilities()
    fence.enter(spec["writable"])
    seccomp.install()
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)


def main() -> NoReturn:
    """Entry point: a spec as JSON in argv, without the environment of commands."""
    spec = json.loads(sys.argv[1])
    streams = Streams(os.dup(0), os.dup(1))
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):  # commands have pipes of their own
        os.dup2(null, fd)
    _harden(spec)
    life = Init(streams, spec)  # type: ignore[arg-type]  # of a socket it uses no more than this
    life.parts = (*life.parts, Cargo(life))  # type: ignore[assignment]  # one more kind of part
    life.loop()
