"""Grounding: the papers' rules by hand, foreign folders there and back, and tasks as data."""

import asyncio
import json
import struct

import pytest
from envgym_environments.gui.grounding.answers import Answer, well_formed, written, written_box
from envgym_environments.gui.grounding.asking import EVERY, Mark
from envgym_environments.gui.grounding.desktop import desktop_grounding_tasks
from envgym_environments.gui.grounding.env import Grounding, Question, expert, grounding_tasks, posed
from envgym_environments.gui.grounding.folders import entry_of, folder_tasks, write_folder
from envgym_environments.gui.grounding.rewards import (
    RULES,
    Truth,
    average_precision,
    gui_r1,
    gui_r1_paper,
    iou,
    text_f1,
    ui_r1,
    vlm_r1,
    vlm_r1_detection,
)
from envgym_environments.gui.grounding.web import Shown

from envgym.env import StopReason
from envgym.messages import Action
from envgym.testing import check_tasks

BOX = Truth("click", (10.0, 20.0, 30.0, 40.0))
PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 8 + struct.pack(">II", 100, 80)


def said(action, point=None, text="no input text"):
    return written(Answer(action, point, text))


def test_the_rules_are_those_of_the_papers():
    assert gui_r1(said("click", (20, 30)), BOX)["reward"] == 1.0
    assert gui_r1(said("click", (10, 30)), BOX)["reward"] == pytest.approx(0.2)  # the edge is outside
    assert ui_r1(said("click", (10, 30)), BOX)["reward"] == 3.0  # the edge is inside
    assert ui_r1(said("click", (9, 30)), BOX)["reward"] == 2.0
    assert ui_r1("nothing", BOX)["reward"] == gui_r1("nothing", BOX)["reward"] == 0.0
    assert ui_r1(said("complete"), Truth("complete"))["point"] == 1.0
    typed = Truth("type", text="red tea cup")
    assert gui_r1(said("type", text="red tea"), typed)["reward"] == 1.0  # F1 0.8
    assert gui_r1(said("type", text="red wine glass jar"), typed)["accuracy"] == 0.0  # F1 2/7
    assert text_f1("a b", "b c d") == pytest.approx(0.4)
    assert gui_r1(said("click", (149, 50)), Truth("click", point=(10.0, 50.0)))["accuracy"] == 1.0
    assert gui_r1(said("click", (150, 50)), Truth("click", point=(10.0, 50.0)))["accuracy"] == 0.0
    assert not well_formed(said("scroll"))
    assert well_formed(said("scroll", text="up"))


def test_gui_r1_has_two_rules_by_name_the_codes_and_the_papers_sum():
    wrong_name = said("select", (20, 30))
    assert gui_r1_paper(wrong_name, BOX) == {
        "type": 0.0, "point": 1.0, "format": 0.0, "accuracy": 1.0, "reward": 1.0
    }, "select without a text is ill-formed; the point earns by itself"  # fmt: skip
    assert gui_r1(wrong_name, BOX)["reward"] == 0.0
    beside = said("click", (9, 30))
    assert (gui_r1_paper(beside, BOX)["reward"], gui_r1(beside, BOX)["reward"]) == (2.0, pytest.approx(0.2))
    assert gui_r1_paper(said("click", (10, 30)), BOX)["reward"] == 3.0  # the edge is inside
    typed = Truth("type", text="red tea cup")
    assert gui_r1_paper(said("type", text="red tea"), typed)["reward"] == 3.0  # F1 0.8
    half = Truth("type", text="red tea")
    assert gui_r1_paper(said("type", text="tea pot"), half)["text"] == 0.0, "F1 0.5 is not above 0.5"
    assert gui_r1(said("type", text="tea pot"), half)["text"] == 1.0
    assert gui_r1_paper(said("complete"), Truth("complete")) == {
        "type": 1.0, "format": 1.0, "accuracy": 1.0, "reward": 2.0
    }  # fmt: skip
    assert RULES["gui-r1"] is gui_r1
    assert RULES["gui-r1-paper"] is gui_r1_paper


def test_an_answer_that_earns_something_is_not_yet_right(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    spot = {"img_filename": "a.png", "bbox": [10, 20, 30, 40], "instruction": "go"}
    (tmp_path / "t.json").write_text(json.dumps([spot]))
    (task,) = folder_tasks(tmp_path)

    async def end(rules, answer):
        env = Grounding(task, rules=rules)
        await env.reset(seed=0)
        step = await env.step(Action.say(answer))
        await env.close()
        return step.stop, step.reward

    for rules, full, part in (("gui-r1", 1.0, 0.2), ("gui-r1-paper", 3.0, 2.0), ("ui-r1", 3.0, 2.0)):
        assert asyncio.run(end(rules, said("click", (20, 30)))) == (StopReason.GOAL, full)
        assert asyncio.run(end(rules, said("click", (90, 70)))) == (StopReason.SUBMITTED, pytest.approx(part))


def test_ui_r1_reads_names_without_quotes_and_as_they_are_and_gui_r1_does_not():
    bare = "<think></think><answer>[{'action': click, 'coordinate': [20, 30]}]</answer>"
    assert (ui_r1(bare, BOX)["reward"], gui_r1(bare, BOX)["reward"]) == (3.0, 0.0)
    large = said("CLICK", (20, 30))
    assert (ui_r1(large, BOX)["type"], gui_r1(large, BOX)["accuracy"]) == (0.0, 1.0)


def test_an_overlap_is_counted_by_hand_and_boxes_too_many_cost():
    assert iou((0, 0, 10, 10), (5, 0, 15, 10)) == pytest.approx(50 / 150)
    assert iou((0, 0, 10, 10), (10, 0, 20, 10)) == iou((0, 0, 10, 10), (50, 50, 60, 60)) == 0.0
    right = written_box((10.0, 20.0, 30.0, 40.0))
    assert vlm_r1(right, BOX)["reward"] == 2.0
    half = written_box((10.0, 20.0, 30.0, 30.0))
    assert vlm_r1(half, BOX) == {"iou": 0.5, "surplus": 1.0, "format": 1.0, "accuracy": 0.0, "reward": 1.5}
    three = right.replace("]}]", "]}, {'bbox_2d': [0, 0, 9, 9]}, {'bbox_2d': [0, 0, 5, 5]}]")
    assert vlm_r1(three, BOX)["reward"] == pytest.approx(1 / 3 + 1)
    for said_of_none in ("nothing", said("click", (20, 30)), written_box((30.0, 40.0, 30.0, 40.0))):
        assert vlm_r1(said_of_none, BOX)["reward"] == 0.0


THREE = ((0.0, 0.0, 10.0, 10.0), (20.0, 0.0, 30.0, 10.0), (40.0, 0.0, 50.0, 10.0))


def test_precision_of_several_boxes_is_counted_by_hand():
    away = (0.0, 50.0, 9.0, 60.0)
    assert average_precision(THREE, THREE, 0.5) == average_precision((), (), 0.5) == 1.0
    assert average_precision((), THREE, 0.5) == average_precision(THREE, (), 0.5) == 0.0
    # one of three: precision 1 up to a recall of 1/3, which 34 of the 101 recalls do not exceed
    assert average_precision(THREE[:1], THREE, 0.5) == pytest.approx(34 / 101)
    # a wrong one first: precision is 1/2 at 1/3, 2/3 at 2/3, 3/4 at 1, and what is best there or later counts
    assert average_precision((away, *THREE), THREE, 0.5) == pytest.approx(0.75)
    assert average_precision((THREE[0], away, THREE[1]), THREE[:2], 0.5) == pytest.approx((51 + 50 * 2 / 3) / 101)
    assert average_precision((THREE[0], THREE[0]), THREE[:2], 0.5) == pytest.approx(51 / 101), (
        "no box is found twice"
    )
    wide = (0.0, 0.0, 10.0, 14.0)  # overlaps the first by 100 of 140
    assert average_precision((wide,), THREE[:1], 0.7) == 1.0
    assert average_precision((wide,), THREE[:1], 0.75) == 0.0


def test_several_boxes_earn_their_mean_precision_and_those_too_many_cost():
    wanted = Truth("click", boxes=THREE)
    assert vlm_r1_detection(written_box(*THREE), wanted) == {
        "map": 1.0, "surplus": 1.0, "format": 1.0, "accuracy": 1.0, "reward": 2.0
    }  # fmt: skip
    found = vlm_r1_detection(written_box(*THREE, (0.0, 50.0, 9.0, 60.0)), wanted)
    assert (found["map"], found["surplus"], found["reward"]) == (1.0, 0.75, 1.75)
    wide = vlm_r1_detection(written_box((0.0, 0.0, 10.0, 14.0)), Truth("click", boxes=THREE[:1]))
    assert wide["map"] == pytest.approx(0.5), "five of the ten overlaps are at most 5/7"
    assert vlm_r1_detection("nothing", wanted)["reward"] == 0.0


class Shows:
    """One screen, whatever is asked."""

    async def ask(self, task):
        marks = tuple(Mark("button", str(at), box) for at, box in enumerate(THREE))
        return posed(task, Shown(PNG, (100, 80), (*marks, Mark("link", "", (0.0, 50.0, 9.0, 60.0)))), "")

    async def close(self):
        pass


def test_every_element_of_a_role_is_asked_for_where_that_is_wanted():
    (task,) = grounding_tasks(1, kind=EVERY)

    async def play():
        env = Grounding(task, rules="vlm-r1-detection", screens=Shows())
        step = await env.reset(seed=0)
        assert "Find every button." in step.text
        end = await env.step((await expert(task).act(step)).action)
        await env.close()
        return end

    end = asyncio.run(play())
    assert (end.reward, end.stop) == (2.0, StopReason.GOAL)
    assert EVERY not in {one.metadata["kind"] for one in grounding_tasks(40)}, "only where it is asked for"
    for rules, kind in (("gui-r1", EVERY), ("vlm-r1", EVERY), ("vlm-r1-detection", "named")):
        with pytest.raises(ValueError, match="has the rules vlm-r1-detection"):
            Grounding(grounding_tasks(1, kind=kind)[0], rules=rules)
    check_tasks(grounding_tasks(8, kind=EVERY))


def test_boxes_are_asked_for_only_where_there_are_any(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    spots = [{"img_filename": "a.png", "bbox": [10, 20, 30, 40], "instruction": "go"},
             {"img_filename": "a.png", "action": "navigate_back", "instruction": "go back"}]  # fmt: skip
    (tmp_path / "t.json").write_text(json.dumps(spots))
    with_box, without = folder_tasks(tmp_path)

    async def play():
        env = Grounding(with_box, rules="vlm-r1")
        step = await env.reset(seed=0)
        assert "bbox_2d" in step.text
        end = await env.step((await expert(with_box).act(step)).action)
        await env.close()
        return end

    assert asyncio.run(play()).reward == 2.0
    with pytest.raises(ValueError, match="asks for an action without one"):
        Grounding(without, rules="vlm-r1")
    with pytest.raises(ValueError, match="asks for an action without one"):
        Grounding(grounding_tasks(1, kind="predict")[0], rules="vlm-r1")


def test_a_folder_comes_back_as_it_was_written(tmp_path):
    (task,) = grounding_tasks(1)
    truths = [BOX, Truth("type", text="tea"), Truth("complete")]
    asked = [(task, Question(f"question {n}", PNG + bytes([n]), truth)) for n, truth in enumerate(truths)]
    assert write_folder(tmp_path / "out", asked) == 3
    found = [entry_of(one.metadata) for one in folder_tasks(tmp_path / "out")]
    assert [(one.instruction, one.content(), one.truth) for one in found] == [
        (question.text, question.image, question.truth) for _, question in asked
    ]


def test_foreign_shapes_are_read_and_what_is_broken_is_named(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    spot = {"img_filename": "a.png", "bbox": [10, 20, 20, 20], "instruction": "go", "data_type": "text"}
    steps = [{"action_type": "click", "x": 5, "y": 6}, {"action_type": "input_text", "text": "tea"}]
    walk = {"goal": "buy", "screenshots": ["a.png"] * 2, "actions": steps, "step_instructions": ["press", "type"]}
    for raw, wanted in (([spot], [BOX]), ([walk], [Truth("click", point=(5.0, 6.0)), Truth("type", text="tea")])):
        (tmp_path / "t.json").write_text(json.dumps(raw))
        assert [entry_of(task.metadata).truth for task in folder_tasks(tmp_path)] == wanted
    typed = {"img_filename": "a.png", "action": "input_text", "instruction": "type tea", "input_text": "tea"}
    (tmp_path / "t.json").write_text(json.dumps([typed]))  # UI-R1's own names are the unified space's here
    assert entry_of(folder_tasks(tmp_path)[0].metadata).truth == Truth("type", text="tea")
    wrong = (
        {"bbox": [10, 20, 200, 20]},
        {"img_filename": "b.png"},
        {"img_filename": "../b.png"},
        {"action": "fly"},
    )
    for change in wrong:
        (tmp_path / "t.json").write_text(json.dumps([spot, {**spot, **change}]))
        with pytest.raises(ValueError, match=r"t\.json, entry 1"):
            folder_tasks(tmp_path)


def test_tasks_are_data():
    check_tasks(desktop_grounding_tasks(8))
    check_tasks(grounding_tasks(16))
