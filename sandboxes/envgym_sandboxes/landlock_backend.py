"""The backend for places that allow no namespaces: Landlock, a system call filter, resource limits, private copies.

Needs no privilege and mounts nothing: it works in an unprivileged container, for an ordinary user where user
namespaces are switched off, on a cluster's nodes. What is weaker than with namespaces is said by `report`, and by
docs/sandboxes.md at length.
"""

import os
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from envgym.errors import SandboxUnavailable
from envgym.limits import Resources
from envgym.sandbox import BackendReport, MemoryUse
from envgym.task import World
from envgym_sandboxes import copies, landlock, probe
from envgym_sandboxes import world as worlds
from envgym_sandboxes.backend import LayeredBackend
from envgym_sandboxes.bases import Base
from envgym_sandboxes.cgroups import controllers, on_demand, refuse_uncontrolled
from envgym_sandboxes.diagnosis import facts
from envgym_sandboxes.diagnosis.causes import why_no_groups
from envgym_sandboxes.engine import Frozen
from envgym_sandboxes.metering import memory_use
from envgym_sandboxes.state import runs_programs

__all__ = ["LandlockBackend"]

_READ_WRITE = landlock.READ | landlock.WRITE_FILE
_DEVICES = {"null": _READ_WRITE, "zero": _READ_WRITE, "full": _READ_WRITE} | dict.fromkeys(
    ("random", "urandom"), landlock.READ
)
_ETC = (
    *("alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies"),
    *("debian_version", "fonts", "gai.conf", "group", "host.conf", "hosts", "inputrc", "ld.so.cache"),
    *("ld.so.conf", "ld.so.conf.d", "ld.so.preload", "locale.alias", "locale.conf", "localtime", "magic"),
    *("magic.mime", "mime.types", "nsswitch.conf", "os-release", "passwd", "perl", "pki", "profile", "profile.d"),
    *("protocols", "python3", "services", "shells", "ssl", "terminfo", "timezone", "vim", "xattr.conf"),
)
"""What programs read of /etc: no names of homes but those in passwd, no configuration of this host's services."""
_NETWORK_ETC = ("resolv.conf",)
_PROC = (
    *("cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "uptime", "version", "sys/kernel/osrelease"),
    *("sys/kernel/ostype", "sys/kernel/pid_max", "sys/kernel/random/boot_id", "sys/kernel/random/uuid"),
    *("sys/kernel/cap_last_cap", "sys/kernel/ngroups_max", "sys/vm/overcommit_memory"),
)
"""Files of /proc about the machine; those about processes cannot be told apart by whose they are."""


@cache
def _host_rules(network: bool) -> tuple[tuple[str, int], ...]:
    """What every sandbox may read of this host."""
    etc = (*_ETC, *(_NETWORK_ETC if network else ()))
    rules = [(path, landlock.READ_EXECUTE) for path in worlds.host_programs()]
    rules += [(f"/etc/{name}", landlock.READ) for name in etc]
    rules += [(f"/proc/{name}", landlock.READ) for name in _PROC]
    rules += [(f"/dev/{name}", rights) for name, rights in _DEVICES.items()]
    return tuple((path, rights) for path, rights in rules if os.path.exists(path))


class LandlockBackend(LayeredBackend):
    """See `envgym.sandbox.SandboxBackend`.

    The workdir, HOME and /tmp appear under the world's names in outputs, reads and writes, but commands find them
    only as their current directory, $HOME and $TMPDIR: `cat /work/a` finds nothing.

    root: where state is kept (default: a directory of this user in /dev/shm). abi: at most this version of
    Landlock, as on an older kernel; None: what this one has. snapshots: as of the namespace backend.
    """

    name = "landlock"
    no_loopback = True
    confined = False
    own_threads = 2  # the first process, and the thread with the rights of commands
    grouped = True
    whole = True

    def __init__(
        self,
        *,
        root: str | os.PathLike[str] | None = None,
        snapshots: str | os.PathLike[str] | None = None,
        abi: int | None = None,
    ) -> None:
        super().__init__(root=root, snapshots=snapshots)
        self._abi = landlock.abi() if abi is None else abi

    def settings(self) -> dict[str, Any]:
        """See `LayeredBackend.settings`."""
        return {"privileged": False, "uid": os.geteuid(), "gid": os.getegid()}

    def advice(self) -> str:
        """See `LayeredBackend.advice`."""
        return (
            "It needs Linux 5.13 with Landlock switched on, seccomp filters with listeners, and a directory that "
            "programs may be executed in (root=, or the first of /dev/shm, $XDG_RUNTIME_DIR, $TMPDIR, /tmp)."
        )

    def _refusal(self) -> str:
        """What is known to be missing without trying."""
        if not self._abi:
            return landlock.absence()
        if not runs_programs(self._root):
            return f"{self._root} is on a mount where no program may be executed (noexec)"
        return ""

    async def make_base(self, world: World, *, bare: bool = False) -> Base:
        """See `LayeredBackend.make_base`."""
        if refusal := self._refusal():
            raise SandboxUnavailable(f"{refusal}. {self.advice()}")
        copies.refuse_unless_host(world, self.name)
        worlds.refuse_bounds(world.resources, self.name, inodes=Resources().inodes)
        refuse_uncontrolled(world.resources, self.name)
        steps = copies.base_steps(worlds.emptied(world) if bare else world, self.name)
        zygote = await self._zygote(())
        name = self.new_layer_name()
        await zygote.ask("layer", name=name, size=0, after=[])
        await self.job("fill", layer=f"{name}/u", steps=steps, uid=os.geteuid(), gid=os.getegid())
        env = worlds.default_env(world, worlds.python_search(False))
        return Base((f"{name}/u",), (name,), {"env": env})

    def spec(self, base: Base, frozen: Frozen, upper: str) -> dict[str, Any]:
        """See `LayeredBackend.spec`."""
        root = f"{self._processes.state.mount}/{upper}/u"
        world, resources = frozen.world, frozen.world.resources
        groups = controllers() if self.grouped else {}
        limits = {"file": resources.file_bytes or resources.disk_bytes}
        bounds: dict[str, Any] = {"root": root, "disk": resources.disk_bytes, "inodes": resources.inodes}
        bounds["memory"] = None if "memory" in groups else resources.memory_bytes
        domain = {"rules": _host_rules(world.network), "network": world.network, "version": self._abi, "root": root}
        domain["pids"] = None if "pids" in groups else resources.pids
        if "memory" not in groups:
            limits["data"] = resources.memory_bytes
        return {
            "network": world.network,
            "limits": limits,
            "bounds": bounds,
            "workdir": root + world.workdir,
            "places": {"root": root, "tops": copies.tops(world)},
            "env": base.spec["env"] | copies.env(root) | world.env,
            "python": None,
            "domain": domain,
        }

    def shell(self, frozen: Frozen, upper: str) -> Mapping[str, str] | None:
        """See `LayeredBackend.shell`."""
        return copies.shell(frozen, str(self._processes.state.mount), upper)

    async def memory(self, sandboxes: Collection[str]) -> MemoryUse:
        """See `envgym.sandbox.MeteredBackend`. Where no group is, nothing is told of a sandbox."""
        return memory_use(self.places.groups, sandboxes)

    def report(self) -> BackendReport:
        """See the contract. It makes a sandbox and runs a program in it."""
        failure = self._refusal() or probe.failure(lambda: LandlockBackend(root=self._root, abi=self._abi))
        if failure:
            return BackendReport(backend=self.name, works=False, missing=(failure,), fix=(self.advice(),))
        isolates, missing = _strengths(self._abi)
        ungrouped = why_no_groups(facts.look(privileged=False))
        missing += tuple(cause.missing for cause in ungrouped)
        fix = tuple(cause.fix for cause in ungrouped)
        return BackendReport(backend=self.name, works=True, isolates=isolates, missing=missing, fix=fix)


def _strengths(abi: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What this confines on this kernel, and what is weaker than in namespaces."""
    groups = controllers()
    isolates = [
        f"files: Landlock (ABI {abi}): programs, libraries and some of /etc can be read, nothing else of the host, "
        "and only copies of the world's own directories can be changed, their metadata included",
        "network: no sockets at all, unless World.network asks for the host's",
        "privileges: no capabilities, no_new_privs, seccomp",
        "processes: others cannot be seen, signalled, traced or read, nor their limits or priorities changed",
    ]
    missing = [
        "paths: the workdir, HOME and /tmp have their own names only in outputs and file calls, not for commands",
        "names: whether a path of the host exists, its size and times, can be asked for by who guesses it",
        "user: this very one; where a file system is shared with other hosts, only Landlock is between",
        "network: no loopback inside; a server and its client cannot talk, ports cannot be forwarded",
        "/proc: only files about the machine, none about processes, not even a program's own (no ps)",
        "kernel objects: no System V IPC, /dev/shm, terminals, inotify, unix sockets: they would be the host's",
        "disk: counted while something runs, not by the kernel: exceeded until it is noticed; then all is killed, "
        "and later commands can only remove files; inodes: the default is kept likewise, others are refused",
    ]
    if abi < 2:
        missing.append("renames and links between directories fail (Linux before 5.19)")
    if "memory" in groups:
        isolates.append(f"memory: cgroup at {groups['memory']}")
    else:
        missing.append(
            "memory cgroup: RLIMIT_DATA for each process; all together are counted while they run, and the largest "
            "is killed when it is noticed; buffers in the kernel are not counted"
        )
    counted = f"cgroup at {groups['pids']}" if "pids" in groups else "counted before each is made"
    isolates.append(f"pids: {counted}")
    kept, refused = on_demand()
    return (*isolates, *kept), (*missing, *refused)
