"""What an owner leaves on the host, by name, so that it can be removed when the owner was killed.

A directory ``<pid>-<start>-<pid namespace>-<n>`` is made before anything else and lists the parents under which
cgroups of the same name prefix may be made. `reap` believes only names whose process is gone.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["StateDirectory", "default_root", "reap"]

_COUNT = itertools.count()
_PATIENCE_S = 2.0


def default_root() -> Path:
    """Where state lives: memory, private to this user."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(runtime or "/tmp")
    return base / f"envgym-{os.getuid()}"


def _start(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None if there is none (a zombie is none)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else int(fields[19])


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


class StateDirectory:
    """One owner's directory under `root`."""

    def __init__(self, root: Path, cgroup_parents: list[str]) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            raise PermissionError(f"{root} belongs to another user; pass root= a directory of your own")
        pid = os.getpid()
        self.name = f"{pid}-{_start(pid)}-{_pid_namespace()}-{next(_COUNT)}"
        self.path = root / self.name
        self.path.mkdir(mode=0o700)
        (self.path / "owner.json").write_text(json.dumps({"cgroups": cgroup_parents}))
        self.log = self.path / "zygote.log"
        self.mount = self.path / "layers"
        self.mount.mkdir()

    def remove(self) -> None:
        """Remove it with all it holds."""
        _remove_tree(self.path)


def _remove_tree(path: Path) -> None:
    def force(function: Callable[[str], object], name: str, _error: object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(name), 0o700)
            if os.path.isdir(name) and not os.path.islink(name):
                os.chmod(name, 0o700)
                shutil.rmtree(name, ignore_errors=True)
            else:
                function(name)

    shutil.rmtree(path, onerror=force)


def _is_dead(name: str) -> bool:
    parts = name.split("-")
    if len(parts) < 4 or not all(part.isdigit() for part in parts[:4]):
        return False
    pid, start, namespace = (int(part) for part in parts[:3])
    return namespace == _pid_namespace() and _start(pid) != start


def reap(root: Path) -> list[str]:
    """Remove what dead owners left under `root`; a line per thing removed."""
    removed: list[str] = []
    if not root.is_dir():
        return removed
    for path in sorted(root.iterdir()):
        if not _is_dead(path.name):
            continue
        groups = [
            group
            for parent in _cgroup_parents(path)
            for group in sorted(Path(parent).glob(f"envgym-{path.name}-*"))
        ]
        deadline = time.monotonic() + _PATIENCE_S
        while not all([remove_cgroup(group) for group in groups]) and time.monotonic() < deadline:
            time.sleep(0.001)
        if any(group.exists() for group in groups):
            continue  # its record stays, for the next reaper
        removed += [f"cgroup {group}" for group in groups]
        _remove_tree(path)
        removed.append(f"directory {path}")
    return removed


def _cgroup_parents(path: Path) -> list[str]:
    try:
        parents = json.loads((path / "owner.json").read_text())["cgroups"]
    except (OSError, ValueError, KeyError):
        return []
    return [parent for parent in parents if isinstance(parent, str)]


def remove_cgroup(group: Path) -> bool:
    """Kill what is in a group and remove it; False while something in it is still dying.

    A process that was waited for may count for a moment longer, and version 1 tells nobody when it no longer does.
    """
    try:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
