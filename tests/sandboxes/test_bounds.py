"""Bounds of a whole sandbox where no group keeps them: exceeded for a moment, noticed, and enforced."""

import asyncio
import contextlib
import os
import time
from pathlib import Path

import pytest
from envgym_sandboxes import landlock
from envgym_sandboxes.cgroups import controllers
from envgym_sandboxes.landlock_backend import LandlockBackend
from envgym_sandboxes.state import remove_cgroup
from envgym_sandboxes.tree import live_processes

pytestmark = [pytest.mark.timeout(120)]

if not landlock.abi():
    pytest.skip(landlock.absence(), allow_module_level=True)

MIB = 1 << 20


class Ungrouped(LandlockBackend):
    """As for a user who may make no control groups."""

    grouped = False


@pytest.fixture
def make_ungrouped(state):
    return lambda: Ungrouped(root=state)


@pytest.fixture
def small(world):
    resources = world.resources.model_copy(update={"memory_bytes": 200 * MIB, "pids": 16, "disk_bytes": 20 * MIB})
    return world.model_copy(update={"resources": resources})


async def fill(sandbox):
    for number in range(9):
        await sandbox.write(f"w{number}", bytes(2_000_000))


HOGS = {
    "four processes": (  # which of them is killed is not said: who has children ends with the first of them
        "import os, sys, time\nchildren = [pid for pid in [os.fork(), os.fork()] if pid]\n"
        "x = bytearray(80 << 20); x[::4096] = b'1' * 20480\n"
        "try: os.wait()\nexcept ChildProcessError: time.sleep(4245)\nsys.exit(1)"
    ),
    "files in memory": (
        "import os, time\nfds = [os.memfd_create('x') for _ in range(20)]\n"
        "for fd in fds: os.write(fd, bytes(15 << 20))\ntime.sleep(4245)"
    ),
    "shared memory": "import mmap, time\nm = mmap.mmap(-1, 300 << 20)\nm.write(bytes(300 << 20))\ntime.sleep(4245)",
}
"""They hold on to it for an hour: however seldom a busy machine looks, it is long before they end by themselves."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOGS)
def test_memory_is_bounded_for_all_processes_together(make_ungrouped, run, small, kind):
    async def main():
        async with make_ungrouped() as backend, await backend.create(small) as sandbox:
            await sandbox.exec("kept=1")
            result = await sandbox.exec(["python3", "-S", "-c", HOGS[kind]], timeout_s=50)
            assert not result.timed_out, f"the bound ends it, not the deadline: {result}"
            assert result.exit_code in (-9, 1), f"killed, or told that there is no memory: {result}"
            assert result.out_of_memory or b"MemoryError" in result.stderr or b"Cannot allocate" in result.stderr
            result = await sandbox.exec("echo $kept")
            assert (result.stdout, result.out_of_memory) == (b"1\n", False), "the shell lives, and is not blamed"

    run(main())


@pytest.mark.slow
def test_memory_that_forks_share_counts_once(make_ungrouped, run, small):
    code = "import os, time\nx = bytearray(100 << 20); x[::4096] = b'1' * 25600\nfor _ in range(3): os.fork()\n"
    code += "time.sleep(1); print('ok')"

    async def main():
        async with make_ungrouped() as backend, await backend.create(small) as sandbox:
            result = await sandbox.exec(["python3", "-S", "-c", code])
            assert result.stdout.count(b"ok") >= 1, result
            assert not result.out_of_memory

    run(main())


BOMBS = {
    "doubling": "bomb() { bomb | bomb & }; bomb; sleep 50",
    "daemons": "while :; do (setsid sleep 50 &) ; done",
    "threads": (
        "python3 -S -c 'import threading, time\n"
        "for _ in range(99): threading.Thread(target=time.sleep, args=(50,)).start()'"
    ),
}


@pytest.fixture
def fenced():
    """A group around this process and all it starts, so that a bound that fails here cannot hurt the machine."""
    if "pids" not in controllers():
        pytest.skip("no control group can be made that would keep a bomb from the rest of this machine")
    parent = Path(controllers()["pids"])
    group = parent / f"envgym-fence-{os.getpid()}"
    group.mkdir()
    (group / "pids.max").write_text("400")
    (group / "cgroup.procs").write_text(str(os.getpid()))
    yield
    (parent / "cgroup.procs").write_text(str(os.getpid()))
    deadline = time.monotonic() + 20
    while not remove_cgroup(group) and time.monotonic() < deadline:  # kills what is still in it
        time.sleep(0.01)
    assert not group.exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOMBS)
def test_processes_and_threads_are_bounded_and_end_at_a_deadline(fenced, make_ungrouped, run, small, kind):
    async def main():
        async with make_ungrouped() as backend, await backend.create(small) as sandbox:
            running = asyncio.ensure_future(sandbox.exec(BOMBS[kind], timeout_s=2))
            most = 0
            while not running.done():  # nothing tells how many processes there are
                most = max(most, await asyncio.to_thread(tasks_below, backend))
                await asyncio.sleep(0.05)
            assert 8 < most <= 20, f"16 at a time, and a few that came and went while they were counted: {most}"
            result = await running
            assert result.timed_out or b"can't start new thread" in result.stderr, result
            assert (await sandbox.exec("true")).ok, "there is room again"
            assert await asyncio.to_thread(tasks_below, backend) == 1, "nothing of it is left but the shell"

    run(main())


def tasks_below(backend):
    """The tasks of the one sandbox that there is, but for its first process."""
    table = live_processes(backend._processes.first.pid)
    init = next(pid for pid, parent in table.items() if parent == backend._processes.first.pid)
    found = 0
    for pid in live_processes(init):
        with contextlib.suppress(OSError):
            found += len(os.listdir(f"/proc/{pid}/task"))
    return found


def test_what_is_written_in_all_is_bounded_and_can_then_be_removed(make_ungrouped, run, small):
    async def main():
        async with make_ungrouped() as backend, await backend.create(small) as sandbox:
            filling = "for i in $(seq 50); do head -c 2000000 /dev/zero > f$i; done; sleep 0.5; echo done"
            result = await sandbox.exec(filling)
            assert not result.ok
            assert b"Resources.disk_bytes" in result.stderr, result
            size = int((await sandbox.exec(["du", "-sk", "."])).stdout.split()[0]) >> 10
            for command in ("echo x > new", ["sh", "-c", "echo x >> f1"], ["mkdir", "d"], ["ln", "f1", "f99"]):
                result = await sandbox.exec(command)
                assert not result.ok, f"nothing can be added: {result}"
            with pytest.raises(OSError, match=r"Resources\.disk_bytes"):
                await sandbox.write("more", b"x")
            assert int((await sandbox.exec(["du", "-sk", "."])).stdout.split()[0]) >> 10 <= size
            assert len(await sandbox.read("f1")) == 2_000_000, "what there is can be read"
            assert (await sandbox.exec(["sh", "-c", "rm f*"])).ok, "and removed"
            result = await sandbox.exec("echo x > new && cat new")
            assert result.stdout == b"x\n", f"then there is room again: {result}"
            await sandbox.write("more", b"x")

    run(main())


@pytest.mark.parametrize("times", range(3))
def test_a_quick_command_that_writes_too_much_is_told_at_its_end(make_ungrouped, run, small, times):
    async def main():
        async with make_ungrouped() as backend, await backend.create(small) as sandbox:
            await sandbox.exec("head -c 15000000 /dev/zero > big")
            async with await sandbox.fork() as fork:
                result = await fork.exec("head -c 15000000 /dev/zero > more")
                assert not result.ok, f"what is below a fork counts: {result}"
                assert b"Resources.disk_bytes" in result.stderr
                await fork.exec(["rm", "more"])
                assert (await fork.exec("head -c 1000000 /dev/zero > more")).ok
            with pytest.raises(OSError, match=r"Resources\.disk_bytes"):
                await fill(sandbox)

    run(main())


MANY = """
import os
for directory in range(300):
    os.mkdir(f"d{directory}")
    for number in range(1000):
        os.close(os.open(f"d{directory}/{number}", os.O_CREAT))
"""


@pytest.mark.slow
def test_files_that_hold_nothing_are_noticed_by_their_number(make_ungrouped, run, small):
    async def main():
        async with make_ungrouped() as backend, await backend.create(small) as sandbox:
            result = await sandbox.exec(["python3", "-S", "-c", MANY], timeout_s=100)
            assert not result.ok, result
            assert b"Resources.inodes" in result.stderr, result
            assert not (await sandbox.exec("echo x > y")).ok
            assert (await sandbox.exec("rm -r d*", timeout_s=100)).ok
            assert (await sandbox.exec("echo x > y")).ok

    run(main())


def test_deleted_files_that_are_held_open_count(make_ungrouped, run, small):
    hiding = 'for n in 7 8; do eval "exec $n> f"; rm f; head -c 19000000 /dev/zero >&$n; done; sleep 50'

    async def main():
        async with make_ungrouped() as backend, await backend.create(small) as sandbox:
            result = await sandbox.exec(["bash", "-c", hiding], timeout_s=20)
            assert not result.timed_out
            assert result.exit_code == -9, result
            assert (await sandbox.exec("echo x > y")).ok, "what nobody holds any more is gone"

    run(main())


@pytest.mark.slow
def test_what_is_written_too_deep_to_be_counted_is_bounded_too(make_ungrouped, run, small):
    code = "import os\nfor _ in range(1100): os.mkdir('d'); os.chdir('d')\nfor n in range(9): "
    code += "open(str(n), 'wb').write(bytes(4 << 20))"

    async def main():
        async with make_ungrouped() as backend, await backend.create(small) as sandbox:
            await sandbox.exec(["python3", "-S", "-c", code])
            result = await sandbox.exec("echo x > y")
            assert not result.ok, result
            assert (await sandbox.exec(["rm", "-rf", "d"])).ok
            assert (await sandbox.exec("echo x > y")).ok

    run(main())


def test_a_warm_interpreter_is_counted_like_any_other(make_ungrouped, run, small):
    code = (
        "import subprocess, threading; t = threading.Thread(target=print, args=('thread',)); t.start(); t.join(); "
    )
    code += "print(subprocess.run(['echo', 'child'], capture_output=True).stdout)"

    async def main():
        async with make_ungrouped() as backend, await backend.create(small) as sandbox:
            for _ in range(2):
                result = await sandbox.exec(["@python", "-c", code])
                assert result.stdout == b"thread\nb'child\\n'\n", result

    run(main())
