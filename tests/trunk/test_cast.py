"""Several actors in one episode: each has an agent, a context of its own, and tokens stay as they were sampled."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from envgym.cast import Cast
from envgym.credit.ledger import Ledger
from envgym.env import EARNED_BY, Step, StopReason
from envgym.episode import SPENT, Began, Episode, Group, Turn, Unfinished
from envgym.errors import ReplayDiverged
from envgym.jobs import Job, run_episode, stream
from envgym.limits import Limits
from envgym.messages import Action, Message
from envgym.policy import Completion, Reply, VersionRun
from envgym.regain import regain
from envgym.replay import as_env
from envgym.rollout import Rollout
from envgym.store import StoreReader, StoreWriter
from envgym.task import Task

ORDER = ("left", "right", "left", "left", "right")
TASK = Task(id="talk", prompt="talk")


class Talk:
    """Asks actors in a fixed order; each earns the number of its turn."""

    def __init__(self, order=ORDER):
        self.task, self.order, self.said = TASK, order, 0

    @property
    def tools(self):
        return ()

    def _shown(self, **more):
        after = self.said < len(self.order)
        actor = self.order[self.said] if after else "nobody"
        return Step((Message(role="user", content=f"{self.said} for {actor}"),), next_actor=actor, **more)

    async def reset(self, *, seed):
        self.said = 0
        return self._shown()

    async def step(self, action):
        self.said += 1
        ended = self.said == len(self.order)
        return self._shown(reward=float(self.said), stop=StopReason.GOAL if ended else None)

    async def close(self):
        pass


class Speaker:
    """Samples two tokens a turn from its seed, in a context of what it was shown. `every`: then it forgets."""

    closed = 0

    def __init__(self, seed, *, every=0):
        self.name, self.seed, self.every = "agent", seed, every
        self.ids, self.heard, self.segment, self.turns = [], [], 0, 0

    def _added(self, step):
        if self.every and self.turns and self.turns % self.every == 0:
            self.ids, self.segment = [], self.segment + 1
        added = [ord(letter) for letter in step.text]
        position = len(self.ids)
        return added, position

    async def act(self, step):
        self.heard.append(step.text)
        added, position = self._added(step)
        sampled = tuple(int(one) for one in np.random.default_rng([self.seed, self.turns]).integers(1000, 2000, 2))
        self.ids += [*added, *sampled]
        self.turns += 1
        completion = Completion(sampled, (-0.5, -0.25), (VersionRun(0, 0),), "stop")
        action = Action.say(f"{sampled[0]}")
        return Reply(action, added, completion, self.segment, position, roles=(("user", len(added)),))

    def fork(self, *, seed):
        other = Speaker(seed, every=self.every)
        other.ids, other.heard, other.turns = list(self.ids), list(self.heard), self.turns
        return other

    async def close(self):
        type(self).closed += 1


class Rememberer(Speaker):
    """A speaker that can be told what it said."""

    def recall(self, step, turn):
        added, position = self._added(step)
        assert turn.prompt_ids.tolist() == added
        assert (turn.segment, turn.position) == (self.segment, position)
        self.ids += [*added, *turn.sampled_ids.tolist()]
        self.heard.append(step.text)
        self.turns += 1

    def fork(self, *, seed):
        return Rememberer(seed, every=self.every)


class Exact(Speaker):
    """A speaker that cannot be told what it said without the ids."""

    def recall(self, step, turn):
        raise ValueError(f"{len(turn.sampled_ids)} ids were recorded")


def job(agent, *, order=ORDER, name="e", **others):
    async def make():
        return as_env(Talk(order), lambda: Talk(order))

    given = {actor: lambda env, one=one: one for actor, one in others.items()}
    return Job(make, lambda env: agent, TASK.id, 7, name, Rollout(Limits(turns=20)), others=given)


def contexts(episode):
    """The whole context before each turn's sampled ids, put together of what the turns say they added."""
    held, segment, found = [], 0, []
    for turn in episode.turns:
        held = [] if turn.segment != segment else held
        segment = turn.segment
        assert turn.position == len(held)
        held = [*held, *turn.prompt_ids.tolist()]
        found.append(list(held))
        held += turn.sampled_ids.tolist()
    return found


@pytest.mark.parametrize("every", [0, 1, 2])
def test_each_actor_has_its_own_context_and_its_own_draws(every) -> None:
    first = Speaker(7, every=every)
    episode = asyncio.run(run_episode(job(first)))
    assert [turn.actor for turn in episode.turns] == list(ORDER)
    assert first.heard == [], "who was only forked never acts"
    told = {actor: "" for actor in ORDER}
    for turn, context in zip(episode.turns, contexts(episode), strict=True):
        words = "".join(chr(one) for one in context if one < 1000)
        other = {"left": "right", "right": "left"}[turn.actor]
        assert f"for {turn.actor}" in words
        assert f"for {other}" not in words
        assert sum(length for _, length in turn.roles) == len(turn.prompt_ids)
        told[turn.actor] += words
    draws = {actor: [t.sampled_ids.tolist() for t in episode.turns if t.actor == actor] for actor in told}
    assert draws["left"][:2] != draws["right"][:2]
    again = asyncio.run(run_episode(job(Speaker(7, every=every))))
    assert again == episode


def test_all_agents_are_closed_and_one_that_acts_alone_is_not_forked() -> None:
    Speaker.closed = 0
    asyncio.run(run_episode(job(Speaker(7))))
    assert Speaker.closed == 3
    alone = Speaker(7)
    episode = asyncio.run(run_episode(job(alone, order=("agent", "agent"))))
    assert alone.heard == ["0 for agent", "1 for agent"]
    assert [turn.segment for turn in episode.turns] == [0, 0]


def test_who_plays_alone_is_no_stand_in_for_others() -> None:
    with pytest.raises(ValueError, match="asks for actor 'other'"):
        asyncio.run(run_episode(job(Speaker(7), order=("agent", "other"))))


def test_each_actor_has_its_own_row_of_rewards() -> None:
    ledger = Ledger.of([Group(TASK.id, (asyncio.run(run_episode(job(Speaker(7)))),))])
    rows = {turn[0]: ledger.reward_N[ledger.turns[row] : ledger.turns[row + 1]].tolist() for row, turn in
            enumerate((["left"], ["right"]))}  # fmt: skip
    assert rows == {"left": [1.0, 3.0, 4.0], "right": [2.0, 5.0]}


def test_who_was_given_for_an_actor_speaks_in_words_and_the_others_context_goes_on() -> None:
    Speaker.closed = 0
    alone, given = Speaker(7), Speaker(8)
    episode = asyncio.run(run_episode(job(alone, order=("agent", "right", "agent", "agent", "right"), right=given)))
    assert episode.failure is None
    assert given.heard == ["1 for right", "4 for right"], "not a fork of it"
    assert Speaker.closed == 2
    words = [turn.messages[-1].content for turn in episode.turns if turn.actor == "right"]
    assert len(set(words)) == 2
    assert all(words)
    assert [(turn.actor, len(turn.sampled_ids), turn.segment) for turn in episode.turns] == [
        ("agent", 2, 0), ("right", 0, 0), ("agent", 2, 0), ("agent", 2, 0), ("right", 0, 0),
    ]  # fmt: skip
    ledger = Ledger.of([Group(TASK.id, (episode,))])
    assert ledger.reward_N.tolist() == [3.0, 3.0, 9.0, 0.0, 0.0], (
        "what follows a guest's words is the trained one's"
    )


def test_a_guest_is_forked_with_the_episode_and_others_are_still_forks_of_the_first() -> None:
    cast = Cast("agent", Speaker(1), seed=1)
    cast.give("right", Speaker(2))
    step = Step((Message(role="user", content="x"),))

    async def said():
        await cast["right"].act(step)
        other = cast.fork(seed=5)
        return [(await one["right"].act(step)).action.text for one in (cast, other, cast.fork(seed=5))]

    mine, forked, _ = asyncio.run(said())
    assert mine != forked, "further draws are its own"
    assert cast["left"].name == "left"
    assert len(cast.everyone) == 3


@pytest.mark.parametrize(("kind", "goes_on"), [(Speaker, True), (Exact, False)])
def test_after_a_kill_a_guest_says_it_again_or_what_needs_its_ids_begins_again(kind, goes_on) -> None:
    order = ("agent", "right", "agent")
    whole = asyncio.run(run_episode(job(Speaker(7), order=order, right=kind(8))))

    async def regained():
        env, cast = as_env(Talk(order), lambda: Talk(order)), Cast("agent", Speaker(7), seed=7)
        cast.give("right", kind(8))
        return await regain(env, cast, Unfinished(Began.of(whole), list(whole.turns[:2])), Limits(turns=20))

    if goes_on:
        said = whole.turns[1].step
        assert said.info == {SPENT: said.cost} == {SPENT: {"prompt_tokens": 11.0, "completion_tokens": 2.0}}
        assert asyncio.run(regained()) == replace(said, cost={}, info={}), "what it took is no word of the world's"
    else:
        with pytest.raises(ReplayDiverged, match="'right' cannot be told by its words"):
            asyncio.run(regained())


@pytest.mark.parametrize("cost", [{}, {"completion_tokens": 2.0}])
def test_what_an_actor_spent_is_known_after_a_kill_before_the_world_answered(tmp_path, cost) -> None:
    spent = {"completion_tokens": 2.0}
    said = Turn("right", (Message(role="assistant", content="x"),), Step(cost=cost, info={SPENT: spent}))
    with StoreWriter(tmp_path / "store") as store:
        store.begin(Began("e", TASK.id, Step(), 7))
        store.said("e", 0, said)
    with StoreWriter(tmp_path / "store") as store:
        found = store.unfinished["e"].said
    assert found is not None
    assert found.action.spent == said.action.spent == (("completion_tokens", 2.0),)


def test_a_reward_that_names_its_earner_is_that_ones_whoever_spoke() -> None:
    said, ids, logprobs = (
        (Message(role="assistant", content="x"),),
        np.array([1, 2], np.int32),
        np.zeros(2, np.float32),
    )
    earned = [("user", 0.25), ("agent", None), ("user", 1.0), ("agent", 0.5), ("user", 2.0)]
    turns = tuple(
        Turn(
            actor,
            said,
            Step(reward=reward, info={EARNED_BY: "agent"}),
            sampled_ids=ids,
            logprobs=logprobs,
            segment=at,
        )
        for at, (actor, reward) in enumerate(earned)  # before the agent spoke there is no turn that could have it
    )
    episode = Episode("e", TASK.id, Step(), turns, seed=0, stop=StopReason.GOAL)
    ledger = Ledger.of([Group(TASK.id, (episode,))])
    rows = [ledger.reward_N[ledger.turns[row] : ledger.turns[row + 1]].tolist() for row in range(2)]
    assert rows == [[0.25, 0.0, 0.0], [1.0, 2.5]]


@pytest.mark.parametrize("kind", [Speaker, Rememberer])
@pytest.mark.parametrize("every", [0, 1, 2])
@pytest.mark.parametrize("kept", range(len(ORDER)))
def test_an_episode_goes_on_after_a_kill_as_it_would_have(kind, every, kept) -> None:
    whole = asyncio.run(run_episode(job(kind(7, every=every))))

    async def gone_on():
        env, cast = as_env(Talk(), Talk), Cast("agent", kind(7, every=every), seed=7)
        turns: list[Turn] = list(whole.turns[:kept])
        step = await regain(env, cast, Unfinished(Began.of(whole), turns), Limits(turns=20))
        while step.stop is None:
            actor = step.next_actor
            reply = await cast[actor].act(step)
            step = await env.step(reply.action)
            turns.append(Turn.of(actor, reply, step))
        return turns

    assert asyncio.run(gone_on()) == list(whole.turns)


def test_it_is_stored_and_read_as_it_was(tmp_path) -> None:
    async def played():
        with StoreWriter(tmp_path / "store") as memory:
            return [one async for one in stream([job(Speaker(7))], concurrency=1, memory=memory)]

    (episode,) = asyncio.run(played())
    with StoreReader(tmp_path / "store") as reader:
        assert list(reader) == [episode]
