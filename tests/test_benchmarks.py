"""Every benchmark runs at its quick size and says what it compared; a bar that is lost by far is noticed.

Times of a shared machine are judged beside others of the same run alone, with slack; what is counted, without.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envgym.registry import find

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
NAMES = sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem != "run_all" and path.stem[0] != "_")
IN_SANDBOXES = {
    *("pool_storm", "sandbox_fork", "sandbox_start", "sandbox_thousand", "shell_roundtrip", "suggest_reach"),
    *("cheat_matrix", "interpreter_fork", "sandbox_leaks", "sandbox_turns", "task_factory", "task_set"),
    *("tool_turns", "desktop_speed"),
}


NEEDED = dict.fromkeys(IN_SANDBOXES, "namespace") | {"docker_start": "docker"}


@pytest.mark.slow
@pytest.mark.turns(6)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_runs_and_writes_its_result(name, tmp_path):
    if name in NEEDED and not (report := find("sandboxes", NEEDED[name])().report()).works:
        pytest.skip(f"no {report.backend} sandbox: {'; '.join(report.missing)}; fix: {'; '.join(report.fix)}")
    out = tmp_path / "result.json"
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=580)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout
    found = strict(out.read_text())
    assert found.keys() >= {"benchmark", "quick", "met", "machine"}
    judged = found.get("rows", [])
    assert lost(judged) == []
    assert {row["name"] for row in judged if slack(row)} >= JUDGED.get(name, set()), "these bars are judged here"


SLACK = {"ms": 2.0, "us": 2.0, "s": 2.0, "MiB": 1.25, "MB": 1.25}
JUDGED = {
    "credit_peers": {"verl GRPO without division", "TRL GRPO without division, float64"},
    "sandbox_turns": {"command, last 10 of 40", "memory of all snapshots", "disk of all durable ones"},
    "docker_start": {"first command, cold"},
    "sandbox_start": {"start (until `true` ended)"},
    "token_building": {"ours"},
    "sandbox_leaks": {f"namespace: {kind} left" for kind in ("processes", "control groups", "mounts", "files")},
}


def slack(row: dict[str, Any]) -> float | None:
    """By how much a bar may be missed here; None where it is not judged: none, or of the machine."""
    if row["bar"] is None or (row["absolute"] and row["bar"] != 0):
        return None
    return SLACK.get(row["unit"], 1.0)


def judged_by(row: dict[str, Any]) -> float:
    """What the bar bounds; a ratio to nothing is beyond every bar."""
    found = row["ours"] if row["absolute"] else row["ratio"]
    return math.inf if found is None else float(found)


def lost(rows: list[dict[str, Any]]) -> list[str]:
    """The bars that are missed by far: where the bar of what is left is zero, nothing may be left."""
    return [
        f"{row['name']}: {judged_by(row):.3g}, the bar is {row['bar']}"
        for row in rows
        if (by := slack(row)) and judged_by(row) > row["bar"] * by
    ]


def strict(text: str) -> dict[str, Any]:
    """What a text holds, read as JSON is defined: `Infinity` and `NaN` are none."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found


def test_every_recorded_result_is_json_as_it_is_defined():
    files = sorted((BENCHMARKS / "results").glob("*.json"))
    assert len(files) >= 40
    for path in files:
        assert strict(path.read_text())["machine"], path.name
    with pytest.raises(ValueError, match="Infinity is no JSON"):
        strict('{"ratio": Infinity}')


NOTHING = """
import argparse, math, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from _harness import Row, finish
given = argparse.Namespace(quick=True, json=Path(sys.argv[2]))
finish("nothing", [Row("r", 1.0, 0.0, "nothing", "s", 2.0)], given, deep={"low": [math.nan, -math.inf, 1.5]})
"""


def test_a_ratio_to_nothing_and_numbers_that_are_none_are_written_as_json_and_meet_no_bar(tmp_path):
    out = tmp_path / "result.json"
    command = [sys.executable, "-c", NOTHING, str(BENCHMARKS), str(out)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    found = strict(out.read_text())
    assert (found["rows"][0]["ratio"], found["rows"][0]["met"], found["met"]) == (None, False, False)
    assert found["deep"] == {"low": ["nan", "-inf", 1.5]}
    assert lost(found["rows"]) == ["r: inf, the bar is 2.0"]


FULL = """
import sys
sys.path.insert(0, sys.argv[1])
import gpu, torch
whole, full = gpu.step_seconds, sys.argv[3]

def step_seconds(model, rows, device):
    if full in ("all", str(len(rows))):
        raise torch.OutOfMemoryError("no room for it\\nat all")
    return whole(model, rows, device)

def played(name, shape, device):
    if full == "all":
        raise torch.OutOfMemoryError("no room for it")
    return []

gpu.step_seconds, gpu.played = step_seconds, played
sys.argv = ["gpu", "--quick", "--peak-tflops", "0.5", "--json", sys.argv[2]]
gpu.main()
assert [row.name for row in gpu.utilised("no peak", 1.0, 2.0, None)] == ["no peak: of the product's rate"]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("full", "tokens"), [("8", [512]), ("all", [128, 128, 512])], ids=["eight rollouts", "everything"]
)
def test_what_does_not_fit_on_a_gpu_is_told_and_the_rest_is_kept(full, tokens, tmp_path):
    out = tmp_path / "result.json"
    command = [sys.executable, "-c", FULL, str(BENCHMARKS), str(out), full]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "tiny, eight rollouts of 64: does not fit (no room for it)" in done.stdout
    found = strict(out.read_text())
    assert [one["tokens"] for one in found["results"] if not one["fits"]] == tokens
    assert [row["ours"] for row in found["rows"] if row["name"].endswith("MFU")] == pytest.approx(
        [one["of_product"] * found["product_flops"] / 0.5e12 for one in found["results"] if one["fits"]]
    )


def test_a_bar_that_is_lost_by_far_is_noticed_and_a_slow_machine_is_not():
    ratio = {"name": "r", "ours": 5.0, "ratio": 2.5, "bar": 1.3, "absolute": False, "unit": "ms"}
    assert lost([ratio | {"ratio": 2.7}]) == ["r: 2.7, the bar is 1.3"]
    assert lost([ratio, ratio | {"bar": None}, ratio | {"absolute": True, "ours": 1e9}]) == []
    assert lost([ratio | {"unit": "MiB", "ratio": 1.7}])
    left = ratio | {"bar": 0, "absolute": True, "unit": "number"}
    assert lost([left | {"ours": 1}]) == ["r: 1, the bar is 0"]
    assert lost([left | {"ours": 0}]) == []


LEAKS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from sandbox_leaks import Left
state, temporary, kind = Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
for path in (state, temporary):
    path.mkdir()
left = Left(state, temporary, with_containers=kind == "containers")
(state / "made").mkdir()
(temporary / "tmpa1b2c3").write_text("x")
print(len(left.now({state.name})["files"]))
"""


@pytest.mark.parametrize("kind", ["files", "containers"])
def test_what_counts_leaks_sees_those_without_a_name_and_is_not_content_without_an_engine(kind, tmp_path):
    command = [sys.executable, "-c", LEAKS, str(BENCHMARKS), str(tmp_path / "state"), str(tmp_path / "tmp"), kind]
    env = os.environ | {"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)
    if kind == "files":
        assert done.stdout == "2\n", done.stderr
    else:
        assert done.returncode != 0, "no engine that answers is not an engine without containers"
        assert "Error" in done.stderr


def rows(name: str, tmp_path: Path) -> dict[str, float]:
    out = tmp_path / "result.json"
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--json", str(out)]
    subprocess.run(command, check=True, capture_output=True, timeout=280)
    found = json.loads(out.read_text())
    assert {"benchmark", "met", "machine", "rows", "quick"} <= set(found)
    return {f"{row['name']} / {row['reference_name']}": row["ratio"] for row in found["rows"]}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_slow_world_delays_only_itself(tmp_path):
    ratios = rows("rollout_overlap", tmp_path)
    first_ready, barrier = (
        ratios[f"a slow call at every turn: {kind} / ideal: longest path"]
        for kind in ("first-ready", "barrier per turn")
    )
    assert first_ready < barrier
    assert first_ready < 2.0  # 1.02 where the machine is free


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_finished_episode_holds_little_more_than_its_bytes(tmp_path):
    assert rows("episode_memory", tmp_path)["finished episode / raw bytes of tokens and texts"] < 2.0


def test_the_runner_refuses_a_name_it_does_not_know():
    command = [sys.executable, str(BENCHMARKS / "run_all.py"), "rollout_stp"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "known: " in done.stderr
