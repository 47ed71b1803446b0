"""Recipes: every one that comes along runs whole, each stage from the model of the one before it, killed or not."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from envgym_agents.learn.recipe import Stage, follow_recipe, recipe, recipes
from envgym_agents.model import weights_digest

TINY = """
env = "guess"
expert = "random"
tasks = 6
turns = 4
threads = 1

[model]
size = "tiny"

[warm_start]
rows = 4

[reinforce]
steps = 1
tasks = 2
group = 2
oversample = 1
teaches = "all"

[reinforce.loop]
staleness = 0

[evaluate]
tasks = 2
greedy = false
baselines = []
bootstrap = 100
"""


def tiny(tmp_path, name):
    (tmp_path / "tiny.toml").write_text(TINY)
    stages = recipe(name, config=tmp_path / "tiny.toml")
    short = []
    for stage in stages:
        warm = stage.config.warm_start
        if warm.max_updates:
            warm = warm.model_copy(update={"min_updates": 2, "max_updates": 2, "evaluate_every": 1})
        reinforce = stage.config.reinforce
        reinforce = reinforce.model_copy(update={"steps": min(1, reinforce.steps)})
        config = stage.config.model_copy(update={"warm_start": warm, "reinforce": reinforce})
        short.append(Stage(stage.name, config))
    return short


@pytest.mark.parametrize("name", sorted(recipes()))
def test_every_recipe_is_a_list_of_configurations(name):
    stages = recipe(name)
    assert stages
    assert all(stage.config.reinforce.steps or stage.config.warm_start.max_updates for stage in stages)


def test_a_recipe_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="zero-rl"):
        recipe("zero-lr")
    (tmp_path / "bad.toml").write_text("turns = 3\n")
    with pytest.raises(ValueError, match=r"list of \[\[stage\]\]"):
        recipe(str(tmp_path / "bad.toml"))


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted({*recipes()} - {"distillation", "offline-online"}))  # test_recipes_learn's
def test_every_recipe_runs_whole_and_what_is_finished_is_not_done_again(tmp_path, name):
    stages = tiny(tmp_path, name)
    # as if it had been killed after its first stage
    follow_recipe(stages[:1], tmp_path / "run")
    first = tmp_path / "run" / f"1-{stages[0].name}"
    lines = len((first / "metrics.jsonl").read_text().splitlines()) if stages[0].config.reinforce.steps else 0
    reports = follow_recipe(stages, tmp_path / "run", resume=True)
    assert list(reports) == [stage.name for stage in stages]
    if lines:
        assert len((first / "metrics.jsonl").read_text().splitlines()) == lines
    before = first
    for number, stage in enumerate(stages[1:], 2):
        folder = tmp_path / "run" / f"{number}-{stage.name}"
        stored = json.loads((folder / "config.json").read_text())
        assert stored["model"]["path"] == str(before / "trained")
        assert weights_digest(folder / "trained")
        before = folder
