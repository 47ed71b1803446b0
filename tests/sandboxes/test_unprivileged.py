"""The same contract as an ordinary user: in a process that gave root up, or, without root, in this one's suite."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import envgym_sandboxes
import pytest
from envgym_sandboxes import ear, landlock

import envgym

DROP = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
SCRIPT = """
import asyncio, functools, os, sys
from envgym.limits import Resources
from envgym.task import World
from envgym.testing.check_sandbox import CHECKS, check_sandbox
from envgym_sandboxes.namespace import NamespaceBackend

assert os.getuid() == 4242 and NamespaceBackend(root=sys.argv[1]).report().works
without_groups = {"memory_bytes", "out_of_memory", "peak_bytes_of_a_string", "memory", "cpus", "io_bytes_s"}
make = functools.partial(NamespaceBackend, root=sys.argv[1])
ran = asyncio.run(check_sandbox(make, must=set(CHECKS) - without_groups, traces=lambda: os.listdir(sys.argv[1])))
print(len(ran), sorted(os.listdir(sys.argv[1])))
"""


INTERPRETER = """
import asyncio, os, sys
from envgym.task import World
from envgym.testing.check_interpreter import check_interpreter
from envgym_sandboxes.interpreter import open_interpreter
from envgym_sandboxes.namespace import NamespaceBackend

async def main():
    async with NamespaceBackend(root=sys.argv[1]) as backend, await backend.create(World()) as sandbox:
        bound = sandbox.world.resources.output_bytes
        return await check_interpreter(lambda: open_interpreter(sandbox), output_bytes=bound)

assert os.getuid() == 4242
print(len(asyncio.run(main())), sorted(os.listdir(sys.argv[1])))
"""
WITHOUT_NAMESPACES = """
import os, sys
from envgym_sandboxes import syscalls

uid, gid = os.getuid(), os.getgid()
syscalls.unshare(syscalls.CLONE_NEWUSER)  # a nested one, whose own limit can be set
syscalls.write_id_maps(uid, uid, gid)
with open("/proc/sys/user/max_user_namespaces", "w") as file:
    file.write("0")
os.execv(sys.executable, [sys.executable, "-P", "-c", sys.argv[1], *sys.argv[2:]])
"""
LANDLOCK = """
import asyncio, functools, os, sys
from envgym import registry
from envgym.testing.check_sandbox import CHECKS, check_sandbox
from envgym_sandboxes.landlock_backend import LandlockBackend
from envgym_sandboxes.namespace import NamespaceBackend

assert os.getuid() == 4242
with open("/proc/self/status") as file:
    assert "0" * 16 in file.read().partition("CapEff:")[2].splitlines()[0]
report = NamespaceBackend(root=sys.argv[1]).report()
assert not report.works and "user.max_user_namespaces is 0" in report.missing[0], report
assert report.fix == (
    "sudo sysctl -w user.max_user_namespaces=15000 && "
    "echo user.max_user_namespaces=15000 | sudo tee /etc/sysctl.d/60-envgym.conf",
), report
if "landlock" not in registry.names("sandboxes"):
    registry.register("sandboxes", "landlock", LandlockBackend)
backend = registry.make_backend("auto", root=sys.argv[1])
assert backend.name == "landlock", backend
refused = {"inodes", "egress", "forwards", "forwards_and_states", "forwards_end"}
without_groups = {"out_of_memory", "peak_bytes_of_a_string", "memory", "cpus", "io_bytes_s"}
make = functools.partial(LandlockBackend, root=sys.argv[1])
must = set(CHECKS) - refused - without_groups
ran = asyncio.run(check_sandbox(make, must=must, traces=lambda: os.listdir(sys.argv[1])))
print(len(ran), sorted(os.listdir(sys.argv[1])))
"""


SMALLEST = (
    """
import asyncio, os, sys
from envgym.limits import Resources
from envgym.task import World
from envgym_sandboxes.landlock import abi
from envgym_sandboxes.landlock_backend import LandlockBackend
from envgym_sandboxes.namespace import NamespaceBackend

FILL = """
    + '"""'
    + """
import os, time
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        made += 1
except BlockingIOError:
    print(made, flush=True)
time.sleep(20)
"""
    + '"""'
    + """

async def work(sandbox):
    for command in ("echo a", ["echo", "a"], ["@python", "-c", "print('a')"]):
        result = await sandbox.exec(command)
        assert result.stdout == b"a\\n", (sandbox.id, command, result)
    await sandbox.write("large", bytes(9 << 20))
    assert len(await sandbox.read("large")) == 9 << 20

async def main(make):
    async with make() as backend:
        for bounds in ({"memory_bytes": 16 << 20}, {"pids": 8}):
            async with await backend.create(World(resources=Resources(**bounds))) as sandbox:
                await work(sandbox)
                async with await sandbox.fork() as fork:
                    await work(fork)
                if "pids" in bounds:
                    filling = await sandbox.start(["python3", "-c", FILL])
                    made = (await sandbox.poll(filling, wait_s=20)).stdout
                    assert made in (b"6\\n", b"7\\n"), (sandbox.id, made)  # a shell may be one
                    async with await backend.create(sandbox.world) as other:
                        await work(other)  # the bound is each sandbox's own

assert os.getuid() == 4242
for kind in (NamespaceBackend, LandlockBackend):
    if (kind is NamespaceBackend or abi()) and kind(root=sys.argv[1]).report().works:
        asyncio.run(main(lambda: kind(root=sys.argv[1])))
        print(kind.name)
"""
)

FORKS = """
import asyncio, os, sys
from envgym.task import World
from envgym_sandboxes.landlock_backend import LandlockBackend

async def main():
    failed = 0
    async with LandlockBackend(root=sys.argv[1]) as backend, await backend.create(World()) as sandbox:
        for _ in range(200):
            result = await sandbox.exec(["sh", "-c", "echo a | cat"])
            failed += (result.exit_code, result.stdout) != (0, b"a\\n")
    return failed

assert os.getuid() == 4242
print(asyncio.run(main()))
"""


def _run(state: Path, *code: str) -> subprocess.CompletedProcess[str]:
    """Run code as an ordinary user, with a state directory of its own; or skip."""
    if os.geteuid() != 0:
        pytest.skip("this suite itself runs as an ordinary user")
    python = next(
        iter(filter(None, map(_usable, (sys.executable, "/usr/bin/python3.11", "/usr/bin/python3")))), None
    )
    if python is None or shutil.which("setpriv") is None:
        pytest.skip("there is no interpreter of this version (or no setpriv) that an ordinary user may run")
    own = state / "own"
    cache = state / "cache"
    for path in (own, cache):
        path.mkdir()
        os.chown(path, 4242, 4242)
    roots = [sysconfig.get_path("purelib"), *(str(Path(m.__file__).parents[1]) for m in (envgym, envgym_sandboxes))]
    first, *rest = code
    return subprocess.run(
        [*DROP, python, "-P", "-c", first, *rest, str(own)],
        env={"PYTHONPATH": ":".join(roots), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
        | {"ENVGYM_CACHE": str(cache)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_namespaces_work_for_an_ordinary_user(state):
    result = _run(state, SCRIPT)
    if "user.max_user_namespaces" in result.stderr and "cannot run here" in result.stderr:
        pytest.skip(f"user namespaces are not for ordinary users here: {result.stderr[-300:]}")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.split()[1] == "[]", f"something was left: {result.stdout}"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_interpreters_work_for_an_ordinary_user(state):
    result = _run(state, INTERPRETER)
    if "user.max_user_namespaces" in result.stderr and "cannot run here" in result.stderr:
        pytest.skip(f"user namespaces are not for ordinary users here: {result.stderr[-300:]}")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.split()[1] == "[]", f"something was left: {result.stdout}"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_landlock_works_and_is_taken_for_an_ordinary_user_without_user_namespaces(state):
    if landlock.absence():
        pytest.skip(landlock.absence())
    result = _run(state, WITHOUT_NAMESPACES, LANDLOCK)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.split()[1] == "[]", f"something was left: {result.stdout}"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_smallest_bounds_are_each_sandbox_s_own_and_leave_room_for_commands(state):
    result = _run(state, SMALLEST)
    assert result.returncode == 0, result.stderr[-3000:]
    if not result.stdout:
        pytest.skip("no backend works for an ordinary user here")
    assert list((state / "own").iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_shells_whose_children_end_while_they_fork_can_fork(state):
    """A pipeline's first program has ended when its second is to be made; where forks are asked for, that hurts."""
    if landlock.absence() or not ear.hears():
        pytest.skip(landlock.absence() or "this kernel lets signals end such a wait")
    result = _run(state, FORKS)
    assert result.returncode == 0, result.stderr[-3000:]
    assert int(result.stdout) <= 6, "one in some hundreds fails on a busy machine; without care one in ten to three"


def _usable(python: str) -> str | None:
    """The interpreter, if an ordinary user can run it and it is of this version."""
    if not os.path.exists(python):
        return None
    code = "import sys; print(*sys.version_info[:2])"
    try:
        told = subprocess.run(
            [*DROP, "sh", "-c", f"exec {python} -I -c '{code}'"],  # setpriv itself still may run anything
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except OSError:
        return None
    return python if told.stdout.split() == [str(part) for part in sys.version_info[:2]] else None
