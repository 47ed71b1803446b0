"""Round trip of one command, beside a persistent bash on a pipe and `posix_spawn`.

Every round measures each case once, so that all see the same load. `python benchmarks/shell_roundtrip.py --quick`.
"""

import asyncio
import os
import statistics
import subprocess
import time

from _harness import Row, finish, options
from envgym_sandboxes.local import LocalBackend
from envgym_sandboxes.namespace import NamespaceBackend

from envgym.sandbox import WARM_PYTHON
from envgym.task import World

BARS_MS = {"shell, /bin/true": 2.0}
PIPE = "floor: bash on a pipe, /bin/true"


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
            timed_here(PIPE, bash.run, b"/bin/true")
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
    given = options(__doc__)
    times = asyncio.run(measure(60 if given.quick else 500))
    floor = statistics.median(times[PIPE]) * 1e3
    rows = [
        Row(name, statistics.median(values) * 1e3, floor, PIPE, "ms", BARS_MS.get(name), absolute=True)
        for name, values in times.items()
    ]
    late = {name: round(statistics.quantiles(values, n=10)[-1] * 1e3, 3) for name, values in times.items()}
    finish("shell_roundtrip", rows, given, p90_ms=late, root=os.geteuid() == 0)


if __name__ == "__main__":
    main()
