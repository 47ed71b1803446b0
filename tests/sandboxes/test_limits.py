from signal import SIGKILL

import pytest
from envgym_sandboxes.cgroups import controllers

from envgym.limits import Resources
from envgym.task import World

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(60)]

HOG = "import sys; block = bytearray(); [block.extend(bytes(1 << 24)) for _ in range(64)]; print('survived')"


@pytest.mark.slow
def test_a_command_that_takes_too_much_memory_dies_alone(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            await sandbox.exec("kept=1")
            for command in (["python3", "-c", HOG], f'python3 -c "{HOG}"', ["@python", "-c", HOG]):
                result = await sandbox.exec(command)
                assert b"survived" not in result.stdout
                assert not result.ok
                if "memory" in controllers():
                    assert result.out_of_memory, f"the result says why: {result}"
                    assert result.exit_code == -9
            result = await sandbox.exec("echo $kept")
            assert result.stdout == b"1\n", "the sandbox and its shell live on"
            assert not result.out_of_memory, "one command's death is not the next one's"

    run(main())


@pytest.mark.slow
def test_a_fork_bomb_is_bounded_and_ends_at_its_deadline(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            result = await sandbox.exec("bomb() { bomb | bomb & }; bomb; sleep 60", timeout_s=1.0)
            assert result.timed_out
            result = await sandbox.exec("ls /proc | grep -c '^[0-9]'")
            assert int(result.stdout) < 8, "nothing of it is left"

    run(main())


def test_the_disk_is_bounded_also_across_forks(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            result = await sandbox.exec("head -c 100000000 /dev/zero > big")
            assert not result.ok, "100 MB do not fit into 64 MiB"
            await sandbox.exec("head -c 40000000 /dev/zero > big")
            async with await sandbox.fork() as fork:
                result = await fork.exec("head -c 40000000 /dev/zero > more")
                assert not result.ok, "what is frozen below counts"
                assert (await fork.exec("head -c 10000000 /dev/zero > more")).ok

    run(main())


@pytest.mark.slow
def test_cpu_shares_are_refused_or_kept(make, run, world):
    async def main():
        bounded = world.model_copy(update={"resources": world.resources.model_copy(update={"cpus": 0.25})})
        async with make() as backend:
            if "cpu" not in controllers():
                with pytest.raises(ValueError, match="cpus"):
                    await backend.create(bounded)
                return
            async with await backend.create(bounded) as sandbox:
                result = await sandbox.exec(["timeout", "1", "sh", "-c", "while :; do :; done"])
                assert result.cpu_s is not None
                assert result.cpu_s < 0.6, f"a quarter of a CPU, not {result.cpu_s} s in 1 s"

    run(main())


@pytest.mark.parametrize("kind", ["memory", "pids", "cpu", "io"])
def test_a_report_says_what_is_bounded(make, kind):
    report = make().report()
    said = report.isolates if kind in controllers() else report.missing
    assert any(line.startswith(kind) for line in said), report


def test_commands_tell_their_use(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            result = await sandbox.exec(["python3", "-c", "x = bytearray(50_000_000); sum(range(3_000_000))"])
            assert result.peak_bytes is not None
            assert result.peak_bytes > 50_000_000
            assert result.cpu_s is not None
            assert 0 < result.cpu_s <= result.wall_s * 2

    run(main())


WIDEST = {"memory_bytes": 1 << 50, "pids": (1 << 22) - 64, "disk_bytes": 1 << 50, "command_s": 1e300}
NARROWEST = {"memory_bytes": 16 << 20, "pids": 8, "disk_bytes": 1 << 20, "file_bytes": 1 << 16}


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [WIDEST, NARROWEST], ids=["widest", "narrowest"])
def test_whatever_bounds_are_allowed_the_kernel_takes_and_a_command_can_keep(make, make_landlock, run, bounds):
    cpus = {"cpus": 8192.0 if bounds is WIDEST else 0.01} if "cpu" in controllers() else {}
    world = World(resources=Resources(**bounds, **cpus))

    async def main():
        for made in (make, make_landlock):
            async with made() as backend, await backend.create(world) as sandbox:
                assert (await sandbox.exec("echo a | cat")).stdout == b"a\n"
                assert (await sandbox.exec(["echo", "b"])).stdout == b"b\n"
                await sandbox.write("file", b"c")
                assert await sandbox.read("file") == b"c"

    run(main())


FILL = """
import os, time
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError:
    print(made, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["make", "make_landlock"])
def test_where_no_process_has_room_a_command_says_so_and_the_sandbox_goes_on(request, run, kind):
    make = request.getfixturevalue(kind)

    async def main():
        world = World(resources=Resources(pids=8))
        async with make() as backend, await backend.create(world) as sandbox:
            filling = await sandbox.start(["python3", "-c", FILL])
            made = (await sandbox.poll(filling, wait_s=20)).stdout
            assert made == b"7\n", f"eight processes are allowed, the one that made them is one: {made}"
            for _ in range(300):  # more often than there are descriptors
                result = await sandbox.exec("echo works")
                assert (result.exit_code, result.stderr) == (126, b"bash: Resource temporarily unavailable\n")
            result = await sandbox.exec(["true"])
            assert (result.exit_code, result.stderr) == (126, b"true: Resource temporarily unavailable\n")
            await sandbox.signal(filling, SIGKILL)
            while not (result := await sandbox.exec("echo works")).ok:
                assert result.exit_code == 126, result
            assert result.stdout == b"works\n"

    run(main())
