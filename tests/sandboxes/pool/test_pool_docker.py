"""A pool over containers, whose engine is killed and started again."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from envgym_sandboxes.docker_engine.backend import DockerBackend
from envgym_sandboxes.pool import PoolBackend, PoolBounds

from envgym.errors import SandboxDied

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
SCRIPT = Path(__file__).resolve().parents[3] / "scripts/dockerd.sh"


class Engine:
    """A Docker engine of the test's own."""

    def __init__(self, place: Path) -> None:
        self.env = os.environ | {"ENVGYM_DOCKERD": str(place)}
        self.place = place
        self.address = self.run("start")

    def run(self, command: str) -> str:
        done = subprocess.run([SCRIPT, command], env=self.env, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout.strip()

    def kill(self) -> None:
        """As the kernel kills; and remove what makes dockerd's next start wait for a containerd that is gone."""
        os.kill(int((self.place / "pid").read_text()), signal.SIGKILL)
        (self.place / "exec/containerd/containerd.pid").unlink(missing_ok=True)


@pytest.fixture
def engine(base_image) -> Iterator[Engine]:
    if os.geteuid() != 0 or shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
        pytest.skip("no engine can be started here: it needs root and dockerd")
    place = Path(tempfile.mkdtemp(prefix="eg-", dir="/var/tmp"))
    found = Engine(place)
    yield found
    found.run("start")  # so that what a killed one left is known to one that can end it
    found.run("stop")
    _unmount(place)
    shutil.rmtree(place)


def _unmount(place: Path, patience_s: float = 60) -> None:
    """What a killed engine left mounted, innermost first; it is busy as long as its last programs end."""
    end, said = time.monotonic() + patience_s, ""
    while mounted := [m for m in _mounts() if m.is_relative_to(place)]:
        assert time.monotonic() < end, f"still mounted after {patience_s} s: {mounted}: {said}"
        for mount in reversed(mounted):
            said = subprocess.run(["umount", mount], check=False, capture_output=True, text=True).stderr
        time.sleep(0.1)


def _mounts() -> list[Path]:
    return [Path(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def test_an_engine_that_is_killed_is_waited_for(engine, state, world, caplog):
    boxed = world.model_copy(update={"image": "base"})
    caplog.set_level(logging.WARNING, "envgym.sandboxes")

    async def main():
        make = lambda: DockerBackend(root=state, address=engine.address)  # noqa: E731
        async with PoolBackend(make, bounds=PoolBounds(warm=0, estimate_bytes=64 << 20, wait_s=200)) as pool:
            before = await pool.create(boxed)
            assert (await before.exec("cat given.txt")).stdout == b"given\n"
            engine.kill()
            waiting = asyncio.ensure_future(pool.create(boxed))
            while "down" not in pool.usage():  # noqa: ASYNC110  # another's state, without an event
                await asyncio.sleep(0.05)
            assert not waiting.done()
            await asyncio.to_thread(engine.run, "start")
            async with await waiting as after:
                assert (await after.exec("cat given.txt")).stdout == b"given\n"
            with contextlib.suppress(SandboxDied):  # containers may outlive their engine, or not
                assert (await before.exec("true")).ok

    asyncio.run(asyncio.wait_for(main(), 220))
    assert "is back" in caplog.text
