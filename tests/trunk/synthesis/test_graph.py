"""The graph of screens by hand, what it explores beside curiosity, weights, and ways with a mistake."""

import asyncio
import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
from envgym_environments.corrupted import corrupted
from envgym_environments.synthesized import make_synthesized, synthesized_tasks
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym import make
from envgym.cli import run as command
from envgym.env import Step, StopReason
from envgym.messages import Action, Message
from envgym.policy import Reply
from envgym.registry import spec
from envgym.synthesis import (
    Curious,
    Found,
    GraphExplorer,
    GraphReader,
    ScreenGraph,
    Told,
    Tried,
    rate,
    synthesize,
)
from envgym.synthesis.explore import explore
from envgym.synthesis.graph import elements_of, screen_of
from envgym.tools import tool_spec
from envgym.wire import action_to_json

HOME, LIST, ITEM = (frozenset(words.split()) for words in ("home menu", "list menu next", "item menu"))
PLAIN = ("--env-option", "browser=plain")
GO, OPEN, LEAVE = (frozenset(words.split()) for words in ("click list", "click item", "done"))


def test_elements_are_named_by_what_they_are_and_not_by_refs_or_values():
    text = 'Page\n[e4] link "Cart"\n  [e9] textbox "Town" = "Oslo"\n<button ref=e5>Go</button>\n  e7 button \'x\''
    found = elements_of(text)
    assert found["e4"] == 'link "Cart"'
    assert found["e9"] == 'textbox "Town"'
    assert set(found) == {"e4", "e9", "e5", "e7"}
    filled = Step((Message(role="user", content=text.replace("Oslo", "Bergen")),))
    assert screen_of(Step((Message(role="user", content=text),))) == screen_of(filled)


def test_values_go_back_from_what_is_unknown_by_hand():
    graph = ScreenGraph(discount=0.5)
    graph.arrive(HOME, [GO])
    assert graph.hope(GO) == 1.0, "nothing is known: hope alone"
    assert graph.note(HOME, GO, LIST) == pytest.approx(2 / 3), "of list, menu and next two were never seen"
    # one deed that shares 1 of 3 words with GO, whose gain was 2/3: (1 + 1/3 * 2/3) / (1 + 1/3)
    assert graph.hope(OPEN) == pytest.approx((1 + 2 / 9) / (4 / 3))
    graph.arrive(LIST, [OPEN])
    values = graph.values()
    assert values[LIST] == pytest.approx(graph.hope(OPEN))
    assert values[HOME] == pytest.approx(0.5 * values[LIST]), (
        "all is tried at home; what it leads to is one step away"
    )
    graph.note(LIST, LEAVE, None)
    assert graph.hope(LEAVE) == 0.0
    assert graph.worth(HOME, LEAVE, values) == 0.0, "what ended all is hoped for nowhere"


def test_a_tool_that_brought_nothing_is_hoped_for_less_whatever_it_is_done_to_by_hand():
    graph = ScreenGraph()
    over, under, click = (frozenset(words.split()) for words in ("hover() a", "hover() b", "click() b"))
    graph.arrive(HOME, [over, under, click])
    graph.note(HOME, over, HOME)
    # its tool's mean of 0 and one of 1.0; one deed that shares 1 of 3 words with it, whose gain was 0
    assert graph.hope(under) == pytest.approx((1 / 2 + 0) / (4 / 3))
    assert graph.hope(click) == 1.0


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from((HOME, LIST, ITEM)), st.sampled_from((GO, OPEN, LEAVE)),
                          st.sampled_from((HOME, LIST, ITEM, None))), max_size=12))  # fmt: skip
def test_worth_is_bounded_whatever_was_seen(notes):
    graph = ScreenGraph()
    for screen in (HOME, LIST, ITEM):
        graph.arrive(screen, (GO, OPEN, LEAVE))
    for note in notes:
        assert 0.0 <= graph.note(*note) <= 1.0
    values = graph.values()
    for screen in (HOME, LIST, ITEM):
        assert all(0.0 <= graph.worth(screen, deed, values) <= 1.0 for deed in (GO, OPEN, LEAVE))


class Obedient:
    """Reads what each call is worth, and makes the first one, the highest."""

    name = "agent"

    def __init__(self):
        self.read = []

    async def act(self, step):
        *_, note = step.observation
        lines = [line.split() for line in note.content.splitlines() if re.match(r"[01]\.\d\d ", line)]
        self.read.append([float(worth) for worth, *_ in lines])
        _, tool, *rest = lines[0]
        return Reply(Action.call(tool, **({"ref": rest[0]} if rest else {})))

    async def close(self):
        pass


def test_an_agent_reads_what_each_call_is_worth_and_what_it_does_becomes_the_graphs():
    graph = ScreenGraph()
    tools = (tool_spec(open_), tool_spec(leave))
    shown = [Step((Message(role="user", content=f'[e1] link "{name}"'),), state_key=name) for name in "ab"]

    async def main():
        agent = Obedient()
        reader = GraphReader(agent, GraphExplorer(graph, np.random.default_rng(0)))
        first = await reader.choose(shown[0], tools, Tried())
        await reader.choose(shown[1], tools, Tried())
        reader.ended(replace(shown[1], stop=StopReason.LOST))
        return agent.read, first.calls[0]

    read, call = asyncio.run(main())
    assert all(worths == sorted(worths, reverse=True) for worths in read)
    assert read[0] == [1.0, 1.0], "nothing is known: everything is hoped for"
    deed = frozenset((f"{call.name}()", *(["link", "a"] if call.arguments else [])))
    assert (screen_of(shown[0]), deed) in graph.led
    assert len(graph.led) == 2
    assert None in graph.led.values(), "and the end of it"


def open_(ref: str) -> None:
    """Open an element."""


def leave() -> None:
    """Go."""


async def _seen(kind, trails=16, turns=8):
    """How many screens of a shop are seen."""
    task, graph, seen = spec("web-sites").tasks()[3], ScreenGraph(), set()
    for number in range(trails):
        rng = np.random.default_rng([number, 7])
        env = make("web-sites", task, browser="plain")
        trail = await explore(
            env, GraphExplorer(graph, rng) if kind == "graph" else Curious(rng), Tried(), seed=0, turns=turns
        )
        await env.close()
        seen.update(map(screen_of, (trail.first, *trail.steps)))
    return len(seen)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_graph_sees_more_of_a_site_than_counting_does_with_as_many_actions():
    assert asyncio.run(_seen("graph")) >= 2 * asyncio.run(_seen("curious"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_site_is_explored_first_named_afterwards_and_played_with_and_without_mistakes(tmp_path, capsys):
    out = tmp_path / "tasks.jsonl"
    asked = f"synthesize web-sites --explorer graph --task 3 --out {out} -n 4 --trails 24 --turns 8"
    assert command([*asked.split(), *PLAIN]) == 0
    tasks = synthesized_tasks(str(out))
    assert len(tasks) == 4
    scores = [task.metadata["synthesized"]["score"] for task in tasks]
    assert all(0.0 < score <= 1.0 for score in scores)
    drawn = synthesized_tasks(str(out), count=40, seed=1)
    assert len({task.id for task in drawn}) == 40

    async def reward(task, **options):
        env = make_synthesized(task, browser="plain")
        agent, step = corrupted(task, **options), await env.reset(seed=0)
        for _ in range(8):
            if step.stop is None:
                step = await env.step((await agent.act(step)).action)
        await env.close()
        return step.reward

    async def main():
        for task in tasks:
            assert await reward(task, mistake="none") == 1.0
            assert await reward(task, mistake="early") != 1.0, "every action of a way matters"
            assert await reward(task, mistake="missing", hard=True) != 1.0

    asyncio.run(main())
    shown = f"collect synthesized --agent corrupted --group 6 -n 12 --turns 8 --task-option path={out} --json"
    assert command([*shown.split(), *PLAIN]) == 0
    printed = capsys.readouterr().out
    told = json.loads(printed[printed.index("{") :])
    assert {"goal", "turn_limit"} <= set(told["stops"]), told


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(400)
@pytest.mark.skipif(not os.path.exists("/usr/bin/Xvfb"), reason="no display here; fix: scripts/setup.sh as root")
def test_a_display_is_explored_and_what_was_found_there_is_played(tmp_path, capsys):
    out, there = tmp_path / "tasks.jsonl", "--sandbox namespace"
    asked = f"synthesize desktop --explorer graph {there} --out {out} -n 1 --trails 4 --turns 10"
    assert command([*asked.split(), "--task-option", "kind=arithmetic", "--env-option", "warm=1"]) == 0
    played = (
        f"collect synthesized-sandboxed --agent corrupted {there} -n 1 --turns 6 --task-option path={out} --json"
    )
    capsys.readouterr()
    assert command([*played.split(), "--agent-option", "mistake=none"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed[printed.index("{") :])["stops"] == {"goal": 1}


def test_a_rating_is_a_number_of_a_model_and_wrong_ones_are_named():
    class Says:
        def __init__(self, text):
            self.text = text

        async def ask(self, question, *, seed):
            return self.text

    way = Found(0, "goal", (), "look()", Step())
    assert asyncio.run(rate(Says("I say 4."))(way)) == pytest.approx(0.8)
    assert asyncio.run(rate(Says("4/5, or 4.5"))(way)) == pytest.approx(0.8)
    for none in ("splendid", "15", "0.5", "-3"):
        assert asyncio.run(rate(Says(none))(way)) == pytest.approx(0.2), none

    async def nothing(found):
        return 0.0

    base = spec("tool").tasks()[0]
    with pytest.raises(ValueError, match=r"a rating is 0\.0"):
        asyncio.run(
            synthesize("tool", base, lambda: make("tool", base), lambda seed: Curious(np.random.default_rng(seed)),
                       count=2, trails=6, turns=6, told=Told(rating=nothing))
        )  # fmt: skip


def test_only_tasks_with_a_way_can_be_corrupted():
    task = spec("tool").tasks()[0]
    with pytest.raises(ValueError, match="no way of its own"):
        corrupted(task)
    with pytest.raises(ValueError, match="mistake is 'typo'"):
        corrupted(task, mistake="typo")


PANEL = (
    "done\nwindow 'Calc' (active)\ne1 frame 'Calc'\n  e2 toggle button '7'\n  e3 toggle button '8'\n  e4 text: '0'"
)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (Action.call("click", target="e2"), "target"),
        (Action.call("invoke", ref="e2"), "ref"),
        (Action.call("click", target="120,44"), "target"),
    ],
)
def test_another_element_of_a_display_is_one_that_is_shown(call, name):
    made = {"reference": [action_to_json(call)]}
    task = spec("tool").tasks()[0].model_copy(update={"metadata": {"synthesized": made}})
    step = Step((Message(role="user", content=PANEL),))
    for seed in range(12):
        reply = asyncio.run(corrupted(task, seed=seed, mistake="other", hard=True).act(step))
        (other,) = reply.action.calls
        assert other.name == call.calls[0].name
        assert other.arguments[name] != call.calls[0].arguments[name]
        assert other.arguments[name] in {"e1", "e2", "e3", "e4"}, "a mistake that is possible, not a word"


def test_both_ends_of_a_drag_are_elements():
    made = {"reference": [action_to_json(Action.call("drag", start="e2", end="e3"))]}
    task = spec("tool").tasks()[0].model_copy(update={"metadata": {"synthesized": made}})
    step = Step((Message(role="user", content=PANEL),))
    seen = [
        asyncio.run(corrupted(task, seed=seed, mistake="other").act(step)).action.calls[0].arguments
        for seed in range(12)
    ]
    as_it_was = {"start": "e2", "end": "e3"}
    changed = {name for given in seen for name, value in given.items() if value != as_it_was[name]}
    assert changed == {"start", "end"}
    assert all(set(given.values()) <= {"e1", "e2", "e3", "e4"} for given in seen)
