"""Cycles of create, run, destroy with kill -9 of the owner at random points: what is left of anything after reap.

An owner is a process that makes, uses and closes sandboxes, several at a time. It is killed at a random moment, its
state is reaped, and another one goes on. Counted are processes, mounts, control groups, containers and files that
were not there before, whatever their names in the owners' own places (state, TMPDIR); the bar is zero of each.
`--backend` for one only.
"""

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _harness import Row, finish, options, scratch_folder
from envgym_sandboxes.cgroups import controllers

from envgym.errors import EnvgymError
from envgym.limits import Resources
from envgym.task import World

MARKER = "ENVGYM_LEAK"
AT_ONCE = 4
PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A backend, its worlds' image, and how many cycles and kills at (full, quick) size."""

    made_by: str
    image: str
    cycles: tuple[int, int]
    kills: tuple[int, int]


KINDS = {
    "namespace": Kind("envgym_sandboxes.namespace:NamespaceBackend", "host", (10_000, 80), (100, 4)),
    "landlock": Kind("envgym_sandboxes.landlock_backend:LandlockBackend", "host", (1_000, 30), (20, 2)),
    "docker": Kind("envgym_sandboxes.docker_engine.backend:DockerBackend", "base", (500, 8), (10, 1)),
    "docker-copy": Kind("envgym_sandboxes.docker_engine.copying:DockerCopyBackend", "base", (200, 8), (5, 1)),
}


def make(kind: Kind, state: Path):
    module, _, name = kind.made_by.partition(":")
    return getattr(importlib.import_module(module), name)(root=state)


# -- the owner -----------------------------------------------------------------------------------------------------


async def cycle(backend, world: World, draw: np.random.Generator, scratch: Path) -> None:
    """One life of a sandbox; which, is drawn."""
    async with await backend.create(world) as sandbox:
        assert (await sandbox.exec(["true"])).ok
        choice = draw.integers(6)
        if choice == 0:
            await sandbox.exec("echo x > file; sleep 1000 & setsid sleep 1000 &")
        elif choice == 1:
            await sandbox.exec("echo x > file; y=1")
            async with await sandbox.fork() as fork:
                assert (await fork.exec("test $y = 1")).ok
        elif choice == 2:
            snapshot = await sandbox.snapshot()
            async with await backend.restore(snapshot) as restored:
                await restored.exec("echo x > other")
            await backend.release(snapshot)
        elif choice == 3:
            await sandbox.exec("while :; do :; done", timeout_s=0.02)
        elif choice == 4:
            await sandbox.write("file", b"x" * 100_000)
            await sandbox.get("file", str(scratch / f"got{draw.integers(1 << 30)}"))


async def own(kind: Kind, state: Path, seed: int) -> None:
    """Cycles without end, a line for each."""
    draw = np.random.default_rng(seed)
    resources = Resources(memory_bytes=128 << 20, pids=64, disk_bytes=16 << 20, command_s=10)
    world = World(image=kind.image, env={MARKER: state.name}, resources=resources)
    scratch = state.with_name(f"{state.name}-scratch")
    async with make(kind, state) as backend:

        async def lives() -> None:
            while True:
                await cycle(backend, world, draw, scratch)
                print(flush=True)

        await asyncio.gather(*(lives() for _ in range(AT_ONCE)))


# -- what is there -------------------------------------------------------------------------------------------------


def started(pid: int) -> int:
    """When a living process began; 0 for none."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return 0 if fields[0] in b"ZX" else int(fields[19])
    return 0


def below(top: int) -> dict[int, int]:
    """The living processes below one: pid -> when it began."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            parents[int(entry.name)] = int(fields[1])
    level, found = {top}, set()
    while level:
        level = {pid for pid, parent in parents.items() if parent in level} - found
        found |= level
    return {pid: since for pid in found if (since := started(pid))}


def marked(name: str) -> Iterator[int]:
    """Processes that run in one of this state's sandboxes."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARKER}={name}".encode() in (entry / "environ").read_bytes():
                yield int(entry.name)


def groups() -> set[str]:
    return {str(path) for parent in set(controllers().values()) for path in Path(parent).glob("envgym-*")}


def mounts(name: str) -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line for line in lines if name in line or " envgym " in line}


def containers() -> set[str]:
    """All of the engine that backends use. Raises what its client does: one that does not answer may have any."""
    import docker
    from envgym_sandboxes.docker_engine.backend import DockerBackend

    client = docker.DockerClient(DockerBackend().address)
    try:
        return {one.name for one in client.containers.list(all=True)}
    finally:
        client.close()


def files(*places: Path) -> set[str]:
    return {f"{place}/{name}" for place in places if place.is_dir() for name in os.listdir(place)}


class Left:
    """What is there that was not before, by kind. state, temporary: places that are the owners' alone."""

    def __init__(self, state: Path, temporary: Path, *, with_containers: bool) -> None:
        self.state = state
        self.own = (state, temporary)
        self.with_containers = with_containers
        self.before = self._now()
        self.seen: dict[int, int] = {}

    def _now(self) -> dict[str, set[str]]:
        shared = files(Path(tempfile.gettempdir()), Path("/dev/shm"))
        found = {"control groups": groups(), "mounts": mounts(self.state.name), "files": shared | files(*self.own)}
        return found | {"containers": containers() if self.with_containers else set()}

    def now(self, names: set[str]) -> dict[str, list[str]]:
        """names: parts of the names of what the owners made; others of this machine's are none of ours."""
        pids = {pid for pid, since in self.seen.items() if started(pid) == since} | set(marked(self.state.name))
        later = self._now()
        new = {kind: sorted(later[kind] - self.before[kind]) for kind in later}
        ours = {kind: [one for one in found if any(name in one for name in names)] for kind, found in new.items()}
        ours["files"] = sorted({*ours["files"], *files(*self.own)} - self.before["files"])
        return {"processes": [str(pid) for pid in sorted(pids)]} | ours


# -- the kills -----------------------------------------------------------------------------------------------------


def owner(name: str, state: Path, temporary: Path, seed: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--own", name, str(state), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": str(temporary)})


def kill_one(process: subprocess.Popen[bytes], cycles: int, delay_s: float, left: Left) -> int:
    """Let an owner do some cycles, kill it in the middle of others; how many it did."""
    assert process.stdout is not None
    done = 0
    while done < cycles and process.stdout.read(1):
        done += 1
    time.sleep(delay_s)  # the random point
    left.seen |= below(process.pid)
    process.send_signal(signal.SIGKILL)
    left.seen |= below(process.pid)
    process.stdout.close()
    process.wait()
    return done


def ended(left: Left) -> float:
    """Wait until no process of a killed owner lives; seconds."""
    began = time.perf_counter()
    while time.perf_counter() - began < PATIENCE_S:
        if not any(started(pid) == since for pid, since in left.seen.items()) and not any(marked(left.state.name)):
            break
        time.sleep(0.005)
    return time.perf_counter() - began


def measure(name: str, scratch: Path, quick: bool) -> tuple[list[Row], dict[str, object]]:
    kind = KINDS[name]
    cycles, kills = kind.cycles[quick], kind.kills[quick]
    state = scratch / f"leaks-{name}-{os.getpid()}"
    temporary = scratch / f"{state.name}-tmp"
    for path in (state, temporary, scratch / f"{state.name}-scratch"):
        path.mkdir(mode=0o711)
    draw = np.random.default_rng(7)
    left = Left(state, temporary, with_containers=name.startswith("docker"))
    names, done, waits, reaped, began = {state.name}, 0, [], 0, time.perf_counter()
    for number in range(kills):
        process = owner(name, state, temporary, number)
        names.add(f"envgym-{process.pid}-")
        share = (cycles - done) // (kills - number)
        done += kill_one(
            process, int(draw.integers(share // 2, share + share // 2 + 1)), float(draw.uniform(0, 0.05)), left
        )
        waits.append(ended(left))
        reaped += len(make(kind, state).reap())
    process = owner(name, state, temporary, kills)  # and the rest
    names.add(f"envgym-{process.pid}-")
    done += kill_one(process, max(1, cycles - done), 0.0, left)
    waits.append(ended(left))
    reaped += len(make(kind, state).reap())
    took = time.perf_counter() - began
    found = left.now(names)
    rows = [
        Row(f"{name}: {what} left", len(them), done, "cycles", "number", bar=0, absolute=True)
        for what, them in found.items()
        if what != "containers" or name.startswith("docker")
    ]
    notes = {"cycles": done, "kills": kills + 1, "seconds": round(took, 1), "reaped": reaped, "left": found}
    notes |= {"slowest end of a killed owner's processes, s": round(max(waits), 3)}
    return rows, {name: notes}


def works(kind: Kind) -> bool:
    with contextlib.suppress(EnvgymError, ImportError):
        module, _, name = kind.made_by.partition(":")
        return bool(getattr(importlib.import_module(module), name)().report().works)
    return False


def main() -> None:
    if sys.argv[1:2] == ["--own"]:
        name, state, seed = sys.argv[2:]
        asyncio.run(own(KINDS[name], Path(state), int(seed)))
        return

    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--backend", choices=sorted(KINDS), help="only this one [default: all that work here]")

    given = options(__doc__, more=more)
    rows, notes = [], {}
    with scratch_folder() as scratch:
        scratch.chmod(0o711)
        for name in [given.backend] if given.backend else [name for name, kind in KINDS.items() if works(kind)]:
            found, noted = measure(name, scratch, given.quick)
            rows += found
            notes |= noted
    print(json.dumps(notes, indent=1))
    finish("sandbox_leaks", rows, given, backends=notes)
    sys.exit(0 if all(row.met for row in rows) else 1)


if __name__ == "__main__":
    main()
