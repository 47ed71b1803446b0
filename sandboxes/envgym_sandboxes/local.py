"""The backend for code that you would run yourself: plain processes in private copies of the world's directories.

It keeps the contract's life cycle (snapshots, forks, deadlines, limits by rlimit) and isolates nothing: commands
see and can change all that their user can. Snapshots and forks copy the world's own directories.
"""

import os
from collections.abc import Mapping
from typing import Any

from envgym.limits import Resources
from envgym.sandbox import BackendReport
from envgym.task import World
from envgym_sandboxes import copies
from envgym_sandboxes import world as worlds
from envgym_sandboxes.backend import LayeredBackend
from envgym_sandboxes.bases import Base
from envgym_sandboxes.engine import Frozen

__all__ = ["LocalBackend"]


class LocalBackend(LayeredBackend):
    """See `envgym.sandbox.SandboxBackend`.

    The workdir, HOME and /tmp appear under the world's names in outputs, reads and writes, but commands find them
    only as their current directory, $HOME and $TMPDIR: `cat /work/a` reads the host's /work.

    root, snapshots: as of the namespace backend.
    """

    name = "local"
    confined = False
    grouped = False
    whole = True

    def settings(self) -> dict[str, Any]:
        """See `LayeredBackend.settings`."""
        return {"privileged": os.geteuid() == 0, "uid": os.geteuid(), "gid": os.getegid()}

    async def make_base(self, world: World, *, bare: bool = False) -> Base:
        """See `LayeredBackend.make_base`."""
        copies.refuse_unless_host(world, self.name)
        worlds.refuse_bounds(world.resources, self.name, cpus=None, io_bytes_s=None, inodes=Resources().inodes)
        steps = copies.base_steps(worlds.emptied(world) if bare else world, self.name)
        zygote = await self._zygote(())
        name = self.new_layer_name()
        await zygote.ask("layer", name=name, size=0, after=[])
        await self.job("fill", layer=f"{name}/u", steps=steps, uid=os.geteuid(), gid=os.getegid())
        env = worlds.default_env(world, worlds.python_search(False))
        return Base((f"{name}/u",), (name,), {"env": env, "python": None})

    def spec(self, base: Base, frozen: Frozen, upper: str) -> dict[str, Any]:
        """See `LayeredBackend.spec`."""
        root = f"{self._processes.state.mount}/{upper}/u"
        world, resources = frozen.world, frozen.world.resources
        return {
            "network": True,
            "limits": {"data": resources.memory_bytes, "file": resources.file_bytes or resources.disk_bytes},
            "workdir": root + world.workdir,
            "places": {"root": root, "tops": copies.tops(world)},
            "env": base.spec["env"] | copies.env(root) | world.env,
            "python": None,
        }

    def shell(self, frozen: Frozen, upper: str) -> Mapping[str, str] | None:
        """See `LayeredBackend.shell`."""
        return copies.shell(frozen, str(self._processes.state.mount), upper)

    def report(self) -> BackendReport:
        """See the contract."""
        works = os.path.isdir("/proc/self")
        return BackendReport(
            backend=self.name,
            works=works,
            isolates=("processes: killed with their sandbox, found by ancestry",),
            missing=(
                "files: the host's are readable and writable as this user; only the world's own are copies",
                "network: the host's",
                "processes: the host's are visible, and can be signalled as this user",
                "memory: RLIMIT_DATA per process, not of all together",
                "disk: RLIMIT_FSIZE per file, not of all together",
                "pids: not bounded",
                "cpus, io_bytes_s, inodes: refused",
            )
            + (() if works else ("/proc: needed to find a sandbox's processes",)),
            fix=("use the 'namespace' backend on Linux",),
        )
