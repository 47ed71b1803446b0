"""Mind2Web's folders: a hand-made one, its scores by hand, and what is wrong with a file in one line."""

import asyncio
import json
from typing import Any

import pytest
from envgym_environments.gui.grounding.mind2web import SPEC, expert, mind2web_tasks, operation_f1, scores

from envgym.env import StopReason
from envgym.errors import EnvironmentFailure
from envgym.messages import Action
from envgym.registry import make, spec
from envgym.testing import check_env_sync, check_task_sync

HTML = (
    '<html backend_node_id="1"><body backend_node_id="2"><button backend_node_id="3" id="go">Search</button>'
    '<input backend_node_id="4" type="text" placeholder="From where"></input>'
    '<select backend_node_id="5" name="class"><option backend_node_id="6">Economy</option></select>'
    + "".join(f'<a backend_node_id="{number}">Link {number}</a>' for number in range(10, 60))
    + "</body></html>"
)


def candidate(number: int, **more: Any) -> dict[str, Any]:
    return {"tag": "a", "attributes": "{}", "backend_node_id": str(number), **more}


def action(op: str, value: str, *right: int, html: str = HTML) -> dict[str, Any]:
    return {
        "action_uid": f"u{op}", "raw_html": "", "cleaned_html": html,
        "operation": {"op": op, "original_op": op, "value": value},
        "pos_candidates": [candidate(number, is_original_target=True) for number in right],
        "neg_candidates": [candidate(number) for number in range(10, 60)],
    }  # fmt: skip


def flight() -> dict[str, Any]:
    actions = [
        action("TYPE", "New York", 4),
        action("CLICK", "", 3, 2),
        action("SELECT", "Economy", 99),
        action("SELECT", "Economy", 5),
    ]
    told = [
        "[input] From where -> TYPE: New York",
        "[button] Search -> CLICK",
        "[x] y -> CLICK",
        "[select] -> SELECT",
    ]
    return {
        "annotation_id": "a-1", "website": "united", "domain": "Travel", "subdomain": "Airlines",
        "confirmed_task": "Search a flight from New York in economy", "action_reprs": told, "actions": actions,
    }  # fmt: skip


def written(folder, data: Any, name: str = "train_0.json") -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(data))
    return str(folder)


def first(env) -> Any:
    return asyncio.run(env.reset(seed=0))


def answered(task, **given: Any) -> Any:
    async def play():
        env = make(SPEC, task)
        await env.reset(seed=0)
        return await env.step(Action.call("act", **given))

    return asyncio.run(play())


def test_each_step_with_a_right_element_is_a_task_of_its_own(tmp_path):
    written(tmp_path / "d", [flight()])
    tasks = mind2web_tasks(written(tmp_path / "d", [flight()], "test_task_0.json"))
    assert [(task.id, task.split) for task in tasks][:4] == [
        ("mind2web/test_task_0/a-1/0", "heldout"), ("mind2web/test_task_0/a-1/1", "heldout"),
        ("mind2web/test_task_0/a-1/3", "heldout"), ("mind2web/train_0/a-1/0", "train"),
    ]  # fmt: skip
    step = first(make(SPEC, tasks[2]))
    assert "Website: united\nTask: Search a flight from New York in economy" in step.text
    assert "1. [input] From where -> TYPE: New York\n2. [button] Search -> CLICK\n3." in step.text
    assert '[5] <select name="class"> Economy' in step.text
    assert step.text.count("] <") == 20
    assert first(make(SPEC, tasks[2])) == step
    two = first(make(SPEC, mind2web_tasks(str(tmp_path / "d"), candidates=2)[0]))
    assert two.text.count("] <") == 2
    assert '[4] <input type="text" placeholder="From where">' in two.text


def test_scores_are_the_papers_by_hand():
    assert operation_f1("CLICK", "CLICK") == 1.0
    assert operation_f1("TYPE New York", "TYPE New York City") == pytest.approx(6 / 7)
    assert operation_f1("SELECT Economy", "TYPE Economy") == 0.5
    assert operation_f1("", "CLICK") == 0.0
    assert operation_f1("", "") == 1.0
    assert scores("3", "CLICK", ["3", "2"], "CLICK") == {"element": 1.0, "operation": 1.0, "step": 1.0}
    assert scores("9", "CLICK", ["3"], "CLICK") == {"element": 0.0, "operation": 1.0, "step": 0.0}


def test_an_answer_earns_its_step_and_what_is_no_call_nothing(tmp_path):
    tasks = mind2web_tasks(written(tmp_path / "d", [flight()]))
    right = answered(tasks[0], element="[4]", operation="TYPE", value="New York")
    assert (right.reward, right.stop) == (1.0, StopReason.GOAL)
    half = answered(tasks[0], element="4", operation="TYPE", value="York")
    assert (half.reward, half.channels["element"], half.stop) == (0.0, 1.0, StopReason.SUBMITTED)
    assert half.channels["operation"] == pytest.approx(4 / 5)
    assert answered(tasks[1], element="2", operation="CLICK", value="ignored").reward == 1.0
    for wrong in ({"element": "4", "operation": "PUSH"}, {"operation": "CLICK"}):
        assert answered(tasks[1], **wrong).channels == {
            "element": 0.0,
            "operation": 0.0,
            "step": 0.0,
            "reward": 0.0,
        }


def test_it_keeps_both_contracts(tmp_path):
    tasks = mind2web_tasks(written(tmp_path / "d", [flight()]))
    check_env_sync(lambda: make(SPEC, tasks[0]), turns=2)
    check_task_sync(tasks, lambda task: make(SPEC, task), expert, seeds=(0,))
    assert spec("mind2web").name == "mind2web"


def test_candidates_as_json_are_read_too(tmp_path):
    data = flight()
    for one in data["actions"]:
        one["pos_candidates"] = [json.dumps(part) for part in one["pos_candidates"]]
    assert len(mind2web_tasks(written(tmp_path / "d", [data]))) == 3


def large(count: int, *, past: int = 0, right: int = 99) -> dict[str, Any]:
    """A step on a page of elements with long texts, after a long past; the right element is the last."""
    links = "".join(f'<a backend_node_id="{number}">{"word " * 200}</a>' for number in range(100, 100 + count))
    step = action("CLICK", "", right, html=f'<p>{links}<a backend_node_id="99">Right</a></p>')
    step["neg_candidates"] = [candidate(number) for number in range(100, 100 + count)]
    return flight() | {
        "actions": [action("CLICK", "", 1000)] * past + [step],
        "action_reprs": [f"[{at}] " + "long " * 80 for at in range(past)] + ["it"],
    }


@pytest.mark.parametrize("past", [0, 1, 59, 500])
def test_the_question_and_the_right_element_are_always_shown(tmp_path, past):
    tasks = mind2web_tasks(written(tmp_path / "d", [large(100, past=past)]), candidates=44)
    text = first(make(SPEC, tasks[0])).text
    assert text.endswith("Which of them is acted on next, and how? Call act.")
    assert "[99] <a> Right" in text
    assert text.count("] <a>") == 44
    assert len(text) <= 20_000
    if past:
        assert f"\n{past}. [{past - 1}] long" in text
    assert ("are left out)" in text) is (past > 40)


def test_more_elements_than_can_be_shown_are_refused(tmp_path):
    with pytest.raises(ValueError, match="candidates is 100; it must be at most 44"):
        mind2web_tasks(written(tmp_path / "d", [large(100)]), candidates=100)


def test_a_null_value_is_none_and_a_number_is_refused(tmp_path):
    data = flight()
    data["actions"][0]["operation"]["value"] = None
    assert mind2web_tasks(written(tmp_path / "d", [data]))[0].metadata["operation"] == "TYPE"
    data["actions"][0]["operation"]["value"] = 7
    with pytest.raises(ValueError, match="action 0: value is '7'; it must be a text, or null"):
        mind2web_tasks(written(tmp_path / "d", [data]))


def test_elements_that_are_not_on_the_page_are_neither_drawn_nor_right(tmp_path):
    html = '<p><!-- <a backend_node_id="8"> --><a title="a > b" backend_node_id="9">Nine</a>backend_node_id="7"</p>'
    data = flight()
    data["actions"] = [action("CLICK", "", right, html=html) for right in (9, 8, 7)]
    data["action_reprs"] = []
    (task,) = mind2web_tasks(written(tmp_path / "d", [data]))
    assert task.metadata["right"] == task.metadata["shown"] == ["9"]


def test_files_of_one_name_have_tasks_of_their_own(tmp_path):
    for part in ("one", "two"):
        (tmp_path / "d").mkdir(exist_ok=True)
        written(tmp_path / "d" / part, [flight()])
    ids = [task.id for task in mind2web_tasks(str(tmp_path / "d"))]
    assert len(set(ids)) == len(ids) == 6
    assert ids[0] == "mind2web/one/train_0/a-1/0"


def wrong(**changes: Any) -> dict[str, Any]:
    data = flight()
    data["actions"][1] |= changes
    return data


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([7], "train_0.json, task 0: it is int and no object"),
        ([{"annotation_id": "a"}], "task 0: it has no 'actions'"),
        (
            [wrong(operation={"op": "HOVER"})],
            "task 0: action 1: op is 'HOVER'; it must be one of CLICK, TYPE, SELECT",
        ),
        ([wrong(operation=None)], "task 0: action 1: "),
        ([wrong(cleaned_html="")], "task 0: action 1: cleaned_html is ''; it must be a text"),
        ([wrong(pos_candidates=[{"tag": "a"}])], "task 0: action 1: there is no 'backend_node_id'"),
        ([wrong(neg_candidates=["{"])], "task 0: action 1: "),
        ([wrong(pos_candidates=[candidate(3) | {"backend_node_id": 'x"'}])], "the backend_node_id 'x\"'"),
        ([flight() | {"action_reprs": ["one"]}], "task 0: it has 4 actions and 1 action_reprs"),
        ([flight() | {"confirmed_task": None}], "task 0: confirmed_task is 'None'; it must be a text"),
        ([flight() | {"actions": [], "action_reprs": []}], "has no step with a right element in 1 .json files"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(tmp_path, data, says):
    with pytest.raises(ValueError, match=r".*") as caught:
        mind2web_tasks(written(tmp_path / "d", data))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_options_and_files_that_went_are_told(tmp_path):
    with pytest.raises(ValueError, match="there is nothing at"):
        mind2web_tasks(str(tmp_path / "none"))
    with pytest.raises(ValueError, match="candidates is 1"):
        mind2web_tasks(written(tmp_path / "d", [flight()]), candidates=1)
    (tmp_path / "d" / "bad.json").write_text("{")
    with pytest.raises(ValueError, match=r"bad.json cannot be read as JSON"):
        mind2web_tasks(str(tmp_path / "d"))
    (tmp_path / "d" / "bad.json").unlink()
    task = mind2web_tasks(str(tmp_path / "d"))[0]
    (tmp_path / "d" / "train_0.json").unlink()
    with pytest.raises(EnvironmentFailure, match="is not there any more"):
        first(make(SPEC, task))
