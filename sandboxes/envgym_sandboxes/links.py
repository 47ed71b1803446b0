"""The inside's ends of the streams: sockets of the sandbox's own loopback, driven by `init`'s poll loop.

The host asks for a connection to a port, or, where there is a way out, a program connects to a port that `init`
listens on. Bytes go both ways within the windows of `flow`; a socket that nobody may read or write now is not
polled. Where a stream leads on the host is the host's matter.
"""

import contextlib
import errno
import os
import select
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from envgym_sandboxes import protocol
from envgym_sandboxes.flow import MOST_STREAMS, PIECE, Flow

__all__ = ["Links"]

_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_RESET = struct.pack("ii", 1, 0)  # lingering for no time: closing is a reset


class Loop(Protocol):
    """What this needs of `init`."""

    def add(self, fd: int, callback: Callable[[], None], events: int = ...) -> None:
        """Call back when `fd` is ready for `events`."""
        ...

    def remove(self, fd: int) -> None:
        """Stop watching `fd`."""
        ...

    def say(self, head: protocol.Head, body: bytes = b"") -> None:
        """Tell the host."""
        ...


class _Link:
    """One socket and its stream."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.flow = Flow()
        self.unsent = bytearray()
        sock.setblocking(False)


@dataclass(slots=True)
class _Dial:
    """A connection that is being made: to each loopback address in turn; the first one's error counts."""

    request: int
    number: int
    port: int
    turn: int = 0
    error: int = 0
    sock: socket.socket | None = None


class Links:
    """All streams of one init. A request's name is a method `do_...`.

    way_out: the port at which programs inside find the way out, None where there is none. Raises OSError.
    """

    def __init__(self, loop: Loop, way_out: int | None) -> None:
        self._loop = loop
        self._links: dict[int, _Link] = {}
        self._dialling: dict[int, _Dial] = {}
        self._way_out: socket.socket | None = None
        self._last = 0
        if way_out is not None:
            self._listen(way_out)

    # -- streams that the host opens ---------------------------------------------------------------------------

    def do_dial(self, head: protocol.Head, _body: bytes) -> None:
        """Connect to a port of this sandbox's loopback; answered once that is done or refused."""
        self._dial(_Dial(head["id"], head["stream"], head["port"]))

    def _dial(self, dial: "_Dial") -> None:
        family, host = _LOOPBACKS[dial.turn]
        try:
            dial.sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        except OSError as failure:  # a kernel without the family
            self._not_dialled(dial, failure.errno or errno.EIO)
            return
        self._dialling[dial.number] = dial
        error = dial.sock.connect_ex((host, dial.port))
        if error in (0, errno.EINPROGRESS):  # the other's queue may be full: then it takes a while
            self._loop.add(dial.sock.fileno(), partial(self._dialled, dial), select.POLLOUT)
        else:
            self._not_dialled(dial, error)

    def _dialled(self, dial: "_Dial") -> None:
        assert dial.sock is not None
        error = dial.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._loop.remove(dial.sock.fileno())
        if error:
            self._not_dialled(dial, error)
            return
        del self._dialling[dial.number]
        self._loop.say({"id": dial.request})
        self._begin(dial.number, dial.sock)

    def _not_dialled(self, dial: "_Dial", error: int) -> None:
        self._dialling.pop(dial.number, None)
        if dial.sock is not None:
            dial.sock.close()
        dial.error = dial.error or error
        dial.turn += 1
        if dial.turn < len(_LOOPBACKS):
            self._dial(dial)
        else:
            said = f"port {dial.port} inside: {os.strerror(dial.error)}"
            self._loop.say({"id": dial.request, "errno": dial.error, "error": said})

    # -- streams that the inside opens -------------------------------------------------------------------------

    def _listen(self, port: int) -> None:
        self._way_out = socket.create_server(("127.0.0.1", port), backlog=MOST_STREAMS)
        self._way_out.setblocking(False)
        self._loop.add(self._way_out.fileno(), self._accept)

    def _accept(self) -> None:
        assert self._way_out is not None
        try:
            sock, _address = self._way_out.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # too many descriptors are open: until one is closed
            self._loop.remove(self._way_out.fileno())
            return
        self._last -= 1
        self._loop.say({"stream": self._last, "do": "open"})
        self._begin(self._last, sock)
        self._watch_way_out()

    def _watch_way_out(self) -> None:
        """The next connection waits in the kernel while there are too many."""
        if self._way_out is None:
            return
        if sum(number < 0 for number in self._links) < MOST_STREAMS:
            self._loop.add(self._way_out.fileno(), self._accept)
        else:
            self._loop.remove(self._way_out.fileno())

    # -- what goes through them --------------------------------------------------------------------------------

    def do_stream(self, head: protocol.Head, body: bytes) -> None:
        """A frame of the host about a stream; one that is over is nobody's."""
        number, do = head["stream"], head["do"]
        link = self._links.get(number)
        if do == "reset":
            self._let_go(number)
        elif link is not None:
            if do == "data":
                link.flow.arrived(len(body))
                link.unsent += body
            elif do == "credit":
                link.flow.granted(head["size"])
            else:
                link.flow.ended()
            self._move(link)

    def _begin(self, number: int, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._links[number] = _Link(number, sock)
        self._watch(self._links[number])

    def _move(self, link: _Link) -> None:
        """Send and receive what is possible now; a spurious call does no harm."""
        try:
            self._flush(link)
            self._read(link)
        except OSError:
            self._loop.say({"stream": link.number, "do": "reset"})
            self._let_go(link.number)
            return
        if link.flow.over and not link.unsent:
            self._let_go(link.number)
        else:
            self._watch(link)

    def _flush(self, link: _Link) -> None:
        if link.unsent:
            with contextlib.suppress(BlockingIOError):
                size = link.sock.send(link.unsent)
                del link.unsent[:size]
                if grant := link.flow.delivered(size):
                    self._loop.say({"stream": link.number, "do": "credit", "size": grant})
        if link.flow.got_end and not link.unsent:
            with contextlib.suppress(OSError):  # the other side may be gone already
                link.sock.shutdown(socket.SHUT_WR)

    def _read(self, link: _Link) -> None:
        if link.flow.sent_end or not link.flow.credit:
            return
        with contextlib.suppress(BlockingIOError):
            data = link.sock.recv(min(PIECE, link.flow.credit))
            if data:
                link.flow.sent(len(data))
                self._loop.say({"stream": link.number, "do": "data"}, data)
            else:
                link.flow.sent_end = True
                self._loop.say({"stream": link.number, "do": "end"})

    def _watch(self, link: _Link) -> None:
        """Poll for what can be done. For nothing, not at all: a socket that was hung up is always ready."""
        reading = not link.flow.sent_end and link.flow.credit
        events = (select.POLLIN if reading else 0) | (select.POLLOUT if link.unsent else 0)
        if events:
            self._loop.add(link.sock.fileno(), partial(self._move, link), events)
        else:
            self._loop.remove(link.sock.fileno())

    def _let_go(self, number: int) -> None:
        """Close a stream's socket: a reset, unless both directions have ended."""
        link, dial = self._links.pop(number, None), self._dialling.pop(number, None)
        sock = link.sock if link is not None else dial.sock if dial is not None else None
        if sock is None:
            return
        self._loop.remove(sock.fileno())
        if link is None or not link.flow.over:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.close()
        self._watch_way_out()
