"""The one persistent bash of a sandbox, driven by descriptors, and its state as a script.

No prompt is ever read: a command goes into a file in memory, one byte on a trigger pipe starts it, and the exit
status comes back on a pipe that the command itself does not hold. After each command the shell writes down its
state (directory, variables, functions, aliases, options), which a fresh bash can source: after a snapshot, in
a fork, or when the shell had to be killed. Not part of the state: jobs, open descriptors, the directory stack.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from envgym_sandboxes.command import Capture, drain, kill_first, pipe, set_nonblocking_high

__all__ = ["Shell", "ShellState", "first_state"]

# One line, so that bash counts a command's own lines from 1. `__envgym_*` names are left out of the state.
# "{c}" and so on are descriptor numbers; the command runs without them.
_DRIVER = (
    "__envgym_r() {{ return $1; }}; __envgym_s=0; "
    "IFS= builtin read -r -d '' -u {r} __envgym_c; "
    'builtin eval "$__envgym_c" {r}<&- {c}<&- {t}<&- {i}<&- {s}>&- >/dev/null 2>&1; '
    "exec {r}<&-; "
    "while IFS= builtin read -r -u {t} __envgym_i; do "
    "IFS= builtin read -r -d '' -u {c} __envgym_c; "
    'if [[ $__envgym_i = 1 ]]; then __envgym_r "$__envgym_s"; '
    'builtin eval "$__envgym_c" {c}<&- {t}<&- {s}>&- <&{i} {i}<&-; __envgym_s=$?; '
    'else __envgym_r "$__envgym_s"; '
    'builtin eval "$__envgym_c" {c}<&- {t}<&- {s}>&- </dev/null {i}<&-; __envgym_s=$?; fi; '
    "{{ builtin printf '%s\\0' \"$__envgym_s\"; "
    "builtin shopt -p; builtin printf '\\0'; "
    "unset __envgym_c __envgym_i; builtin declare -p; builtin printf '\\0'; "
    "builtin declare -f; builtin printf '\\0'; "
    "builtin declare -Fx; builtin alias -p; builtin umask -p; builtin trap -p; builtin set +o; builtin printf '\\0'; "
    "builtin printf '%s\\0' \"$PWD\"; }} >&{s} 2>/dev/null; "
    "done"
)
_STATE_FIELDS = 5  # shopt, variables, functions, the rest, directory
_SKIP = ("__envgym_r", "__envgym_s")


@dataclass(frozen=True, slots=True)
class ShellState:
    """A script that gives a fresh bash this state, and the directory it was in."""

    cwd: str
    script: str


def first_state(cwd: str, env: Mapping[str, str]) -> ShellState:
    """The state before the first command."""
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items() if name.isidentifier())
    return ShellState(cwd, "shopt -s expand_aliases\n" + exports)


def _state(fields: list[bytes]) -> ShellState:
    shopt, variables, functions, rest, cwd = (item.decode("utf-8", "surrogateescape") for item in fields)
    kept = "\n".join(line for line in variables.split("\n") if not line.startswith("declare -- __envgym_"))
    # Functions before aliases: an alias would be expanded again in a function's body.
    return ShellState(cwd, f"{shopt}\n{kept}\n{functions}\n{rest}\n")


@dataclass(slots=True)
class Running:
    """The command that the shell is running."""

    number: int
    deadline: float
    captures: tuple[Capture, Capture]
    before: frozenset[int]
    started: float = field(default_factory=time.monotonic)
    timed_out: bool = False


class Shell:
    """Owns the bash process. `pid` is 0 while there is none."""

    def __init__(self, state: ShellState, fallback: str) -> None:
        self.state = state
        self.fallback = fallback
        self.pid = 0
        self.running: Running | None = None
        self.fds: dict[str, int] = {}
        self._unread = b""
        self._fields: list[bytes] = []
        self.settled = True

    def start(self) -> None:
        """Start bash in the last known state. Raises FileNotFoundError when there is none."""
        status_r, status_w = pipe()
        out_r, out_w = pipe()
        err_r, err_w = pipe()
        trigger_r, trigger_w = os.pipe2(os.O_CLOEXEC)
        command, stdin, restore = (os.memfd_create(name, os.MFD_CLOEXEC) for name in ("command", "in", "restore"))
        cwd = shlex.quote(self.state.cwd)
        back = shlex.quote(self.fallback)
        _replace(restore, f"cd -- {cwd} || cd -- {back}\n{self.state.script}".encode("utf-8", "surrogateescape") + b"\0")
        theirs = {"c": command, "i": stdin, "r": restore, "s": status_w, "t": trigger_r}
        theirs = {name: set_nonblocking_high(fd) for name, fd in theirs.items()}
        try:
            child = subprocess.Popen(
                ["/bin/bash", "--noprofile", "--norc", "-c", _DRIVER.format(**theirs), "bash"],
                cwd="/",
                env={},
                stdin=subprocess.DEVNULL,
                stdout=out_w,
                stderr=err_w,
                pass_fds=tuple(theirs.values()),
                start_new_session=True,
            )
        finally:
            for fd in (out_w, err_w, theirs["s"], theirs["t"], theirs["r"]):
                os.close(fd)
        child.returncode = 0  # the event loop reaps it
        kill_first(child.pid)
        self.pid = child.pid
        self._unread, self._fields, self.settled = b"", [], True
        self.fds = {"status": status_r, "out": out_r, "err": err_r, "trigger": trigger_w}
        self.fds |= {"command": theirs["c"], "stdin": theirs["i"]}

    def run(self, running: Running, command: bytes, stdin: bytes) -> None:
        """Give bash a command; the caller's event loop then watches `status`, `out` and `err`."""
        self.discard()
        self.running = running
        _replace(self.fds["command"], command + b"\0")
        if stdin:
            _replace(self.fds["stdin"], stdin)
        os.write(self.fds["trigger"], b"1\n" if stdin else b"0\n")

    def read_status(self) -> int | None:
        """Take what the shell said; its exit status once that is known, while the command counts as running."""
        try:
            self._unread += os.read(self.fds["status"], 1 << 20)
        except BlockingIOError:
            return None
        *fields, rest = self._unread.split(b"\0")
        self._fields += fields
        self._unread = rest
        code = None
        # Records come one after the other: a status, then the state, which may still be on its way when the next
        # command is given.
        while self._fields:
            if self.settled:
                code = int(self._fields.pop(0))
                self.settled = False
            elif len(self._fields) >= _STATE_FIELDS:
                self.state = _state(self._fields[:_STATE_FIELDS])
                del self._fields[:_STATE_FIELDS]
                self.settled = True
            else:
                break
        return code

    def collect(self) -> None:
        """Read both outputs until they are empty: all that the foreground wrote is there by then."""
        captures = self.running.captures if self.running else (None, None)
        drain(self.fds["out"], captures[0])
        drain(self.fds["err"], captures[1])

    def discard(self) -> None:
        """Drop what background processes wrote between commands; it would be another output every time."""
        drain(self.fds["out"], None)
        drain(self.fds["err"], None)

    def stop(self) -> None:
        """Kill bash and let go of it; the next command starts another in the last known state."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.gone()

    def gone(self) -> None:
        """Forget a bash that has ended."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds = {}
        self.pid = 0
        self.running = None
        self.settled = True


def _replace(fd: int, content: bytes) -> None:
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)  # bash shares this offset
    view = memoryview(content)
    done = 0
    while done < len(content):
        done += os.pwrite(fd, view[done:], done)
