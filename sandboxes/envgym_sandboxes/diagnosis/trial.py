"""Each thing that the namespace backend does to the machine, tried in a process of its own, in order.

It says how far it got: the kernel's own answers, where settings only suggest them. It needs nothing but the
package's system calls, and leaves nothing: mounts end with their namespace.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from envgym_sandboxes import seccomp, syscalls

__all__ = ["STEPS", "attempt", "main"]

STEPS = ("user", "maps", "mount", "private", "tmpfs", "overlay", "process", "proc", "network", "filter")
"""In the order in which they are tried; each needs those before it."""
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop()); from envgym_sandboxes.diagnosis.trial import main; "
    "sys.path.pop(0); main()"
)
_PACKAGES = str(Path(__file__).resolve().parents[2])
_TIMEOUT_S = 20.0
_PLACE = "/tmp"
_NEW = syscalls.MS_NOSUID | syscalls.MS_NODEV


def attempt(privileged: bool) -> dict[str, int]:
    """Step -> 0, or the error's number, up to the first that failed; "trial" -> 1 when it could not be made."""
    command = [sys.executable, "-s", "-P", "-B", "-c", _BOOT, str(int(privileged)), _PACKAGES]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_TIMEOUT_S, cwd="/")
        found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return {"trial": 1}
    return found


class _Trial:
    """The steps, in a process that ends with them. A step's name is a method; each raises OSError."""

    def __init__(self, privileged: bool) -> None:
        self.privileged = privileged
        self.uid, self.gid = os.getuid(), os.getgid()

    def user(self) -> None:
        if not self.privileged:
            syscalls.unshare(syscalls.CLONE_NEWUSER)

    def maps(self) -> None:
        if not self.privileged:
            syscalls.write_id_maps(1000, self.uid, self.gid)

    def mount(self) -> None:
        syscalls.unshare(syscalls.CLONE_NEWNS)

    def private(self) -> None:
        syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)

    def tmpfs(self) -> None:
        syscalls.mount("envgym", _PLACE, "tmpfs", _NEW)
        for name in ("lower", "upper", "work", "merged", "proc"):
            os.mkdir(f"{_PLACE}/{name}")

    def overlay(self) -> None:
        data = f"lowerdir={_PLACE}/lower,upperdir={_PLACE}/upper,workdir={_PLACE}/work"
        syscalls.mount(
            "envgym", f"{_PLACE}/merged", "overlay", _NEW, data + ("" if self.privileged else ",userxattr")
        )

    def process(self) -> None:
        syscalls.unshare(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS)

    def proc(self) -> None:
        _in_child(lambda: syscalls.mount("proc", f"{_PLACE}/proc", "proc", _NEW))

    def network(self) -> None:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        syscalls.loopback_up()

    def filter(self) -> None:
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        seccomp.install()


def main() -> None:
    """Try each step; the last line of the output says what came of them."""
    trial, told = _Trial(sys.argv[1] == "1"), {}
    for name in STEPS:
        told[name] = 0
        try:
            getattr(trial, name)()
        except OSError as error:
            told[name] = error.errno or -1
            break
    print(json.dumps(told))


def _in_child(work: Callable[[], None]) -> None:
    """Do something as the first process of the new pid namespace. Raises its OSError."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except OSError as error:
            os._exit(min(error.errno or 255, 255))
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))
