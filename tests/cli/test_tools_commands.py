"""Tools, wrappers, synthesis and rewards from the command line."""

import json

import pytest

from envgym import StoreReader


def test_a_wrapped_environment_is_collected_and_wrong_wraps_are_told(envgym, tmp_path):
    out = tmp_path / "store"
    wrap = 'wrap=[{"name": "budget", "total": 2}, "delay"]'
    assert envgym("collect", "guess", "-n", "2", "--out", str(out), "--env-option", wrap).code == 0
    with StoreReader(out) as reader:
        episodes = list(reader)
    assert all(len(episode.turns) <= 2 for episode in episodes)
    assert "budget_left" in episodes[0].turns[0].step.channels
    wrong = envgym("collect", "guess", "-n", "1", "--env-option", "wrap=dely")
    assert wrong.code != 0
    assert "did you mean 'delay'" in wrong.err


def test_a_proxy_is_shown_beside_its_gold(envgym, tmp_path):
    out = str(tmp_path / "store")
    assert envgym("collect", "guess", "-n", "12", "--out", out).code == 0
    report = json.loads(envgym("rewards", out, "--gold", "reward", "--json").out)
    assert (report["pairs"], report["silent"], report["hacked"]) == (12, 0, False)
    assert report["rank"] in (None, pytest.approx(1.0))
    unknown = envgym("rewards", out, "--gold", "nothing").out
    assert "rank        unknown" in unknown
    assert "silent      12" in unknown


def test_tasks_are_synthesized_remembered_and_played(envgym, tmp_path):
    tasks, memory = tmp_path / "tasks.jsonl", tmp_path / "memory.json"
    made = envgym("synthesize", "tool", "--out", str(tasks), "-n", "3", "--trails", "6", "--memory", str(memory))
    assert made.code == 0, made.err
    assert "3 tasks of" in made.out
    assert json.loads(memory.read_text())["goals"]
    again = ("collect", "synthesized", "--task-option", f"path={tasks}", "-n", "2", "--turns", "2", "--json")
    assert json.loads(envgym(*again).out)["failed"] == 0
