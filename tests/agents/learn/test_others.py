"""Other actors of a world are played by the agents that a configuration names, whoever is trained or evaluated."""

import asyncio
import json

import pytest

pytest.importorskip("torch")
from envgym_agents.learn.config import load
from envgym_agents.learn.run import evaluate_folders, train

from envgym.credit import Ledger
from envgym.env import EARNED_BY, THE_AGENT, Step, StopReason
from envgym.episode import Group
from envgym.messages import Action, Message
from envgym.policy import Reply
from envgym.registry import EnvSpec, register, unregister
from envgym.store import StoreReader
from envgym.task import Task, TaskSet
from envgym.testing.fakes import ScriptedAgent, ScriptedPolicy

TALK = (
    "env=service",
    "env_options.user=actor",
    "task_options.service=files",
    "evaluate.tasks=2",
    "model.context=512",
)


class Call:
    """A user calls; who asks first and then says 1 has helped, which is known when the user has hung up."""

    tools = ()

    def __init__(self, task):
        self.task = task

    def _shown(self, text, **more):
        actor = more.pop("actor", THE_AGENT)
        legal = ("act:ask", "act:say-0", "act:say-1") if actor == THE_AGENT else None
        key = f"{self.asked} {self.said} {actor}"
        return Step((Message(role="user", content=text),), legal=legal, state_key=key, next_actor=actor, **more)

    async def reset(self, *, seed):
        self.asked, self.said, self.heard = False, "", False
        return self._shown("a call")

    async def step(self, action):
        if self.heard:
            self.heard = False
            if not self.said:
                return self._shown("they speak")
            helped = float(self.asked and self.said == "act:say-1")
            stop = StopReason.GOAL if helped else StopReason.LOST
            return self._shown("they hang up", reward=helped, stop=stop, info={EARNED_BY: THE_AGENT})
        self.heard = True
        if action.text == "act:ask":
            self.asked = True
        else:
            self.said = action.text
        return self._shown("the agent speaks", actor="user")

    async def close(self):
        pass


def call_tasks():
    return TaskSet(
        [Task(id=f"call-{n}", prompt="call", split="train" if n % 4 else "heldout", seed=n) for n in range(16)]
    )


@pytest.fixture
def calls():
    """The world of calls, who knows how to answer them, and a caller who samples every word."""
    register("environments", "test-calls", EnvSpec("test-calls", call_tasks, Call, in_process=True))
    register("agents", "operator", lambda task, *, seed: ScriptedAgent(["act:ask", "act:say-1"]))
    register(
        "agents", "caller", lambda task, *, seed: ScriptedAgent(["please"] * 9, policy=ScriptedPolicy(tokens=3))
    )
    yield
    unregister("agents", "caller")
    unregister("agents", "operator")
    unregister("environments", "test-calls")


@pytest.mark.slow
def test_a_run_trains_the_agent_on_what_its_user_ended_and_nothing_that_the_user_said(calls, tmp_path):
    warm = {"min_updates": 5, "max_updates": 10, "evaluate_every": 5, "rows": 8, "validation": 0.2, "warmup": 2}
    loop = {"steps": 2, "tasks": 2, "group": 4, "oversample": 1, "loop": {"staleness": 0}}
    model = {"size": "tiny", "vocabulary": 300, "context": 128, "answer": 64, "others": {"user": "caller"}}
    config = load(
        base={
            "env": "test-calls", "turns": 8, "expert": "operator", "warm_start": warm, "reinforce": loop,
            "model": model,
            "evaluate": {"baselines": ["operator"], "bootstrap": 200},
        }
    )  # fmt: skip
    report = train(config, tmp_path / "run")
    assert report["evaluations"][0]["success"] == 1.0, "the operator"
    with StoreReader(tmp_path / "run" / "trajectories") as reader:
        played = [episode for episode in reader if episode.sampled_tokens]
    assert played
    helped = 0
    for episode in played:
        assert episode.failure is None
        for turn in episode.turns:
            assert bool(len(turn.sampled_ids)) == (turn.actor == "agent")
            assert turn.messages[-1].content
        ledger = Ledger.of([Group(episode.task_id, (episode,))])
        assert ledger.outcome_G[0] == (episode.reward or 0.0), "the first row is the agent's"
        helped += episode.reward == 1.0
    assert helped


class Stages:
    """Three turns of anything, each of which pays."""

    tools = ()

    def __init__(self, task):
        self.task, self.at = task, 0

    def _shown(self, **more):
        return Step((Message(role="user", content=f"stage {self.at}"),), state_key=f"{self.at}", **more)

    async def reset(self, *, seed):
        self.at = 0
        return self._shown()

    async def step(self, action):
        self.at += 1
        return self._shown(reward=1.0, stop=StopReason.GOAL if self.at == 3 else None)

    async def close(self):
        pass


class Victim(ScriptedAgent):
    """Does what stands last in what it reads, if that is one of two words."""

    def __init__(self):
        super().__init__([])

    async def act(self, step):
        said = step.text.splitlines()[-1]
        return Reply(Action.say(said if said in ("act:stop", "act:go") else "act:go"))

    def fork(self, *, seed):
        return Victim()


@pytest.mark.slow
def test_an_adversary_is_trained_on_what_the_agent_obeyed_and_the_victim_is_not(tmp_path):
    register("environments", "test-stages", EnvSpec("test-stages", call_tasks, Stages, in_process=True))
    register("agents", "victim", lambda task, *, seed: Victim())
    register("agents", "tempter", lambda task, *, seed: ScriptedAgent(["act:stop", "act:go"] * 9))
    wrap = {"name": "adversary-actor", "rate": 1.0, "target": "act:stop", "paid": "adversary"}
    warm = {"min_updates": 5, "max_updates": 10, "evaluate_every": 5, "rows": 8, "validation": 0.2, "warmup": 2}
    loop = {"steps": 2, "tasks": 2, "group": 4, "oversample": 1, "loop": {"staleness": 0}}
    model = {"size": "tiny", "vocabulary": 300, "context": 512, "answer": 16, "others": {"agent": "victim"}}
    try:
        config = load(
            base={
                "env": "test-stages", "env_options": {"wrap": wrap}, "turns": 8, "expert": "tempter",
                "model": model, "warm_start": warm, "reinforce": loop,
                "evaluate": {"baselines": ["tempter"], "bootstrap": 200},
            }
        )  # fmt: skip
        report = train(config, tmp_path / "run")
    finally:
        for group, name in (("agents", "tempter"), ("agents", "victim"), ("environments", "test-stages")):
            unregister(group, name)
    assert report["evaluations"][0]["name"] == "tempter"
    with StoreReader(tmp_path / "run" / "trajectories") as reader:
        played = [episode for episode in reader if episode.sampled_tokens]
    assert played
    for episode in played:
        assert episode.failure is None
        assert [turn.actor for turn in episode.turns] == ["agent", "adversary", "agent", "adversary", "agent"]
        assert [bool(len(turn.sampled_ids)) for turn in episode.turns] == [False, True, False, True, False]
        obeyed = [turn.step.channels.get("obeyed", 0.0) for turn in episode.turns if turn.actor == "agent"]
        assert episode.reward == sum(obeyed)
        ledger = Ledger.of([Group(episode.task_id, (episode,))])
        assert ledger.reward_N.sum() == sum(obeyed)


@pytest.fixture
def people():
    """Someone who asks and leaves it at that, and a user who samples each word."""
    register("agents", "asker", lambda task, *, seed: ScriptedAgent(["What can I do for you?"]))
    register(
        "agents",
        "leaver",
        lambda task, *, seed, last="Goodbye.": ScriptedAgent([last], policy=ScriptedPolicy(tokens=3)),
    )
    yield
    unregister("agents", "leaver")
    unregister("agents", "asker")


def test_an_evaluation_has_the_user_that_is_named(people, tmp_path):
    config = load(overrides=[*TALK, "model.others.user=leaver"])
    report = asyncio.run(evaluate_folders(config, tmp_path / "eval", agents=["asker"]))
    assert [one["name"] for one in report["evaluations"]] == ["asker"]
    with StoreReader(tmp_path / "eval" / "trajectories") as reader:
        episodes = list(reader)
    assert [[turn.actor for turn in episode.turns] for episode in episodes] == [["agent", "user"]] * 2
    assert not any(episode.failure or episode.sampled_tokens for episode in episodes)
    assert json.loads(dict(episodes[0].provenance)["actors"])["user"]["agent"] == "leaver"


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ("model.others.user=levaer", "model.others user: unknown agent 'levaer'; did you mean 'leaver'?"),
        ("model.others.user={agent='leaver', options={lst='x'}}", "model.others user: options.lst = 'x'"),
    ],
)
def test_a_user_that_cannot_be_is_refused_before_anything_is_written(people, tmp_path, others, said):
    config = load(overrides=[*TALK, others])
    with pytest.raises(ValueError, match=r"model\.others") as error:
        asyncio.run(evaluate_folders(config, tmp_path / "eval", agents=["asker"]))
    assert said in str(error.value)
    assert not (tmp_path / "eval").exists()
