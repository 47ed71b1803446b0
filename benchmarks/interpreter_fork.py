"""A cell's round trip and an interpreter's fork, beside exec(), os.fork(), a cold interpreter and a Jupyter kernel.

Every round measures each case once, so that all see the same load. A cell is answered before the copy that protects
its state is made; "right after another" waits for that copy. `python benchmarks/interpreter_fork.py --quick`.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

from _harness import Row, finish, options
from envgym_sandboxes.interpreter import open_interpreter
from envgym_sandboxes.namespace import NamespaceBackend

from envgym.limits import Resources
from envgym.task import World

EXEC, FORK, COLD = "floor: exec() in a process", "floor: os.fork(), 100 MB", "cold python -c pass"
KERNEL = "Jupyter kernel, cell"
CELL = "1 + 1"
BIG = "big = bytearray(100 << 20)\nfor i in range(0, len(big), 4096): big[i] = 1"
OBJECTS = "many = [[n] for n in range(1_000_000)]"  # about 100 MB of small objects, each with a count of references
BRANCHES = 32
BARS = {"cell": 2.0, "fork, 100 MB": 5.0}


class Cases:
    """Seconds by case."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    async def timed(self, name: str, awaitable: Awaitable[Any]) -> Any:
        began = time.perf_counter()
        result = await awaitable
        self.times.setdefault(name, []).append(time.perf_counter() - began)
        return result

    def timed_here(self, name: str, call: Callable[[], object]) -> None:
        began = time.perf_counter()
        call()
        self.times.setdefault(name, []).append(time.perf_counter() - began)


def fork_of(memory: bytearray) -> None:
    """The floor: a fork that says that it is there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, b"x")
        os._exit(memory[0] * 0)
    os.read(reading, 1)
    os.waitpid(pid, 0)
    os.close(reading)
    os.close(writing)


async def measure(rounds: int, kernel: Callable[[], object] | None) -> dict[str, list[float]]:
    cases, memory = Cases(), bytearray(100 << 20)
    for index in range(0, len(memory), 4096):
        memory[index] = 1
    world = World(resources=Resources(memory_bytes=4 << 30))
    async with NamespaceBackend() as backend, await backend.create(world) as sandbox:
        one, big = await open_interpreter(sandbox), await open_interpreter(sandbox)
        await big.run(BIG)
        for _ in range(rounds):
            cases.timed_here(EXEC, lambda: repr(eval(compile(CELL, "cell", "eval"), {})))
            cases.timed_here(FORK, lambda: fork_of(memory))
            if kernel is not None:
                cases.timed_here(KERNEL, kernel)
            await cases.timed(COLD, sandbox.exec(["python3", "-c", "pass"]))
            await cases.timed("argv, /bin/true", sandbox.exec(["/bin/true"]))
            await cases.timed("cell", one.run(CELL))
            await cases.timed("cell right after another", one.run(CELL))
            await cases.timed("cell, 100 MB", big.run(CELL))
            await cases.timed("cell right after another, 100 MB", big.run(CELL))
            await cases.timed("variables' digest, 100 MB", big.digest())
            fork = await cases.timed("fork, 100 MB", big.fork())
            await cases.timed("first cell of that fork", fork.run(CELL))
            await fork.close()
            other = await cases.timed("open an interpreter", open_interpreter(sandbox))
            await other.close()
    return cases.times


async def branches(code: str) -> tuple[float, float]:
    """Memory that each of many branches adds (megabytes, proportional set size), and seconds to make them all."""
    async with NamespaceBackend() as backend:
        world = World(resources=Resources(memory_bytes=8 << 30))
        async with await backend.create(world) as sandbox, await open_interpreter(sandbox) as one:
            await one.run(code)
            await one.run(CELL)  # answered once the copy of the state before is there
            before = await held(sandbox)
            began = time.perf_counter()
            forks = [await one.fork() for _ in range(BRANCHES)]
            took = time.perf_counter() - began
            for fork in forks:
                await fork.run(CELL)
                await fork.run(CELL)
            return (await held(sandbox) - before) / BRANCHES / 1e6, took


async def held(sandbox: Any) -> float:
    """Bytes of all the sandbox's processes that can be looked at."""
    found = await sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/smaps_rollup 2>/dev/null | grep ^Pss:"])
    return sum(int(line.split()[1]) for line in found.stdout.decode().splitlines()) * 1024


def jupyter() -> tuple[Callable[[], object] | None, Callable[[], object]]:
    """A function that runs a cell in a Jupyter kernel, where one is installed, and one that ends it."""
    if find_spec("jupyter_client") is None or find_spec("ipykernel") is None:
        return None, lambda: None
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel()
    return lambda: client.execute_interactive(CELL, output_hook=lambda _message: None), manager.shutdown_kernel


def main() -> None:
    given = options(__doc__)
    kernel, end = jupyter()
    try:
        times = asyncio.run(measure(10 if given.quick else 100, kernel))
    finally:
        end()
    ms = {name: statistics.median(values) * 1e3 for name, values in times.items()}
    references = {name: FORK if "fork" in name else EXEC for name in ms} | {"open an interpreter": COLD}
    rows = [
        Row(name, value, ms[references[name]], references[name], "ms", BARS.get(name), absolute=True)
        for name, value in ms.items()
    ]
    for what, code in (("one block", BIG), ("a million objects", OBJECTS)):
        added, took = asyncio.run(branches(code))
        rows.append(Row(f"memory of a branch, 100 MB in {what}", added, 100.0, "its state", "MB"))
        rows.append(Row(f"{BRANCHES} forks, 100 MB in {what}", took * 1e3, BRANCHES * ms[FORK], FORK, "ms"))
    late = {name: round(statistics.quantiles(values, n=10)[-1] * 1e3, 3) for name, values in times.items()}
    finish("interpreter_fork", rows, given, p90_ms=late, jupyter=kernel is not None, root=os.geteuid() == 0)


if __name__ == "__main__":
    main()
