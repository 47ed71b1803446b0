"""What `envgym doctor` says of the docker backend: whether it works here, and the command that makes it work."""

from collections.abc import Callable

from envgym.sandbox import BackendReport, SandboxBackend
from envgym.task import World
from envgym_sandboxes import probe
from envgym_sandboxes.diagnosis.engine import look_at_engine, why_no_engine
from envgym_sandboxes.images.store import default_store

__all__ = ["examine"]

_NAME = "docker"
_ISOLATES = (
    "files: the image, read-only, and an overlay of bounded memory for the workdir, home and /tmp",
    "processes: own pid and ipc namespaces in a container; all end with their owner",
    "network: a container's without any",
    "privileges: own user in a user namespace, no capabilities, no_new_privs, seccomp",
    "memory, pids: the engine's cgroups",
    "cpu: the engine's cgroup, where Resources.cpus asks for it",
)
_MISSING = (
    "who can use the engine is root on its host: that is this user",
    "AppArmor, SELinux: the engine's profile holds for a container's first process, not for commands",
)
_ISOLATES_COPYING = (
    "files: the image, read-only, and a workspace in the container's memory",
    "processes, ipc: a container each; it ends with its owner",
    "network: a container's without any; World.egress through a proxy of this process",
    "privileges: no capabilities, no_new_privs, seccomp, the engine's profiles, and the runtime's walls",
    "memory, pids, cpu: the engine's limits, as far as it has any (a rootless one may have none)",
)
_MISSING_COPYING = (
    "snapshots, forks, diffs: copies of the workspace through the engine, and a new container for each life",
    "disk, inodes: bounded for the workdir, home and /tmp each; other inodes, file_bytes, io_bytes_s: refused",
    "user: 1000 of the engine's host, unless the engine maps users",
    "an end for want of memory is not told apart from others where it takes the agent too",
    "that a command ran out of memory is told only where the engine's control groups can be seen: on this host",
    "buffers of sockets, under version 1 of control groups: bounded only by root, for an engine on this host",
)


def examine(make: Callable[[], SandboxBackend], address: str, *, copying: bool = False) -> BackendReport:
    """Try the backend with an image that is there. address: of the engine. copying: the one that copies states."""
    name = f"{_NAME}-copy" if copying else _NAME
    images = default_store().names()
    if not images:
        return BackendReport(
            backend=name,
            works=False,
            missing=("no image is built here",),
            fix=("envgym images build base",),
        )
    if causes := why_no_engine(look_at_engine(address), copying=copying):
        said, fixes = tuple(cause.missing for cause in causes), tuple(cause.fix for cause in causes)
        return BackendReport(backend=name, works=False, missing=said, fix=fixes)
    image = "base" if "base" in images else next(iter(images))
    if failure := probe.failure(make, World(image=image)):
        return BackendReport(backend=name, works=False, missing=(failure,))
    if copying:
        return BackendReport(backend=name, works=True, isolates=_ISOLATES_COPYING, missing=_MISSING_COPYING)
    return BackendReport(backend=name, works=True, isolates=_ISOLATES, missing=_MISSING)
