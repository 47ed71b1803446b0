"""LIMR's score: by hand, from a store of a run's groups, and as a list of tasks that the command writes."""

import json

import pytest

from envgym.cli import run
from envgym.data import learning_impact, reward_curves
from envgym.env import Step, StopReason
from envgym.episode import Episode, Turn
from envgym.messages import Action
from envgym.policy import Reply
from envgym.store import StoreWriter


def played(name: str, task: str, reward: float, group: str, **channels: float) -> Episode:
    step = Step(reward=reward, channels=channels, stop=StopReason.GOAL)
    turn = Turn.of("agent", Reply(Action.say("x")), step)
    return Episode(name, task, root=Step(), turns=(turn,), seed=0, stop=StopReason.GOAL, group=group)


CURVES = {"rises": [0.0, 0.5, 1.0], "always": [1.0, 1.0, 1.0], "never": [0.0, 0.0, 0.0]}


def test_the_score_is_one_minus_the_squared_distance_from_the_mean_curve_over_that_of_the_mean_from_one():
    """Mean 1/3, 1/2, 2/3: room 4/9 + 1/4 + 1/9 = 29/36; rises: 1/9 + 0 + 1/9; always: the room itself."""
    scores = learning_impact(CURVES)
    assert scores["rises"] == pytest.approx(1 - (2 / 9) / (29 / 36))
    assert scores["always"] == pytest.approx(0.0)
    assert scores["never"] == pytest.approx(0.0)  # 1/9 + 1/4 + 4/9, by symmetry
    assert learning_impact({"a": [1.0, 1.0], "b": [1.0, 1.0]}) == {"a": 1.0, "b": 1.0}
    assert learning_impact({}) == {}


def test_a_task_that_was_played_less_often_is_compared_over_what_it_has():
    scores = learning_impact({"whole": [0.0, 0.6], "cut": [0.4]})
    assert scores["cut"] == pytest.approx(1 - 0.2**2 / 0.8**2)
    assert scores["whole"] == pytest.approx(1 - 0.2**2 / (0.8**2 + 0.4**2))


def test_the_command_ranks_a_runs_tasks_and_writes_those_that_are_kept(tmp_path, capsys):
    with StoreWriter(tmp_path / "store") as writer:
        for task, curve in CURVES.items():
            for step, mean in enumerate(curve):
                group = f"s{step:05d}-g000-{task}"
                for member, reward in enumerate((min(1.0, 2 * mean), max(0.0, 2 * mean - 1))):
                    writer.append(played(f"{group}-{member}", task, reward, group, half=reward / 2))
        writer.append(played("evaluate-before-00000-0", "never", 1.0, ""))
    out = tmp_path / "tasks.txt"
    assert run(["data", "impact", str(tmp_path / "store"), "--file", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scores"] == pytest.approx(learning_impact(CURVES))
    assert found["kept"] == ["rises"]
    assert out.read_text() == "rises\n"
    assert run(["data", "impact", str(tmp_path / "store")]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["0.724", "rises", "0.00", "0.50", "1.00"]
    halved = reward_curves([played("a", "t", 3.0, "g", half=0.5)], channel="half")
    assert halved == {"t": [0.5]}


def test_values_outside_zero_to_one_and_a_store_without_groups_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"episode a: its reward is 3.0"):
        reward_curves([played("a", "t", 3.0, "g")])
    with StoreWriter(tmp_path / "store") as writer:
        writer.append(played("a", "t", 1.0, ""))
    assert run(["data", "impact", str(tmp_path / "store")]) == 2
