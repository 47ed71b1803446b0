"""An episode of 300 turns on 5,000 files with a snapshot at every turn, beside the same turns without snapshots.

Each turn changes some files, removes one and runs the same command, which is timed. Then every snapshot is forked
from and looked at, and the same again with durable snapshots: what is held and written, beside what changed.
`python benchmarks/sandbox_turns.py --quick`.
"""

import asyncio
import os
import statistics
import time

from _harness import Row, finish, options, scratch_folder
from envgym_sandboxes.namespace import NamespaceBackend
from sandbox_fork import make_repository

from envgym.task import Tree, World

BYTES = 40_000
FEW = 10
LOOK = "cat package3/module3/file3.py >/dev/null; ls package4 >/dev/null; wc -c < turn"


def change(turn: int) -> str:
    """A turn's work: a new file, a changed one, one written again and again, one that goes."""
    return (
        f"head -c {BYTES // 2} /dev/urandom > new{turn}; head -c {BYTES // 2} /dev/urandom > again{turn % 5}; "
        f"echo {turn} >> package{turn % 50}/module{turn % 10}/file{turn % 50}.py; echo {turn} > turn; "
        f"rm -f new{turn - 7}"
    )


async def clocked(times: list[float], awaitable):
    began = time.perf_counter()
    result = await awaitable
    times.append(time.perf_counter() - began)
    return result


async def play(backend, world: World, turns: int, snapshots: str) -> tuple[dict[str, list[float]], list]:
    """The episode; seconds of each command and snapshot, and the snapshots."""
    times: dict[str, list[float]] = {"command": [], "snapshot": []}
    taken = []
    async with await backend.create(world) as sandbox:
        for turn in range(turns):
            assert (await sandbox.exec(change(turn))).ok
            if snapshots != "none":
                durable = snapshots == "durable"
                taken.append(await clocked(times["snapshot"], sandbox.snapshot(durable=durable)))
            result = await clocked(times["command"], sandbox.exec(LOOK))
            assert result.ok, result
    return times, taken


async def forks(backend, taken) -> list[float]:
    """Seconds of a fork from each, in an order that jumps; each must be the state that it was."""
    times: list[float] = []
    for turn in sorted(range(len(taken)), key=lambda number: (number * 7919) % len(taken)):
        fork = await clocked(times, backend.restore(taken[turn]))
        result = await fork.exec(f"cat turn; ls -d new* | wc -l; test -e new{turn}")
        assert result.ok, result
        assert result.stdout.split() == [b"%d" % turn, b"%d" % min(7, turn + 1)], (turn, result)
        await fork.close()
    return times


def median_ms(values: list[float]) -> float:
    return statistics.median(values) * 1e3


async def measure(scratch, turns: int) -> tuple[list[Row], dict[str, object]]:
    repository, kept = scratch / "repository", scratch / "kept"
    make_repository(repository)
    world = World(trees=(Tree(source=str(repository), target="/work"),))
    changed = turns * BYTES / 2**20
    async with NamespaceBackend(root=scratch / "state", snapshots=kept) as backend:
        plain, _none = await play(backend, world, turns, "none")
        times, taken = await play(backend, world, turns, "kept")
        await backend.states.layers.quiet()
        layers = backend.states.layers
        held = sum(layer.size for layer in layers.known.values()) / 2**20
        chains = [one.frozen.chain for one in backend.states.snapshots._held.values()]
        longest = max(len(layers.shortened(chain)) for chain in chains)
        forked = await forks(backend, taken)
        for one in taken:
            await backend.release(one)
        durable, stored = await play(backend, world, turns, "durable")
        written = sum(path.stat().st_size for path in (kept / "objects").iterdir()) / 2**20
        manifests = sum(path.stat().st_size for path in (kept / "snapshots").iterdir()) / 2**20
    async with NamespaceBackend(root=scratch / "state", snapshots=kept) as backend:
        opened: list[float] = []
        again = await clocked(opened, backend.restore(stored[-1]))
        assert (await again.read("turn")) == b"%d\n" % (turns - 1)
        await again.close()
        for one in stored:
            await backend.release(one)
    async with NamespaceBackend(root=scratch / "state", snapshots=kept) as backend:
        created: list[float] = []
        await (await clocked(created, backend.create(world))).close()
    first, last = (median_ms(values) for values in (times["command"][:FEW], times["command"][-FEW:]))
    early, late = (median_ms(values) for values in (times["snapshot"][:FEW], times["snapshot"][-FEW:]))
    rows = [
        Row(f"command, last {FEW} of {turns}", last, first, f"the first {FEW}", "ms", 1.3),
        Row("the same", last, median_ms(plain["command"][-FEW:]), "without snapshots", "ms"),
        Row(f"snapshot, last {FEW} of {turns}", late, early, f"the first {FEW}", "ms"),
        Row("durable snapshot", median_ms(durable["snapshot"]), median_ms(times["snapshot"]), "in memory", "ms"),
        Row(f"fork from each of {turns}", median_ms(forked), median_ms(forked[:FEW]), "the first few", "ms"),
        Row("memory of all snapshots", held, changed, "bytes changed", "MiB", 4.0),
        Row("disk of all durable ones", written + manifests, changed, "bytes changed", "MiB", 1.3),
        Row("restore of the last one, new process", opened[0] * 1e3, created[0] * 1e3, "first create there", "ms"),
    ]
    notes = {
        "turns": turns,
        "longest_chain": longest,
        "manifests_mib": round(manifests, 2),
        "root": os.geteuid() == 0,
    }
    return rows, notes


def main() -> None:
    given = options(__doc__)
    with scratch_folder() as scratch:
        scratch.chmod(0o711)
        rows, notes = asyncio.run(measure(scratch, 40 if given.quick else 300))
    finish("sandbox_turns", rows, given, **notes)


if __name__ == "__main__":
    main()
