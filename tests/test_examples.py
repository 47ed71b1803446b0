"""The examples run, and the environment among them keeps the contract."""

import asyncio
import importlib.util
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from envgym import Action, Step, make_backend
from envgym.registry import find
from envgym.testing import check_env

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def needs_namespaces() -> None:
    report = find("sandboxes", "namespace")().report()
    if not report.works:
        pytest.skip(f"no isolating sandbox: {'; '.join(report.missing)}; fix: {'; '.join(report.fix)}")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, tmp_path):
    if "sandbox" in path.stem:
        needs_namespaces()
    command, env = [sys.executable, str(path)], os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    if path.stem == "ray_sandboxes" and find_spec("ray"):
        assert "nodes serve sandboxes" in done.stdout, "it is Ray that placed them"


def loaded(path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_sandboxed_example_keeps_the_contract():
    needs_namespaces()
    example = loaded(ROOT / "examples/sandboxed_environment.py")
    commands = (
        "ls",
        "x=$((x + 1)); echo $x",
        "echo $x >> log; wc -l log",
        "rm -f log",
        "cat nothing",
        "echo 6 > sum.txt",
    )

    def choose(step: Step, tools: object, rng: np.random.Generator) -> Action:
        return Action.say(commands[int(rng.integers(len(commands)))])

    async def run() -> None:
        async with make_backend("namespace") as backend:
            await check_env(lambda: example.Shell(example.TASKS[0], backend=backend), policy=choose, turns=6)

    asyncio.run(run())
