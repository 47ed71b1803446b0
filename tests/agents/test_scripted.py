import asyncio
from collections import Counter

import numpy as np
import pytest
from envgym_agents.scripted import BruteForce, RandomAgent, ScriptedExpert

from envgym.cli.unread import summary
from envgym.env import Step
from envgym.messages import Message, ParseError, ToolCall
from envgym.policy import Agent
from envgym.registry import entry_point, names
from envgym.rollout import Rollout
from envgym.tools import check_call, tool_spec


def seen(text: str, *legal: str) -> Step:
    return Step(observation=(Message(role="user", content=text),), legal=legal)


def said(agent: Agent, step: Step) -> str:
    return asyncio.run(agent.act(step)).action.text


LISTED = seen("1 a\n2 b", "suggest 1", "suggest 2", "suggest 3", "submit")
OPEN = seen("variable a -> b\nlt-to-le < -> <=", "apply variable", "apply lt-to-le", "suggest 2", "submit")


@pytest.mark.parametrize("agent", [RandomAgent(0), BruteForce(), ScriptedExpert(0)])
def test_scripted_agents_are_agents(agent: object) -> None:
    assert isinstance(agent, Agent)
    assert Rollout()


def test_a_random_agent_is_uniform_over_the_legal_calls_and_repeats_with_its_seed() -> None:
    agent = RandomAgent(1)
    drawn = [said(agent, OPEN) for _ in range(800)]
    assert set(drawn) == set(OPEN.legal or ())
    assert all(150 < count < 250 for count in Counter(drawn).values())
    again = RandomAgent(1)
    assert [said(again, OPEN) for _ in range(20)] == drawn[:20]


def test_a_random_agent_needs_legal_calls_or_tools() -> None:
    with pytest.raises(ValueError, match="no legal calls"):
        said(RandomAgent(0), Step())


def look(place: str) -> None:
    """Look somewhere."""


def wait(turns: int = 1) -> None:
    """Wait."""


def test_a_random_agent_draws_calls_of_the_tools_where_no_legal_ones_are_listed() -> None:
    tools = (tool_spec(look), tool_spec(wait))

    def calls(agent: RandomAgent, count: int) -> list[ToolCall | ParseError]:
        actions = [asyncio.run(agent.act(Step())).action for _ in range(count)]
        return [check_call(action.calls[0], tools) for action in actions]

    drawn = calls(RandomAgent(1, tools=tools), 40)
    assert {call.name for call in drawn if isinstance(call, ToolCall)} == {"look", "wait"}
    assert not any(isinstance(call, ParseError) for call in drawn), "every call satisfies its schema"
    assert calls(RandomAgent(7, tools=tools).fork(seed=1), 40) == drawn
    assert said(RandomAgent(1, tools=tools), OPEN) == said(RandomAgent(1), OPEN), "tools change no legal draw"


@pytest.mark.parametrize("agent", [BruteForce(), ScriptedExpert(0)])
def test_both_players_localise_test_what_they_edited_take_failures_back_and_submit_successes(agent: Agent) -> None:
    assert said(agent, seen("1 test fails", "localise", "submit")) == "localise"
    assert said(agent, seen("edited: x", "test", "revert", "submit")) == "test"
    assert said(agent, seen("fail 1 of 2 E; tests left 3", "revert", "submit")) == "revert"
    assert said(agent, seen("pass 9; tests left 1", "revert", "submit")) == "submit"


def test_brute_force_goes_through_the_lists_in_order_and_hands_in_its_last_guess_untested() -> None:
    agent = BruteForce()
    assert said(agent, LISTED) == "suggest 1"
    assert said(agent, OPEN) == "apply variable"
    assert said(agent, seen("reverted", "apply lt-to-le", "suggest 2", "submit")) == "apply lt-to-le"
    assert said(agent, seen("reverted", "suggest 2", "submit")) == "suggest 2"
    assert said(agent, seen("fail E; tests left 0", "revert", "submit")) == "revert"
    assert said(agent, seen("edited: x", "revert", "submit")) == "submit"


def test_the_expert_draws_lines_less_often_the_further_down_they_stand() -> None:
    drawn = Counter(said(ScriptedExpert(seed, decay=0.5), LISTED) for seed in range(700))
    assert [round(drawn[f"suggest {line}"] / 100) for line in (1, 2, 3)] == [4, 2, 1]


def test_the_expert_applies_a_fix_of_the_line_it_drew_and_hopes_when_no_test_is_left() -> None:
    agent = ScriptedExpert(0, browse=0.0)
    assert said(agent, LISTED).startswith("suggest ")
    assert said(agent, OPEN).startswith("apply ")
    assert said(agent, seen("edited: x", "revert", "submit")) == "submit"
    assert said(agent, seen("reverted", "submit")) == "submit"


def test_a_forked_expert_draws_from_its_own_seed_and_leaves_its_parent_alone() -> None:
    def future(agent: Agent) -> list[str]:
        return [said(agent, step) for _ in range(6) for step in (LISTED, OPEN)]

    parent = ScriptedExpert(3)
    said(parent, LISTED)
    one, two, three = parent.fork(seed=9), parent.fork(seed=9), parent.fork(seed=10)
    first = future(one)
    assert future(two) == first != future(three)
    same = ScriptedExpert(3)
    said(same, LISTED)
    assert future(parent) == future(same)


def test_the_expert_looks_at_another_line_first_as_often_as_it_is_told() -> None:
    def browsed(browse: float) -> int:
        count = 0
        for seed in range(300):
            agent = ScriptedExpert(seed, browse=browse)
            said(agent, LISTED)
            count += said(agent, OPEN).startswith("suggest ")
        return count

    assert browsed(0.0) < browsed(0.3) < browsed(0.9)
    assert 50 < browsed(0.3) < 130
    with pytest.raises(ValueError, match="browse is"):
        ScriptedExpert(0, browse=1.0)


def test_a_wrong_decay_is_refused() -> None:
    for decay in (0.0, -1.0, 1.5, np.nan):
        with pytest.raises(ValueError, match="decay is"):
            ScriptedExpert(0, decay=decay)


def test_every_registered_agent_says_in_one_line_what_it_does():
    for name in names("agents"):
        said = summary(entry_point("agents", name))
        assert len(said) > 30, name
        assert "registry" not in said, name


def test_a_random_agent_with_its_worlds_seed_does_not_draw_what_the_world_drew() -> None:
    """The first number of the plain stream is what many a world hides; here it was guessed nearly every time."""
    legal = [f"guess {number}" for number in range(100)]
    hidden = [int(np.random.default_rng(seed).integers(100)) for seed in range(200)]
    drawn = [legal.index(said(RandomAgent(seed), seen("guess", *legal))) for seed in range(200)]
    assert sum(one == other for one, other in zip(hidden, drawn, strict=True)) < 12
