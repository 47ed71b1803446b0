"""The backend for machines that allow no namespaces: plain processes in a private copy of the workdir.

It keeps the contract's life cycle (snapshots, forks, deadlines, limits by rlimit) and isolates nothing: commands
see and can change all that their user can. Snapshots and forks copy the workdir. For code that you would run
yourself.
"""

import os
from collections.abc import Mapping
from typing import Any

from envgym.sandbox import BackendReport
from envgym.task import World
from envgym_sandboxes import world as worlds
from envgym_sandboxes.backend import LayeredBackend
from envgym_sandboxes.bases import Base
from envgym_sandboxes.channel import job
from envgym_sandboxes.sandbox import Frozen

__all__ = ["LocalBackend"]


class LocalBackend(LayeredBackend):
    """See `envgym.sandbox.SandboxBackend`.

    The workdir appears under its own name in outputs, reads and writes, but commands find it only as their current
    directory: `cat /work/a` reads the host's /work. HOME and TMPDIR are private and not part of snapshots.
    """

    name = "local"
    confined = False

    def settings(self) -> dict[str, Any]:
        """See `LayeredBackend.settings`."""
        return {"privileged": os.geteuid() == 0, "uid": os.geteuid(), "gid": os.getegid()}

    async def make_base(self, world: World) -> Base:
        """See `LayeredBackend.make_base`."""
        steps: list[dict[str, Any]] = [{"do": "directory", "path": "/"}]
        for tree in world.trees:
            steps.append({"do": "tree", "source": tree.source, "path": _below(world, tree.target, "trees target")})
        for path, content in sorted(world.files.items()):
            steps.append({"do": "file", "path": _below(world, path, "files"), "content": content, "mode": 0o644})
        if world.image != "host":
            raise ValueError(f"World.image {world.image!r}: the local backend runs on the host itself; use 'host'")
        if world.resources.cpus is not None:
            raise ValueError(
                f"Resources.cpus is {world.resources.cpus}; the local backend cannot bound it; use None"
            )
        zygote = await self._zygote(())
        name = self.new_layer_name()
        await zygote.ask("layer", name=name, size=0, after=[])
        await job(zygote, "fill", layer=f"{name}/u", steps=steps, uid=os.geteuid(), gid=os.getegid())
        return Base(
            (f"{name}/u",), (name,), {"env": worlds.default_env(world, worlds.python_search(False)), "python": None}
        )

    async def fill_upper(self, base: Base, frozen: Frozen, upper: str) -> bool:
        """A whole copy of the state below."""
        zygote = await self._zygote(())
        await zygote.ask("layer", name=upper, size=0, after=[])
        below = f"{frozen.chain[-1]}/f" if frozen.chain else base.lowers[0]
        await job(zygote, "copy", sources=[below], target=f"{upper}/u", privileged=False)
        return False

    async def freeze(self, frozen: Frozen, upper: str) -> tuple[str, ...]:
        """A layer is a whole state here; the one before is not needed below it."""
        self._references[upper] = 1
        await self.unuse(frozen.chain)
        return (upper,)

    def spec(self, base: Base, frozen: Frozen, upper: str) -> dict[str, Any]:
        """See `LayeredBackend.spec`."""
        here = f"{self._processes.state.mount}/{upper}/"
        resources = frozen.world.resources
        return {
            "state": str(self._processes.state.mount),
            "upper": upper,
            "network": True,
            "limits": {"data": resources.memory_bytes, "file": resources.disk_bytes},
            "workdir": here + "u",
            "alias": frozen.world.workdir,
            "env": base.spec["env"] | {"HOME": here + "w", "TMPDIR": here + "w"} | frozen.world.env,
            "python": None,
        }

    def shell(self, frozen: Frozen, upper: str) -> Mapping[str, str] | None:
        """The paths of the copy that it was written in become those of this one."""
        if frozen.shell is None:
            return None
        top = self._processes.state.mount
        before, here = f"{top}/{frozen.shell['layer']}/", f"{top}/{upper}/"
        return {name: text.replace(before, here) for name, text in frozen.shell.items()}

    def _stacks(self, base: Base, frozen: Frozen, upper: str | None) -> dict[str, Any]:
        below = f"{frozen.chain[-1]}/f" if frozen.chain else base.lowers[0]
        return {
            "base": base.lowers[0],
            "top": f"{upper}/u" if upper else below,
            "prefix": frozen.world.workdir.rstrip("/"),
        }

    def report(self) -> BackendReport:
        """See the contract."""
        works = os.path.isdir("/proc/self")
        return BackendReport(
            backend=self.name,
            works=works,
            isolates=("processes: killed with their sandbox, found by ancestry",),
            missing=(
                "files: the host's are readable and writable as this user; only the workdir is a copy",
                "network: the host's",
                "processes: the host's are visible, and can be signalled as this user",
                "memory: RLIMIT_DATA per process; disk: RLIMIT_FSIZE per file; pids and cpus: not bounded",
            )
            + (() if works else ("/proc: needed to find a sandbox's processes",)),
            fix=("use the 'namespace' backend on Linux",),
        )


def _below(world: World, path: str, what: str) -> str:
    """A path of the world as one below its workdir."""
    workdir = world.workdir.rstrip("/")
    if not f"{path}/".startswith(f"{workdir}/"):
        raise ValueError(
            f"World.{what}: {path!r} is outside the workdir {world.workdir!r}; the local backend must not write "
            "to the host: put it below the workdir, or use the 'namespace' backend"
        )
    return path[len(workdir) :] or "/"
