"""Rewards by configuration: what is refused before anything runs, what comes of the rest, the laws kept."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from envgym_agents.learn.config import load
from envgym_agents.learn.resolve import resolve

from envgym.cli import run
from envgym.env import Env, Step
from envgym.errors import GraderFailure
from envgym.messages import Action, Message
from envgym.registry import make, register, unregister
from envgym.rewards import Rewarded, RewardPlan, mixed_with_cost, price_score, reward_plan
from envgym.task import Task
from envgym.testing import check_env_sync
from envgym.testing.fakes import ScriptedAgent


def judge(task: Task, *, seed: int, mood: str = "kind") -> ScriptedAgent:
    """Says yes, no, or another thing every time; prefers A whatever that is, or the longer answer."""
    text = task.prompt
    if "Which is better?" in text:
        first = text.index("A:\n") < text.index("B:\n") and "good" in text[text.index("A:\n") : text.index("B:\n")]
        return ScriptedAgent(["A" if mood == "placed" or first else "B"])
    said = {"kind": "yes", "strict": "no", "fickle": ("yes", "no")[seed % 2], "mute": "hm"}[mood]
    return ScriptedAgent([f"1: {said}\n2: yes"])


@pytest.fixture(autouse=True)
def _judges() -> Iterator[None]:
    register("agents", "test-judge", judge)
    yield
    unregister("agents", "test-judge")


def plan(mood: str = "kind", **channels: Any) -> dict[str, Any]:
    rubric = {"kind": "rubric", "judge": "j", "criteria": {"a": "It is a guess.", "b": "It is short."}, "times": 2}
    return {
        "channels": channels or {"judged": {**rubric, "needed": True}},
        "judges": {"j": {"agent": "test-judge", "options": {"mood": mood}}},
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"channels": {}}, "rewards.channels"),
        ({"channels": {"a": {"kind": "vibes"}}}, "rewards.channels.a"),
        ({"channels": {"a": {"kind": "world", "wieght": 1}}}, "rewards.channels.a.world.wieght"),
        ({"channels": {"a": {"kind": "world", "weight": 0.0}}}, "no channel has a weight"),
        ({"channels": {"reward": {"kind": "world"}}}, "named 'reward'"),
        ({"channels": {"a": {"kind": "length", "most": 3, "soft": 4}}}, "soft 4 is above most 3"),
        ({"channels": {"a": {"kind": "cost", "most": 1, "least": 1}}}, "least 1.0 is not below most 1.0"),
        ({"channels": {"a_spent": {"kind": "world"}}}, "named 'a_spent'"),
        ({"channels": {"a": {"kind": "rubric", "judge": "j", "criteria": {"x": "y"}}}}, "judged by 'j'"),
        ({"channels": {"a": {"kind": "rubric", "judge": "j"}}}, "criteria, or criteria_from"),
        (
            {"channels": {"a": {"kind": "world"}}, "judges": {"j": {"agent": "random"}}},
            "no channel asks the judge 'j'",
        ),
        ("/nowhere/rewards.toml", "TOML file"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused_by_field(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match="(?s)" + said.replace(".", r"\.")):
        reward_plan(given)


def test_a_judge_that_is_not_there_or_lacks_an_option_is_refused_when_the_environment_is_made() -> None:
    wrong = plan()
    wrong["judges"]["j"]["options"] = {"moood": 1}
    with pytest.raises(ValueError, match=r"rewards\.judges\.j\.options\.moood"):
        make("guess", rewards=wrong)
    wrong["judges"]["j"] = {"agent": "nobody-of-that-name"}
    with pytest.raises(ValueError, match="nobody-of-that-name"):
        make("guess", rewards=wrong)


async def _won(env: Env) -> Step:
    """Play guess by its answers until it ends."""
    step = await env.reset(seed=3)
    low, high = 1, 100
    while step.stop is None:
        step = await env.step(Action.say(f"guess {(low + high) // 2}"))
        low, high = ((low + high) // 2 + 1, high) if "higher" in step.text else (low, (low + high) // 2 - 1)
    await env.close()
    return step


def test_the_end_is_paid_by_the_plan_and_the_channels_are_kept() -> None:
    channels = {
        "won": {"kind": "world", "weight": 2.0, "needed": True},
        "judged": {"kind": "rubric", "judge": "j", "criteria": {"a": "A.", "b": "B."}, "times": 2, "weight": 0.5},
        "long": {"kind": "length", "most": 8, "soft": 4},
        "again": {"kind": "repetition", "weight": 0.0},
    }
    plain = asyncio.run(_won(make("guess")))
    for mood, share in (("kind", 1.0), ("strict", 0.5)):
        step = asyncio.run(_won(make("guess", rewards=plan(mood, **channels))))
        assert step.channels["judged"] == share
        assert step.channels["judged_agreement"] == 1.0
        assert step.reward == pytest.approx(2 * plain.reward + 0.5 * share + step.channels["long"])
        assert step.channels["reward"] == step.reward
        assert step.stop == plain.stop


@pytest.mark.parametrize("mood", ["fickle", "mute"])
def test_a_judge_that_contradicts_himself_or_cannot_be_read_is_a_failure_and_no_reward_of_zero(mood: str) -> None:
    rubric = {"kind": "rubric", "judge": "j", "criteria": {"a": "A."}, "times": 2, "needed": True}
    with pytest.raises(GraderFailure, match="judged said nothing"):
        asyncio.run(_won(make("guess", rewards=plan(mood, judged=rubric))))


def test_what_is_not_needed_and_says_nothing_adds_nothing() -> None:
    rubric = {"kind": "rubric", "judge": "j", "criteria": {"a": "A."}, "times": 2}
    step = asyncio.run(_won(make("guess", rewards=plan("fickle", judged=rubric, won={"kind": "world"}))))
    assert "judged" not in step.channels
    assert step.info["silent"] == ["judged"]
    assert step.channels["judged_agreement"] == 0.5
    assert step.reward == step.channels["won"]


def test_a_pair_is_judged_in_both_orders_and_a_preferred_place_says_nothing() -> None:
    pair = {"kind": "pair", "judge": "j", "against": "other"}
    task = make("guess").task
    task = task.model_copy(update={"metadata": {**task.metadata, "other": "a good answer"}})
    worse = asyncio.run(_won(make("guess", task, rewards=plan(p=pair))))
    assert worse.channels["p"] == 0.0
    with pytest.raises(GraderFailure):
        asyncio.run(_won(make("guess", task, rewards=plan("placed", p=pair))))


class Counting:
    """A reward model of a third party: as many points as messages."""

    def score(self, messages: Sequence[Message]) -> float | None:
        return float(len(messages)) if messages and messages[-1].role == "assistant" else None


def test_a_reward_model_hears_what_was_said_up_to_the_last_answer_also_after_a_snapshot_and_in_a_fork() -> None:
    register("reward_models", "test-counting", lambda path, *, device: Counting())
    channels = {"heard": {"kind": "learned", "path": "anywhere", "model": "test-counting", "needed": True}}

    async def ends() -> list[Step]:
        env = make("guess", rewards={"channels": channels})
        await env.reset(seed=3)
        await env.step(Action.say("guess 1"))
        snapshot, fork, other = (
            await env.snapshot(),
            await env.fork(),
            make("guess", rewards={"channels": channels}),
        )
        await other.reset(seed=3, start=snapshot)
        return [await _ended(one) for one in (env, fork, other)]

    async def _ended(env: Env) -> Step:
        step = await env.step(Action.say("guess 1"))
        while step.stop is None:
            step = await env.step(Action.say("guess 1"))
        await env.close()
        return step

    try:
        found = asyncio.run(ends())
        with pytest.raises(ValueError, match="unknown kind of reward model 'test-countin'"):
            make("guess", rewards={"channels": {"heard": {**channels["heard"], "model": "test-countin"}}})
    finally:
        unregister("reward_models", "test-counting")
    assert found[0].reward is not None
    assert found[0].reward >= 4
    assert found[0].reward % 2 == 0, "each answer after what it answers, and nothing after the last"
    assert [step.reward for step in found] == [found[0].reward] * 3


def test_a_function_is_a_channel_by_its_place_and_one_that_breaks_is_the_graders_fault() -> None:
    other = {"kind": "scorer", "function": "operator:ne"}  # task != submission
    step = asyncio.run(_won(make("guess", rewards={"channels": {"other": {**other, "weight": 0.5}}})))
    assert (step.reward, step.channels["other"]) == (0.5, 1.0)
    broken = {"channels": {"broken": {"kind": "scorer", "function": "operator:truediv"}}}
    with pytest.raises(GraderFailure, match="channel 'broken' of 'guess/0': TypeError"):
        asyncio.run(_won(make("guess", rewards=broken)))
    for place, said in (("nowhere.at:all", "cannot be imported"), ("operator:__doc__", "is no function")):
        wrong = {"channels": {"a": {"kind": "scorer", "function": place}}}
        with pytest.raises(ValueError, match=rf"rewards\.channels\.a\.function: .*{said}"):
            make("guess", rewards=wrong)


def test_what_was_spent_is_a_channel_that_snapshots_and_forks_keep() -> None:
    """Router-R1's total: format first, then what is right and what is cheap."""
    router = {
        "judged": "all",
        "closed": -1.0,
        "channels": {
            "form": {"kind": "format", "tags": ["think"], "alone": False, "gate": 1.0, "weight": 0.0},
            "right": {"kind": "world", "channel": "right", "weight": 0.7},
            "cheap": {"kind": "cost", "most": 0.1, "weight": 0.3},
        },
    }

    async def main() -> None:
        env = make("route", 3, rewards=router)
        first = await env.reset(seed=0)
        name, price = re.findall(r"^(\w+) \(\$([\d.]+) a call\)", first.text, re.M)[0]
        await env.step(Action.call("call_model", name=name))
        kept, fork = await env.snapshot(), await env.fork()
        await env.reset(seed=0, start=kept)
        told = Action.call("answer", value="no idea").message.model_copy(update={"content": "<think>so</think>"})
        ends = [await one.step(Action(message=told)) for one in (env, fork)]
        for end in ends:
            spent = float(price)
            assert end.channels["cheap_spent"] == pytest.approx(spent)
            cheap = price_score(spent, most=0.1)
            assert end.channels["cheap"] == pytest.approx(cheap)
            assert end.reward == pytest.approx(mixed_with_cost(0.0, end.channels["right"], cheap, alpha=0.3))
        await env.reset(seed=0)
        end = await env.step(Action.call("answer", value="no idea"))
        assert (end.reward, end.channels["cheap_spent"]) == (-1.0, 0.0), "a wrong form is all that counts"

    asyncio.run(main())
    check_env_sync(lambda: make("route", rewards=router), turns=3)


def test_it_meets_the_environment_contract_and_survives_being_wrapped() -> None:
    given = plan(won={"kind": "world"}, **plan()["channels"])
    check_env_sync(lambda: make("guess", rewards=given), uses_seed=True)
    env = make("guess", rewards=given, wrap=[{"name": "budget", "total": 3}])
    assert asyncio.run(_won(env)).reward is not None
    assert isinstance(make("guess", rewards=given), Rewarded)


def test_a_snapshot_of_another_making_is_refused() -> None:
    async def run() -> None:
        plain = make("guess")
        await plain.reset(seed=0)
        with pytest.raises(ValueError, match="without the option 'rewards'"):
            await make("guess", rewards=plan()).reset(seed=0, start=await plain.snapshot())

    asyncio.run(run())


def test_a_training_configuration_checks_its_rewards_before_anything_starts(tmp_path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'env = "guess"\nexpert = "random"\n[env_options.rewards.channels.won]\nkind = "world"\n'
        '[env_options.rewards.channels.judged]\nkind = "rubric"\njudge = "j"\ncriteria = { a = "A." }\n'
        '[env_options.rewards.judges.j]\nagent = "test-judge"\noptions = { mood = "kind" }\n'
    )
    resolve(load(file), [])
    file.write_text(file.read_text().replace('judge = "j"', 'judge = "k"'))
    with pytest.raises(ValueError, match="judged by 'k'"):
        resolve(load(file), [])


def test_collect_takes_a_plan_from_a_file(tmp_path, capsys) -> None:
    (tmp_path / "rewards.toml").write_text('[channels.won]\nkind = "world"\nweight = 3.0\n')
    said = ["collect", "guess", "-n", "2", "--json", "--env-option", f"rewards={tmp_path}/rewards.toml"]
    assert run(said) == 0
    (tmp_path / "rewards.toml").write_text('[channels.won]\nkind = "vibes"\n')
    assert run(said) == 2
    assert "channels.won" in capsys.readouterr().err


def test_a_plan_says_what_it_is() -> None:
    made = reward_plan(plan())
    assert isinstance(made, RewardPlan)
    assert reward_plan(made) is made
    with pytest.raises(TypeError, match="must be a table"):
        reward_plan(3)
