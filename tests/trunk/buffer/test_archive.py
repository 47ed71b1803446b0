"""The archive: every entry holds one reference, gives it back once, also across kills, and offers what teaches."""

import asyncio
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from envgym.buffer.archive import Keeper, Lent, SnapshotArchive
from envgym.buffer.starts import Standing, Start, Status, across, edge
from envgym.env import Env, Snapshot, Step, StopReason
from envgym.episode import Episode
from envgym.errors import Failure, InfrastructureFailure, ReplayDiverged, SnapshotGone
from envgym.sandbox import SandboxBackend, SandboxSnapshot
from envgym.task import World
from envgym.testing.fakes import FakeBackend, MemoryEnv

RNG = np.random.default_rng


class Counting:
    """A keeper that counts references; releasing what is not there is SnapshotGone, and remembered."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.failing: set[str] = set()

    def take(self, name: str) -> SandboxSnapshot:
        self.held[name] += 1
        return SandboxSnapshot(id=name, backend="counting")

    def lose(self, name: str) -> None:
        self.held[name] = 0

    async def release(self, snapshot: SandboxSnapshot, /) -> None:
        await asyncio.sleep(0)
        if snapshot.id in self.failing:
            raise InfrastructureFailure(f"the daemon hung up on {snapshot.id}")
        if not self.held[snapshot.id]:
            self.wrong.append(snapshot.id)
            raise SnapshotGone(snapshot.id)
        self.held[snapshot.id] -= 1

    @property
    def references(self) -> int:
        return sum(self.held.values())


def start(keeper: Counting, name: str, **more: Any) -> Start[SandboxSnapshot]:
    return Start(name, keeper.take(name), **{"task_id": "t", **more})


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 20))


def ended(failure: Exception | None = None, where: str = "reset") -> Episode:
    broke = None if failure is None else Failure.of(failure, where=where, turn=0)  # type: ignore[arg-type]
    return Episode("e", "t", Step(), (), 0, stop=StopReason.GOAL if broke is None else None, failure=broke)


def test_environments_and_backends_are_keepers() -> None:
    def wants_snapshots(keeper: Keeper[Snapshot]) -> None: ...
    def wants_sandbox_snapshots(keeper: Keeper[SandboxSnapshot]) -> None: ...

    def typed(env: Env, backend: SandboxBackend) -> None:  # what mypy checks
        wants_snapshots(env)
        wants_sandbox_snapshots(backend)

    wants_snapshots(MemoryEnv())
    wants_sandbox_snapshots(FakeBackend())


def test_what_leaves_is_released_once_and_the_least_useful_leaves_first() -> None:
    async def play() -> None:
        keeper = Counting()
        async with SnapshotArchive(keeper, most=2) as archive:
            assert await archive.add(start(keeper, "a")) == ()
            await archive.add(start(keeper, "b"))
            for lent in archive.choose(8, RNG(0)):
                await archive.give_back(lent, won=lent.start.key == "b" or None)
            assert archive.status("b") in (Status.SOLVED, Status.UNKNOWN)
            assert await archive.add(start(keeper, "c")) == ("b",)
            assert (keeper.held["b"], keeper.references, archive.counts["released"]) == (0, 2, 1)
            assert [one.key for one in archive.starts] == ["a", "c"]
        assert (keeper.references, keeper.wrong, len(archive)) == (0, [], 0)
        await archive.close()
        assert archive.counts == {"added": 3, "released": 3}

    run(play())


def test_bytes_are_bounded_and_what_alone_is_too_large_does_not_stay() -> None:
    async def play() -> None:
        keeper = Counting()
        archive = SnapshotArchive(keeper, most=10, most_bytes=100)
        await archive.add(start(keeper, "a", size=60))
        assert await archive.add(start(keeper, "huge", size=101)) == ("huge",)
        assert await archive.add(start(keeper, "b", size=50)) == ("a",)
        assert (archive.size, keeper.references) == (50, 1)

    run(play())


def test_a_wrong_start_is_refused_and_its_reference_stays_the_callers() -> None:
    async def play() -> None:
        keeper = Counting()
        archive = SnapshotArchive(keeper, most=2)
        await archive.add(start(keeper, "a"))
        for wrong in (start(keeper, "a"), start(keeper, "b", size=-1)):
            with pytest.raises(ValueError, match="keys are unique, sizes at least 0"):
                await archive.add(wrong)
        await archive.close()
        assert (keeper.held["a"], keeper.held["b"]) == (1, 1)

    run(play())
    with pytest.raises(ValueError, match="most is 0"):
        SnapshotArchive(Counting(), most=0)


def test_a_start_that_is_lent_keeps_its_snapshot_whatever_leaves() -> None:
    async def play() -> None:
        keeper = Counting()
        archive = SnapshotArchive(keeper, most=1)
        await archive.add(start(keeper, "a"))
        first, second = archive.choose(2, RNG(0))
        assert await archive.add(start(keeper, "b")) == ("a",)
        assert (keeper.held["a"], archive.doomed, "a" in archive) == (1, 1, False)
        await archive.give_back(first)
        assert keeper.held["a"] == 1
        await archive.give_back(second)
        assert (keeper.held["a"], archive.doomed) == (0, 0)
        with pytest.raises(ValueError, match="start 'a' is not lent"):
            await archive.give_back(second)
        (last,) = archive.choose(1, RNG(0))
        await archive.close()
        assert keeper.references == 1
        await archive.give_back(last)
        assert (keeper.references, keeper.wrong) == (0, [])

    run(play())


@pytest.mark.parametrize(
    ("failure", "where", "left", "counts"),
    [
        (SnapshotGone("it was released"), "reset", 0, {"added": 1, "gone": 1}),
        (ReplayDiverged("another state"), "reset", 0, {"added": 1, "broken": 1, "released": 1}),
        (InfrastructureFailure("a hiccup"), "reset", 1, {"added": 1}),
        (ReplayDiverged("a fork of its own"), "step", 1, {"added": 1}),
    ],
)
def test_what_cannot_be_started_from_is_removed_and_counted(
    failure: Exception, where: str, left: int, counts: dict[str, int]
) -> None:
    async def play() -> None:
        keeper = Counting()
        archive = SnapshotArchive(keeper, most=3)
        await archive.add(start(keeper, "a"))
        lent = archive.choose(3, RNG(0))  # three at once meet the same end
        if isinstance(failure, SnapshotGone):
            keeper.lose("a")
        for one in lent:
            await archive.settle(one, ended(failure, where), won=False)
        assert (len(archive), archive.counts) == (left, counts)
        assert left or archive.choose(1, RNG(0)) == ()
        assert not left or archive.status("a") is Status.UNKNOWN  # the world's fault says nothing about the start
        await archive.close()
        assert (keeper.references, keeper.wrong) == (0, [])

    run(play())


def test_what_is_gone_when_it_is_released_is_counted_and_nothing_else_is_lost() -> None:
    async def play() -> None:
        keeper = Counting()
        archive = SnapshotArchive(keeper, most=3)
        for name in "abc":
            await archive.add(start(keeper, name))
        keeper.lose("a")
        keeper.failing.add("b")
        with pytest.raises(InfrastructureFailure, match="hung up on b") as raised:
            await archive.close()
        assert raised.value.__notes__ == ["while the archive released start 'b'; it is not tried again"]
        assert archive.counts == {"added": 3, "gone": 1, "unreleased": 1, "released": 1}
        await archive.close()
        assert keeper.held["b"] == 1

    run(play())


def test_several_failing_releases_are_raised_together() -> None:
    async def play() -> None:
        keeper = Counting()
        archive = SnapshotArchive(keeper, most=3)
        for name in "ab":
            await archive.add(start(keeper, name))
            keeper.failing.add(name)
        with pytest.raises(ExceptionGroup, match="releasing snapshots failed"):
            await archive.close()

    run(play())


def test_a_cancelled_caller_does_not_stop_a_release_half_way() -> None:
    async def play() -> None:
        keeper = Counting()
        archive = SnapshotArchive(keeper, most=1)
        await archive.add(start(keeper, "a"))
        adding = asyncio.create_task(archive.add(start(keeper, "b")))
        await asyncio.sleep(0)
        adding.cancel()
        await asyncio.gather(adding, return_exceptions=True)
        await archive.close()
        assert (keeper.references, keeper.wrong) == (0, [])

    run(play())


def test_starts_are_drawn_by_their_rule_and_by_task() -> None:
    async def play() -> None:
        keeper = Counting()
        archive = SnapshotArchive(keeper, most=9)
        for name, task in (("a", "x"), ("b", "x"), ("c", "y")):
            await archive.add(start(keeper, name, task_id=task, cluster=task))
        assert {one.start.key for one in archive.choose(40, RNG(0), task_id="x")} == {"a", "b"}
        assert archive.choose(1, RNG(0), task_id="z") == ()
        drawn = Counter(one.start.key for one in archive.choose(2000, RNG(0), rule=across(edge)))
        assert [drawn[name] / 2000 for name in "abc"] == pytest.approx([0.25, 0.25, 0.5], abs=0.05)

        def only_c(standing: Standing) -> Any:
            return np.array([0.0, 0.0, 1.0])

        assert {one.start.key for one in archive.choose(20, RNG(0), rule=only_c)} == {"c"}
        first, second = archive.choose(5, RNG(7)), archive.choose(5, RNG(7))
        assert [one.start.key for one in first] == [one.start.key for one in second]

    run(play())


def test_statuses_count_what_became_of_episodes() -> None:
    async def play() -> None:
        keeper = Counting()
        archive = SnapshotArchive(keeper, most=9)
        for name in "ab":
            await archive.add(start(keeper, name, task_id=name))
        for lent in archive.choose(4, RNG(0), task_id="a"):
            await archive.settle(lent, ended(), won=True)
        assert archive.status("a") is Status.SOLVED
        found = archive.statuses
        assert (found[Status.SOLVED], found[Status.UNKNOWN], found[Status.DEAD_END]) == (1, 1, 0)

    run(play())


def test_an_archive_of_environments_snapshots_is_handed_over_and_starts_episodes() -> None:
    async def play() -> None:
        env = MemoryEnv()
        await env.reset(seed=3)
        archive: SnapshotArchive[Snapshot] = SnapshotArchive(env, most=2)
        await archive.add(Start("e@0", await env.snapshot(), env.task.id))
        state = json.loads(json.dumps(await archive.hand_over()))
        assert (len(archive), archive.counts) == (0, {"added": 1, "handed_over": 1})
        again = await SnapshotArchive.restore(state, env, Snapshot.model_validate)
        (lent,) = again.choose(1, RNG(0))
        step = await MemoryEnv(env.task).reset(seed=0, start=lent.start.snapshot)
        assert step.text == "restored"
        with pytest.raises(RuntimeError, match=r"hand_over: \['e@0'\] are lent"):
            await again.hand_over()
        await again.give_back(lent)
        with pytest.raises(ValueError, match="schema 3"):
            await SnapshotArchive.restore({**state, "schema": 3}, env, Snapshot.model_validate)

    run(play())


def test_the_fake_backend_as_keeper_counts_to_zero() -> None:
    async def play() -> None:
        async with FakeBackend() as backend:
            sandbox = await backend.create(World())
            async with SnapshotArchive(backend, most=2) as archive:
                for index in range(4):
                    snapshot = await sandbox.snapshot()
                    await backend.retain(snapshot)  # one more reference, which stays the caller's
                    await archive.add(Start(str(index), snapshot, "t"))
                    await backend.release(snapshot)
                assert len(backend.held) == 2
            assert len(backend.held) == 0

    run(play())


async def killed(disk: Any, keeper: Counting) -> SnapshotArchive[SandboxSnapshot]:
    return await SnapshotArchive.restore(json.loads(json.dumps(disk)), keeper, SandboxSnapshot.model_validate)


@pytest.mark.parametrize("told", [True, False])
def test_what_a_checkpoint_names_is_released_by_who_restores_it_and_nobody_else(told: bool) -> None:
    async def play() -> None:
        keeper = Counting()
        archive = SnapshotArchive(keeper, most=1)
        await archive.add(start(keeper, "a"))
        disk = archive.state()
        if told:
            await archive.saved()
        assert await archive.add(start(keeper, "b")) == ("a",)
        assert (keeper.held["a"], archive.doomed) == (1, 1)
        archive.state()  # given out, and the kill comes before it is on the disk
        again = await killed(disk, keeper)
        assert [one.key for one in again.starts] == ["a"]
        await again.close()
        assert (keeper.wrong, keeper.held) == ([], {"a": 0, "b": 1})  # what came after the checkpoint is lost

    run(play())


def test_what_left_is_released_once_no_checkpoint_names_it() -> None:
    async def play() -> None:
        keeper = Counting()
        archive = SnapshotArchive(keeper, most=1)
        await archive.add(start(keeper, "a"))
        archive.state()
        await archive.saved()
        await archive.add(start(keeper, "b"))
        disk = archive.state()
        assert keeper.held["a"] == 1
        await archive.saved()
        assert (keeper.held["a"], archive.doomed) == (0, 0)
        again = await killed(disk, keeper)
        assert again.counts == {"added": 2, "released": 1}
        await again.close()
        assert (keeper.references, keeper.wrong) == (0, [])

    run(play())


def test_who_is_killed_while_somebody_starts_from_what_left_owes_its_reference() -> None:
    async def play() -> None:
        keeper = Counting()
        archive = SnapshotArchive(keeper, most=1)
        await archive.add(start(keeper, "a"))
        archive.choose(1, RNG(0))
        await archive.add(start(keeper, "b"))
        again = await killed(archive.state(), keeper)
        assert (len(again), again.doomed) == (1, 1)
        again.state()
        await again.saved()
        assert (keeper.held["a"], again.doomed) == (0, 0)
        await again.close()
        assert (keeper.references, keeper.wrong) == (0, [])

    run(play())


# -- laws ------------------------------------------------------------------------------------------------------


class ArchiveMachine(RuleBasedStateMachine):
    """Any use of an archive, with checkpoints, and kills that throw away all since the last saved one.

    What a kill may cost are references: `leaked` counts them. What it must never do is release one twice.
    """

    runner: asyncio.Runner

    @initialize(most=st.integers(1, 4), most_bytes=st.sampled_from([10, 25, 1000]))
    def begin(self, most: int, most_bytes: int) -> None:
        self.keeper = Counting()
        self.archive = SnapshotArchive(self.keeper, most=most, most_bytes=most_bytes)
        self.lent: list[Lent[SandboxSnapshot]] = []
        self.made = 0
        self.disk: Any = None
        self.leaked = False
        self.gone: set[str] = set()

    def do(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    @rule(size=st.integers(0, 12), again=st.booleans())
    def add(self, size: int, again: bool) -> None:
        self.made += 1
        snapshot = self.keeper.take("shared" if again else f"s{self.made}")  # some snapshots have other owners too
        self.do(self.archive.add(Start(f"k{self.made}", snapshot, "t", size=size)))

    @precondition(lambda self: len(self.archive))
    @rule(seed=st.integers(0, 99), size=st.integers(1, 3))
    def choose(self, seed: int, size: int) -> None:
        self.lent += self.archive.choose(size, RNG(seed))

    @precondition(lambda self: self.lent)
    @rule(at=st.integers(0, 99), won=st.none() | st.booleans(), broken=st.booleans())
    def give_back(self, at: int, won: bool | None, broken: bool) -> None:
        lent = self.lent.pop(at % len(self.lent))
        name = lent.start.snapshot.id
        lost: Any = "gone" if name in self.gone else "broken" if broken and won is None else None
        self.do(self.archive.give_back(lent, won=won, lost=lost))

    @precondition(lambda self: len(self.archive))
    @rule(at=st.integers(0, 99))
    def lose_one(self, at: int) -> None:
        name = self.archive.starts[at % len(self.archive)].snapshot.id
        if name != "shared":
            self.keeper.lose(name)
            self.gone.add(name)

    @rule(durable=st.booleans(), told=st.booleans())
    def checkpoint(self, durable: bool, told: bool) -> None:
        """A state is given out; it gets to the disk or not; the archive is told or the next one comes first."""
        state = json.loads(json.dumps(self.archive.state()))
        if durable:
            self.disk = state
            if told:
                self.do(self.archive.saved())

    @precondition(lambda self: self.disk is not None)
    @rule()
    def kill(self) -> None:
        self.archive = self.do(SnapshotArchive.restore(self.disk, self.keeper, SandboxSnapshot.model_validate))
        self.lent.clear()
        self.leaked = True

    @precondition(lambda self: not self.lent)
    @rule()
    def hand_over(self) -> None:
        state = json.loads(json.dumps(self.do(self.archive.hand_over())))
        self.archive = self.do(SnapshotArchive.restore(state, self.keeper, SandboxSnapshot.model_validate))
        self.disk = state

    @invariant()
    def references_are_entries(self) -> None:
        archive = self.archive
        counts = archive.counts
        ended_ = sum(counts[name] for name in ("released", "gone", "unreleased", "handed_over"))
        assert counts["added"] == len(archive) + archive.doomed + ended_
        assert len(archive) <= archive.most
        assert archive.size <= archive.most_bytes
        assert set(self.keeper.wrong) <= self.gone, "released what it no longer owned"
        mine = [one.snapshot.id for one in archive.starts]
        for name, times in Counter(mine).items():
            assert name in self.gone or self.keeper.held[name] >= times
        if not self.leaked and not self.gone:
            assert self.keeper.references == len(archive) + archive.doomed

    def teardown(self) -> None:
        for lent in self.lent:
            self.do(self.archive.give_back(lent))
        self.do(self.archive.close())
        assert set(self.keeper.wrong) <= self.gone
        assert self.archive.doomed == 0
        if not self.leaked:
            assert self.keeper.references == 0


@pytest.mark.slow
def test_any_use_of_an_archive_holds_one_reference_per_entry_and_none_after_its_end() -> None:
    with asyncio.Runner() as runner:
        ArchiveMachine.runner = runner
        run_state_machine_as_test(ArchiveMachine, settings=settings(max_examples=120, stateful_step_count=40))
