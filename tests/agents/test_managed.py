"""Experts propose and a manager chooses: who spoke, whose tokens, forks, and a manager that learns."""

import asyncio
import json

import numpy as np
import pytest
from envgym_agents.managed import Managed, managed_agent
from envgym_agents.managers import Asked, Choice, LearnedValue, Vote, chosen_by, fit_manager

from envgym import make
from envgym.cli import run as command
from envgym.env import Step, StopReason
from envgym.messages import Action, Message
from envgym.policy import Completion, Reply, VersionRun
from envgym.registry import spec
from envgym.rollout import Origin, Rollout, play
from envgym.store import StoreReader
from envgym.task import Task


class Says:
    """Says one word and counts what it has read; with tokens where it is a policy's."""

    name = "agent"

    def __init__(self, word, *, tokens=False, read=()):
        self.word, self.tokens, self.read = word, tokens, list(read)
        self.held, self.closed = 0, False

    async def act(self, step):
        self.read.append([(one.role, one.content) for one in step.observation])
        if not self.tokens:
            return Reply(Action.say(self.word))
        position, self.held = self.held, self.held + 5
        said = Completion((7, 8), (-1.0, -1.0), (VersionRun(0, 0),), "stop")
        return Reply(Action.say(self.word), (1, 2, 3), said, 0, position, shown=())

    def fork(self, *, seed):
        other = Says(self.word, tokens=self.tokens, read=self.read)
        other.held = self.held
        return other

    async def close(self):
        self.closed = True


class Doors:
    """Each turn names a side; the word that fits it is worth one, and three turns are an episode."""

    tools = ()

    def __init__(self, seed=0):
        self.task, self.sides = Task(id="doors", prompt=""), np.random.default_rng(seed).integers(2, size=4)

    def _step(self, **more):
        return Step(
            (Message(role="user", content=f"the door is {('left', 'right')[self.sides[self.turn]]}"),), **more
        )

    async def reset(self, *, seed, start=None):
        self.turn, self.right = 0, 0
        return self._step()

    async def step(self, action):
        self.right += action.text == ("left", "right")[self.sides[self.turn]]
        self.turn += 1
        over = self.turn == 3
        return self._step(reward=self.right / 3 if over else None, stop=StopReason.GOAL if over else None)

    async def close(self):
        return


def played(manager, seed=0, **experts):
    agent = Managed(experts or {"l": Says("left"), "r": Says("right")}, manager, seed=seed)

    async def main():
        try:
            return await play(Doors(seed), {"agent": agent}, rollout=Rollout(), origin=Origin(f"e{seed}", seed))
        finally:
            await agent.close()

    return asyncio.run(main())


def test_of_equal_proposals_the_most_are_taken_and_the_first_of_a_draw():
    def choose(*words):
        proposals = [Action.say(one) for one in words]
        return asyncio.run(Vote().choose(Step(), words, proposals, seed=0)).index

    assert choose("a", "b", "b") == 1
    assert choose("a", "b") == 0


def test_the_episode_says_who_spoke_and_the_others_read_it_as_the_assistants():
    experts = {"l": Says("left"), "r": Says("right")}
    agent = Managed(experts, Vote(), seed=0)

    async def main():
        first = Step((Message(role="user", content="one"),))
        reply = await agent.act(first)
        assert reply.action.text == "left"
        assert reply.thoughts[-1].action.text == "manager: l"
        fork = agent.fork(seed=1)
        again = [await one.act(Step((Message(role="user", content="two"),))) for one in (agent, fork)]
        assert again[0].action == again[1].action
        return agent._experts, agent._missed

    _, missed = asyncio.run(main())
    assert missed["l"] == ()
    assert [one.content for one in missed["r"]] == ["one", "left", "two", "left"]
    assert experts["l"].closed, "what was forked from is closed when its fork goes on"
    episode = played(Vote())
    assert [name for _, name in chosen_by(episode)] == ["l"] * 3
    assert sum(turn.thought for turn in episode.turns) == 3


def test_tokens_are_the_speakers_own_each_with_the_context_that_it_had():
    class ByTurns:
        turn = 0

        async def choose(self, step, names, proposals, *, seed):
            self.turn += 1
            return Choice(self.turn % 2)

        async def close(self):
            return

    episode = played(ByTurns(), l=Says("left", tokens=True), r=Says("right", tokens=True))
    assert episode.failure is None, episode.failure
    spoken = [turn for turn in episode.turns if not turn.thought]
    assert [turn.segment for turn in spoken] == [0, 1, 2], "who speaks after another opens a segment"
    assert spoken[2].prompt_ids.tolist() == [1, 2, 3, 7, 8, 1, 2, 3], "with all of the speaker's own context"
    assert all(turn.sampled_ids.tolist() == [7, 8] for turn in spoken)


def test_a_manager_that_is_an_agent_answers_with_a_number_and_its_tokens_are_a_thought():
    episode = played(Asked(Says("I take 2", tokens=True)), l=Says("left"), r=Says("right"))
    assert [name for _, name in chosen_by(episode)] == ["r"] * 3
    asked = [turn for turn in episode.turns if turn.thought and len(turn.sampled_ids)]
    assert len(asked) == 3
    assert played(Asked(Says("nobody")), l=Says("left"), r=Says("right")).turns[2].messages[-1].content == "left"


def test_a_value_learned_from_chance_chooses_the_expert_that_fits_what_is_seen(tmp_path):
    chance = LearnedValue(("l", "r"), np.zeros((2, 9)), explore=1.0)
    learned = fit_manager((played(chance, seed) for seed in range(150)), ridge=0.1, size=64)
    learned.save(tmp_path / "manager.json")
    learned = LearnedValue.load(tmp_path / "manager.json")
    before = np.mean([played(chance, seed).reward for seed in range(500, 530)])
    after = np.mean([played(learned, seed).reward for seed in range(500, 530)])
    assert before < 0.7
    assert after == 1.0
    (tmp_path / "manager.json").write_text('{"names": ["l"], "weights": [[0], [1]]}')
    with pytest.raises(ValueError, match="is no learned manager"):
        LearnedValue.load(tmp_path / "manager.json")
    with pytest.raises(ValueError, match="play some with the agent 'managed'"):
        fit_manager([])


def test_by_ridge_regression_the_constant_is_the_mean_return_shrunk_by_hand():
    episode = played(Vote(), seed=1)
    assert episode.reward
    fitted = fit_manager([episode], gamma=1.0, ridge=1.0, size=1)
    # every turn: x = (1, 1), y = R; (3 x x^T + I) w = 3 R (1, 1): each weight is 3 R / 7
    assert fitted.weights.tolist() == [[pytest.approx(3 * episode.reward / 7)] * 2]


def test_it_plays_a_desk_from_the_command_line_and_wrong_options_are_named(tmp_path, capsys):
    experts = json.dumps(["service-expert", {"agent": "random", "as": "chance"}])
    asked = f"collect service --agent managed -n 3 --turns 12 --out {tmp_path / 'runs'} --json"
    assert command([*asked.split(), "--agent-option", f"experts={experts}"]) == 0
    with StoreReader(tmp_path / "runs") as reader:
        spoken = {name for one in reader.ids for _, name in chosen_by(reader[one])}
    assert spoken == {"service-expert"}, "of two different proposals the first expert's is taken"
    drawn = ["--agent-option", "manager=learned", "--agent-option", "explore=1"]
    asked = asked.replace("runs", "drawn")
    assert command([*asked.split(), "--agent-option", f"experts={experts}", *drawn]) == 0
    with StoreReader(tmp_path / "drawn") as reader:
        assert {name for one in reader.ids for _, name in chosen_by(reader[one])} == {"service-expert", "chance"}
    task = spec("guess").tasks()[0]
    tools = make("guess", task).tools
    for options, said in (
        ({"experts": ["random"]}, "at least 2"),
        ({"experts": ["random", "random"]}, "two experts are called 'random'"),
        ({"experts": ["random", "nobody"]}, "unknown agent 'nobody'"),
        ({"experts": ["random", {"agent": "expert", "sped": 1}]}, "there is no such option"),
        ({"experts": ["random", {"name": "x"}]}, "names no agent"),
        ({"experts": ["random", "expert"], "manager": "voet"}, "manager is 'voet'"),
        (
            {"experts": ["random", "expert"], "manager": "learned", "manager_file": "none.json"},
            "no learned manager",
        ),
        ({"experts": ["random", "expert"], "manager_file": "x.json"}, "has no use where manager is 'vote'"),
        ({"experts": ["random", "expert"], "explore": 2.0}, "explore is 2.0"),
        ({"experts": ["random", "expert"], "explore": 0.5}, "explore 0.5 has no use where manager is 'vote'"),
    ):
        with pytest.raises(ValueError, match=r".") as error:
            managed_agent(task, seed=0, tools=tools, **options)
        assert said in str(error.value)
