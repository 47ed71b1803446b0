"""The kit finds what a backend does not do: each is spoiled in one way, and the check of that way says so."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pytest
from envgym_sandboxes.local import LocalBackend
from envgym_sandboxes.namespace import NamespaceBackend

from envgym.sandbox import ExecResult, MemoryUse
from envgym.testing.check_sandbox import CHECKS, check_sandbox
from envgym.testing.sandbox_checks import budgets, limits, owners, processes, walls
from envgym.testing.sandbox_checks.common import Refused

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(90)]

OF_ONE = (*budgets.CHECKS, *limits.CHECKS, *processes.CHECKS, *walls.CHECKS)
BY_NAME = {check.__name__.strip("_"): check for check in OF_ONE}


def verdict(name: str, backend, world) -> BaseException | None:
    """What a check raises of this backend."""

    async def main() -> None:
        async with backend:
            await BY_NAME[name](backend, world)

    try:
        asyncio.run(asyncio.wait_for(main(), 80))
    except (AssertionError, Refused) as found:
        return found
    return None


class Altered:
    """A sandbox of which some methods are others. They get the sandbox first."""

    def __init__(self, sandbox, **methods: Callable) -> None:
        self._sandbox, self._methods = sandbox, methods

    def __getattr__(self, name: str):
        if name in self._methods:
            return partial(self._methods[name], self._sandbox)
        return getattr(self._sandbox, name)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_why: object) -> None:
        await self._sandbox.close()


class Spoiled(NamespaceBackend):
    """A good backend, but for its sandboxes' methods, or the bounds that it passes on."""

    methods: Mapping[str, Callable] = MappingProxyType({})
    restored: Mapping[str, Callable] = MappingProxyType({})
    bounds: Mapping[str, object] = MappingProxyType({})

    async def create(self, world):
        resources = world.resources.model_copy(update=self.bounds)
        sandbox = await super().create(world.model_copy(update={"resources": resources}))
        return Altered(sandbox, **self.methods)

    async def restore(self, snapshot):
        return Altered(await super().restore(snapshot), **self.restored)


def spoiled(make, **attributes: object) -> Spoiled:
    return type("Spoiled", (Spoiled,), attributes)(root=make.keywords["root"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bounds", "sentence"),
    [
        ("memory_bytes", {"memory_bytes": 8 << 30}, "more than 96 MiB together"),
        ("pids", {"pids": 4000}, "200 processes are more than 64"),
        ("disk_bytes", {"disk_bytes": 4 << 30}, "more than 8 MiB of disk"),
        ("cpus", {"cpus": None}, "a quarter of a processor"),
        ("command_s", {"command_s": 3000.0}, "ends at command_s"),
        ("command_cpu_s", {"command_cpu_s": None, "command_s": 3.0}, "processor time is used up"),
        ("inodes", {"inodes": 1 << 18}, "about 200 files"),
        ("file_bytes", {"file_bytes": None}, "beyond file_bytes"),
        ("transfer_bytes", {"transfer_bytes": 1 << 30}, "beyond transfer_bytes"),
    ],
)
def test_a_bound_that_is_taken_and_not_kept_is_found(make, world, name, bounds, sentence):
    found = verdict(name, spoiled(make, bounds=bounds), world)
    assert isinstance(found, AssertionError), found
    assert sentence in str(found)


def of_exec(**fields: object) -> dict[str, Callable]:
    """An exec whose results are otherwise."""

    async def exec(sandbox, *arguments, **named) -> ExecResult:
        result = await sandbox.exec(*arguments, **named)
        told = {name: getattr(result, name) for name in ExecResult.__dataclass_fields__}
        return ExecResult(**(told | fields))

    return {"exec": exec}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        ("out_of_memory", {"out_of_memory": False}, "is told so"),
        ("out_of_memory", {"out_of_memory": True}, "said once"),
        ("cpu_s", {"cpu_s": 0.0}, "what the command used"),
        ("cpu_s", {"cpu_s": 7.0}, "what the command used"),
        ("peak_bytes", {"peak_bytes": 1}, "what was held at most"),
        ("peak_bytes", {"peak_bytes": 1 << 30}, "a small program is small"),
        ("peak_bytes_of_a_string", {"peak_bytes": 60 << 20}, "not this one's"),
    ],
)
def test_what_is_told_and_not_true_is_found(make, world, name, fields, sentence):
    found = verdict(name, spoiled(make, methods=of_exec(**fields)), world)
    assert isinstance(found, AssertionError), found
    assert sentence in str(found)


@pytest.mark.parametrize("name", ["cpu_s", "peak_bytes", "peak_bytes_of_a_string"])
def test_what_is_not_told_is_refused_not_kept(make, world, name):
    backend = spoiled(make, methods=of_exec(cpu_s=None, peak_bytes=None))
    assert isinstance(verdict(name, backend, world), Refused)


@pytest.mark.slow
@pytest.mark.parametrize("used", [1, 1 << 30], ids=["too little", "too much"])
def test_a_backend_that_tells_wrongly_what_sandboxes_use_is_found(make, world, used):
    async def memory(self, sandboxes):
        return MemoryUse(1 << 34, 1 << 33, dict.fromkeys([one for one in sandboxes if "no such" not in one], used))

    found = verdict("memory", spoiled(make, memory=memory), world)
    assert isinstance(found, AssertionError), found
    assert "use" in str(found)


# -- walls ---------------------------------------------------------------------------------------------------------


def content(*path: str) -> bytes:
    return Path(*path).read_bytes()


def save(content: bytes, *path: str) -> None:
    Path(*path).write_bytes(content)


def arrive(target: str, path: str, kind: str, content: bytes) -> None:
    """As the simplest of copies does it: through whatever lies there."""
    Path(target).mkdir(exist_ok=True)
    if kind == "l":
        Path(target, path).symlink_to(content.decode())
    elif kind == "f":
        save(content, target, path)


async def read_of_the_host(sandbox, path):
    try:
        return await sandbox.read(path)
    except OSError:
        return content(path)


async def read_through_links(sandbox, path):
    target = (await sandbox.exec(["readlink", path])).stdout.decode().strip()
    return content(target) if target.startswith("/tmp/") else await sandbox.read(path)


async def write_above(sandbox, path, given):
    await sandbox.write(path, given)
    if path.startswith("../"):
        save(given, "/", path.replace("../", ""))


async def put_through_links(sandbox, source, target):
    await sandbox.put(source, target)
    link = (await sandbox.exec(["readlink", "dir"])).stdout.decode().strip()
    if target.startswith("dir/"):
        save(content(source), link, target.removeprefix("dir/"))


async def get_the_targets_of_links(sandbox, source, target):
    link = (await sandbox.exec(["readlink", source])).stdout.decode().strip()
    if not link:
        return await sandbox.get(source, target)
    save(content(link), target)


async def get_through_links(sandbox, source, target):
    found = await sandbox.exec(["find", source, "-mindepth", "1", "-printf", "%y %P\\n"])
    for line in found.stdout.decode().splitlines():
        kind, path = line.split(" ", 1)
        program = {"l": "readlink -n", "f": "cat"}.get(kind, "true")
        result = await sandbox.exec(["sh", "-c", f"{program} {source}/{path}"])
        arrive(target, path, kind, result.stdout)


@pytest.mark.parametrize(
    ("name", "methods", "sentence"),
    [
        ("host_paths", {"read": read_of_the_host}, "is not read"),
        ("host_paths", {"read": read_through_links}, "is not read"),
        ("host_paths", {"write": write_above}, "made or changed"),
        ("host_paths", {"put": put_through_links}, "made or changed"),
        ("host_paths", {"get": get_the_targets_of_links}, "nor fetched"),
        ("outside_the_target", {"get": get_through_links}, "outside its target"),
    ],
    ids=lambda value: "-".join(f"{key}" for key in value) if isinstance(value, dict) else None,
)
def test_a_way_to_the_files_of_the_host_is_found(make, world, name, methods, sentence):
    found = verdict(name, spoiled(make, methods=methods), world)
    assert isinstance(found, AssertionError), found
    assert sentence in str(found)


# -- snapshots and ends --------------------------------------------------------------------------------------------


def test_a_snapshot_that_is_not_of_one_moment_is_found(make, world):
    """A stand-in: the sizes are as if a writer had gone on meanwhile."""

    async def exec(sandbox, command, **named):
        if "stat" in command[-1]:
            await sandbox.exec("printf xx >> left/5")
        return await sandbox.exec(command, **named)

    found = verdict("paused_for_snapshots", spoiled(make, restored={"exec": exec}), world)
    assert isinstance(found, AssertionError), found
    assert "of one moment" in str(found)


class Hoarder(LocalBackend):
    """Reaps nothing."""

    def reap(self):
        return []


@pytest.fixture
def importable(monkeypatch):
    """This module, for processes that load what it defines."""
    root = str(Path(__file__).resolve().parents[2])
    monkeypatch.setattr(sys, "path", [root, *sys.path])


def reaped(make, world, traces=None) -> BaseException | None:
    try:
        asyncio.run(asyncio.wait_for(owners.reap(make, world, traces), 80))
    except (AssertionError, Refused) as found:
        return found
    return None


@pytest.mark.slow
def test_a_backend_that_reaps_nothing_is_found_by_its_traces(make_local, world, state, traces, importable):
    assert reaped(make_local, world, traces) is None
    found = reaped(partial(Hoarder, root=state), world, traces)
    assert isinstance(found, AssertionError), found
    assert "gone when it was reaped" in str(found)
    assert make_local().reap(), "and this one does it"


class Orphaning(LocalBackend):
    """Its sandboxes' processes are nobody's children, and it reaps nothing of them."""

    async def create(self, world):
        return Altered(await super().create(world), start=self.detached)

    @staticmethod
    async def detached(sandbox, argv):
        await asyncio.create_subprocess_exec(*argv, start_new_session=True)


@pytest.mark.slow
def test_processes_that_outlive_their_killed_owner_are_found(make_local, world, state, importable):
    found = reaped(partial(Orphaning, root=state), world)
    make_local().reap()
    assert isinstance(found, AssertionError), found
    for process in str(found).partition("look")[0].split("'")[1::2]:
        if process.isdigit():
            os.kill(int(process), 9)
    assert "gone when it was reaped" in str(found)


def test_an_owner_that_no_other_process_can_have_is_not_killed(make_local, world):
    found = reaped(lambda: make_local(), world)
    assert isinstance(found, Refused)
    assert "no other process can have" in str(found)


# -- what a backend may refuse -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_must_be_kept_and_is_refused_is_an_error_with_the_reason(make_local, run):
    with pytest.raises(AssertionError, match=r"inodes must be kept, and was not: Resources\.inodes is 200"):
        run(check_sandbox(make_local, must=["inodes"]))
    with pytest.raises(AssertionError, match="claims no isolation of the network"):
        run(check_sandbox(make_local, must=["no_network"]))
    with pytest.raises(ValueError, match="there are no such checks"):
        run(check_sandbox(make_local, must=["inode"]))
    assert {"durable", "reap", "egress", "pids"} <= set(CHECKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["memory_bytes", "disk_bytes", "pids"])
def test_a_bound_is_excused_only_by_a_line_of_the_report(make_local, world, name):
    assert isinstance(verdict(name, make_local(), world), Refused)

    class Silent(LocalBackend):
        def report(self):
            return super().report().model_copy(update={"missing": ("files: of memory, disk and pids nothing",)})

    found = verdict(name, Silent(root=make_local.keywords["root"]), world)
    assert isinstance(found, AssertionError), found
    assert f"begins with '{name}'" in str(found)
