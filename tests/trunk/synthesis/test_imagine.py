"""Imagined conversations: persons, talk and judgement, what is refused, and that nothing of it trains on-policy."""

import asyncio
import json

import pytest
from envgym_agents.scripted_imaginer import scripted_imaginer

from envgym.env import StopReason
from envgym.episode import Group
from envgym.errors import AgentFailure
from envgym.messages import text_of
from envgym.synthesis import AgentAsker, Amounts, Goal, imagine
from envgym.synthesis.imagine import IMAGINED

GOAL = Goal(name="seller", says="Find out what the person wants, and offer it.", agent="a seller")


class Asker:
    """Says what a table says: the persons, the conversations in turn, and one verdict of every sentence."""

    def __init__(self, talks, *, persons=("A", "B"), verdicts=("yes", "yes")):
        self.talks, self.persons, self.verdicts = list(talks), persons, list(verdicts)
        self.asked = []

    async def ask(self, question, *, seed):
        self.asked.append(question)
        if "Imagine" in question:
            return f"Here they are: {json.dumps(list(self.persons))} I hope they help."
        if '"manner"' in question:
            talk = self.talks.pop(0)
            if isinstance(talk, Exception):
                raise talk
            return talk if isinstance(talk, str) else json.dumps([{"by": by, "says": w} for by, w in talk])
        verdict = self.verdicts[seed % len(self.verdicts)]
        return verdict if "\n" in verdict else f"1: {verdict}\n2: {verdict}"


def imagined(asker, goal=GOAL, **more):
    async def run():
        amounts = Amounts(**{"people": 2, "each": 1, "concurrency": 1, **more})
        return [one async for one in imagine(goal, asker, amounts, who="a test")]

    return asyncio.run(run())


def test_what_is_kept_is_not_imagined_again_and_its_persons_stay():
    first = imagined(Asker([TALK, "unreadable"]))
    kept = [one.episode for one in first if one.episode is not None]
    assert [one.id for one in kept] == ["seller-0-00000-0"]
    asker = Asker([OTHER, TALK], persons=("C", "B", "D"))

    async def go_on():
        found = imagine(GOAL, asker, Amounts(3, 1, concurrency=1), who="a test", kept=kept)
        return [one async for one in found]

    found = asyncio.run(go_on())
    assert [(one.name, one.refused) for one in found] == [
        ("seller-0-00001-0", ""),
        ("seller-0-00002-0", "repeats another"),
    ]
    assert found[0].episode.root.info["imagined"]["person"] == "B"
    assert not [one for one in asker.asked if '"C"' in one], "who was met before is met again, not somebody else"
    whole = Asker([])

    async def finished():
        return [one async for one in imagine(GOAL, whole, Amounts(1, 1), who="a test", kept=kept)]

    assert (asyncio.run(finished()), whole.asked) == ([], [])


TALK = [
    ("person", "Hello, I want a lamp."),
    ("agent", "Which color?"),
    ("person", "Red."),
    ("agent", "Here it is."),
]
OTHER = [("person", "Good day to you."), ("agent", "What may it be?"), ("person", "Bye then.")]


def test_a_conversation_becomes_an_episode_without_tokens_that_says_who_imagined_it():
    found = imagined(Asker([TALK, OTHER]))
    first, second = (one.episode for one in found)
    assert text_of(first.root.observation[0]) == "Hello, I want a lamp."
    assert [turn.action.text for turn in first.turns] == ["Which color?", "Here it is."]
    assert [turn.step.text for turn in first.turns] == ["Red.", ""]
    assert [turn.step.reward for turn in first.turns] == [None, 1.0]
    assert (first.stop, first.reward, first.sampled_tokens) == (StopReason.GOAL, 1.0, 0)
    assert dict(first.provenance)[IMAGINED] == "a test"
    assert first.grades[0].channels == {"reached": 1.0, "criterion-1": 1.0, "reward": 1.0}
    assert second.turns[-1].step.text == "Bye then."
    assert first.task_id != second.task_id


@pytest.mark.parametrize(
    ("talk", "why"),
    [
        ("I would rather not.", "cannot be read"),
        ("[[[[", "cannot be read"),
        ([("person", "Hello.")], "cannot be read"),
        ([("person", "Hi."), ("agent", "  ")], "cannot be read"),
        ([("person", "Hi."), ("narrator", "It rains.")], "cannot be read"),
        (TALK[1:], "they do not speak by turns"),
        ([TALK[0], TALK[0], *TALK[1:]], "they do not speak by turns"),
        ([*TALK, ("person", "No."), ("agent", "which COLOR?")], "the agent repeats itself"),
        ([part for n in range(9) for part in (("person", f"p{n}"), ("agent", f"a{n}"))], "too long"),
    ],
)
def test_what_is_no_conversation_of_this_goal_is_refused(talk, why):
    assert [one.refused for one in imagined(Asker([talk, OTHER]))] == [why, ""]


def test_what_repeats_another_is_refused_and_persons_that_are_missing_are_told():
    assert [one.refused for one in imagined(Asker([TALK, TALK]))] == ["", "repeats another"]
    assert imagined(Asker([TALK], persons=("A", "A")))[1].refused == "no such person was imagined"


def test_judges_must_agree_and_criteria_must_hold_and_a_miss_of_the_goal_is_kept_with_reward_zero():
    assert (
        imagined(Asker([TALK, OTHER], verdicts=("yes", "no")))[0].refused == "the judge does not say the same twice"
    )
    assert imagined(Asker([TALK, OTHER], verdicts=("1: yes\n2: no",)))[0].refused == "a criterion does not hold"
    missed = imagined(Asker([TALK, OTHER], verdicts=("1: no\n2: yes",)))[0].episode
    assert (missed.reward, missed.stop) == (0.0, StopReason.SUBMITTED)


def test_an_imaginer_that_is_gone_costs_one_conversation_and_is_told():
    found = imagined(Asker([AgentFailure("gone"), OTHER]))
    assert [one.failed for one in found] == ["AgentFailure: gone", ""]
    with pytest.raises(ValueError, match="people"):
        imagined(Asker([]), people=0)


def test_the_scripted_imaginer_makes_groups_in_which_good_and_poor_ones_differ():
    def run():
        return imagined(AgentAsker(scripted_imaginer), people=8, each=2, concurrency=4)

    found = run()
    assert [one.episode for one in found] == [one.episode for one in run()]
    episodes = [one.episode for one in found if one.episode is not None]
    groups = [
        Group(task, tuple(e for e in episodes if e.task_id == task)) for task in {e.task_id for e in episodes}
    ]
    assert sum({e.reward for e in group} == {0.0, 1.0} for group in groups) >= 6
