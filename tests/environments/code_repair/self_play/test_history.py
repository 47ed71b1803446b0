"""Commits that can be taken back: which they are, and that an injector is told of one, and solvers of none."""

import os
import subprocess
from pathlib import Path

import pytest
from envgym_environments.code_repair.cli import tasks_command
from envgym_environments.code_repair.mirrors.commits import Repository
from envgym_environments.code_repair.patch import apply_patch, parse_patch
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.self_play.artifact import Artifact, bug_task, solver_task
from envgym_environments.code_repair.self_play.env import SelfPlay
from envgym_environments.code_repair.self_play.history import reverts_in, reverts_of
from envgym_environments.code_repair.self_play.repositories import self_play_tasks
from envgym_environments.code_repair.self_play.stage import State, stage
from typer.testing import CliRunner

pytestmark = [pytest.mark.timeout(300)]

FIRST = '''"""Sums."""

ZERO = 0


def total(values):
    return sum(values)


def most(values):
    """The largest."""
    return max(values)


def least(values):
    return min(values)
'''
SECOND = FIRST.replace("return sum(values)", "return sum(value or 0 for value in values)")
THIRD = SECOND.replace("return min(values)", "return min(values, default=None)")
TESTS = (
    "from sums import least, total\n\n\ndef test_total():\n    assert total([1, None]) == 1\n\n\n"
    "def test_least():\n    assert least([]) is None\n"
)


def commit(place: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    values = {"NAME": "Ada Lovelace", "EMAIL": "ada@example.org", "DATE": "2026-01-01T00:00:00Z"}
    person = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in values.items()}
    environment = {**os.environ, **person, "HOME": str(place), "GIT_CONFIG_NOSYSTEM": "1"}
    for command in (["add", "-A"], ["commit", "-q", "-m", message]):
        subprocess.run(["git", "-C", str(place), *command], check=True, env=environment)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Six commits: code, nothing, a repair that is written over later, a repair, a repair, tests."""
    top = tmp_path / "sums"
    top.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "main", str(top)], check=True)
    commit(top, {"sums.py": FIRST, "tests/test_sums.py": "def test_nothing(): pass\n"}, "Begin")
    commit(top, {"README.md": "Sums.\n"}, "Say what it is")
    commit(top, {"sums.py": FIRST.replace("sum(values)", "sum(values, 0)")}, "Begin at nothing")
    commit(top, {"sums.py": SECOND}, "Take missing values for nothing (#3)\n\nAda Lovelace saw it.")
    commit(top, {"sums.py": THIRD}, "The least of nothing is nothing")
    commit(top, {"tests/test_sums.py": TESTS}, "Test")
    return top


LAYOUT = Layout(package="sums.py", tests=("tests/test_sums.py",))


def test_commits_of_code_that_still_apply_turned_round_are_patches_of_the_present_code(
    place: Path, tmp_path: Path
) -> None:
    found = reverts_of(Repository(path=place, name="sums"), LAYOUT, tmp_path / "cache")
    code = (place / "sums.py").read_text()
    after = [apply_patch(parse_patch(one.patch)[0], code) for one in found]
    assert after == [SECOND, code.replace("return sum(value or 0 for value in values)", "return sum(values, 0)")]
    assert "missing values" in found[1].notes[0]
    assert "Ada" not in str(found)


@pytest.mark.namespaces
@pytest.mark.slow
def test_an_injector_is_told_of_a_commit_and_solvers_and_sets_of_none(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_backend
) -> None:
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "repositories.jsonl"
    command = ["repositories", "--source", str(place), "--backend", "namespace", "--file", str(file)]
    said = CliRunner().invoke(tasks_command, command)
    assert said.exit_code == 0, said.output
    assert "2 tests, 2 commits can be taken back" in said.output
    (task,) = self_play_tasks(file)
    first, second = reverts_in(task)
    assert second.patch in stage(task, State(strategy="history", revert=1), attempts=2).prompt
    assert "takes it back" not in stage(task, State(), attempts=2).prompt
    artifact = Artifact(bug={"sums.py": SECOND}, weakened={}, test_files=LAYOUT.tests)
    failing = ("tests/test_sums.py::test_least",)
    for kept in (solver_task(task, artifact, "x"), bug_task(task, artifact, failing=failing)):
        assert "history" not in kept.metadata
        assert first.patch not in kept.model_dump_json()

    async def body(backend) -> None:
        env, told = SelfPlay(task, backend), set[str]()
        try:
            for seed in range(24):
                text = (await env.reset(seed=seed)).text
                assert text == (await env.reset(seed=seed)).text
                told |= {one.patch for one in (first, second) if one.patch in text} or {"neither"}
                if len(told) == 3:
                    break
        finally:
            await env.close()
        assert told == {first.patch, second.patch, "neither"}, "the seed says which"

    in_backend(body)
