"""What an owner leaves on the host, by name, so that it can be removed when the owner was killed.

A directory ``<pid>-<start>-<pid namespace>-<n>`` is made before anything else and lists the parents under which
cgroups of the same name prefix may be made. `reap` believes only names whose process is gone.
"""

import contextlib
import itertools
import json
import os
import signal
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from envgym.arguments import checked_path
from envgym_sandboxes.removal import remove_tree

__all__ = [
    "StateDirectory",
    "checked_directory",
    "default_root",
    "is_dead",
    "new_name",
    "reap",
    "reap_groups",
    "runs_programs",
]

_COUNT = itertools.count()
_PATIENCE_S = 2.0


def default_root(*, executable: bool = False) -> Path:
    """Where state lives: memory, private to this user; not on a mount that forbids programs, where they must run.

    Containers mount /dev/shm like that. Where nothing fits it is the first place that can be written to at all.
    """
    places = [
        Path("/dev/shm"),
        *(Path(os.environ[name]) for name in ("XDG_RUNTIME_DIR", "TMPDIR") if os.environ.get(name)),
    ]
    writable = [place for place in (*places, Path("/tmp")) if os.access(place, os.W_OK)] or [Path("/tmp")]
    fitting = [place for place in writable if not executable or runs_programs(place)]
    return (fitting or writable)[0] / f"envgym-{os.getuid()}"


def checked_directory(option: str, given: object) -> Path:
    """A directory that an option names, which is there or can be made. Raises TypeError, ValueError."""
    found = Path(checked_path(option, given))
    there = found
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise ValueError(f"{option} is {str(found)!r}; it must be a directory, and {str(there)!r} is none")
    return found


def runs_programs(place: Path) -> bool:
    """Whether the mount that a path, or what there is above it, lies on lets programs be executed."""
    while not place.exists():
        place = place.parent
    return not os.statvfs(place).f_flag & os.ST_NOEXEC


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


def new_name() -> str:
    """A name that says who made the thing that bears it, unique on this host since it was started."""
    pid = os.getpid()
    return f"{pid}-{_start(pid)}-{_pid_namespace()}-{next(_COUNT)}"


def _check(root: Path) -> None:
    """Raise PermissionError for a directory in which another user could have put what is believed here."""
    link, info = root.lstat(), root.stat()
    if info.st_uid != os.getuid() or link.st_uid not in (0, os.getuid()):
        raise PermissionError(f"{root} belongs to another user; pass root= a directory of your own")
    if info.st_mode & 0o022:
        mode = stat.S_IMODE(info.st_mode)
        raise PermissionError(
            f"{root} can be written by others (mode {mode:o}); pass root= a directory of your own, or chmod go-w it"
        )


class StateDirectory:
    """One owner's directory under `root`."""

    def __init__(self, root: Path, cgroup_parents: list[str]) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check(root)
        self.name = new_name()
        self.path = root / self.name
        self.path.mkdir(mode=0o700)
        (self.path / "owner.json").write_text(json.dumps({"cgroups": cgroup_parents}))
        self.log = self.path / "zygote.log"
        self.mount = self.path / "layers"
        self.mount.mkdir()

    def remove(self) -> None:
        """Remove it with all it holds."""
        remove_tree(self.path)


def is_dead(name: str) -> bool:
    """Whether `name` is one of `new_name`'s, of this pid namespace, and its process is gone."""
    parts = name.split("-")
    if len(parts) < 4 or not all(part.isdigit() for part in parts[:4]):
        return False
    pid, start, namespace = (int(part) for part in parts[:3])
    return namespace == _pid_namespace() and _start(pid) != start


def reap(root: Path) -> list[str]:
    """Remove what dead owners left under `root`; a line per thing removed. Raises PermissionError."""
    removed: list[str] = []
    if not root.is_dir():
        return removed
    _check(root)
    for path in sorted(root.iterdir()):
        if not is_dead(path.name):
            continue
        groups = [
            group
            for parent in _cgroup_parents(path)
            for group in sorted(Path(parent).glob(f"envgym-{path.name}-*"))
        ]
        gone = _without(groups)
        removed += [f"cgroup {group}" for group in gone]
        if len(gone) < len(groups):
            continue  # its record stays, for the next reaper
        remove_tree(path)
        removed.append(f"directory {path}")
    return removed


def reap_groups(parents: Iterable[str]) -> list[str]:
    """Remove this user's groups of dead owners below `parents`, wherever their records are; a line for each."""
    found = sorted(group for parent in set(parents) for group in Path(parent).glob("envgym-*"))
    mine = [group for group in found if is_dead(group.name.removeprefix("envgym-")) and _is_own(group)]
    return [f"cgroup {group}" for group in _without(mine)]


def _is_own(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def _without(groups: list[Path]) -> list[Path]:
    """Remove groups with what is in them; those that went before long."""
    left, deadline = list(groups), time.monotonic() + _PATIENCE_S
    while (left := [group for group in left if not remove_cgroup(group)]) and time.monotonic() < deadline:
        time.sleep(0.001)
    return [group for group in groups if group not in left]


def _cgroup_parents(path: Path) -> list[str]:
    try:
        parents = json.loads((path / "owner.json").read_text())["cgroups"]
    except (OSError, ValueError, KeyError):
        return []
    return [parent for parent in parents if isinstance(parent, str)]


def remove_cgroup(group: Path) -> bool:
    """Kill what is in a group and remove it; False while something in it is still dying.

    A process that was waited for may count for a moment longer, and version 1 tells nobody when it no longer does.
    Version 2 kills all at once, so that none can fork itself away. An empty group goes also when no file can be
    opened.
    """
    with contextlib.suppress(OSError):
        group.rmdir()
        return True
    try:
        members = (group / "cgroup.procs").read_text().split()
        if members and (group / "cgroup.kill").exists():
            (group / "cgroup.kill").write_text("1")
        else:
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
