"""The docker backend on podman's socket: another engine behind the same client, started here for this test."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from envgym_sandboxes.docker_engine.backend import DockerBackend

from envgym.testing.check_sandbox import check_sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def podman(base_image, state: Path) -> Iterator[str]:
    """The address of a podman service whose containers and images are the test's own."""
    if os.geteuid() != 0 or not shutil.which("podman") or not shutil.which("runc"):
        pytest.skip("podman's own service needs root, podman and runc (Debian: apt-get install podman runc)")
    place = state.parent / f"podman-{os.getpid()}"  # a socket's path is short
    place.mkdir()
    own = ["--root", f"{place}/root", "--runroot", f"{place}/run", "--storage-driver", "overlay"]
    how = ["--cgroup-manager", "cgroupfs", "--events-backend", "none", "--runtime", "runc"]
    address = f"unix://{place}/s"
    with (place / "log").open("wb") as log:
        service = subprocess.Popen(
            ["podman", *own, *how, "system", "service", "--time", "0", address],
            stdout=log,
            stderr=log,
            cwd=place,  # where its monitors of containers say that memory was out, in a file
        )
    try:
        end = time.monotonic() + 30
        while not (place / "s").exists():
            assert service.poll() is None, (place / "log").read_text()
            assert time.monotonic() < end, (place / "log").read_text()
            time.sleep(0.05)  # a socket that another program makes
        yield address
    finally:
        service.terminate()
        service.wait(20)
        subprocess.run(["podman", *own, *how, "system", "reset", "--force"], check=False, capture_output=True)
        subprocess.run(["umount", f"{place}/root/overlay"], check=False, capture_output=True)
        shutil.rmtree(place)


def test_podman_keeps_the_contract(podman, state, kept, world):
    def make() -> DockerBackend:
        return DockerBackend(root=state, snapshots=kept, address=podman)

    boxed = world.model_copy(update={"image": "base"})
    ran = asyncio.run(asyncio.wait_for(check_sandbox(make, world=boxed), 200))
    assert "no_network" in ran
    assert list(state.iterdir()) == []
