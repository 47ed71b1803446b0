"""Episodes that are continued from states of theirs: who stands where, what is shared, what a kill leaves."""

import asyncio
import pickle
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.cast import Cast
from envgym.env import Step, StopReason
from envgym.episode import THOUGHT, Episode, ForkPoint, Group, Turn
from envgym.errors import Boundary, Failure
from envgym.growing import growing
from envgym.jobs import Job, run_episode, stream
from envgym.limits import Limits
from envgym.messages import Action, Message
from envgym.policy import Completion, Reply, VersionRun
from envgym.replay import as_env
from envgym.rollout import Rollout
from envgym.stems import Branch, Forking, Stems
from envgym.store import StoreReader, StoreWriter
from envgym.task import Task

TASK = Task(id="walk", prompt="")


@dataclass
class Count:
    """How many worlds and agents are open, and were at the most; turns that were played, forks that were made."""

    open: int = 0
    most: int = 0
    steps: int = 0
    forks: int = 0

    def opened(self) -> None:
        self.open += 1
        self.most = max(self.most, self.open)


@dataclass
class Walk:
    """Six turns, or until a 9 is said; each pays what was said, and asks two actors in turn where it has two."""

    count: Count
    actors: tuple[str, ...] = ("agent",)
    broken: str = ""
    said: list[str] = field(default_factory=list)
    noise: int = 0

    def __post_init__(self) -> None:
        self.task, self.tools = TASK, ()
        self.count.opened()

    async def reset(self, *, seed: int, start: object = None) -> Step:
        assert start is None
        self.said = [str(seed % 7)]
        if self.broken == "changes":
            self.count.steps += 1
            self.said = [str(self.count.steps)]
        return self._step()

    async def step(self, action: Action) -> Step:
        self.count.steps += 1
        await asyncio.sleep(0)
        self.said.append(action.text)
        return self._step(float(action.text))

    async def snapshot(self):
        raise NotImplementedError

    async def release(self, snapshot) -> None:
        raise NotImplementedError

    async def fork(self) -> "Walk":
        if self.broken == "fork":
            raise OSError("no room")
        self.count.forks += 1
        return Walk(self.count, self.actors, self.broken, list(self.said))

    async def close(self) -> None:
        self.count.open -= 1

    def _step(self, reward: float | None = None) -> Step:
        done = len(self.said) == 7 or self.said[-1] == "9"
        actor = self.actors[(len(self.said) - 1) % len(self.actors)]
        text = Message(role="user", content=".".join(self.said))
        return Step((text,), reward=reward, stop=StopReason.GOAL if done else None, next_actor=actor)


class Speaker:
    """Says a digit that is a function of its seed and of all that it was shown; can be told what it said."""

    name = "agent"

    def __init__(self, count: Count, seed: int, ids: tuple[int, ...] = ()) -> None:
        self.count, self.seed, self.ids = count, seed, list(ids)
        count.opened()

    async def act(self, step: Step) -> Reply:
        added, position = [ord(letter) for letter in step.text], len(self.ids)
        self.ids += added
        chance = np.random.default_rng([self.seed, *self.ids]).random()
        word = int(chance * 10)
        self.ids.append(ord(str(word)))
        completion = Completion((self.ids[-1],), (float(np.log(chance)),), (VersionRun(0, 0),), "stop")
        return Reply(Action.say(str(word)), added, completion, position=position)

    def recall(self, step, turn) -> None:
        assert turn.prompt_ids.tolist() == [ord(letter) for letter in step.text]
        self.ids += [*turn.prompt_ids.tolist(), *turn.sampled_ids.tolist()]

    def fork(self, *, seed: int) -> "Speaker":
        return Speaker(self.count, seed, tuple(self.ids))

    async def close(self) -> None:
        self.count.open -= 1


def jobs(count, stems, *, number=3, first=0, actors=("agent",), broken="", playable=False):
    def make():
        async def made():
            def one() -> Walk:
                return Walk(count, actors, broken)

            return as_env(_Playable(one()), lambda: _Playable(one())) if playable else one()

        return made()

    for seed in range(first, first + number):
        rollout = Rollout(Limits(turns=5))
        job = Job(make, lambda env, seed=seed: Speaker(count, seed), TASK.id, seed, f"e{seed}", rollout, group="g")
        yield growing(job, stems)


class _Playable:
    """Only what a `Playable` has, so that it snapshots and forks by replay."""

    def __init__(self, inner: Walk) -> None:
        self.task, self.tools = inner.task, inner.tools
        self.reset, self.step, self.close = inner.reset, inner.step, inner.close


async def played(made, memory=None, retries=0) -> Group:
    found = [one async for one in stream(made, concurrency=4, retries=retries, memory=memory)]
    return Group(TASK.id, tuple(sorted(found, key=lambda one: one.id)))


def grown(forking, count=None, *, forgets=False, memory=None, retries=0, **how) -> Group:
    count = count or Count()

    async def run() -> Group:
        async with (Forgetful if forgets else Stems)(forking) as stems:
            group = await played(jobs(count, stems, **how), memory, retries)
            assert not len(stems)
        return group

    group = asyncio.run(run())
    assert count.open == 0
    return group


class Forgetful(Stems):
    """As in a later process: nothing stands anywhere."""

    async def keep(self, *given) -> None:
        return


FORKINGS = st.builds(
    Forking,
    points=st.integers(1, 3),
    times=st.integers(1, 2),
    by=st.sampled_from(["uniform", "entropy"]),
    turns=st.sampled_from([0, 2, 5]),
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(forking=FORKINGS, actors=st.sampled_from([("agent",), ("left", "right")]), playable=st.booleans())
def test_a_continuation_shares_its_history_and_is_the_same_from_a_live_fork_and_from_the_record(
    forking, actors, playable
):
    group = grown(forking, actors=actors, playable=playable)
    roots = [one for one in group if one.parent is None]
    assert len(roots) == 3
    for root in roots:
        forks = [one for one in group if one.parent is not None and one.parent.episode == root.id]
        wanted = forking.turns_of(root)
        assert [one.parent for one in forks] == [
            ForkPoint(root.id, at) for at in wanted for _ in range(forking.times)
        ]
        assert len(wanted) == min(forking.points, len(root.turns)) or forking.turns
        assert not forking.turns or forking.times * sum(len(root.turns) - at for at in wanted) <= forking.turns
        for one in forks:
            assert one.root.text == (root.turns[one.parent.turn - 1].step if one.parent.turn else root.root).text
            assert one.root.reward is None
            assert one.failure is None
            assert len(group.path(one)) <= 5
    shared = {
        (one.parent.episode, one.parent.turn): [tuple(turn.prompt_ids.tolist()) for turn in one.turns[:1]]
        for one in group
        if one.parent is not None
    }
    for (name, at), added in shared.items():
        root = next(one for one in roots if one.id == name)
        assert added == [tuple(root.turns[at].prompt_ids.tolist())], "the same ids are before both"
    again = grown(forking, forgets=True, actors=actors, playable=playable)
    assert again == group


def test_no_more_worlds_stand_ready_than_are_wanted_and_what_is_shared_is_not_played_again():
    long = next(seed for seed in range(9) if len(grown(Forking(0), number=1, first=seed).episodes[0].turns) == 5)
    for by in ("uniform", "entropy"):
        count, recorded = Count(), Count()
        group = grown(Forking(points=2, times=2, by=by), count, number=1, first=long)
        assert len(group) == 5
        assert count.steps == sum(len(one.turns) for one in group)
        # a world and an agent each: of two stems and four continuations, and nothing of the episode that has ended
        assert count.most <= 12
        grown(Forking(points=2, times=2, by=by), recorded, number=1, first=long, forgets=True)
        assert recorded.forks == 0
        assert recorded.steps > count.steps


@pytest.mark.slow
def test_states_are_drawn_evenly_or_by_what_was_least_likely():
    group = grown(Forking(points=1), number=400)
    long = [one for one in group if one.parent is None and len(one.turns) == 5]
    at = [Forking(points=1).turns_of(one)[0] for one in long]
    assert len(long) > 150
    assert (np.abs(np.bincount(at, minlength=5) / len(at) - 0.2) < 4 * np.sqrt(0.16 / len(at))).all()
    for one in long:
        least = int(np.argmin([turn.logprobs[0] for turn in one.turns]))
        assert Forking(points=1, by="entropy").turns_of(one) == (least,)


def test_a_world_that_cannot_be_forked_is_brought_back_by_the_record():
    group = grown(Forking(points=2))
    assert grown(Forking(points=2), broken="fork") == group


def test_a_world_that_does_not_repeat_itself_makes_failed_continuations_and_its_episodes_stand():
    for retries in (0, 1):
        group = grown(Forking(points=2), broken="changes", playable=True, retries=retries)
        forks = [one for one in group if one.parent is not None]
        assert {one.failure.kind for one in forks} == {"ReplayDiverged"}
        assert {one.failure.where for one in forks} == {"fork"}
        assert all(one.reward is None for one in forks)
        assert all(one.failure is None for one in group if one.parent is None)


class Stumbling(Walk):
    """Never the same twice, so only live forks can go on; of each stem's the first breaks in its first turn."""

    depth, children, breaks = 0, 0, False

    async def fork(self) -> "Stumbling":
        self.children += 1
        forked = Stumbling(self.count, self.actors, "changes", list(self.said))
        forked.depth, forked.breaks = self.depth + 1, self.depth == 1 and self.children == 1
        return forked

    async def step(self, action: Action) -> Step:
        if self.breaks:
            raise OSError("broke")
        return await super().step(action)


def test_a_continuation_that_tries_again_takes_no_fork_of_its_siblings():
    async def run() -> Group:
        async def made() -> Stumbling:
            return Stumbling(count, broken="changes")

        async with Stems(Forking(points=1, times=2)) as stems:
            job = Job(made, lambda env: Speaker(count, 0), TASK.id, 0, "e0", Rollout(Limits(turns=5)), group="g")
            found = [one async for one in stream([growing(job, stems)], concurrency=1, retries=1)]
            assert not len(stems)
        return Group(TASK.id, tuple(found))

    count = Count()
    group = asyncio.run(run())
    assert [one.failure for one in group] == [None, None, None]
    assert count.open == 0


def test_a_stem_that_is_being_forked_stands_until_that_is_over_however_often_its_siblings_try():
    class Slow(Walk):
        closed, first = False, True  # only the first fork takes its time

        async def fork(self) -> Walk:
            if self.first:
                self.first = False
                await slow.wait()
            assert not self.closed
            return Walk(self.count, said=list(self.said))

        async def close(self) -> None:
            self.closed = True
            await super().close()

    class Root(Walk):
        async def fork(self) -> Slow:
            return Slow(self.count, said=list(self.said))

    async def run() -> None:
        async with Stems(Forking(points=1, times=3)) as stems:
            world, cast = Root(count, said=["1"]), Cast("agent", Speaker(count, 0), seed=0)
            await stems.keep("e0", 0, (), world, cast, Limits())
            await world.close()
            await cast["agent"].close()
            at = ForkPoint("e0", 0)
            waits = asyncio.create_task(stems.fork(at, 1))
            await asyncio.sleep(0)
            others = [await stems.fork(at, seed) for seed in (2, 2, 2, 3, 3)]
            assert all(other is not None for other in others)
            assert len(stems) == 1
            slow.set()
            for env, mine in [await waits, *others]:
                assert env.said == ["1"]
                await env.close()
                await mine["agent"].close()
            assert len(stems) == 0
            assert await stems.fork(at, 2) is None, "who tries again after that goes by the record"

    slow, count = asyncio.Event(), Count()
    asyncio.run(run())
    assert count.open == 0


@pytest.mark.parametrize("forgets", [False, True])
def test_a_run_that_is_killed_anywhere_goes_on_to_the_same_tree_with_every_episode_once(tmp_path, forgets):
    forking = Forking(points=2, times=2)
    whole = grown(forking)

    async def until(most: int, memory) -> int:
        count = Count()
        async with Stems(forking) as stems:
            found = stream(jobs(count, stems), concurrency=4, memory=memory)
            try:
                for _ in range(most):
                    await anext(found)
            finally:
                await found.aclose()
        assert count.open == 0, "what was not begun is closed, too"
        return count.steps

    for most in range(1, len(whole), 4):
        with StoreWriter(tmp_path / f"{most}") as memory:
            asyncio.run(until(most, memory))
        with StoreWriter(tmp_path / f"{most}") as memory:
            assert grown(forking, memory=memory, forgets=forgets) == whole
        with StoreReader(tmp_path / f"{most}") as reader:
            assert sorted(reader.ids) == [one.id for one in whole]
            assert not reader.unfinished


@pytest.mark.parametrize("forking", [Forking(points=2, times=2), Forking(points=1, by="entropy", turns=5)])
def test_what_is_played_elsewhere_grows_the_same_tree_and_nothing_stands_here(forking):
    sent = []

    async def elsewhere(job: Job) -> Episode:
        """As on another host: all but the factories has been pickled, and nobody there keeps forks."""
        asked = replace(job, elsewhere=None, then=None, make_env=None, make_agent=None)
        sent.append(pickle.loads(pickle.dumps(asked)))
        return await run_episode(replace(sent[-1], make_env=job.make_env, make_agent=job.make_agent))

    async def run() -> Group:
        async with Stems(forking) as stems:
            found = [growing(replace(job, elsewhere=elsewhere), stems) for job in jobs(count, Stems(Forking(0)))]
            return await played(found)

    count = Count()
    group = asyncio.run(run())
    assert group == grown(forking)
    assert len(sent) == len(group)
    assert (count.open, count.forks) == (0, 0)


def test_bounds_say_what_they_want():
    with pytest.raises(ValueError, match="'uniform' or 'entropy'"):
        Forking(1, by="novelty")
    with pytest.raises(ValueError, match="times"):
        Forking(1, times=0)


def test_a_forked_cast_goes_on_alone():
    async def run():
        count = Count()
        cast = Cast("agent", Speaker(count, 1), seed=1)
        heard = Step((Message(role="user", content="x"),))
        await cast["left"].act(heard)
        forks = [cast.fork(seed=seed) for seed in (5, 5, 6)]
        said = [
            (await one["left"].act(heard)).completion.ids + (await one["right"].act(heard)).completion.ids
            for one in forks
        ]
        own = await cast["left"].act(heard)
        assert said[0] == said[1]
        assert said[2] != said[0] or own.completion.ids != said[0][:1]
        for one in (cast, *forks):
            for agent in one.everyone:
                await agent.close()
        assert count.open == 0

    asyncio.run(run())


def test_what_was_thought_on_the_way_to_an_action_was_thought_in_its_state():
    def turn(chance: float, *, thought: bool = False, reward: float | None = None) -> Turn:
        return Turn(
            "agent",
            (Message(role="assistant", content="x"),),
            Step(info={THOUGHT: True} if thought else {}, reward=reward),
            sampled_ids=np.array([1], np.int32),
            logprobs=np.array([np.log(chance)], np.float32),
            versions=(VersionRun(0, 0),),
        )

    turns = [turn(0.5), turn(0.4, thought=True), turn(0.6, thought=True), turn(0.9), turn(0.3, reward=1.0)]
    for at, each in enumerate(turns):
        turns[at] = replace(each, position=at)
    episode = Episode("e", "walk", Step(), tuple(turns), 3, stop=StopReason.GOAL)
    assert Forking(9).turns_of(episode) == (0, 1, 4)
    assert Forking(1, by="entropy").turns_of(episode) == (1,), "thoughts count: 0.4 * 0.6 * 0.9 is below 0.3"
    assert Forking(2, by="entropy").turns_of(episode) == (1, 4)
    assert Forking(9, by="entropy", turns=2).turns_of(episode) == (1,), "two turns follow that a world answered"
    assert Forking(9, by="entropy", turns=1).turns_of(episode) == (4,)
    forking = Forking(3, by="entropy")
    assert forking.rank(3, turns[:3], 1) == float("inf"), "the action is not known yet"
    assert not Forking(9).turns_of(replace(episode, stop=None, failure=_FAILED))
    assert Branch.of(episode, 4, Stems(forking)).step.reward is None


_FAILED = Failure(boundary=Boundary.ENVIRONMENT, kind="OSError", message="", where="step", turn=5)
