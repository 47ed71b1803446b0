"""Pools over fake backends: throttling, waiting, refusing, warm ones, deaths and returns. Nothing here is timed."""

import asyncio
import contextlib
import logging

import pytest
from envgym_sandboxes.pool import PoolBackend, PoolBounds
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.errors import (
    EnvgymError,
    EnvironmentFailure,
    InfrastructureFailure,
    PoolFull,
    SandboxDied,
    SandboxUnavailable,
    SnapshotGone,
)
from envgym.limits import Resources
from envgym.sandbox import MemoryUse
from envgym.task import World
from envgym.testing.fakes import FakeBackend

pytestmark = pytest.mark.timeout(60)
GIB, MIB = 1 << 30, 1 << 20
COLD = {"warm": 0}


async def settle(condition):
    """Until a state that other tasks reach is reached."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # what is waited for is another's state, and has no event
            await asyncio.sleep(0.002)


class Gate:
    """Starts that wait until they are let through, and fail when told to."""

    def __init__(self):
        self.open = asyncio.Event()
        self.failure = None

    async def __call__(self, world):
        await self.open.wait()
        if self.failure is not None:
            raise self.failure


def test_no_more_starts_are_under_way_than_allowed(run):
    async def main():
        backend = FakeBackend(start=lambda world: asyncio.sleep(0.001))
        async with PoolBackend(backend, bounds=PoolBounds(starts=3, estimate_bytes=MIB)) as pool:
            sandboxes = await asyncio.gather(*(pool.create(World()) for _ in range(50)))
            forks = await asyncio.gather(*(sandbox.fork() for sandbox in sandboxes))
            snapshot = await forks[0].snapshot()
            await asyncio.gather(*(pool.restore(snapshot) for _ in range(20)))
            assert backend.most_starting == 3
        assert not backend.open

    run(main())


class Imaging(FakeBackend):
    """A backend whose images all have one digest."""

    def __init__(self, digest):
        super().__init__()
        self.digest = digest

    async def image_digest(self, world):
        return self.digest


@pytest.mark.parametrize(
    ("inner", "digest"),
    [
        ([Imaging("a")], "a"),
        ([Imaging("a"), Imaging("a")], "a"),
        ([Imaging("a"), Imaging("b")], None),
        ([Imaging("a"), FakeBackend()], None),
        ([Imaging(None)], None),
    ],
)
def test_a_pool_knows_an_image_where_its_backends_agree(run, inner, digest):
    async def main():
        async with PoolBackend(inner, bounds=PoolBounds(estimate_bytes=MIB, **COLD)) as pool:
            return await pool.image_digest(World(image="mine"))

    assert run(main()) == digest


def test_shares_take_turns_however_long_their_queues_are(run):
    async def main():
        gate = Gate()
        backend = FakeBackend(start=gate)
        order = []
        async with PoolBackend(backend, bounds=PoolBounds(starts=1, estimate_bytes=MIB, warm=0)) as pool:
            many, few, heavy = pool.share("many"), pool.share("few"), pool.share("heavy", weight=3)

            async def one(share, name):
                await share.create(World())
                order.append(name)

            asked = [asyncio.ensure_future(one(many, "many")) for _ in range(100)]
            await asyncio.sleep(0)
            asked += [asyncio.ensure_future(one(few, "few")) for _ in range(2)]
            asked += [asyncio.ensure_future(one(heavy, "heavy")) for _ in range(30)]
            await settle(lambda: backend.starting == 1)
            gate.open.set()
            await asyncio.gather(*asked)
        assert max(at for at, name in enumerate(order) if name == "few") < 12
        first = order[2:42]
        assert 25 <= first.count("heavy") <= 30, "three turns to one"

    run(main())


def test_a_full_pool_says_what_is_used_by_whom(run):
    async def main():
        bounds = PoolBounds(sandboxes=2, wait_s=0.1, queue=1, warm=0)
        async with PoolBackend(FakeBackend(), bounds=bounds) as pool:
            hog, late = pool.share("hog", weight=2), pool.share("late")
            held = [await hog.create(World()) for _ in range(2)]
            waiting = asyncio.ensure_future(late.create(World()))
            await asyncio.sleep(0)
            with pytest.raises(PoolFull, match="1 requests of share 'late' wait already"):
                await late.create(World())
            with pytest.raises(
                PoolFull, match=r"no room within 0.1 s: fake: 2 sandboxes .* share hog \(weight 2\): 2"
            ):
                await waiting
            waiting = asyncio.ensure_future(late.create(World()))
            await asyncio.sleep(0)
            await held[0].close()
            assert (await (await waiting).exec("x")).ok, "who waits is served as soon as there is room"

    run(main())


def test_a_cancelled_request_leaves_its_place_and_its_seat(run):
    async def main():
        gate = Gate()
        backend = FakeBackend(start=gate)
        async with PoolBackend(backend, bounds=PoolBounds(starts=1, sandboxes=1, warm=0)) as pool:
            first = asyncio.ensure_future(pool.create(World()))
            second, third = (asyncio.ensure_future(pool.create(World())) for _ in range(2))
            await settle(lambda: backend.starting == 1)
            second.cancel()
            first.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
            gate.open.set()
            await (await third).close()
            assert backend.started == 2, "the one that was under way, and the one that waited on"
            assert "main" not in pool.usage()
            held = await pool.create(World())
            waiting = [asyncio.ensure_future(pool.create(World())) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            await held.close()  # its place is given before the cancelled one has run
            await (await waiting[1]).close()
            waiting[2].cancel()
        assert waiting[0].cancelled()

    run(main())


class Users:
    """People who use a pool in every way; each method is one thing that happens."""

    def __init__(self, pool, made):
        self.pool, self.made, self.asked, self.snapshots = pool, made, [], []

    def open(self):
        done = [task for task in self.asked if task.done() and not task.cancelled() and not task.exception()]
        return [task.result() for task in done]

    def ask(self, awaitable):
        self.asked.append(asyncio.ensure_future(awaitable))

    async def create(self, number, _chosen):
        self.ask(self.pool.create(World(env={"N": str(number % 2)})))

    async def fork(self, _number, chosen):
        self.ask(chosen.fork())

    async def restore(self, number, _chosen):
        if self.snapshots:
            self.ask(self.pool.restore(self.snapshots[number % len(self.snapshots)]))

    async def snapshot(self, _number, chosen):
        with contextlib.suppress(SandboxDied):
            self.snapshots.append(await chosen.snapshot())

    async def release(self, _number, _chosen):
        if self.snapshots:
            await asyncio.gather(self.pool.release(self.snapshots.pop()), return_exceptions=True)

    async def close(self, _number, chosen):
        await chosen.close()

    async def cancel(self, number, _chosen):
        self.asked[number % len(self.asked)].cancel()

    async def die(self, _number, chosen):
        chosen.inner.die()

    async def break_(self, _number, _chosen):
        if not self.made[-1].broken:
            self.made[-1].break_down()

    async def leave(self):
        """Close everything, until every request is served or refused."""
        async with asyncio.timeout(20):
            while not all(task.done() for task in self.asked):
                await asyncio.gather(*(sandbox.close() for sandbox in self.open()))
                await asyncio.sleep(0.001)
        await asyncio.gather(*(sandbox.close() for sandbox in self.open()))


EVENTS = ["create", "fork", "restore", "snapshot", "close", "cancel", "die", "release", "break_"]


@settings(derandomize=True, max_examples=60)
@given(
    events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 99)), max_size=40),
    starts=st.integers(1, 4),
    most=st.integers(1, 8),
)
def test_whatever_happens_bounds_hold_and_nothing_is_left(events, starts, most):
    made = []

    def check(members):
        assert all(backend.most_starting <= starts + 1 for backend in made), "and one to see whether it lives"
        for member in members:
            assert len(member.ledger) <= most
            assert 0 <= member.starting <= starts

    async def main():
        bounds = PoolBounds(starts=starts, sandboxes=most, wait_s=5, warm=1)
        async with PoolBackend(factory(made, start=lambda world: asyncio.sleep(0)), bounds=bounds) as pool:
            core, users = pool._core, Users(pool, made)
            for what, number in [("create", 0), *events]:
                there = users.open()
                if there or what in ("create", "restore", "release", "cancel"):
                    await getattr(users, what)(number, there[number % len(there)] if there else None)
                for _ in range(number % 4):
                    await asyncio.sleep(0)
                check(core.members.values())
            await users.leave()
            assert not len(core.queue)
        for member in core.members.values():
            assert (len(member.ledger), member.ledger.charged, member.starting) == (0, 0, 0)
        assert not core.sandboxes
        assert not len(core.warm.shelf)
        assert not any(backend.open or backend.starting for backend in made)

    logging.disable(logging.WARNING)
    try:
        asyncio.run(main())
    finally:
        logging.disable(logging.NOTSET)


# -- warm sandboxes ----------------------------------------------------------------------------------------------


def test_a_world_that_is_asked_for_again_has_warm_sandboxes_from_then_on(run):
    async def main():
        backend = FakeBackend()
        async with PoolBackend(backend, bounds=PoolBounds(warm=2, estimate_bytes=MIB)) as pool:
            shelf = pool._core.warm.shelf
            await pool.create(World())
            assert len(shelf) == 0, "once is no habit"
            await pool.create(World())
            await settle(lambda: len(shelf) == 2)
            gate = Gate()
            backend._start = gate  # no start gets through from now on
            warm = await pool.create(World())
            assert (await warm.exec("x")).ok
            assert "share main (weight 1): 3 sandboxes" in pool.usage()
            gate.open.set()
            await settle(lambda: len(shelf) == 2)

    run(main())


def test_a_dead_warm_sandbox_is_never_handed_out(run):
    async def main():
        backend = FakeBackend()
        async with PoolBackend(backend, bounds=PoolBounds(warm=3, estimate_bytes=MIB)) as pool:
            shelf = pool._core.warm.shelf
            for _ in range(2):
                await pool.create(World())
            await settle(lambda: len(shelf) == 3)
            for ready in shelf._ready.values():
                for sandbox in ready[:2]:
                    sandbox.inner.die()
            for _ in range(5):
                assert (await (await pool.create(World())).exec("x")).ok

    run(main())


def test_what_fails_where_nobody_waits_for_it_is_logged(run, caplog):
    async def broken():
        raise OSError("the close of a warm one")

    async def main():
        async def start(_world):
            if backend.started > 2:
                raise EnvironmentFailure("no room for a warm one")

        backend = FakeBackend(start=start)
        async with PoolBackend(backend, bounds=PoolBounds(warm=1, estimate_bytes=MIB)) as pool:
            for _ in range(2):
                await pool.create(World())
            await settle(lambda: "no room for a warm one" in caplog.text)
            pool._core.later(broken())
            await settle(lambda: "the close of a warm one" in caplog.text)

    run(main())
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_warm_sandboxes_are_of_the_worlds_used_lately_and_go_first_when_room_is_short(run):
    async def main():
        backend = FakeBackend()
        bounds = PoolBounds(warm=1, warm_worlds=2, sandboxes=8, wait_s=5)
        async with PoolBackend(backend, bounds=bounds) as pool:
            shelf = pool._core.warm.shelf
            worlds = [World(env={"N": str(number)}) for number in range(3)]
            for world in worlds:
                for _ in range(2):
                    await (await pool.create(world)).close()
            await settle(lambda: len(shelf) == 2)
            assert {one.world.env["N"] for ready in shelf._ready.values() for one in ready} == {"1", "2"}
            held = [await pool.create(World(env={"N": f"new{number}"})) for number in range(8)]
            assert len(held) == 8
            assert len(shelf) == 0

    run(main())


# -- memory ------------------------------------------------------------------------------------------------------


class Host(FakeBackend):
    """A fake backend that tells what its sandboxes use: what `use` says of each."""

    def __init__(self, *, total=24 * GIB, use=lambda name: 4 * MIB):
        super().__init__()
        self.total, self.use = total, use

    async def memory(self, sandboxes):
        taken = sum(self.use(name) for name in self.open)
        used = {name: self.use(name) for name in sandboxes if name in self.open}
        return MemoryUse(self.total, max(0, self.total - taken), used)


@pytest.mark.slow
def test_what_uses_little_is_admitted_by_what_it_uses(run):
    async def main():
        host = Host()
        world = World(resources=Resources(memory_bytes=2 * GIB))
        async with PoolBackend(host, bounds=PoolBounds(warm=0, wait_s=30)) as pool:
            sandboxes = await asyncio.gather(*(pool.create(world) for _ in range(200)))
            assert len({sandbox.id for sandbox in sandboxes}) == 200

    run(main())


@pytest.mark.slow
def test_what_takes_all_it_may_is_not_admitted_beyond_the_bound(run):
    async def main():
        host = Host(use=lambda name: GIB)
        async with PoolBackend(host, bounds=PoolBounds(warm=0, wait_s=3)) as pool:
            made = await asyncio.gather(*(pool.create(World()) for _ in range(100)), return_exceptions=True)
            refused = [one for one in made if isinstance(one, PoolFull)]
            assert len(refused) + len(host.open) == 100
            assert len(host.open) <= 19
            assert "GiB of" in str(refused[0])

    run(main())


@pytest.mark.slow
def test_under_pressure_the_one_that_uses_most_is_ended_and_says_why(run, caplog):
    async def main():
        large = set()
        host = Host(use=lambda name: 24 * GIB - 200 * MIB if name in large else MIB)
        async with PoolBackend(host, bounds=PoolBounds(warm=2)) as pool:
            shelf = pool._core.warm.shelf
            sandboxes = [await pool.create(World()) for _ in range(4)]
            await settle(lambda: len(shelf) == 2)
            running = asyncio.ensure_future(sandboxes[2].exec(["hold"]))
            large.add(sandboxes[2].inner.id)
            with pytest.raises(SandboxDied, match="it used most"):
                await running
            with pytest.raises(SandboxDied, match="it used most"):
                await sandboxes[2].exec("x")
            for other in (*sandboxes[:2], sandboxes[3]):
                assert (await other.exec("x")).ok

    run(main())
    assert "it used most" in caplog.text


def test_a_share_within_its_part_is_not_kept_out_by_one_that_took_more(run):
    async def main():
        host = Host()
        bounds = PoolBounds(warm=0, memory_bytes=10 * GIB, estimate_bytes=GIB, wait_s=20)
        async with PoolBackend(host, bounds=bounds) as pool:
            hog, late = pool.share("hog"), pool.share("late")
            host.use = lambda name: GIB
            held = [await hog.create(World()) for _ in range(10)]
            more = [asyncio.ensure_future(hog.create(World())) for _ in range(5)]
            few = [asyncio.ensure_future(late.create(World())) for _ in range(4)]
            for sandbox in held[:4]:
                await sandbox.close()
            await asyncio.gather(*few)
            assert sum(task.done() for task in more) <= 2
            for task in more:
                task.cancel()

    run(main())


# -- deaths and returns ------------------------------------------------------------------------------------------


def factory(made, **options):
    def make():
        made.append(FakeBackend(**options))
        return made[-1]

    return make


def test_a_backend_that_dies_is_made_again_and_serves_who_waits(run):
    async def main():
        made = []
        async with PoolBackend(factory(made), bounds=PoolBounds(warm=1, estimate_bytes=MIB)) as pool:
            sandboxes = [await pool.create(World()) for _ in range(3)]
            snapshot = await sandboxes[0].snapshot()
            running = asyncio.ensure_future(sandboxes[0].exec(["hold"]))
            await settle(lambda: sandboxes[0].inner.held == 1)
            made[0].break_down("the daemon was killed")
            with pytest.raises(SandboxDied):
                await running
            fresh = await pool.create(World())
            assert (await fresh.exec("x")).ok
            assert len(made) == 2
            for sandbox in sandboxes:
                with pytest.raises(SandboxDied, match="the daemon was killed"):
                    await sandbox.exec("x")
                await sandbox.close()
            for call in (pool.restore(snapshot), pool.retain(snapshot)):
                with pytest.raises(SnapshotGone, match="went with the backend"):
                    await call
            with pytest.raises(SnapshotGone):
                await pool.release(snapshot)
            with pytest.raises(SnapshotGone, match="not held"):
                await pool.release(snapshot)

    run(main())


@pytest.mark.slow
def test_a_backend_that_stays_away_is_tried_again_and_again(run):
    async def main():
        made, failing = [], [True]

        async def start(world):
            if failing[0] and len(made) > 1:
                raise InfrastructureFailure("not yet")

        async with PoolBackend(factory(made, start=start), bounds=PoolBounds(warm=0)) as pool:
            await pool.create(World())
            made[0].break_down()
            waiting = asyncio.ensure_future(pool.create(World()))
            await settle(lambda: len(made) >= 4)
            assert not waiting.done()
            failing[0] = False
            assert (await (await waiting).exec("x")).ok
            await settle(lambda: sum(not backend.broken for backend in made) == 1)

    run(main())


def test_a_backend_that_never_worked_is_said_at_once(run):
    async def main():
        made = []

        async def start(world):
            raise InfrastructureFailure("no namespaces here")

        async with PoolBackend(factory(made, start=start), bounds=PoolBounds(warm=0)) as pool:
            for _ in range(3):
                with pytest.raises(InfrastructureFailure, match="no namespaces here"):
                    await pool.create(World())

    run(main())


@pytest.mark.parametrize("failure", [ValueError("bad"), EnvironmentFailure("setup"), FileNotFoundError(2, "gone")])
def test_a_start_that_fails_for_its_world_does_not_end_the_others(run, failure):
    async def main():
        async def start(world):
            if world.env:
                raise failure

        made = []
        async with PoolBackend(factory(made, start=start), bounds=PoolBounds(warm=0)) as pool:
            good = await pool.create(World())
            with pytest.raises(type(failure)):
                await pool.create(World(env={"bad": "yes"}))
            assert (await good.exec("x")).ok
            assert len(made) == 1

    run(main())


def test_a_backend_that_can_start_nothing_keeps_the_sandboxes_that_live_and_is_asked_again(run):
    async def main():
        failing = []

        async def start(world):
            if failing:
                raise OSError(24, "Too many open files")

        made = []
        async with PoolBackend(factory(made, start=start), bounds=PoolBounds(warm=0, estimate_bytes=MIB)) as pool:
            good = await pool.create(World())
            failing.append(True)
            asked = [asyncio.ensure_future(pool.create(World())) for _ in range(3)]
            asked.append(asyncio.ensure_future(good.fork()))
            await settle(lambda: "Too many open files" in pool.usage())
            assert (await good.exec("x")).ok
            assert not any(task.done() for task in asked), "who asks waits, as for room"
            failing.clear()
            for sandbox in await asyncio.gather(*asked):
                assert (await sandbox.exec("x")).ok
            assert (await good.exec("x")).ok
            assert len(made) == 1

    run(main())


def test_a_backend_that_dies_while_it_starts_nothing_is_made_again(run):
    async def main():
        failing, made = [], []

        async def start(world):
            if failing and len(made) == 1:
                raise OSError(24, "Too many open files")

        async with PoolBackend(factory(made, start=start), bounds=PoolBounds(warm=0)) as pool:
            good = await pool.create(World())
            failing.append(True)
            asked = asyncio.ensure_future(pool.create(World()))
            await settle(lambda: "Too many open files" in pool.usage())
            made[0].break_down("killed")
            assert (await (await asked).exec("x")).ok
            with pytest.raises(SandboxDied, match="killed"):
                await good.exec("x")
            assert len(made) == 2

    run(main())


def test_one_hosts_death_does_not_stop_the_others_and_states_stay_where_they_are(run):
    async def main():
        made = {"a": [], "b": []}
        inner = [factory(made["a"], name="a"), factory(made["b"], name="b")]
        async with PoolBackend(inner, bounds=PoolBounds(warm=0, estimate_bytes=MIB)) as pool:
            sandboxes = [await pool.create(World()) for _ in range(6)]
            places = [sandbox.id.partition("/")[0] for sandbox in sandboxes]
            assert sorted(places) == ["inner-1"] * 3 + ["inner-2"] * 3, "where more is free"
            snapshots = [await sandbox.snapshot() for sandbox in sandboxes[:2]]
            for sandbox, snapshot in zip(sandboxes, snapshots, strict=False):
                async with await sandbox.fork() as fork, await pool.restore(snapshot) as again:
                    assert {fork.member, again.member} == {sandbox.member}
            made["a"][0].break_down()
            results = await asyncio.gather(*(sandbox.exec("x") for sandbox in sandboxes), return_exceptions=True)
            assert [isinstance(result, SandboxDied) for result in results].count(True) == 3
            assert (await (await pool.create(World())).exec("x")).ok
            await settle(lambda: len(made["a"]) == 2)
            assert len(made["b"]) == 1

    run(main())


def test_a_start_that_takes_too_long_is_given_up(run):
    async def main():
        gate = Gate()
        async with PoolBackend(FakeBackend(start=gate), bounds=PoolBounds(start_s=0.1, warm=0)) as pool:
            with pytest.raises(EnvgymError, match="deadline of"):
                await pool.create(World())

    run(main())


# -- ends --------------------------------------------------------------------------------------------------------


def test_closing_a_share_closes_what_it_has_and_no_more(run):
    async def main():
        backend = FakeBackend()
        async with PoolBackend(backend, bounds=PoolBounds(warm=0, estimate_bytes=MIB)) as pool:
            kept = await pool.create(World())
            async with pool.share("guest") as guest:
                sandbox = await guest.create(World())
                fork = await sandbox.fork()
                snapshot = await fork.snapshot()
                await guest.retain(snapshot)
                assert guest.report().backend == "pool"
            assert list(backend.open) == [kept.inner.id]
            assert not backend.held
            for call in (guest.create(World()), guest.restore(snapshot), guest.release(snapshot)):
                with pytest.raises(InfrastructureFailure, match="is closed"):
                    await call
            with pytest.raises(SandboxDied):
                await fork.exec("x")
        assert not backend.open

    run(main())


def test_closing_the_pool_refuses_who_waits_and_leaves_alone_what_is_not_its_own(run):
    async def main():
        backend = FakeBackend()
        theirs = await backend.create(World())
        pool = PoolBackend(backend, bounds=PoolBounds(sandboxes=1, warm=0))
        await pool.create(World())
        waiting = asyncio.ensure_future(pool.create(World()))
        await asyncio.sleep(0)
        await asyncio.gather(pool.close(), pool.close())
        with pytest.raises(InfrastructureFailure, match="closed"):
            await waiting
        with pytest.raises(InfrastructureFailure, match="closed"):
            await pool.create(World())
        assert list(backend.open) == [theirs.id], "a backend that was there before is not closed"

    run(main())


def test_what_no_pool_could_be_made_of_is_said_at_once():
    with pytest.raises(ValueError, match="at least one"):
        PoolBackend([])
    with pytest.raises(TypeError, match="neither a backend"):
        PoolBackend(3)
    with pytest.raises(TypeError, match="names no backend"):
        PoolBackend({"address": "x"})
    with pytest.raises(ValueError, match="given by name"):
        PoolBackend(FakeBackend, options={"root": "x"})
    with pytest.raises(TypeError, match="'start'"):
        PoolBackend(FakeBackend, bounds={"start": 3})
    for wrong in ({"starts": -1}, {"wait_s": 0}, {"memory_share": 2}, {"sandboxes": 0}):
        with pytest.raises(ValueError, match=r"PoolBounds\."):
            PoolBackend(FakeBackend, bounds=wrong)
    for wrong in ({"warm": "two"}, {"queue": None}, {"sandboxes": 1.5}, {"wait_s": "5"}, {"memory_share": "all"}):
        with pytest.raises(TypeError, match=r"PoolBounds\."):
            PoolBackend(FakeBackend, bounds=wrong)
    with pytest.raises(ValueError, match="cannot be the name"):
        PoolBackend(FakeBackend).share("(warm)")


def test_backends_are_made_from_what_a_command_line_gives():
    pool = PoolBackend([{"backend": "local"}, {"backend": "namespace"}], bounds={"starts": 2, "warm": 0})
    assert sorted(pool._core.members) == ["local-1", "namespace-2"]
    report = pool.report()
    assert report.works
    assert any(line.startswith("local: files") for line in report.missing)
    assert not any("network" in line for line in report.isolates), "what one does not isolate, the pool does not"
    assert [line for line in pool.reap() if not line.startswith("cgroup")] == [], "but for other tests' dead owners"


def test_a_pool_over_what_does_not_work_here_says_so_and_reaps_nothing():
    def make():
        raise SandboxUnavailable("no namespaces here")

    pool = PoolBackend(make)
    assert not pool.report().works
    assert "no namespaces here" in pool.report().missing[0]
    assert [line for line in pool.reap() if not line.startswith("cgroup")] == [], "but for other tests' dead owners"


def test_closing_a_share_refuses_who_waits_for_it_and_keeps_nothing_that_was_under_way(run):
    async def main():
        gate = Gate()
        backend = FakeBackend(start=gate)
        async with PoolBackend(backend, bounds=PoolBounds(starts=1, warm=0)) as pool:
            guest = pool.share("guest")
            asked = [asyncio.ensure_future(guest.create(World())) for _ in range(3)]
            await settle(lambda: backend.starting == 1)
            await guest.close()
            gate.open.set()
            for task in asked:
                with pytest.raises(InfrastructureFailure, match="is closed"):
                    await task
            assert not backend.open
            assert (await (await pool.create(World())).exec("x")).ok

    run(main())


def test_closing_a_pool_waits_for_starts_that_were_under_way(run):
    async def main():
        gate = Gate()
        backend = FakeBackend(start=gate)
        pool = PoolBackend(backend, bounds=PoolBounds(starts=2, warm=0))
        asked = [asyncio.ensure_future(pool.create(World())) for _ in range(3)]
        await settle(lambda: backend.starting == 2)
        closing = asyncio.ensure_future(pool.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        gate.open.set()
        await closing
        for task in asked:
            with pytest.raises(InfrastructureFailure, match="closed"):
                await task
        assert not backend.open

    run(main())
