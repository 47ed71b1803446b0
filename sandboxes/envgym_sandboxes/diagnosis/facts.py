"""What is true of this host as far as sandboxes need to know: settings, rights, groups. It judges nothing."""

import contextlib
import os
import platform
import pwd
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envgym_sandboxes.cgroups import controllers
from envgym_sandboxes.diagnosis import trial

__all__ = ["SYSCTLS", "Facts", "look", "user_name"]

SYSCTLS = (
    *("user.max_user_namespaces", "user.max_mnt_namespaces", "user.max_pid_namespaces", "user.max_ipc_namespaces"),
    *("user.max_uts_namespaces", "user.max_net_namespaces", "user.max_cgroup_namespaces"),
    *("kernel.unprivileged_userns_clone", "kernel.apparmor_restrict_unprivileged_userns"),
)


@dataclass(frozen=True, slots=True)
class Facts:
    """A host, seen by one user.

    kernel: version numbers. capable: whether this process has CAP_SYS_ADMIN. sysctls: those of `SYSCTLS` that there
    are. container: what made the one we are in, or "". filtered: whether a system call filter is on this process.
    systems: kinds of file systems that the kernel knows now. trial: see `diagnosis.trial`; empty if not tried.
    groups: 0 (none), 1 or 2, the version of control groups. writable: whether they are mounted so. kinds: what can
    be bounded by them. manager: whether systemd runs a manager for this user. python: the interpreter's real path.
    """

    system: str = "Linux"
    kernel: tuple[int, int] = (6, 1)
    uid: int = 1000
    user: str = "user"
    capable: bool = False
    sysctls: Mapping[str, int] = field(default_factory=dict)
    container: str = ""
    filtered: bool = False
    systems: frozenset[str] = frozenset({"overlay", "tmpfs", "proc"})
    trial: Mapping[str, int] = field(default_factory=dict)
    groups: int = 2
    writable: bool = True
    kinds: frozenset[str] = frozenset()
    manager: bool = False
    python: str = "/usr/bin/python3"


def look(*, privileged: bool, tried: bool = False) -> Facts:
    """Look at this host. tried: and try what the namespace backend does, as root or (not privileged) as a user."""
    status = _status()
    version, writable = _groups()
    return Facts(
        system=platform.system(),
        kernel=_kernel(),
        uid=os.geteuid(),
        user=user_name(),
        capable=bool(int(status.get("CapEff", "0"), 16) >> 21 & 1),
        sysctls=_sysctls(),
        container=_container(),
        filtered=status.get("Seccomp") == "2",
        systems=frozenset(line.split()[-1] for line in _read("/proc/filesystems").splitlines() if line.strip()),
        trial=trial.attempt(privileged) if tried else {},
        groups=version,
        writable=writable,
        kinds=frozenset(controllers()),
        manager=os.path.isdir(f"/run/user/{os.geteuid()}/systemd"),
        python=os.path.realpath(sys.executable),
    )


def _read(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text()
    return ""


def _status() -> dict[str, str]:
    lines = (line.partition(":") for line in _read("/proc/self/status").splitlines())
    return {name: value.strip() for name, _, value in lines}


def _kernel() -> tuple[int, int]:
    major, _, rest = platform.release().partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def user_name() -> str:
    """This user's name, or number."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _sysctls() -> dict[str, int]:
    found = {}
    for name in SYSCTLS:
        text = _read(f"/proc/sys/{name.replace('.', '/')}").strip()
        if text.isdigit():
            found[name] = int(text)
    return found


def _container() -> str:
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    if os.path.exists("/run/.containerenv"):
        return "podman"
    return "docker" if os.path.exists("/.dockerenv") else ""


def _groups() -> tuple[int, bool]:
    """The version of control groups that matters, and whether one of its mounts may be written to."""
    first = second = writable = False
    for line in _read("/proc/self/mounts").splitlines():
        _source, _target, kind, options, *_ = line.split(" ")
        if kind in ("cgroup", "cgroup2"):
            given = options.split(",")
            first, second = first or (kind == "cgroup" and "memory" in given), second or kind == "cgroup2"
            writable = writable or "rw" in given
    return (1 if first else 2 if second else 0), writable
