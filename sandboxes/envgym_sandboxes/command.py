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
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from envgym_sandboxes import syscalls
from envgym_sandboxes.budget import Budget
from envgym_sandboxes.capture import Capture, drain, pipe
from envgym_sandboxes.deadlines import Since
from envgym_sandboxes.tree import kill_all, live_processes, signal_all

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

_OOM_FIRST = "800"


def input_file(content: bytes) -> int:
    """A descriptor to read `content` from: a file in memory, so that no writer can block or be waited for."""
    if not content:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    fd = os.memfd_create("stdin", os.MFD_CLOEXEC)
    with open(os.dup(fd), "wb") as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


Enter = Callable[[], None] | None


class Command:
    """A process started for one request."""

    def __init__(
        self, number: int, limit: int, deadline: float, since: Since, budget: Budget | None = None
    ) -> None:
        self.number = number
        self.started = time.monotonic()
        self.deadline = deadline
        self.timed_out = False
        self.out_of_cpu = False
        self.since = since
        self.budget = budget
        self.captures = (Capture(limit), Capture(limit))
        self.pipes: tuple[int, ...] = ()
        self.pid = 0
        self.usage: resource.struct_rusage | None = None
        self.warm = False

    def start(
        self,
        argv: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        stdin: bytes,
        *,
        warm: bool,
        enter: Enter = None,
    ) -> None:
        """Start it. Raises OSError when there is no such program or directory.

        enter: what the new process does first.
        """
        outputs = pipe(), pipe()
        source = input_file(stdin)
        try:
            if warm:
                self.warm = True
                self.pid = _fork_warm(argv, cwd, env, (source, outputs[0][1], outputs[1][1]), enter)
            else:
                self.pid = _spawn(argv, cwd, env, (source, outputs[0][1], outputs[1][1]), enter)
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


def _spawn(argv: Sequence[str], cwd: str, env: Mapping[str, str], stdio: tuple[int, int, int], enter: Enter) -> int:
    child = subprocess.Popen(
        list(argv),
        cwd=cwd,
        env=dict(env),
        stdin=stdio[0],
        stdout=stdio[1],
        stderr=stdio[2],
        start_new_session=True,
        preexec_fn=enter,
    )
    child.returncode = 0  # reaped by the event loop with its resource usage, not by this object
    return child.pid


def kill_first(pid: int) -> None:
    """Let the kernel, when memory runs out, choose this process before the sandbox's own."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write(_OOM_FIRST)


def _fork_warm(
    argv: Sequence[str], cwd: str, env: Mapping[str, str], stdio: tuple[int, int, int], enter: Enter
) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if enter:
            enter()
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
