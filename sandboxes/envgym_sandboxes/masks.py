"""What of /proc a sandbox does not see, or only reads: facts and controls of the whole machine.

Processes have a pid namespace of their own, networks and System V IPC theirs; the rest of /proc is the host's. What
programs are known to need of it stays (cpuinfo, meminfo, stat, uptime, loadavg, vmstat, filesystems, version). No
/sys is ever mounted. Not hidden: what these files say, and the mount table, which names file systems of the host.
"""

import os
from functools import cache

from envgym_sandboxes import syscalls

__all__ = ["HIDDEN", "READ_ONLY", "apply", "make", "there"]

_FILES = (
    # secrets and identity of the machine, addresses of its kernel
    *("cmdline", "kallsyms", "kcore", "key-users", "keys", "kmsg", "modules", "vmcore"),
    # controls
    *("mtrr", "sysrq-trigger"),
    # hardware and memory maps
    *("dma", "fb", "iomem", "ioports", "partitions", "swaps"),
    *("allocinfo", "buddyinfo", "kpagecgroup", "kpagecount", "kpageflags", "pagetypeinfo", "slabinfo"),
    *("vmallocinfo", "zoneinfo"),
    # what others do, and when
    *("diskstats", "interrupts", "latency_stats", "locks", "sched_debug", "schedstat", "softirqs", "timer_list"),
    "timer_stats",
)
_DIRECTORIES = ("acpi", "asound", "bus", "driver", "dynamic_debug", "fs", "ide", "irq", "mpt", "pressure", "scsi")
READ_ONLY = ("sys",)
HIDDEN = _FILES + _DIRECTORIES
"""Names in /proc, for those who have others hide them; READ_ONLY are those that are shown read-only."""
_FILE, _DIRECTORY = "no-file", "no-directory"


def make(top: str) -> None:
    """Make what is shown instead, in an empty place that will be read-only."""
    os.close(os.open(f"{top}/{_FILE}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444))
    os.mkdir(f"{top}/{_DIRECTORY}", 0o555)


@cache
def there() -> tuple[tuple[str, str], ...]:
    """(what is shown, in whose place), of those that this kernel has. Looked at once: forks know it."""
    shown = [(_FILE, name) for name in _FILES] + [(_DIRECTORY, name) for name in _DIRECTORIES]
    return tuple((source, name) for source, name in shown if os.path.lexists(f"/proc/{name}"))


def apply(top: str = "") -> None:
    """Cover parts of the /proc that has just been mounted, from what `make` made at `top`. Raises OSError."""
    for source, name in there():
        syscalls.mount(f"{top}/{source}", f"/proc/{name}", "", syscalls.MS_BIND)
    for name in READ_ONLY:
        syscalls.bind(f"/proc/{name}", f"/proc/{name}", read_only=True)
