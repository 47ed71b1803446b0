"""Any tree with tests is a source of tasks: a folder, a git repository, an archive; nothing is fetched."""

import subprocess

import pytest
from envgym_environments.code_repair.factory import Plan, Yield, make_tasks
from envgym_environments.code_repair.filtering.licences import problems_of
from envgym_environments.code_repair.local import Source, local_package, usable
from envgym_environments.code_repair.sources import source_tree

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(1200)]


@pytest.fixture
def project(tmp_path, index):
    """The package `small` as a folder that somebody works in."""
    top = tmp_path / "small"
    subprocess.run(["tar", "-xzf", index / "small-1.0.tar.gz", "-C", tmp_path], check=True)
    (tmp_path / "small-1.0").rename(top)
    (top / "LICENSE").write_text("MIT License\n")
    (top / ".venv").mkdir()
    (top / ".venv" / "big.py").write_text("x = 1\n")
    (top / "secret").symlink_to("/etc/hostname")
    return top


def git(top, *arguments):
    command = ["git", "-C", str(top), "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.slow
def test_a_folder_becomes_tasks_without_a_recipe_and_without_an_index(project, tmp_path, in_backend) -> None:
    tasks, said = [], []
    (project / "tests" / "test_more.py").write_text("import no_such_module_here\n\n\ndef test_more():\n    pass\n")

    async def body(backend) -> None:
        package = await usable(Source(project), backend, tell=said.append, cache=tmp_path / "cache")
        plan = Plan(per_package=2)
        async for task in make_tasks(package, backend, plan, counts=Yield(), cache=tmp_path / "cache"):
            tasks.append(task)

    in_backend(body)
    assert len(tasks) == 2
    (line,) = said
    assert "test_more.py is left out" in line
    assert tasks[0].metadata["version"] == "1.0"
    assert tasks[0].metadata["licence"] == "MIT License"
    assert tasks[0].metadata["sources"]["origin"] == "local small==1.0"
    assert problems_of(tasks[0]) == []


def test_links_out_and_ignored_folders_are_no_part_of_a_tree(project, tmp_path) -> None:
    package = local_package(Source(project), cache=tmp_path / "cache")
    tree = source_tree(package, cache=tmp_path / "cache")
    assert not (tree / ".venv").exists()
    assert not (tree / "secret").is_symlink()
    assert local_package(Source(project), cache=tmp_path / "cache") == package
    (project / "small.py").write_text((project / "small.py").read_text() + "\n# more\n")
    assert local_package(Source(project), cache=tmp_path / "cache").sha256 != package.sha256


def test_of_a_repository_the_commit_is_taken_and_not_what_lies_beside_it(project, tmp_path) -> None:
    (project / "secret").unlink()
    git(project, "init", "-q")
    git(project, "add", "small.py", "tests", "pyproject.toml", "LICENSE")
    git(project, "commit", "-qm", "begin")
    (project / "small.py").write_text("broken")
    package = local_package(Source(project), cache=tmp_path / "cache")
    tree = source_tree(package, cache=tmp_path / "cache")
    assert "def total" in (tree / "small.py").read_text()
    assert not (tree / ".git").exists()
    assert (project / "small.py").read_text() == "broken"
    assert len(package.version) == 12


def test_an_archive_is_a_source_too(index, tmp_path) -> None:
    package = local_package(Source(index / "small-1.0.tar.gz"), cache=tmp_path / "cache")
    assert (package.name, package.version, package.package) == ("small", "1.0", "small.py")


def test_what_is_no_source_is_refused_and_says_why(tmp_path) -> None:
    with pytest.raises(ValueError, match="no such file or folder"):
        local_package(Source(tmp_path / "none"), cache=tmp_path / "cache")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no package called"):
        local_package(Source(tmp_path / "empty"), cache=tmp_path / "cache")
