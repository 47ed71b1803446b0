"""The docker backend beside the engine's own commands: the first command, further ones, forks, throughput.

`docker run` and `docker exec` go through the SDK, with the same image and the same hardening, in the same run.
`python benchmarks/docker_start.py --quick`. It starts an engine of the checkout's own where none is named.
"""

import asyncio
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import docker
from _harness import Row, finish, options, scratch_folder
from envgym_sandboxes.docker_engine.backend import DockerBackend
from envgym_sandboxes.docker_engine.profile import profile

from envgym.limits import Resources
from envgym.task import World

RUN, EXEC = "docker run", "docker exec"
FIRST_RATIO, COMMAND_MS = 1.2, 5.0
WORLD = World(image="base", resources=Resources(memory_bytes=256 << 20, pids=64))
PATIENCE_S = 60


@contextmanager
def engine() -> Iterator[str]:
    """The address of one: the named one, or one of our own that ends again."""
    if named := os.environ.get("DOCKER_HOST"):
        yield named
        return
    script = str(Path(__file__).resolve().parents[1] / "scripts/dockerd.sh")
    running = subprocess.run([script, "status"], check=False).returncode == 0
    yield subprocess.run([script, "start"], check=True, capture_output=True, text=True).stdout.strip()
    if not running:
        subprocess.run([script, "stop"], check=True)


class Engine:
    """The peer: a container of the same image, hardened alike, without any of our code."""

    def __init__(self, address: str, image: str) -> None:
        self.api = docker.APIClient(address, version="auto", timeout=PATIENCE_S)
        self.image = image

    def make(self, command: list[str]) -> str:
        host = self.api.create_host_config(
            network_mode="none",
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges:true", f"seccomp={profile()}"],
            mem_limit=WORLD.resources.memory_bytes,
            memswap_limit=WORLD.resources.memory_bytes,
            pids_limit=WORLD.resources.pids,
            tmpfs={"/work": "size=64m", "/tmp": "size=64m"},
        )
        made = self.api.create_container(
            self.image, command, user="1000:1000", host_config=host, network_disabled=True, working_dir="/work"
        )
        self.api.start(made["Id"])
        return str(made["Id"])

    def run(self) -> str:
        """What `docker run IMAGE true` does, without removing it."""
        made = self.make(["true"])
        self.api.wait(made)
        return made

    def exec(self, container: str) -> None:
        self.api.exec_start(self.api.exec_create(container, ["true"])["Id"])

    def remove(self, container: str) -> None:
        self.api.remove_container(container, force=True)


def timed_here(times: dict[str, list[float]], name: str, call, *given):
    began = time.perf_counter()
    result = call(*given)
    times.setdefault(name, []).append(time.perf_counter() - began)
    return result


async def measure(make, address: str, rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}

    async def timed(name, awaitable):
        began = time.perf_counter()
        result = await awaitable
        times.setdefault(name, []).append(time.perf_counter() - began)
        return result

    async def first():
        sandbox = await backend.create(WORLD)
        await sandbox.exec(["true"])
        return sandbox

    async with make(warm=0) as backend:  # nothing is ahead, and nothing is used again
        sandbox = await first()
        image = backend._containers[sandbox.id].kind.image
        peer = Engine(address, image)
        resting = peer.make(["sleep", "4242"])
        others = []
        for _ in range(rounds):
            others.append(await timed("first command, cold", first()))
            peer.remove(timed_here(times, RUN, peer.run))
            for _ in range(10):
                await timed("command, true", sandbox.exec(["true"]))
                await timed("shell command, /bin/true", sandbox.exec("/bin/true"))
            timed_here(times, EXEC, peer.exec, resting)
        peer.remove(resting)
        for other in others:
            await other.close()
    async with make(warm=2) as backend:
        sandbox = await first()
        for index in range(rounds):
            await sandbox.exec(f"echo {index} > f")
            fork = await timed("fork into a warm container", sandbox.fork())
            await timed("first command in the fork", fork.exec("cat f"))
            await timed("command in the parent after", sandbox.exec("cat f"))
            await fork.close()
            await timed("create in a warm container", _made_and_closed(backend))
    peer.api.close()
    return times


async def _made_and_closed(backend) -> None:
    async with await backend.create(WORLD) as sandbox:
        await sandbox.exec(["true"])


async def throughput(make, address: str, image: str, count: int) -> dict[str, float]:
    """Sandboxes made, used and closed a second, eight at a time; beside containers run and removed."""
    found = {}
    gate = asyncio.Semaphore(8)

    async def one(backend) -> None:
        async with gate:
            await _made_and_closed(backend)

    async with make(warm=0) as backend:
        began = time.perf_counter()
        await asyncio.gather(*(one(backend) for _ in range(count)))
        found["ours"] = (time.perf_counter() - began) / count
    peer = Engine(address, image)

    def whole() -> None:
        api = Engine(address, image)
        api.remove(api.run())
        api.api.close()

    began = time.perf_counter()
    await asyncio.gather(*(_gated(gate, whole) for _ in range(count)))
    found["reference"] = (time.perf_counter() - began) / count
    peer.api.close()
    return found


async def _gated(gate: asyncio.Semaphore, call) -> None:
    async with gate:
        await asyncio.to_thread(call)


async def image_of(make) -> str:
    async with make(warm=0) as backend, await backend.create(WORLD) as sandbox:
        return backend._containers[sandbox.id].kind.image


def main() -> None:
    given = options(__doc__)
    with engine() as address, scratch_folder() as root:
        make = partial(DockerBackend, root=root, address=address)
        image = asyncio.run(image_of(make))  # imports it, once for an engine
        times = asyncio.run(measure(make, address, 6 if given.quick else 30))
        flow = asyncio.run(throughput(make, address, image, 16 if given.quick else 100))
    medians = {name: statistics.median(values) * 1e3 for name, values in times.items()}
    run, exec_ms = medians.pop(RUN), medians.pop(EXEC)
    rows = [
        Row("first command, cold", medians["first command, cold"], run, RUN, "ms", FIRST_RATIO),
        Row("command, true", medians["command, true"], exec_ms, EXEC, "ms", COMMAND_MS, absolute=True),
        Row("shell command, /bin/true", medians["shell command, /bin/true"], exec_ms, EXEC, "ms"),
    ]
    later = ("fork into a warm container", "first command in the fork", "command in the parent after")
    rows += [Row(name, medians[name], run, RUN, "ms") for name in (*later, "create in a warm container")]
    rows.append(
        Row("sandbox made, used, closed, 8 at once", flow["ours"] * 1e3, flow["reference"] * 1e3, RUN, "ms")
    )
    finish("docker_start", rows, given)


if __name__ == "__main__":
    main()
