"""Fork, reset and create latency of a 5,000-file repository, beside a raw overlay mount and `cp -r` to tmpfs.

Every round measures each case once, so that all see the same load. `python benchmarks/sandbox_fork.py --quick`.
"""

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from _harness import Row, finish, options, scratch_folder
from envgym_sandboxes import syscalls
from envgym_sandboxes.namespace import NamespaceBackend

from envgym.task import Tree, World

RESET, COPY = "reset (restore a snapshot)", "cp -r to tmpfs"
FILES, BYTES = 5_000, 4_000
BARS_MS = {"fork": 5.0, RESET: 10.0}


def make_repository(top: Path) -> None:
    for index in range(FILES):
        path = top / f"package{index % 50}/module{index % 10}/file{index}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# file {index}\n" + "x = 1\n" * (BYTES // 6))


def raw_overlay(source: Path, scratch: Path, rounds: int) -> list[float]:
    """Seconds of mount(2) + umount2(2) of an overlay over `source`, in a child's own namespaces."""
    for name in ("upper", "work", "merged"):
        (scratch / name).mkdir(exist_ok=True)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        flags = syscalls.CLONE_NEWNS | (0 if os.geteuid() == 0 else syscalls.CLONE_NEWUSER)
        uid, gid = os.geteuid(), os.getegid()
        syscalls.unshare(flags)
        if flags & syscalls.CLONE_NEWUSER:
            syscalls.write_id_maps(0, uid, gid)
        syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
        os.chdir(scratch)
        times = []
        options = f"lowerdir={source},upperdir=upper,workdir=work" + (",userxattr" if uid else "")
        for _ in range(rounds):
            began = time.perf_counter()
            syscalls.mount("bench", "merged", "overlay", 0, options)
            times.append(time.perf_counter() - began)
            syscalls.umount("merged")
        os.write(writing, json.dumps(times).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return list(json.loads(text))


async def measure(repository: Path, scratch: Path, rounds: int, preload: tuple[str, ...]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}

    async def timed(name, awaitable):
        began = time.perf_counter()
        result = await awaitable
        times.setdefault(name, []).append(time.perf_counter() - began)
        return result

    world = World(trees=(Tree(source=str(repository), target="/work"),), preload=preload)
    async with NamespaceBackend(root=scratch / "state") as backend:
        sandbox = await timed("first create (copies the tree once)", backend.create(world))
        base = await sandbox.snapshot()
        for index in range(rounds):
            await sandbox.exec(f"echo {index} >> package1/module1/file1.py; echo {index} > new{index % 3}")
            fork = await timed("fork", sandbox.fork())
            await fork.exec("echo changed > package2/module2/file2.py; rm -r package3")
            await timed("close", fork.close())
            fork = await timed("fork of an unchanged state", sandbox.fork())
            await fork.close()
            reset = await timed(RESET, backend.restore(base))
            assert (await reset.exec(["test", "-e", "package3"])).ok
            await reset.close()
            fresh = await timed("create", backend.create(world))
            await fresh.close()
            times.setdefault(COPY, []).append(copied(repository, scratch / "copy"))
    return times


def copied(source: Path, target: Path) -> float:
    began = time.perf_counter()
    subprocess.run(["cp", "-r", source, target], check=True)
    took = time.perf_counter() - began
    shutil.rmtree(target)
    return took


def main() -> None:
    given = options(__doc__)
    rounds = 5 if given.quick else 30
    with scratch_folder() as scratch:
        scratch.chmod(0o711)
        repository = scratch / "repository"
        make_repository(repository)
        times = {"floor: overlay mount(2)": raw_overlay(repository, scratch, rounds * 4)}
        times |= asyncio.run(measure(repository, scratch, rounds, ()))
        warm = asyncio.run(measure(repository, scratch, rounds, ("unittest", "json", "asyncio")))
        times["fork, with modules preloaded"] = warm["fork"]
    copying = statistics.median(times.pop(COPY)) * 1e3
    rows = [
        Row(name, statistics.median(values) * 1e3, copying, COPY, "ms", BARS_MS.get(name), absolute=True)
        for name, values in times.items()
    ]
    spread = {name: [round(min(values) * 1e3, 3), round(max(values) * 1e3, 3)] for name, values in times.items()}
    finish("sandbox_fork", rows, given, files=FILES, min_and_max_ms=spread, root=os.geteuid() == 0)


if __name__ == "__main__":
    main()
