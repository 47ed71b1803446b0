"""An episode that goes on after a kill: what was spent before counts, and what bringing it back costs is told."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.env import Env, Step, StopReason
from envgym.episode import Began, Episode, Turn, Unfinished
from envgym.jobs import Job, stream
from envgym.limits import Limits
from envgym.messages import Action, Message
from envgym.policy import Agent, Reply
from envgym.rollout import Rollout
from envgym.testing.fakes import MemoryEnv, RandomAgent, memory_tasks

TASKS = memory_tasks(4)


@dataclass
class Remembered:
    """A memory without a disk."""

    unfinished: dict[str, Unfinished] = field(default_factory=dict)
    ended: dict[str, Episode] = field(default_factory=dict)

    def __contains__(self, episode: str) -> bool:
        return episode in self.ended

    def __getitem__(self, episode: str) -> Episode:
        return self.ended[episode]

    def begin(self, began: Began) -> None:
        self.unfinished[began.id] = Unfinished(began)

    def said(self, episode: str, index: int, turn: Turn) -> None:
        assert index == len(self.unfinished[episode].turns)
        self.unfinished[episode].said = turn

    def turn(self, episode: str, index: int, turn: Turn) -> None:
        assert index == len(self.unfinished[episode].turns)
        self.unfinished[episode].turns.append(turn)
        self.unfinished[episode].said = None

    def append(self, episode: Episode) -> None:
        self.unfinished.pop(episode.id)
        self.ended[episode.id] = episode


def a_random_agent(env: Env, seed: int) -> Agent:
    return RandomAgent(env.tools, seed=seed)


def a_job(
    seed: int, rollout: Rollout | None = None, make_agent: Callable[[Env, int], Agent] = a_random_agent
) -> Job:
    task = TASKS[seed % len(TASKS)]

    async def world() -> Env:
        return MemoryEnv(task)

    rollout = Rollout(Limits(turns=6)) if rollout is None else rollout
    return Job(world, lambda env: make_agent(env, seed), task.id, seed, f"e{seed}", rollout)


def played(job: Job, memory: Remembered | None = None, **options: Any) -> Episode:
    async def work() -> Episode:
        known = Remembered() if memory is None else memory
        (episode,) = [one async for one in stream([job], concurrency=1, memory=known, **options)]
        return episode

    return asyncio.run(work())


def cut(whole: Episode, count: int, *, said: bool) -> Remembered:
    """What is known of an episode that was killed after `count` turns, or while the world answered the next."""
    turn = replace(whole.turns[count], step=Step(cost=whole.turns[count].step.cost)) if said else None
    return Remembered({whole.id: Unfinished(Began.of(whole), list(whole.turns[:count]), turn)})


@settings(max_examples=25)
@given(
    took=st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), min_size=6, max_size=6),
    count=st.integers(0, 4),
    said=st.booleans(),
)
def test_the_seconds_of_recorded_turns_are_in_what_an_episode_took_and_count_to_its_limit(
    took: list[tuple[float, float]], count: int, said: bool
) -> None:
    whole = played(a_job(1))
    assert len(whole.turns) == 6
    turns = tuple(
        replace(turn, act_s=act, step_s=step) for turn, (act, step) in zip(whole.turns, took, strict=True)
    )
    whole = replace(whole, turns=turns)
    before_s = sum(act + step for act, step in took[:count]) + (took[count][0] if said else 0.0)
    began = time.perf_counter()
    again = played(a_job(1), cut(whole, count, said=said))
    assert again == whole
    assert before_s - 1e-6 <= again.wall_s <= before_s + time.perf_counter() - began + 1e-6
    for bound_s in (before_s + 60.0, before_s / 2):
        if bound_s > 0:
            bounded = a_job(1, Rollout(Limits(turns=6, episode_s=bound_s)))
            ended = played(bounded, cut(whole, count, said=said))
            assert (ended.stop is StopReason.TIME_LIMIT) == (bound_s < before_s), "only time that was used counts"
            if bound_s < before_s:
                assert ended.turns == whole.turns[: count + said], "what was said is answered all the same"


def test_an_episode_that_could_not_be_regained_took_what_its_turns_took() -> None:
    whole = played(a_job(1))
    timed = replace(whole.turns[0], act_s=7.0, step_s=2.0)
    memory = cut(replace(whole, turns=(timed, *whole.turns[1:])), 1, said=False)

    async def no_world() -> Env:
        raise OSError("no world")

    failed = played(replace(a_job(1), make_env=no_world), memory)
    assert failed.failure is not None
    assert failed.wall_s == 9.0


class Thinking(RandomAgent):
    """Thinks before every second action, with its own context shown."""

    asked = 0

    async def act(self, step: Step) -> Reply:
        reply = await super().act(step)
        self.asked += 1
        question = Message(role="user", content=f"think {self.asked}")
        thought = Reply(Action.say(f"thought {self.asked}"), shown=(question,), cost={"usd": 1.0})
        return replace(reply, thoughts=(thought, thought)) if self.asked % 2 else reply


def a_thinking_agent(env: Env, seed: int) -> Agent:
    return Thinking(env.tools, seed=seed)


def test_thoughts_have_turns_that_no_world_answers_and_no_bound_on_turns_counts() -> None:
    whole = played(a_job(1, Rollout(Limits(turns=4)), a_thinking_agent))
    assert [turn.thought for turn in whole.turns] == [True, True, False, False, True, True, False, False]
    plain = played(a_job(1, Rollout(Limits(turns=4))))
    acts = [turn for turn in whole.turns if not turn.thought]
    assert acts == list(plain.turns), "what is thought changes nothing in the world"
    first = whole.turns[0]
    assert [message.content for message in first.messages] == ["think 1", "thought 1"]
    assert (first.action, first.step.cost) == (Action.say("thought 1"), {"usd": 1.0})
    assert (first.step.observation, first.step.reward, first.step.stop) == ((), None, None)


def test_an_episode_with_thoughts_is_whole_wherever_it_was_killed() -> None:
    job = a_job(1, Rollout(Limits(turns=4), snapshot_every=2), a_thinking_agent)
    whole = played(job)
    for count in range(len(whole.turns)):
        for said in (False, True):
            asked = said and not whole.turns[count].thought
            if said and not asked:
                continue
            # between a thought and its action nothing can go on: it begins again
            assert played(job, cut(whole, count, said=asked)) == whole
