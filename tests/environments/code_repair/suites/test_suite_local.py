"""Projects of this machine in another language: a folder, a repository at HEAD, and its commits as tasks."""

import json
import subprocess
from pathlib import Path

import pytest
from envgym_environments.code_repair.certify import certificate_of
from envgym_environments.code_repair.cli import tasks_command
from envgym_environments.code_repair.suites.fetch import archive
from envgym_environments.code_repair.suites.local import local_project
from envgym_environments.code_repair.suites.projects import Project, projects
from envgym_environments.code_repair.taskset import load_tasks
from typer.testing import CliRunner

from envgym.errors import InfrastructureFailure
from envgym.task import Task

RECIPE = '''
[[project]]
name = "money"
origin = "local"
source = "repository"
licence = "MIT"
needs = ["node"]
canaries = [[
  { path = "test/*.js", before = "^test\\\\(", text = """
test('{name}', t => { t.assert.equal('{word}', {a}) })

""" },
]]
[project.suite]
language = "javascript"
test = "node --test-reporter=junit --test-reporter-destination=results.xml test/money.test.js"
reader = "node-junit"
results = "results.xml"
source = ["*.js"]
tests = ["test/**"]
timeout_s = 60
'''
CODE = """'use strict'
function total (values) {
  let sum = 0
  for (const value of values) sum += value
  return sum
}
function first (values) { return values[0] }
module.exports = { total, first }
"""
BEGUN = """'use strict'
const { test } = require('node:test')
const { total, first } = require('../index.js')

test('the first is first', t => {
  t.assert.equal(first([7, 8]), 7)
})

test('nothing is nothing', t => {
  t.assert.equal(total([]), 0)
})
"""
MORE = """
test('total of two', t => {
  t.assert.equal(total([1, 2]), 3)
})
"""


def commit(repository: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    who = ["-c", "user.name=Ada Lovelace", "-c", "user.email=ada@example.org"]
    for command in (["add", "-A"], ["commit", "-q", "-m", message]):
        subprocess.run(["git", "-C", str(repository), *who, *command], check=True, capture_output=True)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe beside a repository of two commits: the second repairs `total` and tests it."""
    repository = tmp_path / "repository"
    repository.mkdir()
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    begun = {"index.js": CODE.replace("+=", "-="), "test/money.test.js": BEGUN, "bundle/all.js": "// old"}
    commit(repository, begun, "Begin")
    message = "Totals add up\n\nThey were negative. Reported by Grace Hopper."
    commit(repository, {"index.js": CODE, "test/money.test.js": BEGUN + MORE, "bundle/all.js": CODE}, message)
    place = tmp_path / "mine.toml"
    place.write_text(RECIPE)
    return place


def test_a_project_of_this_machine_is_told_by_what_is_committed(recipe: Path, tmp_path: Path) -> None:
    (entry,) = projects(recipe)
    found = local_project(entry, beside=recipe.parent, cache=tmp_path / "cache")
    (tmp_path / "repository" / "index.js").write_text("not committed")
    again = local_project(entry, beside=recipe.parent, cache=tmp_path / "other")
    assert (again.sha256, again.version) == (found.sha256, found.version)
    assert len(found.version) == 12
    assert archive(found, cache=tmp_path / "cache").is_file()
    with pytest.raises(InfrastructureFailure, match=r"its archive .* is gone"):
        archive(found, cache=tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"there is no .*elsewhere"):
        local_project(entry.model_copy(update={"source": "elsewhere"}), beside=tmp_path, cache=tmp_path)


def test_a_project_of_a_registry_is_told_exactly(recipe: Path) -> None:
    (entry,) = projects(recipe)
    values = entry.model_dump(mode="json") | {"origin": "npm"}
    with pytest.raises(ValueError, match="version and sha256 are missing"):
        Project.model_validate(values)
    with pytest.raises(ValueError, match="is no name in npm"):
        Project.model_validate(values | {"version": "1", "sha256": "0" * 64, "source": "--registry=x"})


def test_a_recipe_for_a_repository_names_one_project_and_needs_the_repository(recipe: Path) -> None:
    told = CliRunner().invoke(tasks_command, ["mirror", "--suite", str(recipe)])
    assert told.exit_code == 2
    assert "--suite without --git" in told.output
    other = ["mirror", "--git", str(recipe.parent / "repository"), "--suite", str(recipe), "--package", "other"]
    told = CliRunner().invoke(tasks_command, other)
    assert told.exit_code == 2
    assert "0 projects of that name" in told.output


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(300)
def test_a_repository_in_another_language_gives_tasks_of_its_commits_and_of_its_code(
    recipe: Path, tmp_path: Path
) -> None:
    env = {"ENVGYM_CACHE": str(tmp_path / "cache")}
    file, index = tmp_path / "commits.jsonl", tmp_path / "index.jsonl"
    options = ["--git", str(tmp_path / "repository"), "--suite", str(recipe), "--file", str(file)]
    told = CliRunner().invoke(tasks_command, ["mirror", *options, "--index", str(index), "--json"], env=env)
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["total"]["pairs"] == {"first_commit": 1, "used": 1}
    (task,) = load_tasks(file, cache=tmp_path / "cache")
    assert task.metadata["fail_to_pass"] == ["total of two"]
    assert graded(task)
    assert "Totals add up" in task.prompt
    assert "Hopper" not in task.prompt
    assert "+=" not in task.prompt
    assert json.loads(index.read_text().splitlines()[1])["paths"] == ["index.js"]
    told = CliRunner().invoke(tasks_command, ["rebuild", str(index)], env=env)
    assert "is of a commit; it is made again by" in str(told.exception)
    tree = Path(task.world.trees[0].source)
    assert (tree / "bundle/all.js").read_text() == "// old", "nothing of the later code, built or not"
    assert "+=" not in (tree / "index.js").read_text()

    file = tmp_path / "tasks.jsonl"
    options = ["--recipe", str(recipe), "--per-package", "1", "--certify", "--file", str(file)]
    told = CliRunner().invoke(tasks_command, ["build", *options], env=env)
    assert told.exit_code == 0, told.output
    (task,) = load_tasks(file, cache=tmp_path / "cache")
    assert task.metadata["origin"] == "local"
    assert graded(task)


def graded(task: Task) -> bool:
    """Whether the grader's own word is part of the certificate."""
    found = certificate_of(task)
    return found is not None and found.gold["graded"] == found.untouched["graded"] == (1, 1)
