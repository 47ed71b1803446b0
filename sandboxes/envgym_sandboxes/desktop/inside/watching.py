"""A VNC server that shows the display to people, on a port of the sandbox's own loopback.

It is stopped while the display is at work: what it asks the X server for would look like work of the programs, and
whether somebody watches must change nothing.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

__all__ = ["Watching"]

_PROGRAM = "X0tigervnc"
_START_S = 30.0


class Watching:
    """start: starts a program of the display's own, and gives its process."""

    def __init__(self, start: "Callable[[Sequence[str]], subprocess.Popen[bytes]]", display: str) -> None:
        self._start, self._display = start, display
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> set[int]:
        """The server's process, while there is one."""
        return set() if self._server is None else {self._server.pid}

    def begin(self, *, control: bool) -> int:
        """The port where it listens. control: viewers may point and type. Raises OSError when it does not start."""
        self.end()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        inputs = ("AcceptPointerEvents", "AcceptKeyEvents")
        fixed = [
            "-display",
            self._display,
            "-rfbport",
            str(port),
            "-localhost",
            "-UseIPv6=0",
            "-SecurityTypes",
            "None",
        ]
        allowed = [f"-{name}={int(control)}" for name in inputs]
        self._server = self._start([_PROGRAM, *fixed, "-AcceptSetDesktopSize=0", *allowed])
        end = time.monotonic() + _START_S
        while True:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=5):
                return port
            if self._server.poll() is not None or time.monotonic() > end:
                self.end()
                raise ChildProcessError(f"{_PROGRAM} does not listen")
            time.sleep(0.005)

    def end(self) -> None:
        """End the server, and with it every viewer's connection."""
        server, self._server = self._server, None
        if server is not None:
            with suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                server.wait()

    @contextmanager
    def still(self) -> Iterator[None]:
        """While this lasts the server does nothing."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
