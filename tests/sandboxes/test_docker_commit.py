"""Snapshots as images of the engine, where somebody asks for one."""

import asyncio
import os

import docker
import pytest
from envgym_sandboxes.docker_engine.backend import DockerBackend
from envgym_sandboxes.docker_engine.copying import DockerCopyBackend

from envgym.errors import SnapshotGone
from envgym.task import World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
NAME = f"envgym-test/commit-{os.getpid()}"
BACKENDS = pytest.mark.parametrize("kind", [DockerBackend, DockerCopyBackend], ids=lambda kind: kind.name)
WORLD = World(
    image="base",
    files={"/work/given": "given\n", "/work/gone": "x"},
    env={"TOLD": 'a "b" $HOME \\ c', "PLAIN": "1"},
)


@pytest.fixture
def images(base_image):
    """The engine's client; what the test made is removed."""
    report = DockerBackend().report()
    if not report.works:
        pytest.skip(f"no docker backend here: {report.missing}; fix: {report.fix}")
    client = docker.DockerClient(DockerBackend().address)
    yield client
    for image in client.images.list(NAME):
        client.images.remove(image.id, force=True)
    client.close()


@BACKENDS
def test_a_committed_snapshot_runs_without_envgym(kind, state, kept, images, run):
    async def main():
        async with kind(root=state, snapshots=kept) as backend, await backend.create(WORLD) as sandbox:
            await sandbox.exec("echo mine > new; mkdir -p d; chmod 750 d; ln -s new link; rm gone; echo t > /tmp/t")
            snapshot = await sandbox.snapshot()
            await sandbox.exec("echo later > new")
            return await backend.commit(snapshot, f"{NAME}:one")

    made = run(main())
    assert made == images.images.get(f"{NAME}:one").id
    command = 'pwd; cat given new /tmp/t; readlink link; stat -c %a d; ls gone 2>/dev/null; echo "$TOLD $PLAIN"'
    said = images.containers.run(made, ["sh", "-c", command], remove=True, network_mode="none")
    assert said.decode().splitlines() == ["/work", "given", "mine", "t", "new", "750", 'a "b" $HOME \\ c 1']


@BACKENDS
def test_what_cannot_be_committed_is_said(kind, state, kept, images, run):
    async def main():
        world = WORLD.model_copy(update={"env": {"LINES": "a\nb"}})
        async with kind(root=state, snapshots=kept) as backend, await backend.create(world) as sandbox:
            snapshot = await sandbox.snapshot()
            for name in ("", "Upper", "a:", "a b", "-a", "a:b:c", "a@sha256:1"):
                with pytest.raises(ValueError, match="cannot be an image's name"):
                    await backend.commit(snapshot, name)
            with pytest.raises(ValueError, match="LINES"):
                await backend.commit(snapshot, NAME)
            await backend.release(snapshot)
            with pytest.raises(SnapshotGone):
                await backend.commit(snapshot, NAME)

    run(asyncio.wait_for(main(), 60))
    assert images.images.list(NAME) == []
