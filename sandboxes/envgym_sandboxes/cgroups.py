"""Memory, process and CPU bounds by control groups, version 1 or 2, where this user may make any.

Which controllers are usable is found out once by making a group; what is not usable is said, and rlimits stand in
for it. One group per controller and sandbox; the sandbox's first process joins before it gives up its privileges.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path

from envgym.limits import Resources
from envgym_sandboxes.state import remove_cgroup

__all__ = ["Groups", "choose", "controllers"]

_PERIOD_US = 100_000
_FIRST = {"memory": "memory.limit_in_bytes", "pids": "pids.max", "cpu": "cpu.cfs_quota_us"}
_SECOND = {"memory": "memory.max", "pids": "pids.max", "cpu": "cpu.max"}
"""Controller -> the file of a group that bounds it, in version 1 and 2; no file where it is not delegated."""


def _own_paths() -> dict[str, str]:
    """Controller -> this process's group; the empty name is version 2's."""
    paths: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _number, names, path = line.split(":", 2)
            paths |= {name: path for name in names.split(",")}
    return paths


def _mounts() -> dict[str, str]:
    """Controller -> where its hierarchy is mounted; the empty name is version 2's."""
    found = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _source, target, kind, options, *_ = line.split(" ")
            if kind == "cgroup2":
                found[""] = target
            elif kind == "cgroup":
                found |= {name: target for name in options.split(",") if name in ("memory", "pids", "cpu")}
    return found


def _offered(parent: Path) -> list[str]:
    """The files of a group that is made in `parent`; none where none can be made."""
    probe = parent / f"envgym-probe-{os.getpid()}"
    try:
        probe.mkdir()
    except OSError:
        return []
    try:
        return os.listdir(probe)
    finally:
        probe.rmdir()


@cache
def controllers() -> dict[str, str]:
    """Usable controllers of memory, pids, cpu -> the directory to make groups in."""
    return choose(_mounts(), _own_paths(), _offered)


def choose(
    mounts: Mapping[str, str], own: Mapping[str, str], offered: Callable[[Path], Collection[str]]
) -> dict[str, str]:
    """`controllers`, of mounts and own groups by controller. offered: the files of a new group in a directory.

    Of version 2, where one group holds all, the first place that bounds memory and processes is taken, and its
    cpu only where that is delegated too.
    """
    found = {}
    for name, file in _FIRST.items():
        if name in mounts:
            places = [Path(mounts[name] + own.get(name, "/")), Path(mounts[name])]
            for place in places:
                if file in offered(place):
                    found[name] = str(place)
                    break
    if "" in mounts and not found:
        here = Path(mounts[""] + own.get("", "/"))
        for place in (here, here.parent, Path(mounts[""])):
            files = offered(place) if place.is_relative_to(mounts[""]) else ()
            if {_SECOND["memory"], _SECOND["pids"]} <= set(files):
                return {name: str(place) for name, file in _SECOND.items() if file in files}
    return found


class Groups:
    """The groups of one sandbox."""

    def __init__(self, name: str, resources: Resources) -> None:
        places = controllers()
        wanted = ["memory", "pids"] + (["cpu"] if resources.cpus is not None else [])
        self.paths = sorted({Path(places[kind]) / name for kind in wanted if kind in places})
        self._memory = Path(places["memory"]) / name if "memory" in places else None
        try:
            for path in self.paths:
                path.mkdir()
            self._write_limits(places, name, resources)
        except BaseException:
            self.remove()
            raise
        self._kills = self._oom_kills()

    def _write_limits(self, places: dict[str, str], name: str, resources: Resources) -> None:
        quota = int((resources.cpus or 0) * _PERIOD_US)
        limits: dict[str, dict[str, object]] = {
            "memory": {
                "memory.limit_in_bytes": resources.memory_bytes,
                "memory.max": resources.memory_bytes,
                "memory.memsw.limit_in_bytes": resources.memory_bytes,
                "memory.swap.max": 0,
                "memory.oom.group": 0,
            },
            "pids": {"pids.max": resources.pids + 1},  # the sandbox's own first process is not the task's
            "cpu": {"cpu.cfs_quota_us": quota, "cpu.max": f"{quota} {_PERIOD_US}"} if quota else {},
        }
        for kind, files in limits.items():
            for file, value in files.items():
                path = Path(places.get(kind, "/nonexistent")) / name / file
                if path.exists():
                    with contextlib.suppress(OSError) if "sw" in file else contextlib.nullcontext():
                        path.write_text(str(value))  # swap accounting may be off; the others must work

    def _oom_kills(self) -> int:
        if self._memory is None:
            return 0
        for file in ("memory.oom_control", "memory.events"):
            with contextlib.suppress(OSError):
                for line in (self._memory / file).read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0

    def ran_out(self) -> bool:
        """Whether the kernel killed for memory since the last call."""
        kills, before = self._oom_kills(), self._kills
        self._kills = kills
        return kills > before

    def remove(self) -> list[Path]:
        """Remove the groups, killing what is still in them; returns those that must be tried again."""
        return [path for path in self.paths if not remove_cgroup(path)]
