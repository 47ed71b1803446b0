"""Feedback of a judge: questions, what is read of answers, and the schemes that listen to it."""

import asyncio

import numpy as np
import pytest

from envgym.credit import Ledger
from envgym.data import Judge, feedback, goals_of, judge_of, listening, spans_of
from envgym.data.said import located, read_json
from envgym.env import Step
from envgym.episode import Group
from envgym.errors import AgentFailure
from envgym.messages import Action, Message
from envgym.policy import Reply
from envgym.registry import find, make_scheme
from envgym.testing.credit_groups import made_episode, made_turn

SPANS, SUBGOALS, GOALS = "spans", "subgoals", "goals"


class Says:
    """An agent that answers with a text, or is gone."""

    name = "agent"

    def __init__(self, answer):
        self.answer = answer

    async def act(self, step: Step) -> Reply:
        if self.answer is None:
            raise AgentFailure("the server is gone")
        return Reply(Action.say(self.answer(step.text) if callable(self.answer) else self.answer))

    def fork(self, *, seed):
        return self

    async def close(self):
        pass


def judge(answer, pieces=None):
    return Judge("says", lambda task, *, seed: Says(answer), pieces)


def group():
    members = [
        made_episode(f"e{k}", [made_turn(0.0, sampled=3), made_turn(float(k), sampled=2)], task="t") for k in (0, 1)
    ]
    return Group("t", tuple(members))


def asked(kind, who, **options):
    async def work():
        return [one async for one in feedback([group()], kind, who, **options)]

    return sorted(asyncio.run(work()), key=lambda one: one.subject)


def test_praise_of_a_turn_pays_its_tokens_and_a_quote_pays_its_own():
    answer = '[{"turn": 0, "quote": "bc", "reward": 0.5, "why": "good"}, {"turn": 1, "quote": "", "reward": -1}]'
    lines = [one.line for one in asked(SPANS, judge(answer, lambda ids: ["a", "b", "c"][: len(ids)]))]
    assert [(one.turn, one.begin, one.end, one.reward) for one in lines[0].spans] == [(0, 1, 3, 0.5), (1, 0, 2, -1)]
    found = make_scheme("span-feedback", spans=spans_of(lines))([group()])
    # outcomes 0 and 1: half below and above the mean; the words are added
    np.testing.assert_allclose(found[0], [-0.5, 0, 0, -1.5, -1.5])
    np.testing.assert_allclose(found[1], [0.5, 1, 1, -0.5, -0.5])


@pytest.mark.parametrize(
    "answer",
    [
        "no JSON at all", "[" * 5000, '[{"turn": 7, "reward": 1}]', '[{"turn": true, "reward": 1}]', "[3]",
        '[{"turn": 0, "reward": NaN}]', '[{"turn": 0, "reward": 5}]', '[{"turn": 0}]',
        '[{"turn": 0, "quote": "never said", "reward": 1}]', '[{"turn": 0, "quote": 4, "reward": 1}]',
    ],
)  # fmt: skip
def test_an_answer_that_says_nothing_is_the_judges_fault_and_kept(answer):
    for one in asked(SPANS, judge(answer)):
        assert one.failure is None
        assert (one.line.spans, len(one.line.unread)) == ((), 1)


def test_a_judge_that_is_gone_is_a_failure_and_no_line():
    for kind in (SPANS, SUBGOALS, GOALS):
        for one in asked(kind, judge(None)):
            assert (one.line, one.failure.kind) == (None, "AgentFailure")


def test_subgoals_are_proposed_once_a_group_and_judged_by_turns():
    questions = []

    def answer(text):
        questions.append(text)
        return '["look", "mend"]' if "Name the subgoals" in text else '[{"turn": 1, "subgoal": 2}]'

    lines = [one.line for one in asked(SUBGOALS, judge(answer))]
    assert len(questions) == 3  # one proposal, one judgement for each member
    assert [line.subgoals for line in lines] == [("look", "mend")] * 2
    np.testing.assert_array_equal(judge_of(lines)(Ledger.of([group()])), [0, 2, 0, 2])
    beyond = judge(lambda text: '["a"]' if "Name" in text else '[{"turn": 0, "subgoal": 2}]')
    assert all(one.line.reached == () and one.line.unread for one in asked(SUBGOALS, beyond))


def test_a_timed_goal_holds_where_the_world_says_its_text_in_time():
    answer = '{"stages": [{"name": "seen", "text": "ok", "within": 2, "reward": 0.5}], "never": "dead"}'
    (one,) = asked(GOALS, judge(answer))
    goal = goals_of([one.line])("t")
    earned, cost = goal.watch([_world(text) for text in ("", "dead", "ok", "ok")])
    np.testing.assert_array_equal(earned, [0, 0.5, 0])
    np.testing.assert_array_equal(cost, [1, 0, 0])
    assert goals_of([one.line])("another task") is None
    none = asked(GOALS, judge('{"stages": []}'))[0].line
    assert (none.goal, len(none.unread)) == (None, 1)


def _world(text):
    return Step(observation=(Message(role="user", content=text),))


def test_what_was_said_already_is_not_asked_again():
    assert [one.subject for one in asked(SPANS, judge("[]"), known=frozenset({"e0"}))] == ["e1"]
    assert asked(GOALS, judge("{}"), known=frozenset({"t"})) == []


def test_a_scheme_is_given_the_feedback_it_needs_and_no_other():
    lines = [one.line for one in asked(SPANS, judge("[]"))]
    assert listening(find("schemes", "span-feedback").needs, lines).keys() == {"spans"}
    with pytest.raises(ValueError, match="listens to no feedback"):
        listening(find("schemes", "grpo").needs, lines)
    with pytest.raises(ValueError, match="needs feedback of kind 'goals', and there is only spans"):
        listening(find("schemes", "timed-subgoals").needs, lines)


def test_a_quote_is_found_in_pieces():
    assert located("bc", ["a", "b", "cd"]) == (1, 3)
    assert located("a", ["", "a", "b"]) == (1, 2)
    assert located("x", ["a"]) is None
    assert read_json("I say: [not] [1, 2] done", "[") == [1, 2]


def test_feedback_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="kind is 'words'"):
        asked("words", judge("[]"))
