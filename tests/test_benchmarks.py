"""Every benchmark runs at its quick size and says what it compared; figures of a shared machine are not judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from envgym.registry import find

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
NAMES = sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem != "run_all" and path.stem[0] != "_")
IN_SANDBOXES = {
    *("pool_storm", "sandbox_fork", "sandbox_start", "sandbox_thousand", "shell_roundtrip", "suggest_reach"),
    *("interpreter_fork", "sandbox_leaks", "sandbox_turns", "task_factory"),
}


NEEDED = dict.fromkeys(IN_SANDBOXES, "namespace") | {"docker_start": "docker"}


@pytest.mark.slow
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
    assert json.loads(out.read_text()).keys() >= {"benchmark", "quick", "met", "machine"}


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
