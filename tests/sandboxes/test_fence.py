"""Landlock inside namespaces: what it adds to the mounts' own walls, and that it is in nobody's way."""

import os
import socket

import pytest
from envgym_sandboxes import fence, landlock
from envgym_sandboxes.world import HOME, writable_places

from envgym.task import Tree, World

pytestmark = [pytest.mark.timeout(60)]

BINDS = ["/usr", "/opt", "/root/.pyenv/versions/3.11.7", "/mnt"]


@pytest.fixture(autouse=True)
def kernel():
    if landlock.abi() < 2:
        pytest.skip(landlock.absence() or "this kernel's Landlock knows no renames between directories")


def test_the_writable_places_of_a_host_world_are_its_own_and_hold_nothing_of_the_host():
    world = World(files={"/root/notes.txt": "", "/data/a/b": "", "/work/x": ""})
    places = writable_places(world, BINDS)
    assert {"/work", "/home", "/tmp", "/var", "/data", "/root/notes.txt"} <= set(places)
    assert not {"/", "/root", "/mnt", "/usr", "/opt"} & set(places)
    assert all(not f"{bind}/".startswith(f"{place}/") for bind in BINDS for place in places)
    assert {HOME, "/root/deep/work"} & set(writable_places(World(workdir="/root/deep/work"), BINDS))
    tree = World(trees=(Tree(source="/tmp", target="/testbed"),))
    assert "/testbed" in writable_places(tree, BINDS)
    assert writable_places(World(workdir="/"), BINDS) == writable_places(World(image="/rootfs"), []) == ["/"]


WRITES = """
import os
def attempt(what, *given):
    try:
        what(*given)
        return "done"
    except OSError as error:
        return error.strerror
for path in ("/work", "/tmp", "/home/agent", "/var/tmp"):
    print(path, attempt(os.mkdir, path + "/made"))
    open(path + "/file", "w").close()
    os.rename(path + "/file", path + "/made/file")
    os.rename(path + "/made/file", "/work/from" + path.replace("/", "-"))
print("/", attempt(os.mkdir, "/made"))
print("/usr", attempt(open, "/usr/made", "w"))
open("/dev/null", "w").write("x")
open("/proc/self/oom_score_adj", "w").write("900")
print("pts", os.isatty(os.openpty()[1]))
"""


def test_a_world_is_written_to_and_renamed_in_and_nothing_else_is(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox, await sandbox.fork() as fork:
            for place in (sandbox, fork):
                result = await place.exec(["python3", "-c", WRITES])
                told = dict(line.split(" ", 1) for line in result.stdout.decode().splitlines())
                expected = dict.fromkeys(("/work", "/tmp", "/home/agent", "/var/tmp"), "done")
                expected |= {"/": "Permission denied", "pts": "True"}
                assert {name: told.get(name) for name in expected} == expected, result.text
                assert told["/usr"] in ("Permission denied", "Read-only file system"), result.text

    run(main())


def test_a_mount_that_were_writable_would_still_not_be_written_to(make, run, world, state):
    """The wall that this adds: the read-only mount taken away, by whom it was made."""
    script = f"""
import os, sys
from envgym_sandboxes import fence
os.chdir({str(state)!r})
for name in ("own", "hosts"):
    os.mkdir(name)
fence.enter([{str(state)!r} + "/own"])
open("own/file", "w").close()
for path in ("hosts/file", "/dev/shm/not-there"):
    try:
        open(path, "w")
        print("written", path)
    except PermissionError:
        print("denied")
try:
    os.mknod("own/zero", 0o20666, os.makedev(1, 5))
    print("made")
except PermissionError:
    print("denied")
"""
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)
    assert done.stdout.split() == ["denied"] * 3, done


def test_abstract_sockets_of_the_host_are_out_of_reach_even_on_its_network(make, run, world):
    if landlock.abi() < 6:
        pytest.skip("this kernel's Landlock knows no scopes")
    name = f"\0envgym-test-{os.getpid()}"
    connect = (
        "import socket; s = socket.socket(socket.AF_UNIX)\n"
        "try:\n s.connect({name!r}); print('connected')\n"
        "except OSError as error: print(type(error).__name__)"
    )
    inside = (
        "import socket; s = socket.socket(socket.AF_UNIX); s.bind('\\0inside'); s.listen()\n"
        "c = socket.socket(socket.AF_UNIX); c.connect('\\0inside'); print('connected')"
    )

    async def main():
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
            server.listen()
            shared = world.model_copy(update={"network": True})
            async with make() as backend, await backend.create(shared) as sandbox:
                result = await sandbox.exec(["python3", "-c", connect.format(name=name)])
                assert result.stdout == b"PermissionError\n", result
                result = await sandbox.exec(["python3", "-c", inside])
                assert result.stdout == b"connected\n", f"its own are not: {result}"

    run(main())


def test_servers_warm_interpreters_and_restored_states_go_on_behind_the_fence(make, run, world):
    serve = (
        "import socket, threading; s = socket.create_server(('127.0.0.1', 0))\n"
        "threading.Thread(target=lambda: s.accept()[0].sendall(b'hello')).start()\n"
        "print(socket.create_connection(s.getsockname()).recv(9).decode())"
    )

    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            for python in ("python3", "@python"):
                assert (await sandbox.exec([python, "-c", serve])).stdout == b"hello\n"
            await sandbox.exec("mkdir -p a && echo one > a/f && kill -0 1")
            snapshot = await sandbox.snapshot()
            async with await backend.restore(snapshot) as again:
                result = await again.exec("mv a b && echo two >> b/f && cat b/f && rm -r b")
                assert result.stdout == b"one\ntwo\n", result
            await backend.release(snapshot)

    run(main())


def test_without_landlock_nothing_is_restricted(monkeypatch):
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    fence.enter(["/work"])
    assert os.access("/", os.R_OK)
