"""One running container, seen from the host: its namespaces, its groups, and whether it still runs.

A container is made before it is known who will live in it, and serves one life after another. What a life is and
what is mounted for it is the zygote's matter.
"""

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgym.errors import InfrastructureFailure, SandboxUnavailable
from envgym.task import World
from envgym_sandboxes import masks
from envgym_sandboxes.capsule import TOOLS
from envgym_sandboxes.cgroups import (
    bound_buffers,
    groups_of,
    memory_group,
    meters_of,
    oom_kills,
    pinned_bytes,
    used_bytes,
)
from envgym_sandboxes.docker_engine import tools
from envgym_sandboxes.docker_engine.client import Client, Facts, labels
from envgym_sandboxes.docker_engine.profile import profile
from envgym_sandboxes.syscalls import NO_CORE

__all__ = ["Container", "Kind", "Maker", "block_devices", "hardening"]

_PIPE = "end"
_HOLDS_LITTLE = 16 << 20
_OWN_BYTES, _OWN_PROCESSES = 8 << 20, 2
"""What it may use beyond its world's bounds: for the program that waits, and the first process of a life.

While the next life's first process waits beside this one's, the zygote makes room for that one (`seat.Seat`).
"""
_NOBODY = "65534:65534"
_CONTROLS = ("mtrr", "sysrq-trigger")  # what is masked can be written to, to no effect


@dataclass(frozen=True, slots=True)
class Kind:
    """Containers that can stand in for each other. image: its id in the engine. tops: where things are mounted.

    memory_bytes, pids, cpus, io_bytes_s: of `Resources`; its other bounds are not the container's.
    """

    image: str
    tops: tuple[str, ...]
    network: bool
    memory_bytes: int
    pids: int
    cpus: float | None
    io_bytes_s: int | None

    @classmethod
    def of(cls, image: str, tops: tuple[str, ...], world: World) -> "Kind":
        """What a world needs."""
        bounds = world.resources
        own = (bounds.memory_bytes, bounds.pids, bounds.cpus, bounds.io_bytes_s)
        return cls(image, tops, world.network, *own)


def block_devices() -> list[str]:
    """The paths of the host's whole block devices; parts of one are bounded with it."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(f"/dev/{path.name}" for path in Path("/sys/block").iterdir() if _holds_something(path))
    return []


def _holds_something(path: Path) -> bool:
    return int((path / "size").read_text()) > 0 and os.path.exists(f"/dev/{path.name}")


@dataclass(frozen=True, slots=True)
class Maker:
    """How containers are made. owner: of `state.new_name`. folder: for their pipes.

    facts: of the engine. One that maps users is asked not to: a namespace that it maps could not be entered and
    left again, and every life has a user namespace of its own, with a user that nobody else is.
    """

    client: Client
    owner: str
    folder: Path
    runtime: str | None
    facts: Facts

    def filter(self) -> str:
        """The filter of system calls, as the engine takes it."""
        if not self.facts.reads_files:
            return profile()
        path = self.folder / "seccomp.json"
        path.write_text(profile())
        return str(path)


def hardening(maker: Maker, kind: Kind) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a container that are the same for all, and those of its host."""
    memory = kind.memory_bytes + _OWN_BYTES
    limits = {"nofile": 4096, "nproc": 4096, "core": NO_CORE[1]}
    own = {
        "working_dir": "/", "labels": labels(maker.owner), "network_disabled": not kind.network, "tty": False,
        "entrypoint": [], "environment": {},
    }  # fmt: skip
    host = {
        "network_mode": "bridge" if kind.network else "none",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true", f"seccomp={maker.filter()}"],
        "mem_limit": memory,
        "memswap_limit": memory,
        "pids_limit": kind.pids + _OWN_PROCESSES,
        "ulimits": [{"Name": name, "Soft": most, "Hard": most} for name, most in limits.items()],
        "ipc_mode": "private",
        "shm_size": "1m",
        "log_config": {"Type": "json-file", "Config": {"max-size": "64k", "max-file": "1"}},
        "init": False,
        "MaskedPaths": [*(f"/proc/{name}" for name in masks.HIDDEN if name not in _CONTROLS), "/sys"],
        "ReadonlyPaths": [f"/proc/{name}" for name in (*masks.READ_ONLY, *_CONTROLS)],
    }
    if kind.cpus is not None:
        host |= {"cpu_period": 100_000, "cpu_quota": int(kind.cpus * 100_000)}
    if kind.io_bytes_s is not None:
        rates = [{"Path": device, "Rate": kind.io_bytes_s} for device in block_devices()]
        host |= {"device_read_bps": rates, "device_write_bps": rates}
    if maker.runtime:
        host["runtime"] = maker.runtime
    return own, host


class Container:
    """A container of one kind. Made by `start`; whoever has it calls `remove`.

    seat: what the zygote needs for a `Seat` in it.
    """

    def __init__(self, maker: Maker, kind: Kind, number: int) -> None:
        self.kind = kind
        self.name = f"envgym-{maker.owner}-{number}"
        self.dead: str | None = None
        self.groups: list[str] = []
        self.seat: dict[str, Any] = {}
        self.meters: dict[str, str] = {}
        self._maker = maker
        self._folder = maker.folder / f"c{number}"
        self._loop = asyncio.get_running_loop()
        self._namespaces: list[int] = []
        self._pipe = self._process = -1
        self._memory: Path | None = None
        self._kills = 0

    @property
    def namespaces(self) -> list[int]:
        """Descriptors of its pid, mount and network namespaces. Raises InfrastructureFailure when it is gone."""
        if self.dead is not None:
            raise InfrastructureFailure(f"container {self.name} is gone: {self.dead}")
        return self._namespaces

    async def start(self) -> "Container":
        """Create and start it. Raises what went wrong; then nothing is left."""
        client = self._maker.client
        try:
            folder = await client.call(tools.gather)
            self._make_pipe()
            made = self._settings(folder)
            command = tools.waiting(folder, _PIPE)
            await client.call(client.create, self.name, self.kind.image, command, *made)
            self._enter(await client.call(client.start, self.name))
        except OSError as error:
            told = await client.call(client.ended, self.name)
            await self.remove()
            what = f"container {self.name} did not stay, with the runtime {self._maker.runtime or 'of the engine'}"
            raise InfrastructureFailure(f"{what}: {error}: {told}") from error
        except BaseException:
            await self.remove()
            raise
        return self

    def _make_pipe(self) -> None:
        """What its first process reads: held open here, so that it ends when this process does."""
        self._folder.mkdir(mode=0o711)
        pipe = self._folder / _PIPE
        os.mkfifo(pipe)
        pipe.chmod(0o444)
        self._pipe = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)

    def _settings(self, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """The container's own settings, and those of its host."""
        own, host = hardening(self._maker, self.kind)
        own |= {"user": _NOBODY, "hostname": "envgym"}
        host["tmpfs"] = dict.fromkeys(self.kind.tops, "ro,noexec,nosuid,nodev,size=4k")
        host["binds"] = [f"{folder}:{TOOLS}:ro", f"{self._folder}:{TOOLS}/{tools.LINE}:ro"]
        if self._maker.facts.mapped:
            host["userns_mode"] = "host"
        return own, host

    def _enter(self, pid: int) -> None:
        """Take hold of what lives make use of. Raises OSError when it has ended already."""
        self._process = os.pidfd_open(pid)
        if not os.path.exists(f"/proc/{pid}/root{TOOLS}"):  # runsc, kata: entering would be leaving their walls
            runtime = self._maker.runtime or "(its default)"
            raise SandboxUnavailable(
                f"the runtime {runtime} does not run containers as processes of this kernel; use runc or crun"
            )
        for name in ("pid", "mnt", "net"):
            self._namespaces.append(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC))
        if os.stat(f"/proc/{pid}/ns/pid").st_ino == os.stat("/proc/self/ns/pid").st_ino:
            raise SandboxUnavailable(
                f"container {self.name} has no pid namespace of its own: the engine gives none"
            )
        groups = groups_of(pid)
        self.groups, self.meters = [str(path) for path in groups], meters_of(groups)
        bounds = [str(path / "pids.max") for path in groups if (path / "pids.max").exists()]
        self.seat = {"bounds": bounds, "most": self.kind.pids + _OWN_PROCESSES}
        self._memory = memory_group(pid)
        bound_buffers(self._memory, self.kind.memory_bytes)
        self._kills = oom_kills(self._memory)
        self._loop.add_reader(self._process, self._end, "its first process ended")

    def _end(self, reason: str) -> None:
        """No more lives here."""
        if self.dead is not None:
            return
        self.dead = reason
        if self._process >= 0:
            self._loop.remove_reader(self._process)
        for fd in (self._pipe, self._process, *self._namespaces):
            if fd >= 0:
                os.close(fd)

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed for memory in it since the last call."""
        kills, before = oom_kills(self._memory), self._kills
        self._kills = max(kills, before)
        return kills > before

    def used_bytes(self) -> int | None:
        """What it takes of the host's memory; None where that cannot be seen, or it is gone."""
        with contextlib.suppress(OSError):
            return None if self._memory is None else used_bytes(self._memory)
        return None

    def reusable(self) -> bool:
        """Whether it can serve another sandbox: it runs, and no layer that still exists counts as its memory."""
        return self.dead is None and pinned_bytes(self._memory) <= _HOLDS_LITTLE

    async def remove(self) -> None:
        """Kill and remove it. Raises InfrastructureFailure, SandboxUnavailable when the engine does not answer."""
        self._end("removed")
        try:
            await self._maker.client.call(self._maker.client.remove, self.name)
        finally:
            with contextlib.suppress(FileNotFoundError):
                (self._folder / _PIPE).unlink()
                self._folder.rmdir()
