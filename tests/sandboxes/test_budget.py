"""Processor time and deadlines: who is charged, who is killed, and that nothing slips away."""

import os
import stat
from pathlib import Path

import pytest
from envgym_sandboxes.cgroups import controllers, devices

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(120)]

BURN = "while :; do :; done"
IGNORING = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever ends is waited for by nobody, and counted nowhere
while True:
    if os.fork() == 0:
        until = time.process_time() + 0.01
        while time.process_time() < until:
            pass
        os._exit(0)
    time.sleep(0.012)
"""
BURNERS = {
    "argv": ["sh", "-c", BURN],
    "shell": BURN,
    "subshell": f"({BURN}) & wait",
    "double fork": ["sh", "-c", f"setsid sh -c '({BURN}) & exit' & sleep 97"],
    "short lived": ["sh", "-c", "while :; do /bin/true; done"],
    "two at once": f"({BURN}) & ({BURN}) & wait",
    "warm": ["@python", "-c", "while True: pass"],
    "stopped parent": ["sh", "-c", f"({BURN}) & kill -STOP $$"],
    "nice": ["nice", "-n", "1", "sh", "-c", BURN],
}


def bounded(world, **resources):
    return world.model_copy(update={"resources": world.resources.model_copy(update=resources)})


@pytest.fixture(
    params=["make", *(pytest.param(one, marks=pytest.mark.slow) for one in ("make_local", "make_landlock"))]
)
def make_any(request):
    return request.getfixturevalue(request.param)


@pytest.mark.slow
@pytest.mark.turns
def test_a_command_ends_when_its_processor_time_is_used_up(make_any, run, world):
    async def main():
        async with make_any() as backend, await backend.create(bounded(world, command_cpu_s=0.4)) as sandbox:
            await sandbox.exec("kept=yes")
            for name, command in BURNERS.items():
                result = await sandbox.exec(command)
                assert result.out_of_cpu, f"{name}: {result}"
                assert result.timed_out, f"{name}: {result}"
                assert result.exit_code is None, f"{name}: {result}"
                assert result.cpu_s is not None, f"{name}: {result}"
                assert 0.3 <= result.cpu_s < 1.5, f"{name}: {result}"
                result = await sandbox.exec(
                    "echo $kept; ps -e -o stat=,args= | grep -c '[d]o :; done\\|[d]o /bin/true'"
                )
                lines = result.stdout.split()
                assert lines[0] == b"yes", f"{name}: the shell goes on from its last state: {result}"
                if backend.name == "namespace":
                    assert lines[1] == b"0", f"{name}: nothing of it is left: {result}"

    run(main())


@pytest.mark.slow
@pytest.mark.turns
def test_a_command_that_waits_uses_nothing(make_any, run, world):
    async def main():
        async with make_any() as backend, await backend.create(bounded(world, command_cpu_s=0.2)) as sandbox:
            for command in ("sleep 1", ["sleep", "1"]):
                result = await sandbox.exec(command)
                assert result.ok, result
                assert not result.out_of_cpu, result
                assert result.cpu_s is not None, result
                assert result.cpu_s < 0.1, result

    run(main())


def test_children_that_nobody_waits_for_are_charged_where_a_group_counts_them(make, run, world):
    if "usage" not in controllers():
        pytest.skip("no cgroup counts processor time here")

    async def main():
        async with make() as backend, await backend.create(bounded(world, command_cpu_s=0.5)) as sandbox:
            result = await sandbox.exec(["python3", "-c", IGNORING], timeout_s=15)
            assert result.out_of_cpu, result

    run(main())


@pytest.mark.slow
@pytest.mark.turns
def test_what_others_use_is_not_charged(make_any, run, world):
    async def main():
        async with make_any() as backend, await backend.create(bounded(world, command_cpu_s=0.6)) as sandbox:
            await sandbox.exec(f"({BURN}) & echo $! > burner")
            other = await sandbox.start(["sh", "-c", BURN])
            result = await sandbox.exec(["sleep", "2.5"])
            assert result.ok, f"neither an earlier command's nor a background process's: {result}"
            result = await sandbox.exec("sleep 1.5; kill $(cat burner); sleep 0.5")
            assert result.ok, f"nor one that ends meanwhile: {result}"
            await sandbox.signal(other, 9)
            result = await sandbox.exec(BURN)
            assert result.out_of_cpu, f"but its own is: {result}"

    run(main())


@pytest.mark.slow
@pytest.mark.turns
def test_commands_at_once_are_charged_each_with_its_own(make_any, run, world):
    import asyncio

    async def main():
        async with make_any() as backend, await backend.create(bounded(world, command_cpu_s=0.8)) as sandbox:
            burning, waiting, short = await asyncio.gather(
                sandbox.exec(["sh", "-c", BURN]),
                sandbox.exec(["sleep", "2"]),
                sandbox.exec(["timeout", "0.3", "sh", "-c", BURN]),
            )
            assert burning.out_of_cpu, burning
            assert waiting.ok, waiting
            assert short.exit_code == 124, short

    run(main())


def test_shell_commands_tell_their_use(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            idle = await sandbox.exec("true")
            assert idle.cpu_s is not None
            assert idle.cpu_s < 0.1
            work = "python3 -c 'x = bytearray(60_000_000); [sum(range(1_000_000)) for _ in range(12)]'"
            result = await sandbox.exec(work)
            assert result.cpu_s is not None
            assert 0.05 < result.cpu_s <= result.wall_s * 2 + 0.02, result
            after = await sandbox.exec("exit 3")
            assert (after.exit_code, after.cpu_s is not None) == (3, True)
            assert after.cpu_s < 0.1, "each command's own"
            if "memory" in controllers():
                assert idle.peak_bytes is not None
                assert result.peak_bytes is not None
                assert result.peak_bytes > 60_000_000 > idle.peak_bytes, (idle, result)
                again = await sandbox.exec("true")
                assert again.peak_bytes is not None
                assert again.peak_bytes < 60_000_000, "the highest since this command began"

    run(main())


SLIPPING = r"""
import os, signal, sys, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
def daemon(depth):
    if depth and os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    open(f"alive-{os.getpid()}", "w").close()
    os.kill(os.getpid(), signal.SIGSTOP) if depth % 2 else None
    while True:
        time.sleep(97)
for depth in range(1, 7):
    daemon(depth)
os.close(1)
os.close(2)
while "burn" in sys.argv:
    pass
time.sleep(97)
"""
RACING = r"""
import os
while True:
    if os.fork():
        os._exit(0)
    open(f"alive-{os.getpid()}", "w").close() if os.getpid() % 50 == 0 else None
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wall", "cpu"])
def test_a_deadline_kills_whatever_ignores_stops_or_hides(make, run, world, kind):
    bounds, how = {"wall": ({}, "wait"), "cpu": ({"command_cpu_s": 0.4}, "burn")}[kind]
    left = "for f in alive-*; do kill -0 ${f#alive-} 2>/dev/null && echo $f; done; rm alive-*"

    async def main():
        async with make() as backend, await backend.create(bounded(world, **bounds)) as sandbox:
            await sandbox.write("slip.py", SLIPPING.encode())
            for command in (f"python3 slip.py {how}", ["sh", "-c", f"python3 slip.py {how} & wait"]):
                result = await sandbox.exec(command, timeout_s=1.0 if kind == "wall" else 20)
                assert (result.timed_out, result.out_of_cpu) == (True, kind == "cpu"), result
                result = await sandbox.exec(left)
                assert result.ok, "there were some"
                assert result.stdout == b"", f"nothing of it lives: {result}"

    run(main())


@pytest.mark.slow
def test_a_process_that_changes_its_number_all_the_time_is_killed_too(make, run, world):
    """A chain of forks whose parents end: no listing shows one twice, and numbers are given away again."""

    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            await sandbox.write("race.py", RACING.encode())
            for _ in range(4):
                result = await sandbox.exec(["python3", "race.py"])
                result = await sandbox.exec("python3 race.py; sleep 97", timeout_s=0.5)
                assert result.timed_out
                first = await sandbox.exec("ls -d /proc/[0-9]*; sleep 0.1; ls -d /proc/[0-9]*")
                assert len(set(first.stdout.split())) < 10, f"nothing goes on: {first}"
                await sandbox.exec(["sh", "-c", "kill -9 -1"])

    run(main())


def test_a_background_service_keeps_its_children_when_a_later_command_is_killed(make, run, world):
    service = "while :; do sleep 0.05; done & echo $! > service; (while :; do sleep 4242; done) & echo $! > second"

    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            await sandbox.exec(service)
            result = await sandbox.exec("sleep 97", timeout_s=0.3)
            assert result.timed_out
            result = await sandbox.exec("kill -0 $(cat service) && pgrep -P $(cat second) | wc -l")
            assert (result.exit_code, result.stdout) == (0, b"1\n"), f"it and its children live: {result}"

    run(main())


def a_large_file_on_a_device():
    for top in ("/usr/lib", "/usr/bin", "/opt", "/usr/share"):
        for path in Path(top).rglob("*"):
            info = path.lstat()
            whole = stat.S_ISREG(info.st_mode) and info.st_mode & stat.S_IROTH and info.st_size > 8 << 20
            if whole and os.major(info.st_dev) not in (0, 7):  # neither in memory nor on a loop device
                return path
    return None


@pytest.mark.slow
def test_what_is_read_from_a_device_is_bounded_or_refused(make, run, world):
    slow = bounded(world, io_bytes_s=4 << 20)
    path = a_large_file_on_a_device()

    async def main():
        async with make() as backend:
            if "io" not in controllers() or not devices():
                with pytest.raises(ValueError, match="io_bytes_s"):
                    await backend.create(slow)
                return
            async with await backend.create(slow) as sandbox, await backend.create(world) as free:
                if path is None:
                    pytest.skip("no large file on a device is visible inside")
                read = ["dd", f"if={path}", "of=/dev/null", "bs=1M", "count=6", "iflag=direct"]
                result = await sandbox.exec(read)
                assert result.ok, result
                assert result.wall_s > 1.0, f"6 MiB at 4 MiB/s take 1.5 s, not {result.wall_s}"
                assert (await free.exec(read)).wall_s < result.wall_s, "others are not slowed down"

    run(main())


def test_the_local_backend_refuses_what_it_cannot_bound(make_local, run, world):
    async def main():
        async with make_local() as backend:
            for field, value in (("cpus", 0.5), ("io_bytes_s", 1 << 20), ("inodes", 1000)):
                with pytest.raises(ValueError, match=f"Resources.{field} is {value}"):
                    await backend.create(bounded(world, **{field: value}))
                assert any(field in line for line in backend.report().missing), field

    run(main())


@pytest.mark.slow
def test_a_command_that_comes_while_the_shell_dies_is_run_by_the_next_one(make, run, world):
    """A killed shell dies once it is scheduled, which others can delay; an untaken command is not its victim."""
    burners = [f"taskset -c 0 sh -c '{BURN}' & " for _ in range(3)]

    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            for _ in range(5):
                await sandbox.exec("kept=yes")
                result = await sandbox.exec("chrt --idle -p 0 $$ && taskset -pc 0 $$ >/dev/null; echo $$")
                await sandbox.exec(["sh", "-c", f"{''.join(burners)} kill -9 {int(result.stdout)}"])
                result = await sandbox.exec('cat; echo "$kept"', stdin=b"given ")
                assert (result.exit_code, result.stdout) == (0, b"given yes\n"), result
                await sandbox.exec(["sh", "-c", "kill -9 -1"])

    run(main())
