"""Start to first answer beside raw bubblewrap, 64 forks of one state beside 64 bubblewraps, and memory of each.

A start is counted until `true` has ended. Every round measures each case once.
"""

import asyncio
import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from _harness import Row, finish, options, scratch_folder
from envgym_sandboxes.cgroups import controllers
from envgym_sandboxes.holdings import proportional_bytes
from envgym_sandboxes.namespace import NamespaceBackend

from envgym.task import World

BUBBLEWRAP = [
    *("bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--ro-bind", "/", "/"),
    *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "true"),
]
START_RATIO, FORKS, FORKS_MS, FORK_MB = 2.0, 64, 250.0, 4.0


def memory() -> float:
    """Proportional set size of a sandbox's own processes, in MB: the mean over all of ours, by their groups."""
    sizes = []
    for group in Path(controllers()["pids"]).glob(f"envgym-{os.getpid()}-*"):
        total = sum(proportional_bytes(int(pid)) for pid in (group / "cgroup.procs").read_text().split())
        if total:  # one more is kept ready for the next sandbox
            sizes.append(total / (1 << 20))
    return statistics.mean(sizes)


async def starts(backend: NamespaceBackend, rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"bubblewrap": [], "start": [], "start and close": [], "fork": []}
    async with await backend.create(World()) as parent:
        for _ in range(rounds):
            times["bubblewrap"].append(bubblewrap())
            began = time.perf_counter()
            sandbox = await backend.create(World())
            assert (await sandbox.exec(["true"])).ok
            times["start"].append(time.perf_counter() - began)
            await sandbox.close()
            times["start and close"].append(time.perf_counter() - began)
            await parent.exec("date > now")
            began = time.perf_counter()
            fork = await parent.fork()
            assert (await fork.exec(["true"])).ok
            times["fork"].append(time.perf_counter() - began)
            await fork.close()
    return times


def bubblewrap() -> float:
    began = time.perf_counter()
    subprocess.run(BUBBLEWRAP, check=True)
    return time.perf_counter() - began


async def bubblewraps(count: int) -> float:
    began = time.perf_counter()
    running = [await asyncio.create_subprocess_exec(*BUBBLEWRAP) for _ in range(count)]
    assert [await process.wait() for process in running] == [0] * count
    return time.perf_counter() - began


async def forks(backend: NamespaceBackend, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds for all forks, seconds for as many bubblewraps, and MB of each fork once its shell has run."""
    took, reference, each = [], [], []
    async with await backend.create(World()) as parent:
        for _ in range(rounds):
            await parent.exec("date > now; state=1")
            began = time.perf_counter()
            made = await asyncio.gather(*(parent.fork() for _ in range(FORKS)))
            took.append(time.perf_counter() - began)
            await asyncio.gather(*(fork.exec('test "$state" = 1 && echo > here') for fork in made))
            if "pids" in controllers():
                each.append(memory())
            await asyncio.gather(*(fork.close() for fork in made))
            reference.append(await bubblewraps(FORKS))
    return took, reference, each


async def measure(rounds: int, bursts: int) -> list[Row]:
    with scratch_folder() as scratch:
        scratch.chmod(0o711)
        async with NamespaceBackend(root=scratch / "state") as backend:
            times = {
                name: statistics.median(values[1:]) * 1e3
                for name, values in (await starts(backend, rounds)).items()
            }
            together, reference, each = await forks(backend, bursts)
    floor = times.pop("bubblewrap")
    rows = [Row(f"{name} (until `true` ended)", value, floor, "bwrap true", "ms") for name, value in times.items()]
    rows[0] = Row("start (until `true` ended)", times["start"], floor, "bwrap true", "ms", START_RATIO)
    all_bubblewraps = statistics.median(reference) * 1e3
    first, later = together[0] * 1e3, statistics.median(together[1:]) * 1e3
    rows.append(
        Row(f"{FORKS} forks at once", later, all_bubblewraps, "as many bwrap", "ms", FORKS_MS, absolute=True)
    )
    rows.append(Row("the same, first time", first, all_bubblewraps, "as many bwrap", "ms"))
    if each:  # without cgroups nobody says which processes are whose
        size = statistics.median(each)
        rows.append(Row("memory of a fork with its shell", size, FORK_MB, "the bar", "MB", FORK_MB, absolute=True))
    return rows


def main() -> None:
    given = options(__doc__)
    if shutil.which("bwrap") is None:
        raise SystemExit("bwrap is not here: apt-get install bubblewrap")
    rows = asyncio.run(measure(6 if given.quick else 40, 3 if given.quick else 8))
    finish("sandbox_start", rows, given, forks=FORKS, root=os.geteuid() == 0)


if __name__ == "__main__":
    main()
