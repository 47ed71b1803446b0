"""What is left for people: metrics that survive a kill, curves, tables, and an honest estimate."""

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console
from rich.table import Table

pytest.importorskip("torch")
pytest.importorskip("matplotlib")
from envgym_agents.learn.config import TrainConfig, load
from envgym_agents.learn.evaluate import Difference, Evaluation, Outcome
from envgym_agents.learn.folder import RunFolder
from envgym_agents.learn.report import Metrics, difference_table, read_metrics, table

from envgym.progress import Bar, Eta, clock
from envgym.store import StoreWriter


def test_a_resumed_run_writes_every_step_once(tmp_path):
    path = tmp_path / "m.jsonl"
    first = Metrics(path)
    for step in range(1, 5):
        first.append(step, {"success": step / 10})
    with open(path, "a") as file:
        file.write('{"step": 5, "succ')  # killed while writing
    second = Metrics(path)
    second.append(3, {"success": 1 / 3})
    assert [(line["step"], line["success"]) for line in read_metrics(path)] == [(1, 0.1), (2, 0.2), (3, 0.3333333)]
    assert read_metrics(tmp_path / "none") == []


def test_the_estimate_is_the_mean_step_times_what_is_left_within_the_budget():
    eta = Eta(10)
    assert eta.left(0, 0.0) is None
    eta.left(1, 2.0, 2.0)
    eta.left(2, 4.0, 2.0)
    assert eta.left(3, 9.0, 5.0) == 3.0 * 7
    assert Eta(1000, budget_s=60.0).left(1, 50.0, 5.0) == 10.0
    assert clock(3725.4) == "1:02:05"
    assert clock(None) == "?"


def test_without_a_terminal_progress_is_plain_lines():
    out = io.StringIO()
    with Bar(Console(file=out, width=200), "expert", 2) as bar:
        bar.update(1)
        bar.update(2, "success 50.0%")
    assert out.getvalue().splitlines()[-1].startswith("expert 2/2")
    assert "success 50.0%" in out.getvalue()


CURVES = """
import sys
from pathlib import Path
from envgym_agents.learn.evaluate import Evaluation, Outcome
from envgym_agents.learn.report import learning_curve, warm_curve

place = Path(sys.argv[1])
summary = Evaluation("before", (Outcome("t", "p", 1.0, 1, 2.0),)).summary()
steps = [{"step": step, "success": 0.1 * step} for step in range(1, 6)]
learning_curve(place / "a.png", steps, points=[(0, summary), (5, summary)], baselines=[summary], title="x")
warm_curve(place / "b.png", [{"update": 1, "train_loss": 2.0, "loss": 1.0}])
print("matplotlib.pyplot" in sys.modules)
"""


@pytest.mark.slow
def test_curves_are_png_files_without_pyplot(tmp_path):
    command = [sys.executable, "-c", CURVES, str(tmp_path)]  # others of this process may have loaded pyplot
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr
    for name in ("a.png", "b.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def printed(*shown: Table, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(*shown)
    return out.getvalue()


def test_the_tables_show_rates_intervals_and_differences():
    summary = Evaluation("random", tuple(Outcome(f"t{i}", "p", i % 2, 1, 2.0) for i in range(10))).summary()
    shown = printed(table([summary]), difference_table({"a - b": Difference(0.25, 0.1, 0.4, 10)}), width=140)
    assert "50.0%" in shown
    assert "23.7% .. 76.3%" in shown
    assert "+10.0% .. +40.0%" in shown


def test_names_are_whole_on_a_narrow_terminal():
    costs = {f"a_long_cost_{name}": 1.0 for name in "abcd"}
    summary = Evaluation("before RL, greedy", (Outcome("t", "p", 1.0, 1, 2.0, costs),)).summary()
    long = "after RL - before RL, greedy, by package"
    shown = printed(table([summary]), difference_table({long: Difference(0.25, 0.1, 0.4, 10)}), width=80)
    for whole in ("before RL, greedy", "20.7% .. 100.0%", long):
        assert whole in shown


def test_a_folder_is_resumed_only_on_request_and_with_its_own_configuration(tmp_path):
    config = TrainConfig(env="guess")
    with pytest.raises(ValueError, match="no run to resume"):
        RunFolder(tmp_path / "r", config, resume=True)
    RunFolder(tmp_path / "r", config).finish("expert", {"success": 1.0})
    with pytest.raises(ValueError, match="already holds a run"):
        RunFolder(tmp_path / "r", config)
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "mine.py").write_text("")
    with pytest.raises(ValueError, match="sources holds other things and no run; name a new folder"):
        RunFolder(tmp_path / "sources", config)
    assert [one.name for one in (tmp_path / "sources").iterdir()] == ["mine.py"]
    longer = load(overrides=["env=guess", "reinforce.steps=5000"])
    assert RunFolder(tmp_path / "r", longer, resume=True).done("expert") == {"success": 1.0}
    stored = json.loads((tmp_path / "r" / "config.json").read_text())
    assert stored == longer.model_dump(mode="json")  # what was run, not what was begun
    bounds = ["reinforce.steps=5000", "reinforce.tokens=9", "reinforce.minutes=1", "warm_start.max_updates=5000"]
    RunFolder(tmp_path / "r", load(overrides=["env=guess", *bounds]), resume=True)
    RunFolder(tmp_path / "r", longer, resume=True)
    other = load(overrides=["env=guess", "reinforce.lr=0.5"])
    with pytest.raises(ValueError, match=r"then and now, in: reinforce\.lr \(0\.0003, 0\.5\)"):
        RunFolder(tmp_path / "r", other, resume=True)
    RunFolder(tmp_path / "r", longer, resume=True).finish("reinforce", {"step": 5000})
    with pytest.raises(ValueError, match=r"reinforce\.steps \(5000, 200\).*finished stage cannot change"):
        RunFolder(tmp_path / "r", config, resume=True)  # nothing would have been run for it
    RunFolder(tmp_path / "r", longer.model_copy(update={"threads": 2}), resume=True)


def test_the_stored_episodes_of_a_stage_come_back_sorted(tmp_path, turn, episode):
    folder = RunFolder(tmp_path / "r", TrainConfig(env="guess"))
    made = [
        episode(name, [turn([1], [2], position=0)]) for name in ("expert-00001-0", "expert-00000-0", "expert-2")
    ]
    with StoreWriter(folder.trajectories) as writer:
        writer.extend(made)
    assert folder.read("expert") == [made[1], made[0]]
    assert folder.read("exper") == []
    assert json.loads((tmp_path / "r" / "config.json").read_text())["env"] == "guess"
