"""A storm of 200 starts beside running sandboxes: what their commands wait, with a pool's throttle and without one.

Each round runs every case with a backend of its own; the floor is the same commands without a storm.
`python benchmarks/pool_storm.py --quick`.
"""

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Awaitable, Callable

from _harness import Row, finish, options, scratch_folder
from envgym_sandboxes.namespace import NamespaceBackend
from envgym_sandboxes.pool import PoolBackend, PoolBounds

from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import World

STORM, RUNNING = 200, 4
THROTTLES = (1, 2, 4, 8)
P99_RATIO = 0.5
UNTHROTTLED, QUIET = "no throttle", "no storm"

Times = dict[str, list[float]]


def at(values: list[float], part: float) -> float:
    """A quantile: the value that `part` of them do not exceed."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


async def commands(sandbox: Sandbox, waits: list[float]) -> None:
    while True:
        began = time.perf_counter()
        assert (await sandbox.exec(["true"])).ok
        waits.append(time.perf_counter() - began)
        await asyncio.sleep(0.005)  # as an agent that thinks between its commands


async def beside_commands(
    backend: SandboxBackend, work: Callable[[], Awaitable[None]]
) -> tuple[float, list[float]]:
    """How long `work` took, and what each command took meanwhile in sandboxes that ran before."""
    running = [await backend.create(World()) for _ in range(RUNNING)]
    waits: list[float] = []
    users = [asyncio.create_task(commands(sandbox, waits)) for sandbox in running]
    began = time.perf_counter()
    await work()
    took = time.perf_counter() - began
    for user in users:
        user.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await user
    return took, waits


async def storm(backend: SandboxBackend, count: int) -> tuple[float, list[float]]:
    async def work() -> None:
        await asyncio.gather(*(backend.create(World()) for _ in range(count)))

    return await beside_commands(backend, work)


async def measure(root: str, rounds: int, count: int) -> tuple[Times, Times]:
    took: Times = {}
    waits: Times = {}

    def note(name: str, found: tuple[float, list[float]]) -> None:
        took.setdefault(name, []).append(found[0])
        waits.setdefault(name, []).extend(found[1])

    for _ in range(rounds):
        async with NamespaceBackend(root=root) as backend:
            note(QUIET, await beside_commands(backend, lambda: asyncio.sleep(1.0)))
        async with NamespaceBackend(root=root) as backend:
            note(UNTHROTTLED, await storm(backend, count))
        for starts in THROTTLES:
            bounds = PoolBounds(starts=starts, warm=0, estimate_bytes=32 << 20)
            async with PoolBackend(lambda: NamespaceBackend(root=root), bounds=bounds) as pool:
                note(f"{starts} at a time", await storm(pool, count))
    return took, waits


def main() -> None:
    given = options(__doc__)
    rounds, count = (1, 40) if given.quick else (5, STORM)
    with scratch_folder() as scratch:
        scratch.chmod(0o711)
        took, waits = asyncio.run(measure(str(scratch), rounds, count))
    rows = []
    for starts in THROTTLES:
        name = f"{starts} at a time"
        bar = P99_RATIO if starts == 2 else None
        for part in (0.5, 0.99):
            for other, limit in ((UNTHROTTLED, bar if part == 0.99 else None), (QUIET, None)):
                ours, theirs = (at(waits[case], part) * 1e3 for case in (name, other))
                rows.append(Row(f"p{part * 100:.0f} of a command, {name}", ours, theirs, other, "ms", limit))
        ours, theirs = (statistics.median(took[case]) * 1e3 for case in (name, UNTHROTTLED))
        rows.append(Row(f"time to all {count}, {name}", ours, theirs, UNTHROTTLED, "ms"))
    worst = {name: round(max(values) * 1e3, 1) for name, values in waits.items()}
    finish("pool_storm", rows, given, storm=count, running=RUNNING, worst_ms=worst, root=os.geteuid() == 0)


if __name__ == "__main__":
    main()
