"""What watches a run stops it for what it should, saying why, and writes where it was told to."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from envgym_agents.learn.config import Reinforce, TrainConfig, Watch
from envgym_agents.learn.watch import Anomaly, Stops, Unmet

from envgym.cli import run
from envgym.env import Step
from envgym.errors import Failure, InfrastructureFailure

LOST = Failure.of(InfrastructureFailure("gone"), where="step", turn=0)

CASES = {
    "mismatch": ("sampler_gap", [1e-5, 1e-5], [0.3, 0.3, 0.3], r"differ by 0\.3 nats, more than 0\.1"),
    "entropy": ("entropy", [0.9, 0.7], [0.01, 0.02, 0.03], r"entropy of sampled tokens is 0\.03 nats, below 0\.1"),
    "gap": ("metric_gap", [0.2, 0.25], [0.4, 0.5, 0.6], r"gained 0\.4 more than reinforce\.metric has, above 0\.1"),
    "gradient": (
        "grad_norm",
        [1.0, 1.2, 0.9, 1.1, 1.0],
        [9.0, math.nan, 12.0],
        r"12 long, more than 4 times the 1 ",
    ),
}


def test_prices_and_metrics_that_no_episode_has_are_told_once_with_what_there_is(turn, episode, caplog):
    prices = {"costs": {"opens": 1.0, "tokns": 1.0}, "limits": {"calls": 1.0}}
    played = episode("a", [turn([1], [2], position=0)])
    last = replace(played.turns[0], step=Step(cost={"opens": 1.0}, channels={"success": 1.0}))
    played, failed = replace(played, turns=(last,)), replace(played, stop=None, failure=LOST)
    stops = Stops(Watch(), unmet=Unmet(Reinforce(metric="succes", loss={"prices": prices})))
    stops.look(1, {}, [failed])
    assert caplog.messages == [], "a failed world says nothing"
    for _ in range(2):
        stops.look(2, {}, [failed, played])
    assert caplog.messages == [
        "reinforce.loss.prices: a cost 'tokns' is in none of the first 1 episodes; there are: opens",
        "reinforce.loss.prices: a cost 'calls' is in none of the first 1 episodes; there are: opens",
        "reinforce.metric: a channel 'succes' of a grade or a last step is in none of the first 1 episodes; there "
        "are: success",
    ]
    Stops(Watch(), unmet=Unmet(Reinforce(metric="success"))).look(1, {}, [played])
    assert len(caplog.messages) == 3


@pytest.mark.parametrize("name", CASES)
def test_each_anomaly_ends_the_run_after_as_many_steps_in_a_row_and_says_what_it_saw(name):
    metric, well, ill, said = CASES[name]
    bound = {name: 4.0 if name == "gradient" else 0.1}
    stops, off = Stops(Watch(**bound, patience=3)), Stops(Watch())
    steps = [*well, *ill[:2], well[0], *ill[:2]]  # one good step between begins the count anew
    for step, value in enumerate(steps):
        stops.look(step, {metric: value})
    with pytest.raises(Anomaly, match=rf"after step {len(steps)}: .*{said}.* 3 steps in a row .*watch\.{name}"):
        stops.look(len(steps), {metric: ill[2]})
    for step, value in enumerate([*well, *ill, *ill]):
        off.look(step, {metric: value})


def test_a_step_that_says_nothing_of_it_is_no_anomaly():
    stops = Stops(Watch(mismatch=0.1, entropy=0.1, gradient=2.0, gap=0.1, patience=1))
    stops.look(1, {})
    with pytest.raises(ValueError, match=r"watch\.gap is a gap to reinforce\.metric"):
        TrainConfig(watch=Watch(gap=0.1))


def test_a_gradient_that_is_no_number_is_told_at_once_and_is_no_measure_for_later_ones():
    stops = Stops(Watch(gradient=2.0, patience=2))
    stops.look(1, {"grad_norm": float("nan")})
    for step in range(2, 30):  # sound ones, of which the first is compared with nothing
        stops.look(step, {"grad_norm": 1.0 if step % 7 else float("inf")})
    stops.look(30, {"grad_norm": float("nan")})
    with pytest.raises(Anomaly, match="the gradient is nan long, more than 2 times the 1 of the last steps"):
        stops.look(31, {"grad_norm": float("nan")})


def test_a_gap_is_told_since_the_first_step_of_the_run_also_after_it_was_resumed(tmp_path):
    told = tmp_path / "metrics.jsonl"
    told.write_text('{"step": 1, "reward": 0.1}\n{"step": 2, "reward": 0.25, "metric_gap": 0.0}\n')
    with pytest.raises(Anomaly, match=r"since the first step .* above 0.3 \(reward 0.25 then, 0.9 now\)"):
        Stops(Watch(gap=0.3, patience=1), told).look(9, {"metric_gap": 0.4, "reward": 0.9})
    Stops(Watch(gap=0.3, patience=1), tmp_path / "none.jsonl").look(1, {"metric_gap": 0.4, "reward": 0.9})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_will_not_recover_ends_with_one_line_and_goes_on_with_another_bound(tmp_path, capsys):
    small = (
        "env=guess", "expert=random", "tasks=6", "turns=4", "threads=1", "model.size=tiny", "reinforce.steps=3",
        "warm_start.min_updates=2", "warm_start.max_updates=2", "warm_start.rows=4", "reinforce.tasks=2",
        "reinforce.group=2", "reinforce.teaches=all", "reinforce.checkpoint_every=1", "evaluate.tasks=2",
        "evaluate.greedy=false", "evaluate.baselines=[]", "evaluate.bootstrap=100", "watch.patience=2",
    )  # fmt: skip
    command = ["train", "--out", str(tmp_path / "run"), *(word for one in small for word in ("--set", one))]
    assert run([*command, "--set", "watch.entropy=100"]) != 0
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "after step 2" in last
    assert "watch.entropy" in last
    assert "--resume" in last
    assert run([*command, "--set", "watch.entropy=0.0001", "--resume"]) == 0
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3]


WRITE = """
import sys
from pathlib import Path
from envgym_agents.learn.config import Watch
from envgym_agents.learn.watch import writers

with writers(Watch(tensorboard=True, wandb="offline", trackio=True), Path(sys.argv[1]), {"seed": 3}) as to:
    for step in (1, 2):
        to.write(step, {"reward": step / 2, "entropy": 1.0})
"""

READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trackio.sqlite_storage import SQLiteStorage

found = EventAccumulator(sys.argv[1] + "/tensorboard")
found.Reload()
board = [[event.step, event.value] for event in found.Scalars("reward")]
rows = SQLiteStorage.get_logs("envgym", "run")
print(json.dumps({"board": board, "trackio": [[row["step"], row["reward"]] for row in rows]}))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_writers_that_are_asked_for_hold_every_step(tmp_path):
    """In processes of their own: the libraries keep state for as long as a process lives."""
    run = tmp_path / "run"
    own = {"TRACKIO_DIR": str(tmp_path / "trackio"), "HOME": str(tmp_path), "WANDB_SILENT": "true"}
    found = ""
    for code in (WRITE, READ):
        done = subprocess.run(
            [sys.executable, "-c", code, str(run)], capture_output=True, text=True, timeout=280, check=False,
            env=os.environ | own, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        found = done.stdout
    told = json.loads(found.splitlines()[-1])
    assert told == {"board": [[1, 0.5], [2, 1.0]], "trackio": [[1, 0.5], [2, 1.0]]}
    assert [path.suffix for path in Path(run).glob("wandb/offline-run-*/*.wandb")] == [".wandb"]
