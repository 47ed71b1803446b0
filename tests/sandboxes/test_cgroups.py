"""Control groups: where they can be made, what is written into them; version 2 as far as this machine has it."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from envgym_sandboxes import cgroups
from envgym_sandboxes.cgroups import Groups, choose, controllers
from envgym_sandboxes.delegation import OWNER, enable
from envgym_sandboxes.state import remove_cgroup

from envgym.limits import Resources

pytestmark = [pytest.mark.timeout(60)]

FILES = {"cpu": "cpu.max", "memory": "memory.max", "pids": "pids.max", "usage": "cpu.stat", "io": "io.max"}
TOP = "/sys/fs/cgroup"


def offering(**places):
    """What is in a new group: place -> kinds that it can do."""
    offered = {name: {"cgroup.procs", *(FILES[kind] for kind in kinds)} for name, kinds in places.items()}
    return lambda place: offered.get(str(place), ())


@pytest.mark.parametrize("delegated", [("memory", "pids", "usage"), tuple(FILES), ("pids", "usage"), ()])
def test_only_what_is_delegated_counts_as_usable_in_version_2(delegated):
    here = f"{TOP}/user.slice/app"
    found = choose({"": TOP}, {"": "/user.slice/app"}, offering(**{here: delegated}))
    usable = delegated if {"memory", "pids"} <= set(delegated) else ()
    assert found == dict.fromkeys(usable, here)


def test_the_nearest_place_that_bounds_memory_and_processes_is_taken_in_version_2():
    scope, app = "/user.slice/user@1000.service/app.slice/run.scope", "/user.slice/user@1000.service/app.slice"
    place = choose({"": TOP}, {"": scope}, offering(**{TOP + app: ("memory", "pids"), TOP: FILES}))
    assert place == dict.fromkeys(("memory", "pids"), TOP + app)
    assert choose({"": TOP}, {"": "/../outside"}, offering(**{f"{TOP}/../outside": FILES})) == {}


def test_version_1_is_taken_hierarchy_by_hierarchy():
    mounts = {
        "memory": f"{TOP}/memory",
        "pids": f"{TOP}/pids",
        "cpuacct": f"{TOP}/cpu,cpuacct",
        "": f"{TOP}/unified",
    }
    files = {
        f"{TOP}/memory/mine": ["memory.limit_in_bytes"],
        f"{TOP}/pids": ["pids.max"],
        f"{TOP}/cpu,cpuacct": ["cpuacct.usage"],
    }
    found = choose(mounts, {"memory": "/mine"}, lambda place: files.get(str(place), ()))
    assert found == {"memory": f"{TOP}/memory/mine", "pids": f"{TOP}/pids", "usage": f"{TOP}/cpu,cpuacct"}


def test_both_versions_are_told_the_same_bounds(monkeypatch):
    monkeypatch.setattr(cgroups, "devices", lambda: ["254:0", "8:16"])
    limits = cgroups._limits(Resources(memory_bytes=1 << 26, pids=10, cpus=0.5, io_bytes_s=1 << 20), 1)
    said = {kind: dict(files) for kind, files in limits.items() if kind != "io"}
    assert said["memory"]["memory.limit_in_bytes"] == said["memory"]["memory.max"] == 1 << 26
    assert said["pids"] == {"pids.max": 11}, "the first process is not the task's"
    assert said["cpu"] == {"cpu.cfs_quota_us": 50_000, "cpu.max": "50000 100000"}
    assert ("io.max", "8:16 rbps=1048576 wbps=1048576") in limits["io"]
    assert ("blkio.throttle.write_bps_device", "254:0 1048576") in limits["io"]
    assert len(limits["io"]) == 6, "each device, for reading and writing"
    assert set(cgroups._limits(Resources(), 1)) == {"memory", "pids"}, "the others only where they are asked for"


# -- version 2, in the hierarchy that hybrid systems have ----------------------------------------------------------


@pytest.fixture
def unified() -> Iterator[Path]:
    """A group of our own in version 2."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    top = next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"), None)
    if top is None or not os.access(top / "cgroup.procs", os.W_OK):
        pytest.skip("there is no version 2 that this user may make groups in")
    group = top / f"envgym-test-{os.getpid()}"
    group.mkdir()
    yield group
    while not remove_cgroup(group):
        pass


ESCAPE = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
if os.fork() == 0:
    os.setsid()
    os.kill(os.getpid(), 19)
print("in", flush=True)
while True:  # a chain: none of them lives for long
    if os.fork():
        os._exit(0)
"""


def test_a_group_of_version_2_is_emptied_at_once_and_removed(unified):
    group = unified / "sandbox"
    group.mkdir()
    with subprocess.Popen([sys.executable, "-c", ESCAPE, str(group)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        watched = [os.pidfd_open(pid) for pid in members(group)]
        while not remove_cgroup(group):
            pass
        for fd in watched:
            assert select.select([fd], [], [], 5)[0], "whoever was in it has ended"
            os.close(fd)
    assert not group.exists()


def members(group):
    found = []
    for pid in map(int, (group / "cgroup.procs").read_text().split()):
        try:
            os.pidfd_open(pid)
            found.append(pid)
        except ProcessLookupError:
            continue
    return found


MOVE = """
import os, subprocess, sys
from pathlib import Path
from envgym_sandboxes.delegation import enable
place = Path(sys.argv[1])
(place / "cgroup.procs").write_text("0")
child = subprocess.Popen(["sleep", "97"])
print(enable(place, [sys.argv[2]]))
print(Path("/proc/self/cgroup").read_text().split("0::")[1].split()[0])
group = place / "made"
group.mkdir()
print(any(name.startswith(sys.argv[2]) for name in os.listdir(group)))
print(sorted(path.name for path in place.iterdir() if path.is_dir()))
child.kill()
child.wait()
"""


@pytest.fixture
def passed_on(unified) -> Iterator[tuple[Path, str]]:
    """A group that has a controller, which it does not yet pass on."""
    top = unified.parent
    controllers = (top / "cgroup.controllers").read_text().split()
    if not controllers:
        pytest.skip("version 2 has no controller here")
    name = controllers[0]
    before = (top / "cgroup.subtree_control").read_text().split()
    (top / "cgroup.subtree_control").write_text(f"+{name}")
    yield unified, name
    for path in sorted(unified.rglob("*"), reverse=True):
        if path.is_dir():
            while not remove_cgroup(path):
                pass
    if name not in before:
        (unified / "cgroup.subtree_control").write_text(f"-{name}")
        (top / "cgroup.subtree_control").write_text(f"-{name}")


def test_a_delegated_group_is_made_ready_by_moving_ourselves_out_of_the_way(passed_on):
    place, controller = passed_on
    (place / f"{OWNER}1").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", MOVE, str(place), controller],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    enabled, where, offered, groups = done.stdout.splitlines()
    assert enabled == "True"
    assert OWNER in where, "it is one group down"
    assert offered == "True", "a new group has the controller"
    assert groups == str([where.rsplit("/", 1)[1], "made"]), "an ended owner's is removed"


def test_others_are_never_moved(passed_on):
    place, controller = passed_on
    with subprocess.Popen(["sleep", "97"]) as other:  # this process's, and so not below the one that asks
        (place / "cgroup.procs").write_text(str(other.pid))
        program = MOVE.split("print(Path")[0]
        asked = [sys.executable, "-c", program + "child.kill()", str(place), controller]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30)
        assert done.stdout == "False\n", done.stderr
        assert not list(place.glob(f"{OWNER}*"))
        assert str(other.pid) in (place / "cgroup.procs").read_text()
        other.kill()


def test_nothing_changes_where_there_is_nothing_to_enable(tmp_path):
    assert not enable(tmp_path, ["memory"])
    assert list(tmp_path.iterdir()) == []


def test_groups_that_could_not_be_made_whole_are_removed_without_descriptors():
    """In a child, since it is left without any descriptor to open a file with."""
    if "memory" not in controllers():
        pytest.skip("no control groups can be made here")
    name = f"envgym-{os.getpid()}-whole"
    if (pid := os.fork()) == 0:
        import resource

        controllers()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        try:
            Groups(name, Resources())
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert [place for place in set(controllers().values()) if Path(place, name).exists()] == []
