"""The docker backend against a real engine: its walls, its limits, and what is left when something dies."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import docker
import pytest
from envgym_sandboxes import state as states
from envgym_sandboxes.calls import DENIED
from envgym_sandboxes.docker_engine.backend import DockerBackend
from envgym_sandboxes.docker_engine.client import Client, labels
from envgym_sandboxes.docker_engine.profile import profile
from envgym_sandboxes.interpreter import open_interpreter
from envgym_sandboxes.namespace import HOST_UID

from envgym.errors import InfrastructureFailure, SandboxDied, SandboxUnavailable
from envgym.task import Tree
from envgym.testing.check_interpreter import check_interpreter
from envgym.testing.check_sandbox import CHECKS, check_sandbox

pytestmark = [pytest.mark.timeout(120)]


@cache
def docker_fails() -> str:
    report = DockerBackend().report()
    return "" if report.works else f"no docker backend here: {report.missing}; fix: {report.fix}"


@pytest.fixture
def make_docker(state: Path, kept: Path, base_image, containers) -> Iterator[Callable[..., DockerBackend]]:
    if docker_fails():
        pytest.skip(docker_fails())
    yield partial(DockerBackend, root=state, snapshots=kept)
    assert containers(os.getpid()) == [], "no test leaves a container"
    assert list(state.iterdir()) == [], "nor a file"


@pytest.mark.slow
def test_docker_backend_keeps_the_contract(make_docker, boxed, traces):
    kept = check_sandbox(make_docker, world=boxed, must=CHECKS, traces=traces)
    asyncio.run(asyncio.wait_for(kept, 110))


@pytest.mark.slow
def test_an_interpreter_keeps_its_contract_in_a_container(make_docker, boxed):
    """In the image's own Python, which knows nothing of this package."""

    async def main():
        async with make_docker() as backend, await backend.create(boxed) as sandbox:
            bound = boxed.resources.output_bytes
            await check_interpreter(lambda: open_interpreter(sandbox), output_bytes=bound)

    asyncio.run(asyncio.wait_for(main(), 110))


# -- walls ---------------------------------------------------------------------------------------------------------

INSIDE = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def call(name, result):
    print(name, "done" if result >= 0 else errno.errorcode[ctypes.get_errno()])
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "NoNewPrivs", "Seccomp", "Seccomp_filters"):
    print(name, status[name].strip())
print("uid_map", *open("/proc/self/uid_map").read().split())
call("unshare-user", libc.unshare(0x10000000))
call("unshare-mount", libc.unshare(0x20000))
call("io_uring", libc.syscall(425, 8, 0))
call("mount", libc.mount(b"x", b"/tmp", b"tmpfs", 0, 0))
call("ptrace", libc.ptrace(16, 1, 0, 0))
call("keyctl", libc.syscall(250, 0, 0, 0, 0, 0))
call("bpf", libc.syscall(321, 0, 0, 0))
call("vsock", libc.socket(40, 1, 0))
for path in ("/usr/x", "/x", "/etc/x", "/envgym/x", "/home/x"):
    try:
        open(path, "w")
        print(path, "written")
    except OSError as error:
        print(path, errno.errorcode[error.errno])
for name in ("mem", "environ", "maps", "fd"):
    try:
        os.listdir("/proc/1/fd") if name == "fd" else open(f"/proc/1/{name}").read(1)
        print(name, "readable")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
print("tools", len(os.listdir("/envgym")))
for number in range(1, 32):
    os.kill(1, number)
print("init lives")
"""


@pytest.mark.slow
def test_a_container_is_hardened_as_seen_from_inside(make_docker, boxed, run):
    async def main():
        async with make_docker(warm=0) as backend, await backend.create(boxed) as sandbox:
            result = await sandbox.exec(["python3", "-c", INSIDE])
            told = dict(line.split(" ", 1) for line in result.stdout.decode().splitlines())
            assert int(told.pop("Seccomp_filters")) >= 1
            assert told.pop("uid_map").split()[::2] == ["1000", "1"], "a user namespace with one user"
            refused = {name: told.pop(name) for name in ("/usr/x", "/x", "/etc/x", "/envgym/x", "/home/x")}
            assert set(refused.values()) <= {"EROFS", "EACCES"}, refused
            expected = dict.fromkeys(("CapEff", "CapPrm", "CapBnd", "CapInh"), "0" * 16)
            expected |= {"NoNewPrivs": "1", "Seccomp": "2", "vsock": "EAFNOSUPPORT", "init": "lives", "tools": "0"}
            denied = ("unshare-user", "unshare-mount", "io_uring", "mount", "ptrace", "keyctl", "bpf")
            expected |= dict.fromkeys(denied, "EPERM") | dict.fromkeys(("mem", "environ", "maps", "fd"), "EACCES")
            assert told == expected
            assert (await sandbox.exec("true")).ok

    run(main())


WRITABLE = """
import os
found = []
for top, folders, files in os.walk("/"):
    if top == "/":
        folders[:] = [name for name in folders if name not in ("proc", "sys")]
    try:
        open(f"{top}/.probe", "x").close()
        os.unlink(f"{top}/.probe")
        found.append(top)
        folders.clear()
    except OSError:
        pass
print(*sorted(found))
"""


@pytest.mark.slow
def test_the_workspace_is_all_that_can_be_written(make_docker, boxed, run, tmp_path):
    (tmp_path / "file").write_text("x")
    world = boxed.model_copy(
        update={"trees": (Tree(source=str(tmp_path), target="/opt/tree"),), "files": {"/srv/deep/given": "x"}}
    )

    async def main():
        async with make_docker(warm=0) as backend, await backend.create(world) as sandbox:
            result = await sandbox.exec(["python3", "-c", WRITABLE])
            places = "/dev/shm /home/agent /opt/tree /srv/deep /tmp /var/tmp /work"
            assert result.stdout.decode().split() == places.split(), result
            await sandbox.exec(["sh", "-c", "echo y > /opt/tree/file; echo z > /srv/deep/new; echo s > /dev/shm/s"])
            assert await sandbox.diff() == {"/opt/tree/file": b"y\n", "/srv/deep/new": b"z\n", "/tmp/s": b"s\n"}

    run(main())


LEAVE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
assert libc.shmget(4242, 4096, 0o1600) >= 0 and libc.msgget(4242, 0o1600) >= 0
assert libc.semget(4242, 1, 0o1600) >= 0
open("/dev/shm/left", "w"), open("/tmp/left", "w"), open(os.path.expanduser("~/left"), "w")
bound, tell = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            import socket, time
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(chr(0) + f"left{os.getpid()}")
                os.write(tell, b"x")
                time.sleep(4242)
        os._exit(0)
    os.read(bound, 1)
os._exit(0)
"""
LOOK = """
echo ipc $(cat /proc/sysvipc/shm /proc/sysvipc/msg /proc/sysvipc/sem | grep -c ' 4242 ')
echo files $(ls -A /dev/shm /tmp ~ | grep -c left)
echo sockets $(grep -c @left /proc/net/unix)
echo processes $(cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -c sock.b[i]nd)
"""


@pytest.mark.slow
def test_a_container_that_is_used_again_remembers_nothing(make_docker, boxed, run):
    async def main():
        async with make_docker(warm=0) as backend:
            one = await backend.create(boxed)
            container = backend._containers[one.id].name
            assert (await one.exec(["python3", "-c", LEAVE])).ok
            assert (await one.exec(LOOK)).stdout.split()[1::2] == [b"3", b"3", b"3", b"3"], "it is all there before"
            snapshot = await one.snapshot()
            assert snapshot.partial
            await one.close()
            async with await backend.create(boxed) as two:
                assert backend._containers[two.id].name == container, "the same container"
                assert (await two.exec(LOOK)).stdout.split()[1::2] == [b"0"] * 4

    run(main())


@pytest.mark.slow
def test_a_fork_shares_no_shared_memory_and_no_process_with_its_parent(make_docker, boxed, run):
    async def main():
        async with make_docker() as backend, await backend.create(boxed) as parent:
            await parent.exec("echo kept > /dev/shm/file")
            async with await parent.fork() as child:
                await child.exec("nohup sleep 4242 >/dev/null 2>&1 & echo child > /dev/shm/file")
                result = await parent.exec("cat /dev/shm/file; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
                assert result.stdout.startswith(b"kept\n")
                assert b"sleep 4242" not in result.stdout
                assert backend._containers[parent.id].name != backend._containers[child.id].name

    run(main())


def test_the_engines_filter_says_what_our_table_says():
    rules = json.loads(profile())["syscalls"]
    refused = {name for rule in rules if "args" not in rule for name in rule["names"]}
    assert refused == set(DENIED) - {"unshare"} | {"clone3"}
    families = [rule["args"][0]["value"] for rule in rules if rule["names"] == ["socket"]]
    assert not {1, 2, 10} & set(families)
    assert {17, 3, 0} & set(families) == {3, 0}
    assert any(
        rule["args"][0]["op"] == "SCMP_CMP_GT" and rule["args"][0]["value"] == 16
        for rule in rules
        if "args" in rule
    )


# -- limits --------------------------------------------------------------------------------------------------------

HOG = "import sys; block = bytearray(); [block.extend(bytes(1 << 24)) for _ in range(64)]; print('survived')"


@pytest.mark.slow
def test_memory_processes_disk_and_processor_are_bounded(make_docker, boxed, run):
    bounded = boxed.model_copy(update={"resources": boxed.resources.model_copy(update={"cpus": 0.25})})

    async def main():
        async with make_docker(warm=0) as backend, await backend.create(bounded) as sandbox:
            result = await sandbox.exec(["timeout", "1", "sh", "-c", "while :; do :; done"])
            assert result.cpu_s is not None
            assert result.cpu_s < 0.6, f"a quarter of a CPU, not {result.cpu_s} s in 1 s"
            await sandbox.exec("kept=1")
            result = await sandbox.exec(["python3", "-c", HOG])
            assert b"survived" not in result.stdout
            assert result.out_of_memory, f"the result says why: {result}"
            assert result.exit_code == -9
            result = await sandbox.exec("echo $kept")
            assert (result.stdout, result.out_of_memory) == (b"1\n", False), "the sandbox and its shell live on"
            result = await sandbox.exec("bomb() { bomb | bomb & }; bomb; sleep 60", timeout_s=1.0)
            assert result.timed_out
            result = await sandbox.exec("ls /proc | grep -c '^[0-9]'")
            assert int(result.stdout) < 8, "nothing of it is left"
            assert not (await sandbox.exec("head -c 100000000 /dev/zero > big")).ok, "64 MiB of disk"

    run(main())


FILL = """
import os, signal, time
made = []
try:
    while len(made) < 200:
        made.append(os.fork())
        if made[-1] == 0:
            time.sleep(20)
            os._exit(0)
except BlockingIOError:
    pass
print(1 + len(made))
for pid in made:
    os.kill(pid, signal.SIGKILL)
"""


@pytest.mark.slow
def test_the_processes_that_a_world_asks_for_are_all_there_are_and_all_the_sandbox_s_own(make_docker, boxed, run):
    """Whoever waits in the container for the next life, and whatever the last life's end left."""
    few = boxed.model_copy(update={"resources": boxed.resources.model_copy(update={"pids": 8})})

    async def room(sandbox, patience_s=5.0):
        """What can be there at once: never too many, and all of it once those of before are gone."""
        end, most = time.monotonic() + patience_s, 0
        while most != 8 and time.monotonic() < end:
            result = await sandbox.exec(["python3", "-c", FILL])
            most = int(result.stdout or b"0")  # nothing: not even it had room
            assert most <= 8, result
        return most

    async def main():
        async with make_docker(warm=1) as backend:
            async with await backend.create(few) as first:
                container = backend._containers[first.id]
                assert await room(first) == 8, "right after the start"
                await asyncio.sleep(0.3)
                assert (await first.exec(["python3", "-c", FILL])).stdout == b"8\n", "and when another waits"
                async with await first.fork() as fork:
                    assert [await room(one) for one in (first, fork)] == [8, 8]
                assert backend._containers[first.id] is container
                for _ in range(3):
                    await first.snapshot()
                    assert await room(first) == 8, "one life after another"
            async with await backend.create(few) as second:
                assert await room(second) == 8, "in a container that is used again"

    run(main())


@pytest.mark.slow
def test_what_devices_carry_is_bounded_where_a_world_asks_for_it(make_docker, boxed, run):
    bounds = boxed.resources.model_copy(update={"io_bytes_s": 1 << 20})

    async def main():
        async with make_docker(warm=0) as backend:
            sandbox = await backend.create(boxed.model_copy(update={"resources": bounds}))
            api = docker.APIClient(backend.address, version="auto")
            host = api.inspect_container(backend._containers[sandbox.id].name)["HostConfig"]
            api.close()
            rates = {device["Rate"] for device in host["BlkioDeviceReadBps"] + host["BlkioDeviceWriteBps"]}
            assert rates == {1 << 20}
            assert (await sandbox.exec("true")).ok
            use = await backend.memory([sandbox.id, "no such sandbox"])
            assert use.used.keys() == {sandbox.id}
            assert 1 << 18 < use.used[sandbox.id] < 64 << 20

    run(main())


# -- worlds and engines that do not fit ----------------------------------------------------------------------------


@pytest.mark.slow
def test_worlds_that_no_container_can_have_are_refused(make_docker, boxed, run):
    wrong = [
        ({"image": "host"}, "envgym images build"),
        ({"image": "unknown-name"}, "not known here"),
        ({"workdir": "/"}, "'/'"),
        ({"workdir": "/proc/x"}, "/proc"),
        ({"files": {"/envgym/line/s": ""}}, "/envgym"),
        ({"files": {"/top": ""}}, "'/'"),
    ]

    async def main():
        async with make_docker(warm=0) as backend:
            for update, says in wrong:
                with pytest.raises(ValueError, match=says):
                    await backend.create(boxed.model_copy(update=update))
            with pytest.raises(ValueError, match="warm"):
                make_docker(warm=-1)
        async with make_docker(runtime="no-such") as backend:
            with pytest.raises(ValueError, match=r"runtime 'no-such' is none of the engine's"):
                await backend.create(boxed)

    run(main())


def test_a_report_says_what_is_missing_and_what_to_do(monkeypatch, tmp_path, base_image):
    report = DockerBackend(address=f"unix://{tmp_path}/none").report()
    assert not report.works
    assert "no engine answers" in report.missing[0]
    assert "DOCKER_HOST" in report.fix[0]
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path))
    report = DockerBackend().report()
    assert report.fix == ("envgym images build base",)


DENIED_USER = """
import os
os.setgid(4242); os.setuid(4242)
from envgym_sandboxes.docker_engine.client import Client
from envgym.errors import SandboxUnavailable
client = Client(None, most_at_once=1)
try:
    client.facts()
except SandboxUnavailable as error:
    print(error)
"""


def test_a_user_who_may_not_use_the_engine_is_told_about_its_group(make_docker):
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody who may not")
    code = f"import sys; sys.path[:] = {sys.path!r}\n" + DENIED_USER
    code = "import docker, requests, envgym.task, envgym_sandboxes.docker_engine.client\n" + code
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "usermod -aG docker" in told.stdout


# -- death ---------------------------------------------------------------------------------------------------------

OWNER_PROGRAM = """
import asyncio, sys
from envgym.task import World
from envgym_sandboxes.docker_engine.backend import DockerBackend
from envgym_sandboxes.docker_engine.client import labels

async def main():
    backend = DockerBackend(root=sys.argv[1], warm=1)
    sandbox = await backend.create(World(image="base"))
    await sandbox.exec("setsid sleep 4242 & echo x > f")
    fork = await sandbox.fork()
    await sandbox.snapshot()
    client, owner = backend._client, backend._processes.state.name
    image, marks = backend._containers[sandbox.id].kind.image, {"labels": labels(owner)}
    client.create(f"envgym-{owner}-created", image, ["true"], marks, {"network_mode": "none"})
    print("ready", flush=True)
    await fork.exec(["sleep", "4242"])

asyncio.run(main())
"""


@pytest.mark.slow
def test_m_kill_9_of_the_owner_leaves_no_container(make_docker, state, containers):
    command = [sys.executable, "-c", OWNER_PROGRAM, str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        made = containers(owner.pid)
        assert len(made) >= 3, made
        assert make_docker().reap() == [], "a living owner's are its own"
        owner.send_signal(signal.SIGKILL)
    removed = make_docker().reap()
    assert {f"container {name.lstrip('/')}" for name in made} <= set(removed)
    assert containers(owner.pid) == []
    assert any("directory" in line for line in removed)


TREE = """
import asyncio, sys
from envgym.task import World
from envgym_sandboxes.docker_engine.backend import DockerBackend

async def one(backend):
    async with await backend.create(World(image="base")) as sandbox:
        await sandbox.exec("setsid sleep 4242 & echo x > f; sleep 0.01")
        async with await sandbox.fork() as fork:
            await backend.release(await fork.snapshot())

async def main():
    backend = DockerBackend(root=sys.argv[1], warm=1)
    print("begun", flush=True)
    while True:
        await asyncio.gather(*(one(backend) for _ in range(3)))

asyncio.run(main())
"""


def contained(uid: int) -> set[int]:
    """The living processes of a user in containers; other tests' sandboxes are the same user's."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if "/docker/" not in status.with_name("cgroup").read_text():
                continue
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            if int(fields["Uid"].split()[0]) == uid and fields["State"][0] not in "ZX":
                found.add(int(status.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_m_kill_9_of_the_owner_at_any_time_leaves_nothing(make_docker, state, containers):
    """Between being named and being created, between created and started, while entered, while removed."""
    before = contained(HOST_UID)
    for number in range(12):
        command = [sys.executable, "-c", TREE, str(state)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"begun\n"
            with contextlib.suppress(subprocess.TimeoutExpired):
                owner.wait(0.15 * number)
            owner.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 20  # an engine finishes what it was asked for, also for one who is gone
        make_docker().reap()
        while (left := containers(owner.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
            make_docker().reap()
        assert left == []
    assert list(state.iterdir()) == []
    while contained(HOST_UID) - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert contained(HOST_UID) - before == set()
    assert str(state) not in Path("/proc/self/mounts").read_text()


def test_containers_of_another_host_are_left_alone(make_docker, base_image, run):
    client = Client(None, most_at_once=1)
    here = os.stat("/proc/self/ns/pid").st_ino
    owner = f"4194303-1-{here}-0"  # no such process
    assert states.is_dead(owner)
    name = f"envgym-test-{states.new_name()}"

    async def image():
        return await client.image(base_image)

    inside = run(image())
    marks = labels(owner) | {"envgym.host": "another"}
    client.create(name, inside, ["true"], {"labels": marks}, {"network_mode": "none"})
    try:
        assert make_docker().reap() == [], "process ids of another host mean nothing here"
    finally:
        client.remove(name)
        client.close()


@pytest.mark.slow
def test_a_killed_container_is_a_dead_sandbox_and_others_live(make_docker, boxed, run):
    async def main():
        async with make_docker(warm=0) as backend, await backend.create(boxed) as other:
            sandbox = await backend.create(boxed)
            running = asyncio.ensure_future(sandbox.exec(["sleep", "4242"]))
            await sandbox.exec(["true"])
            await backend._client.call(backend._client.remove, backend._containers[sandbox.id].name)
            with pytest.raises(SandboxDied, match="is gone"):
                await running
            for call in (sandbox.exec("true"), sandbox.read("x"), sandbox.fork(), sandbox.digest()):
                with pytest.raises(SandboxDied):
                    await call
            await sandbox.close()
            assert (await other.exec("true")).ok
            async with await other.fork() as fork:
                assert (await fork.exec("true")).ok

    run(main())


@pytest.mark.slow
def test_many_starts_at_once_are_throttled_and_whole(make_docker, boxed, run):
    async def main():
        async with make_docker(warm=0) as backend:
            made = await asyncio.gather(*(backend.create(boxed) for _ in range(6)))
            results = await asyncio.gather(*(sandbox.exec("echo $$ > f; cat given.txt") for sandbox in made))
            assert [result.stdout for result in results] == [b"given\n"] * 6
            await asyncio.gather(*(sandbox.close() for sandbox in made))

    run(main())


@pytest.mark.slow
def test_a_create_that_is_cancelled_leaves_nothing(make_docker, boxed, run):
    async def main():
        async with make_docker(warm=0) as backend:
            for delay in (0.0, 0.05, 0.2):
                creating = asyncio.ensure_future(backend.create(boxed))
                await asyncio.wait([creating], timeout=delay)
                creating.cancel()
                await asyncio.wait([creating])
                if not creating.cancelled():  # it was quicker
                    await creating.result().close()
            assert backend._containers == {}
            async with await backend.create(boxed) as sandbox:
                assert (await sandbox.exec("true")).ok

    run(main())


def private_engine(folder: Path, command: str) -> str:
    script = Path(__file__).resolve().parents[2] / "scripts/dockerd.sh"
    environment = os.environ | {"ENVGYM_DOCKERD": str(folder)}
    done = subprocess.run(
        [str(script), command], env=environment, capture_output=True, text=True, check=True, timeout=100
    )
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_engine_that_ends_is_told_and_a_new_backend_works_with_the_next(make_docker, boxed, state):
    if os.geteuid() != 0:
        pytest.skip("starting an engine needs root")
    folder = state / "engine"
    address = private_engine(folder, "start")

    async def main():
        backend = make_docker(address=address, warm=0)
        async with backend:
            sandbox = await backend.create(boxed)
            snapshot = await sandbox.snapshot()
            private_engine(folder, "stop")
            with pytest.raises(SandboxDied):
                await sandbox.exec("true")
            for call in (backend.restore(snapshot), backend.create(boxed)):
                with pytest.raises((SandboxUnavailable, InfrastructureFailure, SandboxDied)):
                    await call
            assert not make_docker(address=address).report().works
        private_engine(folder, "start")
        async with make_docker(address=address, warm=0) as again, await again.create(boxed) as sandbox:
            assert (await sandbox.exec("true")).ok
        client = Client(address, most_at_once=1)
        assert client.reap() == []
        client.close()

    try:
        asyncio.run(asyncio.wait_for(main(), 200))
    finally:
        private_engine(folder, "stop")
        subprocess.run(["rm", "-rf", str(folder)], check=True)
