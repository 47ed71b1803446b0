"""Snapshots for going on after a kill: the newest of each episode is there, and in the end none."""

import asyncio
import copy
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.env import Durable, Env, Snapshot, Step
from envgym.episode import Began, Episode, Turn, Unfinished
from envgym.errors import SnapshotGone
from envgym.holding import sweep
from envgym.jobs import Job, stream
from envgym.limits import Limits
from envgym.messages import Action
from envgym.replay import Replaying
from envgym.rollout import Rollout
from envgym.sandbox import SandboxSnapshot
from envgym.testing.fakes import MemoryEnv, RandomAgent, memory_tasks

TASKS = memory_tasks(3)


@dataclass
class Shelf:
    """A disk with durable snapshots, as a backend shows it."""

    held: dict[str, int] = field(default_factory=dict)
    names: int = 0
    most: int = 0

    def take(self, *, durable: bool = True, partial: bool = False) -> SandboxSnapshot:
        self.names += 1
        name = f"n{self.names:06d}"
        self.held[name] = 1
        self.most = max(self.most, len(self.held))
        return SandboxSnapshot(id=name, backend="shelf", durable=durable, partial=partial)

    async def snapshots(self) -> list[SandboxSnapshot]:
        return [SandboxSnapshot(id=name, backend="shelf", durable=True) for name in self.held]

    async def release(self, snapshot: SandboxSnapshot) -> None:
        if snapshot.id not in self.held:
            raise SnapshotGone(f"{snapshot.id} is gone")
        self.held[snapshot.id] -= 1
        if not self.held[snapshot.id]:
            del self.held[snapshot.id]


class Shelved:
    """A game whose snapshots lie on a shelf."""

    partial = False

    def __init__(self, shelf: Shelf, task: int = 0) -> None:
        self.inner, self.shelf, self.steps = MemoryEnv(TASKS[task]), shelf, 0
        self.task, self.tools = self.inner.task, self.inner.tools

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        if start is not None and start.sandbox is not None and start.sandbox.id not in self.shelf.held:
            raise SnapshotGone(f"{start.sandbox.id} is gone")
        return await self.inner.reset(seed=seed, start=start)

    async def step(self, action: Action) -> Step:
        await asyncio.sleep(0)
        self.steps += 1
        return await self.inner.step(action)

    async def snapshot(self) -> Snapshot:
        sandbox = self.shelf.take(durable=False)
        return (await self.inner.snapshot()).model_copy(update={"sandbox": sandbox})

    async def durable_snapshot(self) -> Snapshot:
        sandbox = self.shelf.take(partial=self.partial)
        return (await self.inner.snapshot()).model_copy(update={"sandbox": sandbox})

    async def release(self, snapshot: Snapshot) -> None:
        assert snapshot.sandbox is not None
        await self.shelf.release(snapshot.sandbox)

    async def fork(self) -> Env:
        raise NotImplementedError

    async def close(self) -> None:
        await self.inner.close()


@dataclass
class Memory:
    """A memory without a disk, which notes what a kill would leave at every record."""

    shelf: Shelf
    unfinished: dict[str, Unfinished] = field(default_factory=dict)
    ended: dict[str, Episode] = field(default_factory=dict)
    left: list[tuple[dict[str, Unfinished], dict[str, Episode], Shelf]] = field(default_factory=list)
    begun: set[str] = field(default_factory=set)

    def note(self) -> None:
        known = {name: replace(found, turns=list(found.turns)) for name, found in self.unfinished.items()}
        self.left.append((known, dict(self.ended), copy.deepcopy(self.shelf)))

    def __contains__(self, episode: str) -> bool:
        return episode in self.ended

    def __getitem__(self, episode: str) -> Episode:
        return self.ended[episode]

    def begin(self, began: Began) -> None:
        self.unfinished[began.id] = Unfinished(began)
        self.begun.add(began.id)
        self.note()

    def said(self, episode: str, index: int, turn: Turn) -> None:
        self.note()
        self.unfinished[episode].said = turn
        self.note()

    def turn(self, episode: str, index: int, turn: Turn) -> None:
        self.note()
        self.unfinished[episode].turns.append(turn)
        self.unfinished[episode].said = None
        self.note()

    def append(self, episode: Episode) -> None:
        self.note()
        self.unfinished.pop(episode.id)
        self.ended[episode.id] = episode
        self.note()


ROLLOUT = Rollout(Limits(turns=7), snapshot_every=2, durable=True)


def jobs(worlds: list[Any], make: Any, rollout: Rollout = ROLLOUT) -> Iterator[Job]:
    def one(number: int) -> Job:
        async def world() -> Env:
            env: Env = make(number)
            worlds.append(env)
            return env

        name = f"e{number}"
        return Job(world, lambda env: RandomAgent(env.tools, seed=number), TASKS[number].id, number, name, rollout)

    return (one(number) for number in range(len(TASKS)))


def bare(episodes: dict[str, Episode]) -> dict[str, Episode]:
    """Without the snapshots, whose names are drawn."""
    return {
        name: replace(one, turns=tuple(replace(turn, snapshot=None) for turn in one.turns))
        for name, one in episodes.items()
    }


async def played(memory: Memory, worlds: list[Any], **options: Any) -> dict[str, Episode]:
    found = jobs(worlds, lambda number: Shelved(memory.shelf, number), **options)
    return {one.id: one async for one in stream(found, concurrency=2, memory=memory)}


def test_wherever_it_is_killed_an_episode_goes_on_from_its_newest_snapshot_and_in_the_end_none_is_left() -> None:
    memory = Memory(Shelf())
    whole = asyncio.run(played(memory, []))
    assert isinstance(Shelved(Shelf()), Durable)
    assert memory.shelf.names >= 3
    assert memory.shelf.held == {}, "each was released when it was of no use any more"
    assert memory.shelf.most <= 2 * 2, "two of each episode at most"
    assert all(turn.snapshot is None for one in whole.values() for turn in one.turns[::2][:1]), "a reset is as good"
    for unfinished, ended, shelf in memory.left:
        left, again = Memory(shelf, unfinished, ended), list[Shelved]()

        async def go_on(left: Memory = left, again: list[Shelved] = again) -> dict[str, Episode]:
            await sweep(left.shelf, left.unfinished.values())  # type: ignore[arg-type]  # it needs no more of a backend
            assert len(left.shelf.held) <= len(left.unfinished)
            found = await played(left, again)
            await sweep(left.shelf, left.unfinished.values())  # type: ignore[arg-type]
            return found

        steps = sum(len(one.turns) for one in whole.values()) - sum(len(one.turns) for one in left.ended.values())
        known = sum(len(found.turns) for found in left.unfinished.values())
        most = 2 * len(unfinished)  # also of one that is over, and was not stored yet
        assert bare(asyncio.run(go_on())) == bare(whole)
        assert left.shelf.held == {}
        assert sum(world.steps for world in again) <= steps - known + most


def test_a_snapshot_that_cannot_be_restored_costs_no_turn(caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory(Shelf())
    whole = asyncio.run(played(memory, []))
    unfinished, ended, shelf = max(memory.left, key=lambda left: len(left[2].held))
    shelf.held.clear()
    with caplog.at_level(logging.WARNING, "envgym"):
        assert bare(asyncio.run(played(Memory(shelf, unfinished, ended), []))) == bare(whole)
    assert "no snapshot of it can be restored" in caplog.text
    assert "it is replayed" in caplog.text


@pytest.mark.parametrize("last", range(1, 20, 3))
def test_a_run_that_ends_early_holds_what_is_gone_on_from_and_nothing_that_nobody_knows_of(last: int) -> None:
    class Full(Memory):
        turns = 0

        def turn(self, episode: str, index: int, turn: Turn) -> None:
            self.turns += 1
            if self.turns > last:
                raise OSError("the disk is full")
            super().turn(episode, index, turn)

    memory = Full(Shelf())
    with pytest.raises(OSError, match="the disk is full"):
        asyncio.run(played(memory, []))
    known = [found.turns + [found.said] * (found.said is not None) for found in memory.unfinished.values()]
    recorded = [turn.snapshot.sandbox for turns in known for turn in turns if turn and turn.snapshot]
    assert set(memory.shelf.held) <= {one.id for one in recorded if one is not None}
    assert len(memory.shelf.held) >= sum(len(turns) > 2 for turns in known)
    assert bare(asyncio.run(played(Memory(memory.shelf, memory.unfinished, memory.ended), [])))


def test_a_world_with_programs_in_the_background_is_gone_on_with_from_where_there_were_none() -> None:
    class Busy(Shelved):
        @property
        def partial(self) -> bool:  # type: ignore[override]
            return self.steps > 3

    memory = Memory(Shelf())

    async def play() -> dict[str, Episode]:
        found = jobs([], lambda number: Busy(memory.shelf, number))
        return {one.id: one async for one in stream(found, concurrency=1, memory=memory)}

    whole = asyncio.run(play())
    taken = [[bool(turn.snapshot) for turn in one.turns] for one in whole.values() if len(one.turns) > 5]
    assert taken
    assert all(one[:6] == [False, False, True, False, False, False] for one in taken)
    assert memory.shelf.held == {}


class Plain(Shelved):
    """Its snapshots do not outlive their process."""

    durable_snapshot = None  # type: ignore[assignment]


class Asked(Replaying):
    """It counts how often it was asked for a snapshot."""

    asked = 0

    async def snapshot(self) -> Snapshot:
        Asked.asked += 1
        return await super().snapshot()


def test_a_world_without_such_snapshots_is_asked_once_and_replayed() -> None:
    for make in (lambda number: Asked(lambda: MemoryEnv(TASKS[number])), None):
        memory = Memory(Shelf())

        async def play(memory: Memory = memory, make: Any = make) -> dict[str, Episode]:
            worlds = make or (lambda number: Plain(memory.shelf, number))
            return {one.id: one async for one in stream(jobs([], worlds), concurrency=1, memory=memory)}

        whole = asyncio.run(play())
        assert not any(turn.snapshot for one in whole.values() for turn in one.turns)
        assert memory.shelf.held == {}
    assert Asked.asked <= len(TASKS)


def test_durable_snapshots_that_nobody_would_know_of_are_a_mistake() -> None:
    async def play() -> AsyncIterator[Episode]:
        async for one in stream(jobs([], lambda number: Shelved(Shelf(), number)), concurrency=1):
            yield one

    with pytest.raises(ValueError, match=r"Rollout\.durable without Rollout\.record"):
        asyncio.run(anext(play()))  # type: ignore[arg-type]


@settings(max_examples=24)
@given(at=st.integers(1, 6), hidden=st.booleans(), plain=st.booleans())
def test_a_world_whose_hidden_state_is_another_is_not_gone_on_with(at: int, hidden: bool, plain: bool) -> None:
    """It answers as before, and only its snapshots tell."""

    class Hiding(MemoryEnv):
        secrets = 0

        async def snapshot(self) -> Snapshot:
            found = await super().snapshot()
            if plain:
                return found.model_copy(update={"state": f"{found.state} {self.secrets}"})
            sandbox = SandboxSnapshot(id="x", backend="none", digest=f"{found.state} {self.secrets}")
            return found.model_copy(update={"sandbox": sandbox})

        async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
            if start is not None:
                raise SnapshotGone("all are gone")
            return await super().reset(seed=seed)

    def hiding(number: int) -> Hiding:
        return Hiding(TASKS[number])

    rollout = Rollout(Limits(turns=7), snapshot_every=at)

    async def play(memory: Memory) -> dict[str, Episode]:
        found = jobs([], hiding, rollout)
        return {one.id: one async for one in stream(found, concurrency=1, memory=memory)}

    memory = Memory(Shelf())
    whole = asyncio.run(play(memory))
    known = [one for one in whole.values() if len(one.turns) > at]
    unfinished = {one.id: Unfinished(Began.of(one), list(one.turns[: at + 1])) for one in known}
    left = Memory(Shelf(), unfinished)
    Hiding.secrets = int(hidden)
    again = asyncio.run(play(left))
    assert left.begun & {one.id for one in known} == ({one.id for one in known} if hidden else set())
    assert bare(again) == bare(whole)
