"""`check_sandbox`: the contract of sandbox backends, executable, for ours and for third parties' ones.

Each check is one paragraph of `envgym.sandbox`; a failed one raises AssertionError with the sentence that was
broken. They need bash and coreutils inside, and use nothing but the contract: no backend's internals.
"""

from collections.abc import Awaitable, Callable, Collection
from functools import partial

from envgym.limits import Resources
from envgym.sandbox import SandboxBackend
from envgym.task import World
from envgym.testing.sandbox_checks import (
    budgets,
    cancelling,
    commands,
    durable,
    ending,
    files,
    limits,
    loops,
    network,
    owners,
    processes,
    states,
    walls,
    wrong_use,
)
from envgym.testing.sandbox_checks.common import Check, Refused
from envgym.testing.sandbox_checks.owners import Traces

__all__ = ["CHECKS", "check_sandbox"]

_RESOURCES = Resources(output_bytes=4096, command_s=20.0, pids=128)
_BASIC = (*commands.CHECKS, *files.CHECKS, *states.CHECKS, *processes.CHECKS, *network.CHECKS)
_BOUNDS = (*limits.CHECKS, *budgets.CHECKS)
_ENDS = (*cancelling.CHECKS, *loops.CHECKS, *ending.CHECKS, *wrong_use.CHECKS)


def _named(checks: Collection[Check]) -> dict[str, Check]:
    return {check.__name__.strip("_"): check for check in checks}


_EVERYWHERE = _named((*_BASIC, *_BOUNDS, *_ENDS))
_WALLS = _named(walls.CHECKS)
_OF_BACKENDS = ("durable", "reap", "closed_backend")
CHECKS = (*_EVERYWHERE, *_WALLS, *_OF_BACKENDS)
"""The names of all checks."""


async def check_sandbox(
    make: Callable[[], SandboxBackend],
    *,
    world: World | None = None,
    must: Collection[str] = (),
    traces: Traces | None = None,
) -> list[str]:
    """Run every check against fresh backends; returns the names of those that found their sentences kept.

    world: adds an image or environment that the backend needs; its workdir, files and setup are used as they are.
    must: names (see `CHECKS`) that the result must have. The contract lets a backend refuse some things with
        ValueError, tell nothing of others, and keep some bounds less than promised when its report says so; the
        names of such checks are then not in the result, and in `must` they are an AssertionError with the reason.
    traces: what owners of this kind of backend have on this host, by name; after a backend's end, and after a kill
        -9 of an owner and `reap`, there is no more of it than before. A `make` that can be pickled (a function of
        a module, a class, a functools.partial of one) lets an owner be killed.
    Checks of isolation run when the backend's report claims network isolation. Raises AssertionError; ValueError
    for a name in `must` that is none.
    """
    if unknown := sorted(set(must) - set(CHECKS)):
        raise ValueError(f"must={unknown}: there are no such checks; there are {', '.join(CHECKS)}")
    world = world or World(resources=_RESOURCES)
    world = world.model_copy(update={"files": world.files | {f"{world.workdir}/given.txt": "given\n"}})
    report = make().report()
    assert report.works, f"the backend must say that it works here before it is checked: {report}"
    before = set(traces()) if traces is not None else set()
    kept: list[str] = []
    checks = _EVERYWHERE | (_WALLS if any("network" in line for line in report.isolates) else {})
    if unclaimed := sorted(set(must) & set(_WALLS) - set(checks)):
        raise AssertionError(f"{unclaimed} must be kept; the report claims no isolation of the network: {report}")
    async with make() as backend:
        for name, check in checks.items():
            await _keep(name, partial(check, backend, world), must, kept)
    await _keep("durable", partial(durable.outlives, make, world), must, kept)
    await _keep("reap", partial(owners.reap, make, world, traces), must, kept)
    await _keep("closed_backend", partial(ending.closed_backend, make(), world), must, kept)
    left = set(traces()) - before if traces is not None else set()
    assert not left, f"a backend that was closed leaves nothing on its host: {sorted(left)}"
    return kept


async def _keep(name: str, check: Callable[[], Awaitable[None]], must: Collection[str], kept: list[str]) -> None:
    """Run a check and note that it was kept; or find that it was refused, and may not be."""
    try:
        await check()
    except Refused as refusal:
        if name in must:
            raise AssertionError(f"{name} must be kept, and was not: {refusal}") from refusal
    else:
        kept.append(name)
