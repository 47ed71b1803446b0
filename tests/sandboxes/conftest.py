import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from envgym_sandboxes import landlock
from envgym_sandboxes.cgroups import controllers
from envgym_sandboxes.images.store import Image, default_store
from envgym_sandboxes.landlock_backend import LandlockBackend
from envgym_sandboxes.local import LocalBackend
from envgym_sandboxes.namespace import NamespaceBackend

from envgym.errors import SandboxUnavailable
from envgym.limits import Resources
from envgym.task import World
from envgym.testing.check_sandbox import CHECKS

_IN_GROUPS = {
    "memory": {"memory_bytes", "out_of_memory", "peak_bytes_of_a_string", "memory"},
    "cpu": {"cpus"},
    "io": {"io_bytes_s"},
}
"""The checks of `check_sandbox` that need control groups, of which kind. Where there are none, reports say so."""
RESOURCES = Resources(output_bytes=4096, command_s=20.0, pids=64, memory_bytes=256 << 20, disk_bytes=64 << 20)


@cache
def namespaces_fail() -> str:
    report = NamespaceBackend().report()
    return "" if report.works else f"no namespaces here: {report.missing}"


def own_groups() -> list[Path]:
    """The control groups that backends of this process have made and not removed."""
    mine = f"envgym-{os.getpid()}-*"
    return [group for parent in set(controllers().values()) for group in Path(parent).glob(mine)]


@pytest.fixture
def state() -> Iterator[Path]:
    """A state directory of the test's own, in memory."""
    path = Path(tempfile.mkdtemp(prefix="envgym-test-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A place for durable snapshots of the test's own."""
    return tmp_path / "kept"


@pytest.fixture
def make(state: Path, kept: Path) -> Callable[[], NamespaceBackend]:
    if namespaces_fail():
        pytest.skip(namespaces_fail())
    return partial(NamespaceBackend, root=state, snapshots=kept)


@pytest.fixture
def make_local(state: Path, kept: Path) -> Callable[[], LocalBackend]:
    return partial(LocalBackend, root=state, snapshots=kept)


@pytest.fixture(scope="session")
def base_image() -> Image:
    """The image `base`, which scripts/test.sh builds where it can."""
    try:
        return default_store().find("base")
    except SandboxUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def make_landlock(state: Path, kept: Path) -> Callable[[], LandlockBackend]:
    if landlock.absence():
        pytest.skip(landlock.absence())
    return partial(LandlockBackend, root=state, snapshots=kept)


@pytest.fixture
def all_but() -> Callable[..., set[str]]:
    """What a backend must keep: every check but those that are named, and those that nothing here can keep."""
    impossible = set().union(*(names for kind, names in _IN_GROUPS.items() if kind not in controllers()))

    def those(*names: str) -> set[str]:
        assert set(names) <= set(CHECKS), "an exception names a check"
        return set(CHECKS) - impossible - set(names)

    return those


@pytest.fixture
def traces(state: Path) -> Callable[[], list[str]]:
    """What owners have in the state directory of the test's own."""
    return lambda: os.listdir(state)


@pytest.fixture
def world() -> World:
    return World(resources=RESOURCES, files={"/work/given.txt": "given\n"})


@pytest.fixture
def boxed(world: World) -> World:
    """The same in a container."""
    return world.model_copy(update={"image": "base"})


@pytest.fixture
def containers() -> Callable[[int], list[str]]:
    """The names of the containers that a process made."""
    import docker  # of an extra, which other tests do without
    from envgym_sandboxes.docker_engine.backend import DockerBackend
    from envgym_sandboxes.docker_engine.client import OWNER

    def made_by(owner: int) -> list[str]:
        api = docker.APIClient(DockerBackend().address, version="auto")
        try:
            found = api.containers(all=True, filters={"label": OWNER})
            return [one["Names"][0] for one in found if one["Labels"][OWNER].startswith(f"{owner}-")]
        finally:
            api.close()

    return made_by


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Run a coroutine; a backend under test may not take for ever."""
    return lambda main: asyncio.run(asyncio.wait_for(main, 110))


@pytest.fixture(autouse=True)
def no_groups_left() -> Iterator[None]:
    """Law m for every test: the groups of its sandboxes are gone with them."""
    before = set(own_groups())
    yield
    left = {str(one): (one / "cgroup.procs").read_text().split() for one in own_groups() if one not in before}
    assert left == {}, "groups were left, with these processes in them"


@pytest.fixture(scope="module")
def state_for_laws() -> Iterator[Path]:
    """One for all examples of a property."""
    if namespaces_fail():
        pytest.skip(namespaces_fail())
    path = Path(tempfile.mkdtemp(prefix="envgym-test-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    yield path
    assert sorted(path.iterdir()) == [], "law m: every example leaves nothing"
    shutil.rmtree(path)
