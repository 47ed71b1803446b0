"""How much memory this host has and has left, as far as this process may use it.

A container's or a job's own bound counts, in control groups of version 1 and 2; no other reader of /proc is needed.
"""

import contextlib
from functools import cache
from pathlib import Path

__all__ = ["host_memory"]

_FILES = (
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ("", "memory.max", "memory.current", "inactive_file"),
)
"""Controller ("" is version 2), its files of bound and use, and what of the use can be had back."""


def host_memory() -> tuple[int, int]:
    """Total and available bytes. Raises OSError where there is no /proc."""
    fields = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _colon, value = line.partition(":")
        fields[name] = value
    total, available = (int(fields[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    for group, bound_file, use_file, inactive in _bounded_groups():
        with contextlib.suppress(OSError, ValueError):  # such as "max": not bounded
            bound = int((group / bound_file).read_text())
            if bound < total:
                used = int((group / use_file).read_text()) - _stat(group, inactive)
                total, available = bound, min(available, max(0, bound - used))
    return total, available


def _stat(group: Path, name: str) -> int:
    for line in (group / "memory.stat").read_text().splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1])
    return 0


@cache
def _bounded_groups() -> list[tuple[Path, str, str, str]]:
    """This process's memory groups, and how they are read."""
    own: dict[str, str] = {}
    mounts: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _number, names, path = line.split(":", 2)
            own |= {name: path for name in names.split(",")}
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _source, target, kind, options, *_ = line.split(" ")
            if kind == "cgroup2":
                mounts[""] = target
            elif kind == "cgroup" and "memory" in options.split(","):
                mounts["memory"] = target
    return [
        (Path(mounts[name] + own[name]), bound, use, inactive)
        for name, bound, use, inactive in _FILES
        if name in mounts and name in own
    ]
