"""A thousand live sandboxes in one pool: how fast they start, what each takes, and what a command in each takes.

Also 64 sleeps of half a second in 64 sandboxes at once, beside 64 processes that sleep, and, where SWE-ReX is
installed (``pip install 'envgym[peers]'``), beside 8 of its local sessions. Memory is counted twice:
the proportional set size of all processes, and what the host lost, which includes layers and page tables.
`python benchmarks/sandbox_thousand.py --quick`.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from _harness import Row, finish, options, scratch_folder
from envgym_sandboxes.holdings import proportional_bytes
from envgym_sandboxes.namespace import NamespaceBackend
from envgym_sandboxes.pool import PoolBackend, PoolBounds
from envgym_sandboxes.tree import live_processes

from envgym.sandbox import Sandbox
from envgym.task import World

THOUSAND, SLEEPS, SLEEP_S, PEER_SLEEPS = 1_000, 64, 0.5, 8
SLEEPS_MS = 700.0
TRUE = "posix_spawn of true"


def meminfo() -> dict[str, int]:
    """The host's memory by name, bytes."""
    fields = (line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return {name: int(value.split()[0]) << 10 for name, value in fields}


def proportional(root: int) -> int:
    """The proportional set size of all processes below one, bytes."""
    return sum(map(proportional_bytes, live_processes(root)))


def at(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


async def floor_sleeps() -> float:
    began = time.perf_counter()
    sleepers = [await asyncio.create_subprocess_exec("sleep", str(SLEEP_S)) for _ in range(SLEEPS)]
    await asyncio.gather(*(sleeper.wait() for sleeper in sleepers))
    return time.perf_counter() - began


async def sleeps(sandboxes: list[Sandbox]) -> float:
    began = time.perf_counter()
    ended = await asyncio.gather(*(sandbox.exec(["sleep", str(SLEEP_S)]) for sandbox in sandboxes[:SLEEPS]))
    took = time.perf_counter() - began
    assert all(result.ok for result in ended)
    return took


def spawn_true() -> float:
    began = time.perf_counter()
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    return time.perf_counter() - began


PEER = """
import asyncio, sys, time
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime

async def main(count, command):
    runtime = LocalRuntime()
    for number in range(count):
        await runtime.create_session(CreateBashSessionRequest(session=str(number)))
    began = time.perf_counter()
    actions = [BashAction(session=str(number), command=command) for number in range(count)]
    await asyncio.gather(*(runtime.run_in_session(action) for action in actions))
    print(time.perf_counter() - began)
    await runtime.close()

asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
"""


def peer_sleeps() -> float | None:
    """Seconds of sleeps at once in SWE-ReX's local runtime; None where it is not installed."""
    if find_spec("swerex") is None:
        return None
    command = [sys.executable, "-c", PEER, str(PEER_SLEEPS), f"sleep {SLEEP_S}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return float(done.stdout)


async def in_turn(sandboxes: list[Sandbox], command: str | list[str]) -> list[float]:
    waits = []
    for sandbox in sandboxes:
        began = time.perf_counter()
        assert (await sandbox.exec(command)).ok
        waits.append(time.perf_counter() - began)
    return waits


async def measure(root: str, count: int, rounds: int) -> dict[str, float]:
    bounds = PoolBounds(warm=0)
    found: dict[str, float] = {}
    async with PoolBackend(lambda: NamespaceBackend(root=root), bounds=bounds) as pool:
        await (await pool.create(World())).close()
        before, small = meminfo(), proportional(os.getpid())
        began = time.perf_counter()
        sandboxes = await asyncio.gather(*(pool.create(World()) for _ in range(count)))
        found["starts"] = count / (time.perf_counter() - began)
        after = meminfo()
        found["pss"] = (proportional(os.getpid()) - small) / count
        found["host"] = (before["MemAvailable"] - after["MemAvailable"]) / count
        found["layers"] = (after["Shmem"] - before["Shmem"]) / count
        for name, command in (("argv", ["true"]), ("shell", "true")):
            waits = await in_turn(sandboxes, command)
            found[f"{name} p50"], found[f"{name} p99"] = at(waits, 0.5), at(waits, 0.99)
        spawned = [spawn_true() for _ in range(count)]
        found["spawn p50"], found["spawn p99"] = at(spawned, 0.5), at(spawned, 0.99)
        times = [(await sleeps(sandboxes), await floor_sleeps()) for _ in range(rounds)]
        found["sleeps"] = statistics.median(ours for ours, _floor in times)
        found["floor sleeps"] = statistics.median(floor for _ours, floor in times)
        began = time.perf_counter()
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
        found["closes"] = count / (time.perf_counter() - began)
    return found


def main() -> None:
    given = options(__doc__)
    count, rounds = (100, 2) if given.quick else (THOUSAND, 5)
    with scratch_folder() as scratch:
        scratch.chmod(0o711)
        found = asyncio.run(measure(str(scratch), count, rounds))
    peer = peer_sleeps()
    swe_rex = [] if peer is None else [
        Row(f"the same, and {PEER_SLEEPS} of a peer", found["sleeps"] * 1e3, peer * 1e3, "SWE-ReX local", "ms")
    ]  # fmt: skip
    rows = [
        Row(f"{SLEEPS} sleeps of {SLEEP_S:g} s at once", found["sleeps"] * 1e3, found["floor sleeps"] * 1e3,
            "processes", "ms", SLEEPS_MS, absolute=True),
        *swe_rex,
        *(
            Row(f"{part} of `true` by {kind}, each of {count} in turn", found[f"{kind} {part}"] * 1e3,
                found[f"spawn {part}"] * 1e3, TRUE, "ms")
            for kind in ("argv", "shell")
            for part in ("p50", "p99")
        ),
        Row("starts a second", found["starts"], found["closes"], "closes a second", "1/s"),
        Row("memory each, of its processes", found["pss"] / 1e6, found["host"] / 1e6, "lost by the host", "MB"),
    ]  # fmt: skip
    finish("sandbox_thousand", rows, given, sandboxes=count, figures=found, root=os.geteuid() == 0)


if __name__ == "__main__":
    main()
