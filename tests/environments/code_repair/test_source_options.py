"""What `--source` can be told, and what of a source is left out or refused, with the reason."""

import os
from pathlib import Path

import pytest
from envgym_environments.code_repair.baseline import Baseline
from envgym_environments.code_repair.cli import tasks_command
from envgym_environments.code_repair.factory import Plan, Yield, find_candidates
from envgym_environments.code_repair.index import write_index
from envgym_environments.code_repair.local import Source, local_package, source_of
from envgym_environments.code_repair.mirrors.detect import detect
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.sources import source_tree
from envgym_environments.code_repair.suites.make import sources_in
from envgym_environments.code_repair.suites.projects import projects
from envgym_environments.code_repair.taskset import load_tasks, write_tasks
from typer.testing import CliRunner

from envgym.task import Task, Tree, World

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """Two packages and their tests."""
    top = tmp_path / "multi"
    for name in ("alpha", "beta"):
        (top / name).mkdir(parents=True)
        (top / name / "__init__.py").write_text("def one():\n    return 1\n")
    (top / "tests").mkdir()
    for name in ("alpha", "beta"):
        text = f"from {name} import one\n\n\ndef test_one():\n    assert one() == 1\n"
        (top / "tests" / f"test_{name}.py").write_text(text)
    return top


def test_a_source_says_where_its_code_and_tests_lie(several: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no package called 'multi'.*'alpha', 'beta'.*--source PATH,package="):
        local_package(Source(several), cache=tmp_path / "cache")
    source = source_of(f"{several},package=beta,tests=tests/test_beta.py,tests=more/*.py,name=second")
    assert source == Source(several, name="second", package="beta", tests=("tests/test_beta.py", "more/*.py"))
    package = local_package(source_of(f"{several},package=alpha"), cache=tmp_path / "cache")
    assert (package.name, package.package, package.tests) == ("multi", "alpha", ("tests/test_*.py",))
    odd = tmp_path / "a,name=b"
    odd.mkdir()
    assert source_of(str(odd)) == Source(odd), "a path that is there is one"
    with pytest.raises(ValueError, match="no such file or folder"):
        local_package(source_of(f"{several},packages=alpha"), cache=tmp_path / "cache")
    with pytest.raises(ValueError, match="no 'gamma' in its tree"):
        local_package(source_of(f"{several},package=gamma"), cache=tmp_path / "cache")


def test_one_module_is_found_whatever_its_folder_is_called(tmp_path: Path) -> None:
    for name in ("thing.py", "setup.py", "conftest.py", "test_thing.py"):
        (tmp_path / name).write_text("x = 1\n")
    assert detect(tmp_path, "elsewhere") == (".", "thing.py", ("test_*.py",))
    (tmp_path / "other.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"no package called 'elsewhere'.*'other.py', 'thing.py'"):
        detect(tmp_path, "elsewhere")
    assert detect(tmp_path, "elsewhere", "other.py") == (".", "other.py", ("test_*.py",))


@pytest.mark.parametrize("command", ["build", "repositories"])
def test_two_sources_of_one_name_are_refused_before_anything_runs(
    several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path / "cache"))
    given = [f"{several},package=alpha", f"{several},package=beta"]
    file = tmp_path / "tasks.jsonl"
    asked = [command, "--source", given[0], "--source", given[1], "--file", str(file)]
    said = CliRunner(env={"COLUMNS": "400"}).invoke(tasks_command, asked)
    assert said.exit_code == 2
    assert "'multi' is the name of two" in said.output
    assert ",name=" in said.output
    assert not file.exists()
    assert not (tmp_path / "cache").exists()
    asked = [command, "--source", f"{several},name=toolz", "--package", "toolz", "--file", str(file)]
    assert "'toolz' is the name of two" in CliRunner(env={"COLUMNS": "400"}).invoke(tasks_command, asked).output


def test_a_language_is_not_asked_of_a_source(several: Path, tmp_path: Path) -> None:
    asked = ["build", "--source", str(several), "--language", "go", "--file", str(tmp_path / "tasks.jsonl")]
    said = CliRunner(env={"COLUMNS": "400"}).invoke(tasks_command, asked)
    assert said.exit_code == 2
    assert "--recipe" in said.output


def test_what_is_neither_file_folder_nor_link_is_left_out(several: Path, tmp_path: Path) -> None:
    os.mkfifo(several / "alpha" / "pipe")
    (several / "alpha" / os.fsdecode(b"\xff\xfe")).write_text("x")
    os.symlink(b"\xff\xfe", os.fsencode(several / "alpha" / "odd"))
    package = local_package(source_of(f"{several},package=alpha"), cache=tmp_path / "cache")
    tree = source_tree(package, cache=tmp_path / "cache")
    assert not (tree / "alpha" / "pipe").exists()
    assert os.readlink(os.fsencode(tree / "alpha" / "odd")) == b"\xff\xfe"


def test_foreign_line_ends_are_told_and_no_empty_success(several: Path, tmp_path: Path) -> None:
    package = local_package(source_of(f"{several},package=alpha"), cache=tmp_path / "cache")
    code = several / "alpha" / "__init__.py"
    (several / "alpha" / "more.py").write_text("def two():\n    return 1 + 1\n")
    code.write_bytes(code.read_bytes().replace(b"\n", b"\r\n"))
    covers = {"alpha/__init__.py": {2: ["t"]}, "alpha/more.py": {2: ["t"]}}
    layout = Layout(package="alpha", tests=("tests/test_alpha.py",))
    counts = Yield()
    baseline = Baseline(package, layout, ("t",), {"t": 0.1}, covers, {}, 0.1)
    assert {one.path for one in find_candidates(several, baseline, Plan(), counts)} == {"alpha/more.py"}
    assert counts.foreign == 1
    (several / "alpha" / "more.py").write_bytes(code.read_bytes())
    with pytest.raises(ValueError, match=r"alpha/__init__.py and 1 more.*line ends"):
        find_candidates(several, baseline, Plan(), counts)
    project = next(one for one in projects() if one.language == "go")
    suite = project.suite.model_copy(update={"source": ("*.go",), "tests": ("*_test.go",)})
    (several / "a.go").write_bytes(b"package a\r\n")
    with pytest.raises(ValueError, match=r"a.go.*line ends"):
        sources_in(project.model_copy(update={"suite": suite}), several)


def test_the_index_and_the_cache_say_what_a_tree_of_a_machine_is(several: Path, tmp_path: Path) -> None:
    task = Task(
        id="code-repair/multi-0/x",
        prompt="x",
        world=World(trees=(Tree(source=str(tmp_path / "gone"), target="/w"),)),
        metadata={"sha256": "0" * 64, "digests": [], "sources": {"origin": "local multi==0"}},
    )
    with pytest.raises(ValueError, match=r"a tree of a machine \(--source\).*keep its file"):
        write_index([task], tmp_path / "index")
    write_tasks([task], tmp_path / "tasks.jsonl")
    with pytest.raises(FileNotFoundError, match=r"give it by --source again"):
        load_tasks(tmp_path / "tasks.jsonl")
