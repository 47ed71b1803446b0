"""`check_sandbox`: the contract of sandbox backends, executable, for ours and for third parties' ones.

Each check is one paragraph of `envgym.sandbox`; a failed one raises AssertionError with the sentence that was
broken. They need bash and coreutils inside, and use nothing but the contract: no backend's internals.
"""

from collections.abc import Callable

from envgym.limits import Resources
from envgym.sandbox import SandboxBackend
from envgym.task import World
from envgym.testing.sandbox_checks import (
    cancelling,
    commands,
    durable,
    ending,
    files,
    limits,
    loops,
    network,
    processes,
    states,
    walls,
    wrong_use,
)

__all__ = ["check_sandbox"]

_RESOURCES = Resources(output_bytes=4096, command_s=20.0, pids=128)
_BASIC = (*commands.CHECKS, *files.CHECKS, *states.CHECKS, *processes.CHECKS)
_EVERYWHERE = (
    *(*_BASIC, *network.CHECKS, *limits.CHECKS),
    *(*cancelling.CHECKS, *loops.CHECKS, *ending.CHECKS, *wrong_use.CHECKS),
)


async def check_sandbox(make: Callable[[], SandboxBackend], *, world: World | None = None) -> list[str]:
    """Run every check against fresh backends; returns the names of those that ran.

    world: adds an image or environment that the backend needs; its workdir, files and setup are used as they are.
    Checks of isolation run when the backend's report claims network isolation. Raises AssertionError.
    """
    world = world or World(resources=_RESOURCES)
    world = world.model_copy(update={"files": world.files | {f"{world.workdir}/given.txt": "given\n"}})
    report = make().report()
    assert report.works, f"the backend must say that it works here before it is checked: {report}"
    checks = [*_EVERYWHERE, *(walls.CHECKS if any("network" in line for line in report.isolates) else ())]
    async with make() as backend:
        for check in checks:
            await check(backend, world)
    await durable.outlives(make, world)
    await ending.closed_backend(make(), world)
    return [check.__name__.strip("_") for check in checks] + ["outlives", "closed_backend"]
