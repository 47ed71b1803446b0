"""One running command: its process, its bounded output, its deadline.

Used inside the sandbox by `init`. It starts a program, or a fork of the warm interpreter, in a session of its own;
reading its pipes and reaping it are the caller's event loop's work.
"""

import contextlib
import fcntl
import io
import os
import resource
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from envgym_sandboxes import syscalls

__all__ = [
    "Capture",
    "Command",
    "drain",
    "kill_all",
    "kill_first",
    "live_processes",
    "move_high",
    "pipe",
    "signal_all",
]

_CHUNK = 1 << 16
_OOM_FIRST = "800"
_PATIENCE_S = 1.0


class Capture:
    """Keeps the head and the tail of a byte stream, `limit` bytes in all, and counts what it dropped."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // 2
        self._tail_limit = limit - limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.lost = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_limit + _CHUNK:
            self._trim()

    def _trim(self) -> None:
        extra = len(self._tail) - self._tail_limit
        if extra > 0:
            del self._tail[:extra]
            self.lost += extra

    def value(self) -> bytes:
        """Head and tail; `lost` bytes are missing between them."""
        self._trim()
        return bytes(self._head + self._tail)


def drain(fd: int, capture: Capture | None) -> bool:
    """Read what is there from a non-blocking pipe; False at its end."""
    while True:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        if capture is not None:
            capture.add(data)


def pipe() -> tuple[int, int]:
    """A pipe whose reading end does not block."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reading, False)
    return reading, writing


def input_file(content: bytes) -> int:
    """A descriptor to read `content` from: a file in memory, so that no writer can block or be waited for."""
    if not content:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    fd = os.memfd_create("stdin", os.MFD_CLOEXEC)
    with open(os.dup(fd), "wb") as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def live_processes(root: int) -> dict[int, int]:
    """The living descendants of a process, pid -> parent's pid. Zombies are not alive."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] not in b"ZX":
                    parents[int(name)] = int(fields[1])
    found: dict[int, int] = {}
    level = {root}
    while level:
        below = {pid: parent for pid, parent in parents.items() if parent in level and pid not in found}
        found |= below
        level = set(below)
    found.pop(root, None)
    return found


def kill_all(choose: Callable[[], set[int]]) -> None:
    """Kill what `choose` finds, again until it finds nothing new.

    They are stopped first, so that a fork bomb cannot outrun the listing.
    """
    stopped: set[int] = set()
    for _ in range(64):
        new = choose() - stopped
        if not new:
            break
        signal_all(new, signal.SIGSTOP)
        stopped |= new
    signal_all(stopped, signal.SIGKILL)
    _wait_ended(stopped)


def _wait_ended(pids: Iterable[int]) -> None:
    """Wait for killed processes, so that nobody meets one that only has not noticed yet."""
    deadline = time.monotonic() + _PATIENCE_S
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            os.close(fd)


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to every process that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Command:
    """A process started for one request."""

    def __init__(self, number: int, limit: int, deadline: float) -> None:
        self.number = number
        self.started = time.monotonic()
        self.deadline = deadline
        self.timed_out = False
        self.captures = (Capture(limit), Capture(limit))
        self.pipes: tuple[int, ...] = ()
        self.pid = 0
        self.before: frozenset[int] = frozenset()
        self.usage: resource.struct_rusage | None = None
        self.warm = False

    def start(self, argv: Sequence[str], cwd: str, env: Mapping[str, str], stdin: bytes, *, warm: bool) -> None:
        """Start it. Raises OSError when there is no such program or directory."""
        outputs = pipe(), pipe()
        source = input_file(stdin)
        try:
            if warm:
                self.warm = True
                self.pid = _fork_warm(argv, cwd, env, (source, outputs[0][1], outputs[1][1]))
            else:
                self.pid = _spawn(argv, cwd, env, (source, outputs[0][1], outputs[1][1]))
        except BaseException:
            os.close(outputs[0][0])
            os.close(outputs[1][0])
            raise
        finally:
            for fd in (source, outputs[0][1], outputs[1][1]):
                os.close(fd)
        self.pipes = (outputs[0][0], outputs[1][0])

    def finish(self) -> None:
        """Take what its pipes still hold."""
        for fd, capture in zip(self.pipes, self.captures, strict=True):
            drain(fd, capture)


def _spawn(argv: Sequence[str], cwd: str, env: Mapping[str, str], stdio: tuple[int, int, int]) -> int:
    child = subprocess.Popen(
        list(argv),
        cwd=cwd,
        env=dict(env),
        stdin=stdio[0],
        stdout=stdio[1],
        stderr=stdio[2],
        start_new_session=True,
    )
    child.returncode = 0  # reaped by the event loop with its resource usage, not by this object
    kill_first(child.pid)
    return child.pid


def kill_first(pid: int) -> None:
    """Let the kernel, when memory runs out, choose this process before the sandbox's own."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write(_OOM_FIRST)


def _fork_warm(argv: Sequence[str], cwd: str, env: Mapping[str, str], stdio: tuple[int, int, int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _become_command(cwd, env, stdio)
        code = _run_python(list(argv))
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)


def _become_command(cwd: str, env: Mapping[str, str], stdio: tuple[int, int, int]) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, fd in enumerate(stdio):
        os.dup2(fd, target)
    syscalls.close_fds({0, 1, 2})
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else it could not read its own /proc files
    kill_first(os.getpid())
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.stdin = _text(0, "rb", "surrogateescape")
    sys.stdout = _text(1, "wb", "surrogateescape")
    sys.stderr = _text(2, "wb", "backslashreplace")
    sys.stderr.reconfigure(line_buffering=True)


def _text(fd: int, mode: str, errors: str) -> io.TextIOWrapper:
    """A standard stream as Python makes it."""
    binary = open(fd, mode, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(binary, encoding="utf-8", errors=errors)


def _run_python(argv: list[str]) -> int:
    """What `python ARGV` does, in this interpreter; returns the exit status."""
    try:
        if argv[:1] == ["-c"]:
            sys.argv = ["-c", *argv[2:]]
            sys.path.insert(0, "")
            main = type(sys)("__main__")
            sys.modules["__main__"] = main
            exec(compile(argv[1], "<string>", "exec"), main.__dict__)
        elif argv[:1] == ["-m"]:
            sys.argv = argv[1:]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = argv
            sys.path.insert(0, os.path.dirname(os.path.abspath(argv[0])))
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as error:
        return _exit_code(error.code)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _leave(code: int) -> NoReturn:
    """End the warm interpreter as Python ends: threads, exit functions, buffers."""
    import atexit

    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        code = code or 120
    finally:
        os._exit(code)


def move_high(fd: int) -> int:
    """Move a descriptor out of the way of a shell's own (`exec 5>file`)."""
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200)
    os.close(fd)
    return high
