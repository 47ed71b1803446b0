"""Owners that are killed: what they had is gone when the next one has reaped, though nobody closed anything."""

import asyncio
import os
import pickle
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from envgym.sandbox import SandboxBackend
from envgym.task import World
from envgym.testing.sandbox_checks.common import SLACK_S, Refused

__all__ = ["Traces", "main", "reap"]

Traces = Callable[[], Collection[str]]
"""What owners of a kind of backend have on this host, by name: directories, containers, groups."""

_START_S = 60.0


@dataclass(frozen=True, slots=True)
class _Look:
    """What an owner has on this host that was not there before it: processes, and what `traces` tells of."""

    token: str
    traces: Traces
    before: frozenset[str]

    def __call__(self) -> tuple[list[str], list[str]]:
        return _processes(self.token), sorted(set(self.traces()) - self.before)


async def reap(make: Callable[[], SandboxBackend], world: World, traces: Traces | None) -> None:
    """An owner in a process of its own is killed (kill -9); another one reaps.

    Needs a `make` that another process can load, and something to be seen on this host: a sandbox's processes, or
    `traces`. Raises Refused without.
    """
    token = f"97{secrets.randbelow(10**9)}.5"
    try:
        told = pickle.dumps((make, world, token))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Refused(f"no other process can have the function that makes backends: {error}") from error
    look = _Look(token, traces or list, frozenset((traces or list)()))
    with tempfile.TemporaryDirectory() as scratch:
        owner = _begin(Path(scratch), told)
        try:
            await _up(owner, Path(scratch))
            had = look()
        finally:
            owner.kill()
            owner.wait()
    lines = await _reaped(make, look)
    if not any(had):
        raise Refused("nothing that an owner has can be seen on this host: no process, and no traces were given")
    assert not any(look()), f"what a killed owner left is gone when it was reaped: {look()}; reap said {lines}"


async def _reaped(make: Callable[[], SandboxBackend], look: _Look) -> list[str]:
    """Reap until nothing is left, or it took too long; what reaping said. Processes take a moment to die."""
    lines, deadline = list(make().reap()), time.monotonic() + 2 * SLACK_S
    while any(look()) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
        lines += make().reap()
    assert all(isinstance(line, str) for line in lines), f"reap gives a line per thing removed: {lines}"
    return lines


def _begin(scratch: Path, told: bytes) -> "subprocess.Popen[bytes]":
    """Start an owner. No pipes: what it starts may keep them open when it is gone."""
    (scratch / "told").write_bytes(told)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(place or os.getcwd() for place in sys.path)}
    with (
        (scratch / "told").open() as told_to,
        (scratch / "out").open("w") as out,
        (scratch / "err").open("w") as err,
    ):
        return subprocess.Popen([sys.executable, "-m", __name__], stdin=told_to, stdout=out, stderr=err, env=env)


async def _up(owner: "subprocess.Popen[bytes]", scratch: Path) -> None:
    """Wait until all that it shall own is there. Raises Refused where it cannot load `make`."""
    deadline = time.monotonic() + _START_S
    while not (said := (scratch / "out").read_text()).endswith("up\n"):
        if owner.poll() is not None or time.monotonic() > deadline:
            why = (scratch / "err").read_text()[-1000:] or f"status {owner.poll()}"
            if not said:
                raise Refused(f"another process cannot load the function that makes backends: {why}")
            raise AssertionError(f"a backend works in a process of its own; it did not there: {why}")
        await asyncio.sleep(0.02)


def _processes(token: str) -> list[str]:
    """The processes of this host that were started with this as an argument."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (directory / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        if token.encode() in arguments:
            found.append(directory.name)
    return found


async def _own(make: Callable[[], SandboxBackend], world: World, token: str) -> None:
    async with make() as backend:
        sandbox = await backend.create(world)
        await sandbox.exec("head -c 100000 /dev/zero > some; v=1")
        snapshot = await sandbox.snapshot()
        for other in (sandbox, await sandbox.fork(), await backend.restore(snapshot)):
            await other.start(["sleep", token])
            await other.exec(f"(setsid sleep {token} &)")
        print("up", flush=True)
        await asyncio.Event().wait()  # until it is killed


def main() -> None:
    """Entry point of the process that will be killed."""
    make, world, token = pickle.loads(sys.stdin.buffer.read())
    print("loaded", flush=True)
    asyncio.run(_own(make, world, token))


if __name__ == "__main__":
    main()
