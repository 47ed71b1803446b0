"""The default backend on Linux: namespaces, an overlay per sandbox, no network, no privileges.

Works as root and as an ordinary user. A world's trees are copied once into memory and then only stacked: creating,
forking and resetting copy nothing. What it does not confine is said by `report`.
"""

import asyncio
import os
import threading
from functools import partial
from typing import Any

from envgym.sandbox import BackendReport
from envgym.task import World
from envgym_sandboxes import world as worlds
from envgym_sandboxes.backend import LayeredBackend
from envgym_sandboxes.bases import Base
from envgym_sandboxes.cgroups import controllers
from envgym_sandboxes.channel import job
from envgym_sandboxes.sandbox import Frozen

__all__ = ["NamespaceBackend"]

_CAP_SYS_ADMIN = 21
_HOST_UID = 1_900_000_000
"""Whom root's sandboxes run as: an id that no user, container or service manager hands out."""


def _privileged() -> bool:
    """Whether this process may mount: root with CAP_SYS_ADMIN, not merely uid 0 in a container."""
    if os.geteuid() != 0:
        return False
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


class NamespaceBackend(LayeredBackend):
    """See `envgym.sandbox.SandboxBackend`.

    root: where state is kept, best a tmpfs (default: a directory of this user in /dev/shm).
    images: names that `World.image` may use -> root file system directories of this host.
    """

    name = "namespace"
    confined = True

    def __init__(self, *, root: str | os.PathLike[str] | None = None, images: dict[str, str] | None = None) -> None:
        super().__init__(root=root, images=images)
        self._privileged = _privileged()
        self._uid = _HOST_UID if self._privileged else 1000  # without root: as the zygote's own namespace sees it
        self._binds: dict[str, asyncio.Task[str]] = {}
        self._shared: dict[tuple[str, ...], asyncio.Task[str]] = {}

    def settings(self) -> dict[str, Any]:
        """See `LayeredBackend.settings`."""
        settings: dict[str, Any] = {"privileged": self._privileged, "uid": self._uid, "gid": self._uid}
        return settings | {"alias": worlds.python_alias(), "alias_top": worlds.ALIAS_TOP}

    def advice(self) -> str:
        """See `LayeredBackend.advice`."""
        return (
            "It needs user namespaces (sysctl user.max_user_namespaces > 0, kernel.unprivileged_userns_clone=1, "
            "kernel.apparmor_restrict_unprivileged_userns=0) and overlay mounts; or use the 'local' backend, "
            "which does not isolate."
        )

    async def _layer(self, steps: list[dict[str, Any]]) -> str:
        zygote = await self._zygote(())
        name = self.new_layer_name()
        await zygote.ask("layer", name=name, size=1 << 40, after=[])
        ids = {"uid": self._uid, "gid": self._uid}
        try:
            await job(zygote, "fill", layer=f"{name}/u", steps=steps, **ids)
        except BaseException:
            await self._drop((name,))
            raise
        return name

    async def _shared_layer(self, *key: str, steps: list[dict[str, Any]]) -> str:
        """A layer that many worlds stand on, made once."""
        if key not in self._shared:
            self._shared[key] = asyncio.create_task(self._layer(steps))
        try:
            return await asyncio.shield(self._shared[key])
        except Exception:
            self._shared.pop(key, None)
            raise

    async def make_base(self, world: World) -> Base:
        """See `LayeredBackend.make_base`."""
        if world.resources.cpus is not None and "cpu" not in controllers():
            raise ValueError(
                f"Resources.cpus is {world.resources.cpus}, and this user may make no cpu cgroup to bound it; "
                "use None, run as root, or delegate a cgroup"
            )
        image = worlds.image_root(world, self._images)
        host = world.image == "host"
        binds = worlds.host_binds() if host else []
        steps = worlds.host_steps(binds, world.network) if host else worlds.rootfs_steps()
        layers = [await self._shared_layer("image", image, str(world.network), steps=steps)]
        layers += [
            await self._shared_layer("tree", tree.source, tree.target, steps=worlds.tree_steps(tree))
            for tree in world.trees
        ]
        top = await self._layer(worlds.files_steps(world, binds))
        lowers = tuple(f"{layer}/u" for layer in (top, *reversed(layers))) + (() if host else (image,))
        search = worlds.python_search(True) if host else []
        prepared = [(await self._bind(path), path) for path in binds]
        spec = {
            "binds": prepared,
            "env": worlds.default_env(world, search),
            "python": None if host else ["python3"],
        }
        return Base(lowers, (top,), spec)

    async def _bind(self, path: str) -> str:
        if path not in self._binds:
            name = f"b{len(self._binds)}"
            self._binds[path] = asyncio.create_task(self._make_bind(path, name))
        return await asyncio.shield(self._binds[path])

    async def _make_bind(self, path: str, name: str) -> str:
        await (await self._zygote(())).ask("bind", path=path, name=name)
        return name

    def spec(self, base: Base, frozen: Frozen, upper: str) -> dict[str, Any]:
        """See `LayeredBackend.spec`."""
        resources = frozen.world.resources
        limits: dict[str, Any] = {}
        if "pids" not in controllers():
            limits["nproc"] = resources.pids + 1
        if "memory" not in controllers():
            limits["data"] = resources.memory_bytes
        return base.spec | {
            "state": str(self._processes.state.mount),
            "lowers": [*(f"{layer}/f" for layer in reversed(frozen.chain)), *base.lowers],
            "upper": upper,
            "network": frozen.world.network,
            "limits": limits,
            "uid": self._uid,
            "gid": self._uid,
            "privileged": self._privileged,
            "workdir": frozen.world.workdir,
        }

    def report(self) -> BackendReport:
        """See the contract. It makes a sandbox and runs a program in it."""
        failure = _in_thread(partial(_try, self))
        groups = controllers()
        isolates = [
            "files: overlay above the host or an image, which stay read-only; the writable part is bounded memory",
            "processes: own pid, ipc and uts namespaces; all die with their owner",
            "network: own namespace with a loopback only",
            "privileges: own user, no capabilities, no_new_privs, seccomp",
        ]
        missing = []
        for kind, stand_in in (("memory", "RLIMIT_DATA per process"), ("pids", "RLIMIT_NPROC per sandbox")):
            if kind in groups:
                isolates.append(f"{kind}: cgroup at {groups[kind]}")
            else:
                missing.append(f"{kind} cgroup: {stand_in} stands in for it")
        if "cpu" in groups:
            isolates.append(f"cpu: cgroup at {groups['cpu']}, where Resources.cpus asks for it")
        else:
            missing.append("cpu cgroup: Resources.cpus is refused")
        fix = ("delegate a cgroup to this user, or run as root",) if missing else ()
        if failure:
            return BackendReport(backend=self.name, works=False, missing=(failure,), fix=(self.advice(),))
        return BackendReport(
            backend=self.name, works=True, isolates=tuple(isolates), missing=tuple(missing), fix=fix
        )


async def _try(backend: NamespaceBackend) -> str:
    try:
        async with NamespaceBackend(root=backend._root) as probe, await probe.create(World()) as sandbox:
            result = await sandbox.exec(["true"], timeout_s=10)
            return "" if result.ok else f"`true` ended with {result.exit_code}: {result.text}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _in_thread(make: Any) -> str:
    """Run a coroutine to its end whether or not a loop is running here."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(make())))
    thread.start()
    thread.join()
    return found[0] if found else "the probe crashed"
