"""`envgym new`: what it writes installs, passes the conformance kit and its own test, and is short."""

import ast
import importlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from envgym.cli.new import write_skeleton
from envgym.cli.skeleton import files_of
from envgym.testing import check_env_sync, check_tasks


def _run(*command: str, site: Path, cwd: Path | None = None) -> str:
    """Run a program in which what was installed under `site` is found first."""
    env = {**os.environ, "PYTHONPATH": str(site), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, *command], env=env, cwd=cwd, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


_CLI = ("-c", "import sys, envgym.cli; sys.exit(envgym.cli.run(sys.argv[1:]))")


@pytest.mark.slow
def test_the_skeleton_installs_passes_its_checks_and_plays(envgym, tmp_path):
    place, site = tmp_path / "number-game", tmp_path / "site"
    ran = envgym("new", "number-game", "--into", str(place))
    assert ran.code == 0
    assert len(ran.out.splitlines()) == len(files_of("number-game")) + 1
    install = ("install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site))
    _run("-m", "pip", "--disable-pip-version-check", *install, str(place), site=site)
    assert "number-game" in _run(*_CLI, "list", site=site)
    assert "the contract is kept" in _run(*_CLI, "check", "number-game", site=site)
    assert "8 episodes of number-game by random" in _run(*_CLI, "collect", "number-game", "-n", "8", site=site)
    training = (place / "README.md").read_text().partition("\nenvgym train ")[2].partition("\n```")[0]
    planned = _run(*_CLI, "train", *shlex.split(training.replace("\\\n", "")), "--plan", site=site, cwd=tmp_path)
    assert "expert 'random' plays" in planned, "the command of its README is one"
    options = ("-q", "-p", "no:cacheprovider", "--rootdir", str(place))
    assert "1 passed" in _run("-m", "pytest", *options, "tests", site=site, cwd=place)


def test_the_skeleton_is_short_and_its_test_has_three_lines():
    files = files_of("number-game")
    module = ast.parse(files["number_game_env/__init__.py"])
    code = {
        line
        for node in ast.walk(module)
        if isinstance(node, ast.stmt) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(code) <= 60
    (test,) = (
        node for node in ast.parse(files["tests/test_number_game_env.py"]).body if isinstance(node, ast.FunctionDef)
    )
    assert (test.end_lineno or 0) - test.lineno + 1 <= 3


def test_the_skeleton_has_tasks_to_train_on_and_others_to_evaluate_on(tmp_path, monkeypatch):
    write_skeleton("split-game", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    tasks = importlib.import_module("split_game_env").SPEC.tasks()
    check_tasks(tasks, splits=("train", "heldout"), seeded=True)
    assert {task.split for task in tasks} == {"train", "heldout"}


@pytest.mark.parametrize("name", ["task", "step", "env-spec", "none", "true", "class", "json", "spec", "tasks"])
def test_no_name_hides_what_the_skeleton_uses(tmp_path, monkeypatch, name):
    write_skeleton(name, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.import_module(f"{name.replace('-', '_')}_env").SPEC
    check_env_sync(lambda: spec.make(spec.tasks()[0]), seeds=range(2), uses_seed=True)


@pytest.mark.parametrize("name", ["Game", "my_game", "-x", "a--b", "3d", ""])
def test_a_name_that_is_not_kebab_case_is_refused(name):
    with pytest.raises(ValueError, match="kebab-case"):
        files_of(name)


def test_new_overwrites_nothing_and_shadows_no_environment(envgym, tmp_path):
    (tmp_path / "kept").write_text("mine")
    assert envgym("new", "a-game", "--into", str(tmp_path)).code == 2
    assert "registered already" in envgym("new", "guess", "--into", str(tmp_path / "guess")).err
    assert not (tmp_path / "guess").exists()
