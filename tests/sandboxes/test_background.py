"""Background processes: bounds, strangers' signals, and an init that lies about them."""

import asyncio
import os
import signal
import socket

import pytest
from envgym_sandboxes.background import ENDED_KEPT, MOST_RUNNING
from envgym_sandboxes.capture import Capture, drain, pipe
from envgym_sandboxes.channel import Peer
from envgym_sandboxes.children import Children
from envgym_sandboxes.protocol import encode

from envgym.errors import SandboxDied

pytestmark = pytest.mark.timeout(60)


async def written(sandbox, process, wanted):
    out = b""
    while out != wanted:
        status = await sandbox.poll(process, wait_s=10)
        out += status.stdout
        assert wanted.startswith(out), (status, out)


async def ended(sandbox, process):
    while (status := await sandbox.poll(process, wait_s=10)).running:
        pass
    return status


def test_no_more_run_than_the_bound_and_the_next_one_is_told(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            running = [await sandbox.start(["sleep", "97"]) for _ in range(MOST_RUNNING)]
            refused = await sandbox.poll(await sandbox.start(["true"]))
            assert refused.exit_code == 126
            assert f"{MOST_RUNNING} background processes".encode() in refused.stderr
            await sandbox.signal(running[0])
            await ended(sandbox, running[0])
            assert (await ended(sandbox, await sandbox.start(["true"]))).exit_code == 0, "one ended, one may start"

    run(main())


def test_of_those_that_ended_the_first_is_forgotten(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            names = []
            for _ in range(ENDED_KEPT + 1):
                names.append(await sandbox.start(["true"]))
                await ended(sandbox, names[-1])
            with pytest.raises(ValueError, match=r"'p1'.*more than 32 others have ended"):
                await sandbox.poll(names[0])
            with pytest.raises(ValueError, match="'p1'"):
                await sandbox.signal(names[0])
            assert (await sandbox.poll(names[1])).exit_code == 0
            await backend.release(await sandbox.snapshot())
            later = await sandbox.start(["true"])
            await ended(sandbox, later)
            await backend.release(await sandbox.snapshot())
            with pytest.raises(ValueError, match="'p2'"):
                await sandbox.poll(names[1])
            for name in (*names[2:], later):
                assert (await sandbox.poll(name)).exit_code == 0

    run(main())


@pytest.mark.slow
def test_a_deadline_ends_nothing_that_a_background_process_began_meanwhile(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            stuck = asyncio.ensure_future(sandbox.exec("echo > begun; sleep 97", timeout_s=1.5))
            await sandbox.exec(["sh", "-c", "while ! [ -e begun ]; do sleep 0.01; done"])
            script = "setsid sleep 98 & (sleep 99 & echo $! > orphan); echo up; wait"
            process = await sandbox.start(["sh", "-c", f"{script}; sleep 97"])
            await written(sandbox, process, b"up\n")
            assert (await stuck).timed_out
            assert (await sandbox.poll(process)).running
            result = await sandbox.exec("kill -0 $(cat orphan)")
            assert result.ok, "its orphans are known by their session"

    run(main())


def test_a_program_inside_begins_with_no_signal_ignored(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            for number in ("HUP", "INT", "TERM"):
                result = await sandbox.exec(["bash", "-c", f"kill -{number} $$; echo survived"])
                assert result.stdout == b"", f"SIG{number} ends a program"
            for number in ("HUP", "INT", "TERM", "USR1", "KILL", "STOP"):
                await sandbox.exec(["bash", "-c", f"kill -{number} 1"])
            assert (await sandbox.exec("echo alive")).stdout == b"alive\n", "but not a sandbox's first process"

    run(main())


def test_the_end_of_a_sandbox_is_the_end_of_its_background_processes(make_local, run, world):
    async def main():
        async with make_local() as backend:
            sandbox = await backend.create(world)
            process = await sandbox.start(["sh", "-c", "trap '' TERM HUP; echo $$; setsid sleep 97 & wait"])
            pid = int((await sandbox.poll(process, wait_s=10)).stdout)
            os.kill(pid, 0)
            waiting = asyncio.ensure_future(sandbox.poll(process, wait_s=50))
            await asyncio.sleep(0)
            await sandbox.close()
            with pytest.raises(SandboxDied):
                await waiting
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            with pytest.raises(SandboxDied):
                await sandbox.poll(process)

    run(main())


def test_a_snapshot_lets_go_on_only_what_it_stopped_itself(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            halted, going = await sandbox.start(["sleep", "97"]), await sandbox.start(["sleep", "98"])
            await sandbox.signal(halted, signal.SIGSTOP)
            await backend.release(await sandbox.snapshot())
            states = await sandbox.exec("grep -h '(sleep)' /proc/[0-9]*/stat | cut -d' ' -f3 | sort")
            assert states.stdout == b"S\nT\n", f"one sleeps, one is still stopped: {states}"
            await sandbox.signal(halted, signal.SIGCONT)
            for process in (halted, going):
                await sandbox.signal(process)
                assert (await ended(sandbox, process)).exit_code == -15

    run(main())


@pytest.mark.parametrize("wait_s", [-1, float("nan"), float("inf")])
def test_a_look_waits_for_a_time_that_is_one(make_local, run, world, wait_s):
    async def main():
        async with make_local() as backend, await backend.create(world) as sandbox:
            with pytest.raises(ValueError, match="wait_s"):
                await sandbox.poll(await sandbox.start(["true"]), wait_s=wait_s)

    run(main())


def test_a_process_whose_name_nobody_learns_does_not_live_on(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            for turns in range(8):
                starting = asyncio.ensure_future(sandbox.start(["sleep", "97"]))
                for _ in range(turns):
                    await asyncio.sleep(0)
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
            snapshot = await sandbox.snapshot()
            assert not snapshot.partial
            await backend.release(snapshot)

    run(main())


def test_a_look_that_nobody_waits_for_takes_nothing(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            process = await sandbox.start(
                ["sh", "-c", "while ! [ -e go ]; do sleep 0.01; done; echo went; sleep 97"]
            )
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sandbox.poll(process, wait_s=50), 0.1)
            await sandbox.exec("touch go")
            await written(sandbox, process, b"went\n")

    run(main())


def test_a_started_program_may_be_the_warm_interpreter(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            process = await sandbox.start(
                ["@python", "-c", "import sys; print(sys.stdin.read()); sys.exit(5)"], stdin=b"x"
            )
            await written(sandbox, process, b"x\n")
            assert (await ended(sandbox, process)).exit_code == 5
            with pytest.raises(TypeError, match="argv"):
                await sandbox.start("sleep 1")

    run(main())


def test_many_waiting_looks_are_all_answered(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            processes = [await sandbox.start(["sleep", "0.3"]) for _ in range(8)]
            looks = [sandbox.poll(process, wait_s=20) for process in processes for _ in range(3)]
            assert all(not status.running for status in await asyncio.gather(*looks))

    run(main())


@pytest.mark.parametrize(
    "lie",
    [
        {"known": True, "code": "x", "out": 0, "lost": [0, 0]},
        {"known": True, "code": None, "out": None, "lost": [0, 0]},
        {"known": True, "code": None, "out": 0, "lost": [0]},
        {"known": True, "code": None, "out": 0, "lost": [0, "1"]},
        {"known": True, "code": None, "out": 1, "lost": [0, 0]},
        {"known": True, "code": True, "out": 0, "lost": [0, 0]},
        {"known": True},
        {"statuses": 7},
        {"statuses": [7]},
        {"statuses": [{"name": "p1"}]},
        {"statuses": [{"name": "p1", "size": "x"}]},
        {"statuses": [{"name": [], "size": 1}]},
    ],
)
def test_an_init_that_lies_about_a_process_is_a_dead_sandbox(lie):
    async def main():
        ours, theirs = socket.socketpair()
        with theirs:
            peer, children = Peer(ours, "liar"), Children()
            theirs.sendall(encode({"id": 1}))
            starting = asyncio.ensure_future(children.start(peer, {}, b""))
            await starting
            asking = asyncio.ensure_future(
                children.collect(peer, most=9)
                if "statuses" in lie
                else children.poll(peer, "p1", wait_s=0.0, most=9)
            )
            await asyncio.sleep(0)
            theirs.sendall(encode(lie | {"id": 2}))
            with pytest.raises(SandboxDied, match="makes no sense"):
                await asking
            assert peer.ended is not None

    asyncio.run(main())


def test_draining_a_pipe_ends_though_it_is_filled_again_and_again():
    class Refilled(Capture):
        """The fastest writer there can be: there is always more before the next read."""

        def add(self, data):
            super().add(data)
            os.write(writing, b"x" * 4096)

    reading, writing = pipe()
    os.write(writing, b"x" * 4096)
    capture = Refilled(1024)
    assert drain(reading, capture)
    assert capture.lost < 1 << 20
    os.close(writing)
    assert not drain(reading, Capture(1024))
    os.close(reading)
