"""Pools over real sandboxes: a killed zygote, killed servers, a storm of starts, memory that is really taken."""

import asyncio
import contextlib
import secrets
from functools import partial
from pathlib import Path

import pytest
from envgym_sandboxes.cgroups import controllers
from envgym_sandboxes.host_memory import host_memory
from envgym_sandboxes.pool import PoolBackend, PoolBounds
from envgym_sandboxes.remote import RemoteBackend, SandboxServer

from envgym.errors import EnvgymError, PoolFull, SandboxDied, SnapshotGone
from envgym.limits import Resources
from envgym.task import World

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(120)]
MIB = 1 << 20


def zygote_of(pool):
    """The process that all sandboxes of a pool's one namespace backend stand on."""
    (member,) = pool._core.members.values()
    return member.backend._processes.first


@pytest.mark.slow
def test_a_zygote_that_is_killed_is_replaced(make, run, world, state):
    async def main():
        async with PoolBackend(make, bounds=PoolBounds(warm=1)) as pool:
            sandboxes = [await pool.create(world) for _ in range(3)]
            snapshot = await sandboxes[0].snapshot()
            running = [asyncio.ensure_future(sandbox.exec(["sleep", "4245"])) for sandbox in sandboxes]
            await asyncio.gather(*(sandbox.exec(["true"]) for sandbox in sandboxes))
            for round_ in range(2):
                zygote_of(pool).kill()
                for command in running:
                    with pytest.raises(SandboxDied):
                        await command
                async with await pool.create(world) as fresh:
                    assert (await fresh.exec("cat given.txt")).stdout == b"given\n", f"round {round_}"
                for sandbox in sandboxes:
                    with pytest.raises(SandboxDied):
                        await sandbox.exec("true")
                    with pytest.raises(SandboxDied):
                        await sandbox.fork()
                    await sandbox.close()
                sandboxes = [await pool.create(world) for _ in range(3)]
                running = [asyncio.ensure_future(sandbox.exec(["sleep", "4245"])) for sandbox in sandboxes]
                await asyncio.gather(*(sandbox.exec(["true"]) for sandbox in sandboxes))
            with pytest.raises(SnapshotGone):
                await pool.restore(snapshot)
            for command in running:
                command.cancel()
        assert sorted(state.iterdir()) == [], "the dead backends left nothing either"

    run(main())


@pytest.mark.slow
def test_the_next_start_finds_out_that_nothing_stands_any_more(make, run, world):
    async def main():
        async with PoolBackend(make) as pool:
            sandbox = await pool.create(world)
            zygote_of(pool).kill()
            made = await asyncio.gather(*(pool.create(world) for _ in range(8)))
            for fresh in made:
                assert (await fresh.exec("true")).ok
            with pytest.raises(SandboxDied):
                await sandbox.exec("true")

    run(main())


@pytest.mark.slow
def test_a_server_that_is_gone_is_waited_for_while_the_other_serves(make, run, world):
    """Two hosts, each with a server; one is gone and comes back."""
    token = secrets.token_hex(32)

    async def main():
        one, two = SandboxServer(make(), token), SandboxServer(make(), token)
        async with two:
            await one.__aenter__()
            address = one.address
            hosts = [partial(RemoteBackend, at, token=token) for at in (address, two.address)]
            async with PoolBackend(hosts, bounds=PoolBounds(warm=0, estimate_bytes=MIB)) as pool:
                sandboxes = [await pool.create(world) for _ in range(4)]
                there = [sandbox for sandbox in sandboxes if sandbox.member.name.endswith("-1")]
                assert len(there) == 2
                snapshots = [await sandbox.snapshot() for sandbox in sandboxes]
                await one.__aexit__(None, None, None)
                results = await asyncio.gather(
                    *(sandbox.exec("true") for sandbox in sandboxes), return_exceptions=True
                )
                assert sum(isinstance(result, SandboxDied) for result in results) == 2
                for _ in range(3):
                    async with await pool.create(world) as fresh:
                        assert fresh.member.name.endswith("-2")
                restored = await asyncio.gather(*(pool.restore(one) for one in snapshots), return_exceptions=True)
                assert [type(found) is SnapshotGone for found in restored].count(True) == 2
                async with SandboxServer(make(), token, listen=address):
                    async with asyncio.timeout(60):
                        while "down" in pool.usage():  # noqa: ASYNC110  # another's state, without an event
                            await asyncio.sleep(0.05)
                    made = [await pool.create(world) for _ in range(4)]
                    assert "1" in {sandbox.member.name[-1] for sandbox in made}
                    for sandbox in made:
                        await sandbox.close()

    run(main())


@pytest.mark.slow
def test_sandboxes_tell_what_they_use(make, run, world):
    if "memory" not in controllers():
        pytest.skip("no memory cgroup for this user: namespace sandboxes cannot tell what they use")

    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            before = (await backend.memory([sandbox.id, "unknown"])).used
            assert list(before) == [sandbox.id]
            await sandbox.exec("head -c 40000000 /dev/zero > file")
            after = await backend.memory([sandbox.id])
            assert 35 * MIB < after.used[sandbox.id] - before[sandbox.id] < 45 * MIB, "files in memory are memory"
            assert 0 < after.available < after.total
            async with (
                SandboxServer(make(), "t" * 32) as server,
                RemoteBackend(server.address, token="t" * 32) as far,
            ):
                there = await far.create(world)
                use = await far.memory([there.id])
                assert use.used[there.id] > 0
                assert use.total == host_memory()[0]

    run(main())


@pytest.mark.slow
def test_a_storm_of_starts_leaves_running_sandboxes_alone(make, run, world):
    async def main():
        async with PoolBackend(make, bounds=PoolBounds(starts=2, warm=0)) as pool:
            steady = await pool.create(world)
            for _ in range(10):  # so that what a sandbox of this world uses is known
                await (await pool.create(world)).close()
            storm = [asyncio.ensure_future(pool.create(world)) for _ in range(100)]
            commands = 0
            while not all(task.done() for task in storm):
                assert (await steady.exec(["true"])).ok
                commands += 1
            made = await asyncio.gather(*storm)
            assert commands > 20, "behind the starts a command would be one of a hundred; beside them it is many"
            await asyncio.gather(*(sandbox.close() for sandbox in made))

    run(main())


TAKE = "import time; kept = bytearray(180 << 20); print('taken', flush=True); time.sleep(4245)"


@pytest.mark.slow
def test_memory_that_is_really_taken_is_not_promised_again(make, run):
    """Each may use, and takes, a tenth of what the pool may; the pool must find out and stop."""
    if "memory" not in controllers():
        pytest.skip("no memory cgroup for this user: what sandboxes use cannot be told")
    world = World(resources=Resources(memory_bytes=256 * MIB, disk_bytes=16 * MIB))

    async def main():
        bounds = PoolBounds(warm=0, memory_bytes=1024 * MIB, reserve_share=0.02, wait_s=4)
        async with PoolBackend(make, bounds=bounds) as pool:
            made, refused = [], []
            for _ in range(12):
                try:
                    made.append(await pool.create(world))
                except PoolFull as error:
                    refused.append(str(error))
                    break
                await made[-1].start(["python3", "-c", TAKE])
            assert 3 <= len(made) <= 5, f"about five of 200 MiB fit into 1 GiB, not {len(made)}"
            assert "share main (weight 1)" in refused[0]
            await made.pop().close()
            async with await pool.create(world) as another:
                assert (await another.exec("true")).ok

    run(main())


@pytest.mark.slow
def test_a_hundred_idle_sandboxes_fit_where_ten_could_take_all(make, run):
    if "memory" not in controllers():
        pytest.skip("no memory cgroup for this user: what sandboxes use cannot be told")
    world = World(resources=Resources(memory_bytes=256 * MIB))

    async def main():
        bounds = PoolBounds(warm=0, memory_bytes=2048 * MIB, reserve_share=0.02, wait_s=30)
        async with PoolBackend(make, bounds=bounds) as pool:
            made = await asyncio.gather(*(pool.create(world) for _ in range(100)))
            for sandbox in made[::10]:
                assert (await sandbox.exec("true")).ok

    run(main())


@pytest.mark.slow
def test_a_pool_of_a_remote_pool_ends_in_order(make, run, world, state):
    async def main():
        token = "t" * 32
        there = PoolBackend(make, bounds=PoolBounds(starts=2))
        async with (
            SandboxServer(there, token) as server,
            PoolBackend(lambda: RemoteBackend(server.address, token=token)) as pool,
        ):
            async with await pool.create(world) as sandbox, await sandbox.fork() as fork:
                snapshot = await fork.snapshot()
                async with await pool.restore(snapshot) as again:
                    assert (await again.exec("cat given.txt")).ok
            zygote_of(there).kill()
            with contextlib.suppress(EnvgymError):
                await pool.restore(snapshot)
            async with await pool.create(world) as sandbox:
                assert (await sandbox.exec("true")).ok

    run(main())
    assert sorted(Path(state).iterdir()) == []
