"""What PPO-max's scaling and clipping of rewards makes of what was earned, as laws, and in a run."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
from envgym_agents.learn.config import Critic, Forks, LoopSettings, Members, Reinforce, Rewards
from envgym_agents.learn.reward_scale import RewardScale
from envgym_agents.learn.staleness import staleness_of

from envgym.credit.reference import GREEDY
from envgym.env import EARNED_BY, Step, StopReason
from envgym.episode import Episode, Group, Turn
from envgym.messages import Message
from envgym.policy import VersionRun

NORMAL = Rewards(scale="normal")
EARNED = st.lists(
    st.lists(st.one_of(st.none(), st.floats(-50, 50, width=32)), min_size=1, max_size=4), min_size=1, max_size=8
)


def episode(name: str, rewards, actors=("agent",), **more) -> Episode:
    turns = [
        Turn(
            actor=actors[at % len(actors)],
            messages=(Message(role="assistant", content="said"),),
            step=Step(reward=reward),
            sampled_ids=np.array([1], np.int32),
            logprobs=np.array([-1.0], np.float32),
            versions=(VersionRun(0, 0),),
            position=at,
        )
        for at, reward in enumerate(rewards)
    ]
    return Episode(id=name, task_id="task", root=Step(), turns=tuple(turns), seed=0, stop=StopReason.GOAL, **more)


def groups(earned) -> list[Group]:
    return [Group("task", tuple(episode(f"{at}", rewards) for at, rewards in enumerate(earned)))]


def rewards_of(found: list[Group]) -> list[list[float | None]]:
    return [[turn.step.reward for turn in one.turns] for group in found for one in group]


def returns(found: list[Group]) -> list[float]:
    return [sum(reward or 0.0 for reward in one) for one in rewards_of(found)]


@given(EARNED, EARNED)
def test_mean_and_spread_are_those_of_all_returns_in_whatever_parts_they_came(first, second):
    apart = RewardScale().saw(groups(first)).saw(groups(second))
    known = returns([*groups(first), *groups(second)])
    assert apart.count == len(known)
    assert apart.mean == pytest.approx(np.mean(known), abs=1e-6)
    spread = float(np.std(known))
    if spread > 1e-3:
        assert apart.spread == pytest.approx(spread, rel=1e-6)
    assert RewardScale.of_state(apart.state()) == apart


@given(EARNED)
def test_normal_returns_have_mean_0_and_spread_1_and_what_says_nothing_stays_so(earned):
    before = groups(earned)
    scale = RewardScale().saw(before)
    after = scale.of(before, NORMAL)
    assert [[one is None for one in each] for each in rewards_of(after)] == [
        [one is None for one in each] for each in rewards_of(before)
    ]
    told = [sum(filter(None, one)) for one in rewards_of(after) if any(reward is not None for reward in one)]
    if len(told) == scale.count and np.std(returns(before)) > 1e-3:
        assert np.mean(told) == pytest.approx(0.0, abs=1e-6)
        assert np.std(told) == pytest.approx(1.0, rel=1e-6)
    plain = scale.of(before, Rewards(scale="std"))
    assert returns(plain) == pytest.approx([one / scale.spread for one in returns(before)], abs=1e-5)
    assert scale.of(before, Rewards()) == before


def test_of_one_turn_it_is_the_papers_formula():
    before = groups([[1.0], [2.0], [6.0]])
    scale = RewardScale().saw(before)
    spread = math.sqrt(14 / 3)
    assert rewards_of(scale.of(before, NORMAL)) == [[-2 / spread], [-1 / spread], [3 / spread]]
    clipped = scale.of(before, Rewards(scale="normal", clip=1.0))
    assert rewards_of(clipped) == [[-2 / spread], [-1 / spread], [1.0]]
    assert rewards_of(before) == [[1.0], [2.0], [6.0]], "what is stored stays as it is"


def test_equal_returns_have_no_unit_and_greedy_members_and_failed_worlds_do_not_count():
    same = RewardScale().saw(groups([[3.0], [3.0]]))
    assert (same.mean, same.spread) == (3.0, 1.0)
    assert rewards_of(same.of(groups([[3.0]]), NORMAL)) == [[0.0]]
    greedy = replace(episode("greedy", [9.0]), provenance=(GREEDY,))
    assert RewardScale().saw([Group("task", (greedy,))]) == RewardScale()
    assert RewardScale().saw([]) == RewardScale()
    assert RewardScale().state() == {}
    assert RewardScale().shown() == {}


def test_each_actors_mean_is_taken_off_the_last_of_its_own_rewards():
    two = episode("two", [1.0, 5.0, 1.0, 5.0], actors=("one", "other"))
    scale = RewardScale(count=10, mean=4.0, squares=40.0)
    assert rewards_of(scale.of([Group("task", (two,))], NORMAL)) == [[0.5, 2.5, -1.5, 0.5]]
    named = replace(two.turns[3], step=replace(two.turns[3].step, info={EARNED_BY: "one"}))
    paid = replace(two, turns=(*two.turns[:3], named))
    assert rewards_of(scale.of([Group("task", (paid,))], NORMAL)) == [[0.5, 0.5, 0.5, 0.5]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "turn", "rewards": {"clip": 1.0}}, "clip 1.0 has no use where scale is 'none'"),
        ({"kind": "none", "rewards": {"scale": "std"}}, "no use where critic.kind is 'none'"),
        ({"kind": "progress", "rewards": {"scale": "std"}}, "no use where critic.kind is 'progress'"),
        ({"kind": "turn", "rewards": {"scale": "normal", "clip": 0.0}}, "greater than 0"),
        (
            {"kind": "turn", "second": {"kind": "token", "rewards": {"scale": "std"}}},
            "second.rewards: both learn from the same rewards",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Critic.model_validate(settings)


def test_the_unit_is_of_whole_steps_so_that_playing_and_learning_take_turns():
    """The loop that overlaps would learn from rewards as they are, without a word."""
    critic = Critic(kind="turn", rewards=Rewards(scale="std"))
    assert staleness_of(Reinforce(credit="turn-gae", critic=Critic(kind="turn"))) == 1
    assert staleness_of(Reinforce(credit="turn-gae", critic=critic)) == 0
    with pytest.raises(ValueError, match=r"staleness is 1, and critic.rewards.scale 'std' is of whole steps"):
        staleness_of(Reinforce(credit="turn-gae", critic=critic, loop=LoopSettings(staleness=1)))


def test_a_mean_is_not_taken_off_a_path_twice():
    forks = Members(forks=Forks(points=1))
    Reinforce(critic=Critic(kind="turn", rewards=Rewards(scale="std")), members=forks)
    with pytest.raises(ValueError, match="share the turn at which the mean is taken off"):
        Reinforce(critic=Critic(kind="turn", rewards=Rewards(scale="normal")), members=forks)
