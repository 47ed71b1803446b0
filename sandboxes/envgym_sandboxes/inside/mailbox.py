"""How a program inside a sandbox is spoken with where only files can be written and output be looked at.

A request is a file in a private directory, seen by inotify as soon as it is closed, or at a knock; an answer is a
line of JSON on standard output, or, if it is long, a file that it announces. It knows nothing of what is said.
"""

import contextlib
import ctypes
import hashlib
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

from envgym_sandboxes import protocol

__all__ = ["NO_REQUEST", "Mailbox"]

NO_REQUEST = -1
"""What is told under this number answers no request."""
_LONGEST = 64 << 20  # a request
_RESERVE = 256 << 10
_MANY = 32

_IN_CLOSE_WRITE = 8
_EVENT = struct.Struct("iIII")


class Mailbox:
    """The directory `top`, in which requests arrive in `in` and long answers are left in `out`.

    most: the longest line that would pass, in characters; longer ones than a small part of it go into files, since
    many may come at once. shown: how a text names things for the host.
    fd: readable when there may be requests; None where there is no inotify: then the host must knock, with SIGUSR1.
    A file is kept in reserve, so that a request finds room on a disk that a cell has filled: see `make_room`.
    """

    def __init__(self, top: str, most: int, shown: Callable[[str], str]) -> None:
        self.top = top
        self.most = most
        self.shown = shown
        self._seen: dict[str, Any] = {}
        for name in ("in", "out"):
            os.mkdir(f"{top}/{name}", 0o700)
        libc = ctypes.CDLL(None)
        fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        watched = fd >= 0 and libc.inotify_add_watch(fd, f"{top}/in".encode(), _IN_CLOSE_WRITE) >= 0
        self.fd = fd if watched else None
        self._reserve()

    def requests(self) -> Iterator[tuple[protocol.Head, bytes]]:
        """The requests that have arrived. One that is not whole yet is left until it is written to again."""
        for name in sorted(self._written()):
            with contextlib.suppress(OSError, protocol.ProtocolError):  # whoever can write here may write nonsense
                fd = os.open(f"{self.top}/in/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                with open(fd, "rb") as file:
                    found = list(protocol.Decoder().feed(file.read(_LONGEST)))
                for head, body in found[:1]:
                    if self._seen.get(name) != head.get("id"):
                        self._seen[name] = head.get("id")
                        self._forget(head.pop("read", ()))
                        yield head, body

    def _written(self) -> set[str]:
        """Names of files that may hold a request; they are used again and again."""
        if self.fd is None:
            return set(os.listdir(f"{self.top}/in"))
        try:
            events = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return set()
        names = set()
        while events:
            size = _EVENT.unpack_from(events)[3]
            names.add(os.fsdecode(events[_EVENT.size : _EVENT.size + size].rstrip(b"\0")))
            events = events[_EVENT.size + size :]
        return names

    def make_room(self) -> None:
        """The disk is full: give up the reserve, and tell the host, which waits for that."""
        with contextlib.suppress(OSError):
            os.unlink(f"{self.top}/reserve")
        self.say({"id": NO_REQUEST})

    def _reserve(self) -> None:
        path = f"{self.top}/reserve"
        if not os.path.exists(path):
            with contextlib.suppress(OSError), open(path, "wb") as file:  # no room now: there may be some later
                file.write(bytes(_RESERVE))

    def _forget(self, read: Any) -> None:
        """Remove answers that the host has read."""
        with contextlib.suppress(OSError, TypeError, ValueError):
            for number in read:
                os.unlink(f"{self.top}/out/{int(number)}")

    def say(self, head: dict[str, Any]) -> None:
        """Answer, or tell."""
        line = self.shown(json.dumps(head))
        if len(line) > self.most // _MANY and "id" in head:
            line = self._filed(head["id"], line)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        self._reserve()

    def _filed(self, number: int, line: str) -> str:
        """The line that announces a long one; where there is no room for a file, that one itself if it may pass."""
        path, answer = f"{self.top}/out/{number}", line.encode()
        try:
            with open(path, "wb") as file:
                file.write(answer)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(path)
            why = {"id": number, "failed": f"there is no room for the answer: {error}", "kind": "failed"}
            return line if len(line) <= self.most else json.dumps(why)
        return json.dumps({"id": number, "file": hashlib.sha256(answer).hexdigest()})
