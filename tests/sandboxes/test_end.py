"""Law m: close is idempotent and leaves nothing, kill -9 of the owner included; and what death looks like."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from envgym_sandboxes.cgroups import controllers
from envgym_sandboxes.tree import live_processes

from envgym.errors import EnvgymError, InfrastructureFailure, SandboxDied

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(60)]

OWNER = """
import asyncio, sys
from envgym.task import World
from envgym_sandboxes.{module} import {name}

async def main():
    backend = {name}(root=sys.argv[1])
    sandbox = await backend.create(World())
    await sandbox.exec("setsid sleep 4242 & echo x > f")
    fork = await sandbox.fork()
    await sandbox.snapshot()
    print(backend._processes.first.pid, flush=True)
    await fork.exec(["sleep", "4242"])

asyncio.run(main())
"""


def traces(state):
    groups = [str(path) for parent in set(controllers().values()) for path in Path(parent).glob("envgym-*")]
    table = Path("/proc/self/mounts").read_text().splitlines()
    mounts = [line for line in table if line.startswith("envgym ") or str(state) in line]
    names = [path.name for path in state.iterdir()]
    owners = [*names, f"envgym-{os.getpid()}-"]
    return names, [group for group in groups if any(owner in group for owner in owners)], mounts


def wait_gone(pids):
    """Until the processes have ended, by their descriptors."""
    import select

    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ready, _, _ = select.select([fd], [], [], 10)
        os.close(fd)
        assert ready, f"process {pid} outlived its owner"


BACKENDS = [
    ("namespace", "NamespaceBackend"),
    ("landlock_backend", "LandlockBackend"),
    ("local", "LocalBackend"),
]


@pytest.mark.parametrize(("module", "name"), BACKENDS)
def test_m_kill_9_of_the_owner_leaves_nothing(make, state, module, name):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(module=module, name=name), str(state)], stdout=subprocess.PIPE
    )
    with owner:
        assert owner.stdout is not None
        zygote = int(owner.stdout.readline())
        below = set(live_processes(zygote)) | {zygote}
        assert len(below) >= 4, f"there should be inits and commands: {below}"
        owner.send_signal(signal.SIGKILL)
    wait_gone(below)
    names, _groups, mounts = traces(state)
    assert mounts == [], "mounts are the zygote's own and end with it"
    assert len(names) == 1, "what is left is named after its owner"
    assert any("directory" in line for line in make().reap()), "the next owner removes it"
    assert traces(state) == ([], [], [])


def test_groups_of_a_dead_owner_are_found_wherever_its_state_was(make, tmp_path):
    if not controllers():
        pytest.skip("no control groups can be made here")
    code = OWNER.format(module="namespace", name="NamespaceBackend")
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        owner.send_signal(signal.SIGKILL)
    parents = set(controllers().values())
    left = [group for parent in parents for group in Path(parent).glob(f"envgym-{owner.pid}-*")]
    assert left
    removed = make().reap()
    assert {f"cgroup {group}" for group in left} <= set(removed)
    assert [group for group in left if group.exists()] == []


def test_m_a_living_owners_state_is_not_reaped(make, run, world, state):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            mine = (str(state), f"envgym-{os.getpid()}-")
            assert [line for line in make().reap() if any(name in line for name in mine)] == []
            assert (await sandbox.exec("true")).ok
        assert traces(state) == ([], [], [])

    run(main())


def test_m_closing_leaves_no_process_mount_group_or_file(make, run, world, state):
    async def main():
        before = set(live_processes(os.getpid()))
        async with make() as backend:
            sandbox = await backend.create(world)
            forks = [await sandbox.fork() for _ in range(3)]
            for fork in forks:
                await fork.exec("nohup sleep 4242 >/dev/null 2>&1 &")
            await asyncio.gather(*(fork.close() for fork in forks), *(fork.close() for fork in forks))
            most = 2 * len(set(controllers().values()))  # its own, and those kept ready for the next
            assert len(traces(state)[1]) <= most, "each fork's groups went with it"
            await sandbox.write("f", b"x")
            snapshot = await sandbox.snapshot()
            await sandbox.close()
            layers = dict(backend.states.layers.known)
            assert layers, "a snapshot keeps its layers"
            await backend.release(snapshot)
            assert backend.states.layers.known == {}, "the last reference removes them"
        assert traces(state) == ([], [], [])
        assert set(live_processes(os.getpid())) <= before

    run(main())


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("setup", [(), ("sleep 0.02",)])
@pytest.mark.parametrize("kind", ["make", "make_landlock", "make_local"])
def test_a_create_or_fork_that_meets_the_end_of_its_backend_says_so(request, run, world, state, kind, setup):
    maker = request.getfixturevalue(kind)

    async def main():
        met = 0
        for lead_ms in (0, 1, 2, 4, 8):
            backend = maker()
            sandbox = await backend.create(world)
            await sandbox.write("f", b"x")
            making = [
                asyncio.ensure_future(backend.create(world.model_copy(update={"setup": setup}))),
                asyncio.ensure_future(sandbox.fork()),
            ]
            await asyncio.sleep(lead_ms / 1000)
            before = [one.done() for one in making]
            await backend.close()
            for one, was_there in zip(await asyncio.gather(*making, return_exceptions=True), before, strict=True):
                if not was_there:
                    met += 1
                    assert isinstance(one, InfrastructureFailure), one
            if not before[0]:
                with pytest.raises(InfrastructureFailure, match=f"this {backend.name} backend is closed"):
                    await making[0]
        assert met, "one of them was on its way"
        assert traces(state) == ([], [], [])

    run(main())


def test_a_killed_sandbox_is_said_to_be_dead_and_others_live(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as other:
            sandbox = await backend.create(world)
            running = asyncio.ensure_future(sandbox.exec(["sleep", "4242"]))
            await sandbox.exec(["true"])
            await sandbox._started.zygote.ask("kill", sandbox=sandbox._started.upper)
            with pytest.raises(SandboxDied, match="is gone"):
                await running
            for call in (
                sandbox.exec("true"),
                sandbox.read("x"),
                sandbox.fork(),
                sandbox.snapshot(),
                sandbox.digest(),
            ):
                with pytest.raises(SandboxDied):
                    await call
            await sandbox.close()
            assert (await other.exec("true")).ok

    run(main())


async def some(found, *, least):
    """What is found once there is enough of it."""
    while len(now := found()) < least:  # noqa: ASYNC110  # the kernel has no event for it
        await asyncio.sleep(0.01)
    return now


@pytest.mark.parametrize("preload", [(), ("json",)])
@pytest.mark.parametrize("kind", ["make", "make_landlock", "make_local"])
def test_what_an_init_started_ends_with_it_however_it_ends(request, run, world, kind, preload):
    maker = request.getfixturevalue(kind)

    async def main():
        async with (
            maker() as backend,
            await backend.create(world.model_copy(update={"preload": preload})) as sandbox,
        ):
            await sandbox.exec("sleep 4242 & (setsid sleep 4242 &) & echo started")
            init = parent_of_the_sleeper(b"/bin/bash\x00--noprofile")
            below = await some(lambda: set(live_processes(init)), least=3)  # the shell, and two of the background
            os.kill(init, signal.SIGKILL)
            wait_gone(below | {init})
            with pytest.raises(SandboxDied):
                await sandbox.exec("true")
            async with await backend.create(world) as other:
                assert (await other.exec("true")).ok

    run(main())


def test_a_zygote_that_is_not_closed_is_logged_and_the_others_are(make, run, world, caplog):
    async def broken():
        raise OSError("its start failed")

    async def main():
        async with make() as backend:
            async with await backend.create(world) as sandbox:
                assert (await sandbox.exec("true")).ok
            backend._processes._zygotes["some_module",] = asyncio.ensure_future(broken())
        assert backend._processes.first.poll() is not None

    run(main())
    assert "its start failed" in caplog.text


def test_a_killed_zygote_kills_its_sandboxes_and_close_still_works(make, run, world, state):
    async def main():
        async with make() as backend:
            sandbox = await backend.create(world)
            running = asyncio.ensure_future(sandbox.exec(["sleep", "4242"]))
            await sandbox.exec(["true"])
            backend._processes.first.kill()
            with pytest.raises(SandboxDied):
                await running
            with pytest.raises(EnvgymError):
                await backend.create(world)
        assert traces(state) == ([], [], [])

    run(main())


def test_a_cancelled_command_is_killed_and_the_sandbox_lives(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            for command in ("echo $$ > pid; sleep 4242", ["sh", "-c", "echo $$ > pid; exec sleep 4242"]):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(sandbox.exec(command), 0.3)
                result = await sandbox.exec("kill -0 $(cat pid) && echo alive")
                assert b"alive" not in result.stdout

    run(main())


def parent_of_the_sleeper(program=b"sleep\x004242\x00"):
    """The process that carries out a sandbox's requests: the parent of its `sleep 4242`; None before it runs."""
    for pid in live_processes(os.getpid()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(program):
                return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def test_a_request_that_arrives_with_a_cancellation_meets_no_living_command(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            running = asyncio.ensure_future(sandbox.exec(["sh", "-c", "echo $$ > pid; exec sleep 4242"]))
            while (owner := parent_of_the_sleeper()) is None:  # noqa: ASYNC110  # another process sets no event
                await asyncio.sleep(0.01)
            os.kill(owner, signal.SIGSTOP)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            ask = ["sh", "-c", "kill -0 $(cat pid) && echo alive"]
            asked = [asyncio.ensure_future(sandbox.exec(ask)) for _ in range(12)]
            for _ in asked:
                await asyncio.sleep(0)  # each has sent its request by then
            os.kill(owner, signal.SIGCONT)
            assert all(b"alive" not in result.stdout for result in await asyncio.gather(*asked))

    run(main())


def test_without_descriptors_nothing_starts_and_nothing_is_left(make, run, world):
    import resource

    async def main():
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        async with make() as backend, await backend.create(world) as sandbox:
            await sandbox.exec("echo one > f")
            highest = max(int(name) for name in os.listdir("/proc/self/fd"))
            hoard = []
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
            try:
                with contextlib.suppress(OSError):  # until there are none
                    while True:
                        hoard.append(os.open("/dev/null", os.O_RDONLY))
                with pytest.raises(InfrastructureFailure, match="open files"):
                    await backend.create(world)
                with pytest.raises(InfrastructureFailure, match="open files"):
                    await sandbox.fork()
            finally:
                for fd in hoard:
                    os.close(fd)
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            async with await backend.create(world) as another:
                assert (await another.exec("true")).ok
        assert backend.places.groups == {}

    run(main())
