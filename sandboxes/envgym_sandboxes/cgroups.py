"""Memory, process, processor and device bounds by control groups, version 1 or 2, where this user may make any.

Which controllers are usable is found out once by making a group; what is not usable is said, and rlimits stand in
for it. One group per controller and sandbox; the sandbox's first process joins before it gives up its privileges.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path

from envgym.limits import Resources
from envgym_sandboxes.delegation import enable
from envgym_sandboxes.state import remove_cgroup
from envgym_sandboxes.world import refuse_bounds

__all__ = [
    "Groups", "bound_buffers", "choose", "controllers", "devices", "groups_of", "memory_group", "meters_of",
    "on_demand", "oom_kills", "pinned_bytes", "refuse_uncontrolled", "used_bytes",
]  # fmt: skip

_BUFFERS, _BUFFERS_SHARE = "memory.kmem.tcp.limit_in_bytes", 4
"""Version 1 counts what sockets hold apart from memory, and only where it is bounded. Unbounded it is gigabytes."""
_PERIOD_US = 100_000
_FIRST = {
    "memory": ("memory", "memory.limit_in_bytes"),
    "pids": ("pids", "pids.max"),
    "cpu": ("cpu", "cpu.cfs_quota_us"),
    "usage": ("cpuacct", "cpuacct.usage"),
    "io": ("blkio", "blkio.throttle.read_bps_device"),
}
"""What version 1 can do -> its controller, and a file of a group that does it."""
_SECOND = {"memory": "memory.max", "pids": "pids.max", "cpu": "cpu.max", "usage": "cpu.stat", "io": "io.max"}
"""What version 2 can do -> a file of a group that does it, which is not there where it is not delegated."""
_CONTROLLERS = ("memory", "pids", "cpu", "io")
_BLOCK = "/sys/block"
_METERS = {"usage": ("cpuacct.usage", "cpu.stat"), "memory": ("memory.max_usage_in_bytes", "memory.peak")}
_USED = (b"rss ", b"anon ", b"shmem ", b"kernel ")
"""Lines of memory.stat that add up to what only the group's end gives back, of version 1 and 2."""


def _own_paths(pid: int | str = "self") -> dict[str, str]:
    """Controller -> a process's group; the empty name is version 2's."""
    paths: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
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
                known = {controller for controller, _file in _FIRST.values()}
                found |= {name: target for name in options.split(",") if name in known}
    return found


def _offered(parent: Path) -> list[str]:
    """The files of a group that is made in `parent`; none where none can be made."""
    enable(parent, _CONTROLLERS)
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
    """What can be bounded (memory, pids, cpu, io) or counted (usage: of processors) -> where to make groups."""
    return choose(_mounts(), _own_paths(), _offered)


def choose(
    mounts: Mapping[str, str], own: Mapping[str, str], offered: Callable[[Path], Collection[str]]
) -> dict[str, str]:
    """`controllers`, of mounts and own groups by controller. offered: the files of a new group in a directory.

    Of version 2, where one group holds all, the first place that bounds memory and processes is taken, and of the
    rest what is delegated there too.
    """
    found = {}
    for name, (controller, file) in _FIRST.items():
        if controller in mounts:
            places = [Path(mounts[controller] + own.get(controller, "/")), Path(mounts[controller])]
            for place in places:
                if file in offered(place):
                    found[name] = str(place)
                    break
    if "" in mounts and not found:
        here = Path(mounts[""] + own.get("", "/"))
        for place in (here, here.parent, Path(mounts[""])):
            seen = place.is_relative_to(mounts[""]) and ".." not in place.parts  # else it is above our namespace's
            files = offered(place) if seen else ()
            if {_SECOND["memory"], _SECOND["pids"]} <= set(files):
                return {name: str(place) for name, file in _SECOND.items() if file in files}
    return found


_OPTIONAL = {"cpu": "cpus", "io": "io_bytes_s"}
"""What is bounded only where a world asks for it -> the field that does."""


def _can(kind: str) -> bool:
    return kind in controllers() and (kind != "io" or bool(devices()))


def refuse_uncontrolled(resources: Resources, backend: str) -> None:
    """Raise ValueError for a bound that needs a group which this user may not make."""
    refuse_bounds(resources, backend, **{field: None for kind, field in _OPTIONAL.items() if not _can(kind)})


def on_demand() -> tuple[list[str], list[str]]:
    """For a backend's report: what groups bound where a world asks for it, and what is refused."""
    kept = [
        f"{kind}: cgroup at {controllers()[kind]}, where Resources.{field} asks for it"
        for kind, field in _OPTIONAL.items()
        if _can(kind)
    ]
    refused = [
        f"{kind} cgroup: Resources.{field} is refused" for kind, field in _OPTIONAL.items() if not _can(kind)
    ]
    return kept, refused


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def groups_of(pid: int) -> list[Path]:
    """The groups that a process is in and others can be put into, of all hierarchies that are seen from here."""
    found = set()
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _source, target, kind, options, *_ = line.split(" ")
        if kind in ("cgroup", "cgroup2"):
            own = _own_paths(pid)
            names = [""] if kind == "cgroup2" else options.split(",")
            path = next((own[name] for name in names if name in own), None)
            if path is not None and path != "/":
                found.add(Path(target + path))
    return sorted(path for path in found if path.is_dir())


def meters_of(groups: list[Path]) -> dict[str, str]:
    """What a process's groups count -> the file that does, as of `Groups.meters`."""
    files = ((kind, group / file) for kind, names in _METERS.items() for file in names for group in groups)
    return {kind: str(file) for kind, file in files if file.exists()}


def memory_group(pid: int) -> Path | None:
    """The group that counts a process's memory; None where none does or it cannot be seen from here."""
    mounts, own = _mounts(), _own_paths(pid)
    name = "memory" if "memory" in mounts else ""
    path = Path(mounts.get(name, "/nonexistent") + own.get(name, "/"))
    return path if path.is_dir() else None


def _counter(group: Path | None, files: tuple[str, ...], name: str) -> int:
    """A number from the first of these files of a group that says it; 0 where none does."""
    if group is None:
        return 0
    for file in files:
        with contextlib.suppress(OSError):
            for line in (group / file).read_text().splitlines():
                if line.startswith(f"{name} "):
                    return int(line.split()[1])
    return 0


def oom_kills(group: Path | None) -> int:
    """How often the kernel has killed for memory in a group."""
    return _counter(group, ("memory.oom_control", "memory.events"), "oom_kill")


def pinned_bytes(group: Path | None) -> int:
    """Memory of a group that nothing but removing files frees: those in file systems in memory."""
    return _counter(group, ("memory.stat",), "shmem")


def used_bytes(group: Path) -> int:
    """What a group's processes, their files in memory and the kernel on their behalf take. Raises OSError."""
    total = 0
    with open(f"{group}/memory.stat", "rb") as lines:
        for line in lines:
            if line.startswith(_USED):
                total += int(line.split()[1])
    with contextlib.suppress(OSError), open(f"{group}/memory.kmem.usage_in_bytes", "rb") as file:
        total += int(file.read())
    return total


def devices() -> list[str]:
    """The whole block devices that there are, as ``major:minor``; parts of one are bounded with it."""
    found = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(_BLOCK)):
            if int(Path(_BLOCK, name, "size").read_text()):
                found.append(Path(_BLOCK, name, "dev").read_text().strip())
    return found


def _limits(resources: Resources, own: int) -> dict[str, list[tuple[str, object]]]:
    """What is written into which file of the group that bounds it. own: threads that are not the task's."""
    limits: dict[str, list[tuple[str, object]]] = {
        "memory": [
            ("memory.limit_in_bytes", resources.memory_bytes),
            ("memory.max", resources.memory_bytes),
            ("memory.memsw.limit_in_bytes", resources.memory_bytes),
            (_BUFFERS, resources.memory_bytes // _BUFFERS_SHARE),
            ("memory.swap.max", 0),
            ("memory.oom.group", 0),
        ],
        "pids": [("pids.max", resources.pids + own)],
    }
    if resources.cpus is not None:
        quota = int(resources.cpus * _PERIOD_US)
        limits["cpu"] = [("cpu.cfs_quota_us", quota), ("cpu.max", f"{quota} {_PERIOD_US}")]
    if (rate := resources.io_bytes_s) is not None:
        kinds = ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device")
        limits["io"] = [(file, f"{device} {rate}") for device in devices() for file in kinds]
        limits["io"] += [("io.max", f"{device} rbps={rate} wbps={rate}") for device in devices()]
    return limits


def _write_limits(groups: Mapping[str, str], resources: Resources, own: int) -> None:
    for kind, files in _limits(resources, own).items():
        for file, value in files:
            path = f"{groups[kind]}/{file}" if kind in groups else ""
            if os.path.exists(path):  # strings, not paths: this is part of every start
                with contextlib.suppress(OSError) if "sw" in file else contextlib.nullcontext():
                    _write(path, str(value))  # swap accounting may be off; the others must work


def bound_buffers(group: Path | None, memory_bytes: int) -> None:
    """Bound what sockets made from now on may hold, where that is counted apart from memory. Raises OSError."""
    if group is not None and (group / _BUFFERS).exists():
        (group / _BUFFERS).write_text(str(memory_bytes // _BUFFERS_SHARE))


class Groups:
    """The groups of one sandbox.

    own: threads in it that are not the task's: the first process's, which every sandbox has.
    meters: "usage" and "memory" -> the file that counts it, where there is one.
    """

    def __init__(self, name: str, resources: Resources, own: int = 1) -> None:
        self.resources = resources
        places = controllers()
        optional = {"cpu": resources.cpus, "usage": resources.command_cpu_s, "io": resources.io_bytes_s}
        wanted = ["memory", "pids", *(kind for kind, value in optional.items() if value is not None)]
        groups = {kind: f"{places[kind]}/{name}" for kind in wanted if kind in places}
        self.paths = sorted({Path(group) for group in groups.values()})
        self._memory = Path(groups["memory"]) if "memory" in groups else None
        try:
            for path in self.paths:
                path.mkdir()
            _write_limits(groups, resources, own)
        except BaseException:
            self.remove()
            raise
        self._kills = oom_kills(self._memory)
        files = [
            (kind, f"{groups[kind]}/{file}") for kind, names in _METERS.items() if kind in groups for file in names
        ]
        self.meters = {kind: file for kind, file in files if os.path.exists(file)}

    def ran_out(self) -> bool:
        """Whether the kernel killed for memory since the last call."""
        kills, before = oom_kills(self._memory), self._kills
        self._kills = kills
        return kills > before

    def used(self) -> int | None:
        """What its processes, its files in memory and the kernel on their behalf take, bytes; None without a group.

        Files of the host that are cached are not counted: they are had back when memory is short.
        """
        return None if self._memory is None else used_bytes(self._memory)

    def remove(self) -> list[Path]:
        """Remove the groups, killing what is still in them; returns those that must be tried again."""
        return [path for path in self.paths if not remove_cgroup(path)]
