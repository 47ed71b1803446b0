"""Round trip of one command, beside a persistent bash on a pipe and `posix_spawn`.

Every round measures each case once, so that all see the same load. `python benchmarks/shell_roundtrip.py --quick`.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

from _harness import facts
from envgym_sandboxes.local import LocalBackend
from envgym_sandboxes.namespace import NamespaceBackend

from envgym.sandbox import WARM_PYTHON
from envgym.task import World

BAR_MS = 2.0


class PipedBash:
    """The floor: bash on a pipe, its prompt replaced by an echo of the status."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            ["/bin/bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={"LANG": "C.UTF-8"},
        )

    def run(self, command: bytes) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + b"; echo $?\n")
        while not self.process.stdout.read(100).endswith(b"\n"):
            pass

    def close(self) -> None:
        self.process.communicate()


def spawn() -> None:
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


async def measure(rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}

    async def timed(name, awaitable):
        began = time.perf_counter()
        await awaitable
        times.setdefault(name, []).append(time.perf_counter() - began)

    def timed_here(name, call, *arguments):
        began = time.perf_counter()
        call(*arguments)
        times.setdefault(name, []).append(time.perf_counter() - began)

    world = World(files={"/work/small": "x" * 1000}, preload=("json",))
    bash = PipedBash()
    async with NamespaceBackend() as backend, LocalBackend() as local:
        sandbox, plain = await backend.create(world), await local.create(world)
        await sandbox.exec("true")
        await plain.exec("true")
        for index in range(rounds):
            timed_here("floor: posix_spawn /bin/true", spawn)
            timed_here("floor: bash on a pipe, /bin/true", bash.run, b"/bin/true")
            timed_here("floor: bash on a pipe, builtin", bash.run, b":")
            await timed("shell, /bin/true", sandbox.exec("/bin/true"))
            await timed("shell, builtin", sandbox.exec(":"))
            await timed("argv, /bin/true", sandbox.exec(["/bin/true"]))
            await timed("local shell, /bin/true", plain.exec("/bin/true"))
            await timed("read 1 kB", sandbox.read("small"))
            await timed("write 1 kB", sandbox.write("other", b"y" * 1000))
            if index % 10 == 0:
                await timed("warm python -c pass", sandbox.exec([WARM_PYTHON, "-c", "pass"]))
                await timed("cold python -c pass", sandbox.exec(["python3", "-c", "pass"]))
    bash.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--json", metavar="FILE", help="also write the result there")
    options = parser.parse_args()
    times = asyncio.run(measure(60 if options.quick else 500))
    floor = statistics.median(times["floor: bash on a pipe, /bin/true"])
    rows = {
        name: {
            "median_ms": round(statistics.median(values) * 1e3, 3),
            "min_ms": round(min(values) * 1e3, 3),
            "p90_ms": round(statistics.quantiles(values, n=10)[-1] * 1e3, 3),
            "ratio_to_pipe": round(statistics.median(values) / floor, 2),
        }
        for name, values in times.items()
    }
    result = {
        "benchmark": "shell_roundtrip",
        "bar_ms": BAR_MS,
        "kept": rows["shell, /bin/true"]["median_ms"] <= BAR_MS,
        "machine": facts() | {"root": os.geteuid() == 0},
        "rows": rows,
    }
    print(f"{'':36}{'median ms':>12}{'min ms':>10}{'p90 ms':>10}{'x pipe':>10}")
    for name, row in rows.items():
        cells = (row["median_ms"], row["min_ms"], row["p90_ms"], row["ratio_to_pipe"])
        print(f"{name:36}{cells[0]:12.2f}{cells[1]:10.2f}{cells[2]:10.2f}{cells[3]:10.2f}")
    print(json.dumps(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
