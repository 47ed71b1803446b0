import asyncio
from functools import partial

import pytest
from envgym_sandboxes.cgroups import controllers
from envgym_sandboxes.namespace import NamespaceBackend
from envgym_sandboxes.pool import PoolBackend, PoolBounds

from envgym.errors import SnapshotGone
from envgym.sandbox import MeteredBackend
from envgym.task import World
from envgym.testing.check_sandbox import check_sandbox

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(240)]


@pytest.mark.slow
def test_the_contract_holds_through_a_pool(make, all_but, traces):
    kept = check_sandbox(partial(PoolBackend, make), must=all_but("memory"), traces=traces)
    asyncio.run(asyncio.wait_for(kept, 230))


@pytest.mark.slow
def test_the_contract_holds_through_a_pool_of_several_backends(make, state, tmp_path, all_but, traces):
    hosts = [partial(NamespaceBackend, root=state, snapshots=tmp_path / name) for name in ("one", "two")]
    kept = check_sandbox(partial(PoolBackend, hosts), must=all_but("memory"), traces=traces)
    asyncio.run(asyncio.wait_for(kept, 230))


@pytest.mark.slow
def test_a_state_of_another_host_can_be_compared_with(make, run, world):
    async def main():
        async with PoolBackend([make, make]) as pool:
            one, two = await asyncio.gather(pool.create(world), pool.create(world))
            assert one.member is not two.member
            await one.exec("echo there > f")
            snapshot = await one.snapshot()
            assert await one.diff(snapshot) == {}
            assert await two.diff(snapshot) == {"/work/f": None}
            assert await pool.snapshots() == [], "what was brought for that is gone"

    run(main())


def test_warm_sandboxes_are_in_the_base_state(make, run, world):
    async def main():
        async with PoolBackend(make, bounds=PoolBounds(warm=2)) as pool:
            fresh = await pool.create(world)
            digest = await fresh.digest()
            for _ in range(3):
                async with await pool.create(world) as sandbox:
                    assert await sandbox.digest() == digest
                    assert await sandbox.diff() == {}
                    assert (await sandbox.exec("cat given.txt; pwd")).stdout == b"given\n/work\n"
            async with await pool.create(World(files=world.files)) as other:
                assert other.world != world

    run(main())


@pytest.mark.slow
def test_durable_snapshots_outlive_the_backend_and_the_pool_that_took_them(make, state, world, tmp_path, run):
    hosts = [partial(NamespaceBackend, root=state, snapshots=tmp_path / name) for name in ("one", "two")]

    async def main():
        async with PoolBackend(hosts, bounds=PoolBounds(warm=0)) as pool:
            sandboxes = await asyncio.gather(*(pool.create(world) for _ in range(2)))
            for number, sandbox in enumerate(sandboxes):
                await sandbox.write("f", b"%d" % number)
            durable = [await sandbox.snapshot(durable=True) for sandbox in sandboxes]
            passing = [await sandbox.snapshot() for sandbox in sandboxes]
            for sandbox in sandboxes:
                sandbox.member.backend._processes.first.kill()
            for number, snapshot in enumerate(durable):
                async with await pool.restore(snapshot) as again:
                    assert await again.read("f") == b"%d" % number
                    assert await again.diff(durable[number]) == {}
            for snapshot in passing:
                with pytest.raises(SnapshotGone):
                    await pool.restore(snapshot)
            await pool.retain(durable[0])
        async with PoolBackend(hosts) as pool:
            assert sorted(one.id for one in await pool.snapshots()) == sorted(one.id for one in durable)
            for snapshot in (durable[0], *durable):
                async with await pool.restore(snapshot) as again:
                    assert again.member.name == snapshot.id.partition("/")[0]
                await pool.release(snapshot)
            assert await pool.snapshots() == []
            for snapshot in durable:
                with pytest.raises(SnapshotGone):
                    await pool.restore(snapshot)

    run(main())


@pytest.mark.slow
def test_every_isolating_backend_tells_what_its_sandboxes_use(make, make_landlock, world, run):
    if "memory" not in controllers():
        pytest.skip("no memory cgroup for this user: sandboxes cannot tell what they use")

    async def main():
        for one in (make, make_landlock):
            async with one() as backend, await backend.create(world) as sandbox:
                assert isinstance(backend, MeteredBackend)
                before = (await backend.memory([sandbox.id])).used[sandbox.id]
                take = "import time; x = b'x' * (32 << 20); print(len(x), flush=True); time.sleep(4246)"
                await sandbox.start(["python3", "-c", take])
                assert (await sandbox.poll("p1", wait_s=20)).stdout
                grown = (await backend.memory([sandbox.id])).used[sandbox.id] - before
                assert grown > 32 << 20

    run(main())
