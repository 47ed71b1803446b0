"""The process that holds one state: it runs cells, splits, and answers the server, which trusts nothing it says.

A cell may break any of this, since it runs in the same memory; then an answer does not come, and the server goes on
from a copy that was split off before. One request at a time, one answer each.
"""

import fcntl
import gc
import os
import resource
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import NoReturn

from envgym_sandboxes import protocol
from envgym_sandboxes.inside import variables
from envgym_sandboxes.inside.console import Console, Outcome, figures, told
from envgym_sandboxes.inside.copying import copy_tree
from envgym_sandboxes.inside.descriptors import open_files, separate
from envgym_sandboxes.inside.split import (
    be_ordinary,
    die_with_parent,
    flush,
    shared_memory,
    sibling,
    unforkable,
)

__all__ = ["BROKEN", "live"]

BROKEN = 71
"""The exit status of a process whose own code was broken by a cell, or met a defect of ours."""

_HIGH = 200  # where the control socket is out of the way
_HELD_FIRST, _RUNNING_FIRST = "800", "900"  # whom the kernel ends when memory runs out: the one that runs


def _prefer(score: str) -> None:
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(score)


def _cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Branch:
    """One state and the loop around it."""

    def __init__(self, descriptors: list[int], limit: int) -> None:
        self.limit = limit
        self.console = Console()
        sys.modules["__main__"] = self.console.module
        sys.argv = [""]
        self.unforked: list[str] = []
        self.begin(descriptors)

    def begin(self, descriptors: list[int]) -> None:
        """Take the descriptors of a new process: the control socket, standard output, standard error."""
        control, out, err = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH) for fd in descriptors]
        for fd in descriptors:  # a cell may have closed 0, 1 and 2, and then these were they
            os.close(fd)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        self.control = socket.socket(fileno=control)
        self.decoder = protocol.Decoder()
        self.received: list[int] = []
        self.ours = frozenset({0, 1, 2, control})
        self.pid = os.getpid()
        self.ran = False
        os.setsid()
        die_with_parent()
        _prefer(_HELD_FIRST)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def loop(self) -> NoReturn:
        """Answer until the server lets go."""
        self.say({"hello": self.pid})
        while True:
            data, fds, _flags, _address = socket.recv_fds(self.control, 1 << 16, 8)
            if not data:
                os._exit(0)
            self.received += fds
            for head, body in self.decoder.feed(data):
                getattr(self, "do_" + head["op"])(head, body)

    def say(self, head: protocol.Head, body: bytes = b"") -> None:
        """Answer the server."""
        self.control.sendall(protocol.encode(head, body))

    # -- cells -------------------------------------------------------------------------------------------------

    def do_run(self, _head: protocol.Head, body: bytes) -> None:
        """Run a cell; a long one's source is in a file in memory."""
        source = (self._in_memory() if self.received else body).decode("utf-8", "surrogatepass")
        used = _cpu_s()
        if not self.ran:
            self.ran = True
            _prefer(_RUNNING_FIRST)
        outcome, images, notes = self._interruptible(source)
        if os.getpid() != self.pid:  # the cell forked and did not end the child
            flush()
            os._exit(0)
        if getattr(sys.stdin, "closed", True):  # what exit() does
            sys.stdin = open(0, closefd=False)  # noqa: SIM115
        flush()
        head: protocol.Head = {"value": outcome.value, "error": None, "cpu_s": _cpu_s() - used}
        if outcome.value is not None:
            head["value"] = self._bounded(outcome.value)
        if outcome.error is not None:
            kind, message, lines = outcome.error
            head["error"] = [kind, self._bounded(message), self._bounded("\n".join(lines)).split("\n")]
        others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        if others:
            notes.append(f"still running: {', '.join(f'thread {name}' for name in others)}")
        self.say(head | {"notes": notes, "images": [len(image) for image in images]}, b"".join(images))

    def _in_memory(self) -> bytes:
        with open(self.received.pop(), "rb") as file:
            file.seek(0)
            return file.read()

    def _interruptible(self, source: str) -> tuple[Outcome, list[bytes], list[str]]:
        """The part in which SIGINT means the cell, wherever it strikes."""
        outcome = Outcome()
        try:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                outcome = self.console.run(source)
                images, notes = figures()
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt as error:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return Outcome(error=told(error)) if outcome.error is None else outcome, [], []
        return outcome, images, notes

    def _bounded(self, text: str) -> str:
        """A text of at most the bound of an output, a mark in the middle where something is left out."""
        if len(text) <= self.limit:
            return text
        half = self.limit // 2
        return f"{text[:half]}\n... {len(text) - 2 * half} characters are left out ...\n{text[-half:]}"

    # -- copies ------------------------------------------------------------------------------------------------

    def do_split(self, _head: protocol.Head, _body: bytes) -> None:
        """Split off a copy of this process, which goes on in the same loop with the descriptors that came along."""
        descriptors, self.received = self.received, []
        flush()
        unforked = unforkable()
        others = open_files() - self.ours - {*descriptors}
        try:
            pid = sibling()
        except OSError as error:
            for fd in descriptors:
                os.close(fd)
            self.say({"failed": f"no process could be forked: {error}"})
            return
        if pid:
            for fd in descriptors:
                os.close(fd)
            self.say({"done": True})
            return
        self.control.close()
        self.begin(descriptors)
        self.unforked = unforked + (separate(self.ours) if others else [])
        self.say({"hello": self.pid})

    def do_become(self, head: protocol.Head, _body: bytes) -> None:
        """Become a branch of its own: with a copy of the directory where one is named."""
        try:
            if head["new"]:
                copy_tree(head["old"], head["new"], head["copy_bytes"])
                separate(self.ours, head["old"], head["new"])
                _move(head["old"], head["new"])
        except OSError as error:
            self.say({"failed": error.strerror or str(error)})
            return
        gc.freeze()  # else a collection would touch, and so copy, every page that the branches share
        self.say({"unforked": self.unforked + shared_memory()})

    def do_names(self, _head: protocol.Head, _body: bytes) -> None:
        """List the variables."""
        self.say({"names": variables.listing(self.console.names, self.console.given)})

    def do_digest(self, _head: protocol.Head, _body: bytes) -> None:
        """Digest the variables."""
        self.say({"digest": variables.digest(self.console.names, self.console.given)})


def _move(old: str, new: str) -> None:
    """Go from a directory below `old` to the one of the same name below `new`, or there itself."""
    try:
        inside = os.path.relpath(os.getcwd(), old)
        os.chdir(new if inside.startswith("..") else os.path.join(new, inside))
    except FileNotFoundError:  # the cell removed the directory that it was in
        os.chdir(new)


def _seed(seed: "int | None") -> None:
    """Seed `random`, and numpy's global generator where it is loaded; without a seed, each time differently."""
    import random

    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(None if seed is None else seed % 2**32)


def live(descriptors: list[int], cwd: str, limit: int, seed: "int | None") -> NoReturn:
    """A process's whole life, from a fork of the server; the caller ends it if this raises."""
    be_ordinary()
    os.chdir(cwd)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", 1, "utf-8", "surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    _seed(seed)
    Branch(descriptors, limit).loop()
