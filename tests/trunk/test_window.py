"""A window over what is in flight: bounds, one halving per round, growth, fairness; and `stream` under it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.env import Env, Step
from envgym.episode import Began, Episode
from envgym.errors import Overloaded, PoolFull
from envgym.jobs import Job, stream
from envgym.limits import Limits
from envgym.policy import Reply
from envgym.rollout import Rollout
from envgym.store import StoreReader, StoreWriter
from envgym.testing.fakes import MemoryEnv, RandomAgent, memory_tasks
from envgym.window import Pass, Window

TASKS = memory_tasks(4)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.integers(1, 40), st.lists(st.sampled_from(["start", "well", "refused", "gave up", "wait"]), max_size=200))
def test_what_is_in_flight_stays_between_one_and_most(most: int, moves: list[str]) -> None:
    clock = Clock()
    window, held = Window(most, clock=clock), list[Pass]()
    for move in moves:
        if move == "start":
            before = window.in_flight
            passed = window.start()
            assert (passed is not None) == (before < window.size and window.pause_s == 0)
            held += [] if passed is None else [passed]
        elif move == "wait":
            clock.now += 20.0
            assert window.pause_s == 0
        elif held:
            one = held.pop(0)
            one.refused = {"well": False, "refused": True, "gave up": None}[move]
            window.end(one)
        assert 1 <= window.size <= most
        assert window.in_flight == len(held) <= most
        assert 0 <= window.pause_s <= 10


def test_one_round_of_refusals_halves_once_and_what_goes_well_brings_it_back() -> None:
    clock = Clock()
    window = Window(16, clock=clock)

    def one_round(refused: bool) -> int:
        clock.now += 60.0
        held = []
        while (passed := window.start()) is not None:
            held.append(passed)
        for passed in held:
            passed.refused = refused
            window.end(passed)
        return window.size

    assert [one_round(True) for _ in range(6)] == [8, 4, 2, 1, 1, 1]
    sizes = [one_round(False) for _ in range(40)]
    assert all(0 <= after - before <= 1 for before, after in pairwise(sizes))
    assert sizes[-1] == 16


def test_a_refusal_pauses_longer_every_time_and_as_long_as_it_is_asked() -> None:
    clock = Clock()
    window = Window(1, clock=clock)
    pauses = []
    for ask in (0.0, 0.0, 7.0):
        passed = window.start()
        assert passed is not None
        passed.refused, passed.pause_s = True, ask
        window.end(passed)
        assert window.start() is None
        pauses.append(window.pause_s)
        clock.now += 20.0
    assert pauses == pytest.approx([0.1, 0.2, 7.0])
    assert window.refused_s == 60.0


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="concurrency is 0; it must be at least 1"):
        Window(0)


@given(st.integers(1, 4), st.lists(st.booleans(), min_size=1, max_size=12), st.sets(st.integers(0, 11)))
def test_those_who_wait_come_in_order_and_who_gives_up_holds_nobody(
    most: int, refused: list[bool], given_up: set[int]
) -> None:
    order, ticks = list[int](), count(0.0, 20.0)  # no test waits for a pause

    async def one(window: Window, number: int) -> None:
        async with window.enter() as passed:
            order.append(number)
            await asyncio.sleep(0)
            passed.refused = refused[number]

    async def work() -> None:
        window = Window(most, clock=lambda: next(ticks))
        tasks = [asyncio.create_task(one(window, number)) for number in range(len(refused))]
        await asyncio.sleep(0)
        for number in given_up & set(range(most, len(refused))):
            tasks[number].cancel()
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert window.in_flight == 0

    asyncio.run(work())
    assert order == sorted(order)
    assert set(order) >= set(range(len(refused))) - given_up


class Room:
    """A place for so many worlds at a time; who comes when it is full is refused."""

    def __init__(self, places: int) -> None:
        self.places, self.used, self.refusals, self.most = places, 0, 0, 0

    def take(self) -> None:
        if self.used >= self.places:
            self.refusals += 1
            raise PoolFull(f"{self.used} of {self.places} are used")
        self.used += 1
        self.most = max(self.most, self.used)


class Roomy(MemoryEnv):
    room: Room

    async def step(self, action: object) -> Step:
        await asyncio.sleep(0.001)
        return await super().step(action)  # type: ignore[arg-type]

    async def close(self) -> None:
        self.room.used -= 1
        await super().close()


class Busy(RandomAgent):
    """Its server is overloaded at every third request."""

    asked = 0

    async def act(self, step: Step) -> Reply:
        type(self).asked += 1
        if self.asked % 3 == 0:
            raise Overloaded("the server answers 429")
        return await super().act(step)

    def recall(self, step: Step, turn: object) -> None:
        self._rng.random()


def jobs(count: int, room: Room, agent: type[RandomAgent] = RandomAgent) -> list[Job]:
    async def world() -> Env:
        room.take()
        env = Roomy(TASKS[0])
        env.room = room
        return env

    return [
        Job(world, lambda env: agent(env.tools, seed=1), TASKS[0].id, 1, f"e{n}", Rollout(Limits(turns=5)))
        for n in range(count)
    ]


async def all_of(episodes: AsyncIterator[Episode]) -> list[Episode]:
    return [episode async for episode in episodes]


@pytest.mark.slow
def test_a_full_pool_makes_fewer_play_and_no_episode_fail(tmp_path: Path) -> None:
    room = Room(2)
    with StoreWriter(tmp_path / "store") as memory:
        episodes = asyncio.run(all_of(stream(jobs(40, room), concurrency=16, memory=memory)))
    assert [episode.failure for episode in episodes] == [None] * 40
    assert sorted(StoreReader(tmp_path / "store").ids) == sorted(f"e{n}" for n in range(40))
    assert (room.used, room.most) == (0, 2)
    assert room.refusals < 100


@pytest.mark.parametrize("remembered", [False, True])
def test_an_overloaded_policy_delays_episodes_and_fails_none(tmp_path: Path, remembered: bool) -> None:
    room, Busy.asked = Room(99), 0
    memory = StoreWriter(tmp_path / "store") if remembered else None
    found = jobs(3, room, Busy)
    if not remembered:
        found = [Job(j.make_env, j.make_agent, j.task_id, 1, j.episode_id, Rollout(Limits(turns=2))) for j in found]
    episodes = asyncio.run(all_of(stream(found, concurrency=3, memory=memory)))
    assert sorted(episode.id for episode in episodes) == ["e0", "e1", "e2"]
    assert [episode.failure for episode in episodes] == [None] * 3
    if memory is not None:
        memory.close()
        assert sorted(StoreReader(tmp_path / "store").ids) == ["e0", "e1", "e2"]


class Late(MemoryEnv):
    """There is no room for it at first."""

    refusals = 0

    async def reset(self, **options: Any) -> Step:
        if type(self).refusals:
            type(self).refusals -= 1
            raise PoolFull("nothing is free")
        return await super().reset(**options)


def test_an_episode_waits_for_room_to_go_on_in_and_does_not_begin_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def world() -> Env:
        return Late(TASKS[0])

    rollout = Rollout(Limits(turns=5))
    job = Job(world, lambda env: RandomAgent(env.tools, seed=1), TASKS[0].id, 1, "e", rollout)
    (whole,) = asyncio.run(all_of(stream([job], concurrency=1)))
    Late.refusals = 2
    with StoreWriter(tmp_path / "store") as memory:
        memory.begin(Began.of(whole))
        memory.turn("e", 0, whole.turns[0])
        with caplog.at_level(logging.WARNING, "envgym"):
            (episode,) = asyncio.run(all_of(stream([job], concurrency=1, memory=memory)))
    assert (episode, Late.refusals) == (whole, 0)
    assert "begins again" not in caplog.text


@pytest.mark.slow
def test_where_there_is_never_room_the_episodes_fail_in_the_end() -> None:
    episodes = asyncio.run(all_of(stream(jobs(3, Room(0)), concurrency=3, patience_s=0.3, retries=2)))
    assert [episode.failure and episode.failure.kind for episode in episodes] == ["PoolFull"] * 3
