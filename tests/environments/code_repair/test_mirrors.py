"""Both mirrors from end to end: releases that lie in a cache, commits of a repository made here."""

import asyncio
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from envgym_environments.code_repair import mirrors
from envgym_environments.code_repair.certify import Certificate, certificate_of
from envgym_environments.code_repair.cli import tasks_command
from envgym_environments.code_repair.conditions import PER_TASK, clock_library
from envgym_environments.code_repair.describe import restore
from envgym_environments.code_repair.env import CodeRepair
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.mirrors.cli import recipes_of
from envgym_environments.code_repair.mirrors.index import (
    FORMAT,
    index_row,
    read_mirror_index,
    rebuild_mirrors,
    write_mirror_index,
)
from envgym_environments.code_repair.mirrors.releases import pair_of, recipe
from envgym_environments.code_repair.mirrors.trees import compose, is_test
from envgym_environments.code_repair.reach import reach_by_operator
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.taskset import load_tasks
from envgym_environments.code_repair.trials import world_text
from typer.testing import CliRunner

from envgym.messages import Action
from envgym.registry import make_backend
from envgym.testing import check_tasks

pytestmark = pytest.mark.timeout(120)

LEAST = 100
"""Repairs of the committed index, each its own and certified."""

OLD = {
    "names.py": '''"""Names."""

__version__ = "1.0"


def initials(name):
    return "".join(part[0] for part in name.split(" "))


def swapped(name):
    first, last = name.split(" ")
    return f"{last}, {first}"


def count(name):
    return len(name.split(" "))


def shout(name):
    return name.upper()
''',
    "tests/test_names.py": """from names import count, initials, shout, swapped


def test_initials():
    assert initials("Ada Lovelace") == "AL"


def test_shout():
    assert shout("a") == "A"
""",
    "CHANGES.md": "# 1.0\\n\\n- First.\\n",
    "PKG-INFO": "Metadata-Version: 2.1\nName: names\nVersion: 1.0\nLicense: MIT\n",
}

NEW = {
    "names.py": '''"""Names, in many forms."""

__version__ = "1.1"


def initials(name):
    """The first letters."""
    return "".join(part[0] for part in name.split())


def swapped(name):
    first, _, last = name.rpartition(" ")
    return f"{last}, {first}" if first else last


def count(name):
    return len(name.split())


def shout(name):
    return name.upper()


def whisper(name):
    return name.lower()
''',
    "tests/test_names.py": """import names
from names import count, initials, shout, swapped


def test_initials():
    assert initials("Ada Lovelace") == "AL"


def test_initials_of_spaced_name():
    assert initials("Ada  Lovelace") == "AL"


def test_initials_of_surrounded_name():
    assert initials(" Ada ") == "A"


def test_swapped_single():
    assert swapped("Ada") == "Ada"


def test_count_of_spaced_name():
    assert count("Ada  Lovelace") == 2


def test_shout():
    assert shout("a") == "A"


def test_whisper():
    assert names.whisper("A") == "a"


def test_version():
    assert names.__version__ == "1.1"
""",
    "tests/test_more.py": "import not_to_be_found\n\n\ndef test_more():\n    pass\n",
    "CHANGES.md": "# 1.1\n\n- `initials` no longer fails for spaced names, thanks to Ada Lovelace (#3)\n"
    "- `swapped` takes a single name\n- New: `whisper`\n\n# 1.0\n\n- First.\n",
    "PKG-INFO": "Metadata-Version: 2.1\nName: names\nVersion: 1.1\nLicense: MIT\n",
}


def archive(path, version, files) -> str:
    with tarfile.open(path, "w:gz") as out:
        for name, text in files.items():
            info = tarfile.TarInfo(f"names-{version}/{name}")
            info.size = len(text.encode())
            out.addfile(info, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A cache that holds two releases of `names`, and a recipe of them."""
    cache = tmp_path / "cache"
    (cache / "sdists").mkdir(parents=True)
    monkeypatch.setenv("ENVGYM_CACHE", str(cache))
    rows = []
    for version, files in (("1.0", OLD), ("1.1", NEW)):
        made = cache / "made.tar.gz"
        digest = archive(made, version, files)
        made.rename(cache / "sdists" / f"names-{version}-{digest[:16]}.tar.gz")
        rows.append(f'{{ version = "{version}", sha256 = "{digest}" }}')
    head = '[[mirror]]\nname = "names"\npackage = "names.py"\ntests = ["tests/test_*.py"]\n'
    text = f"{head}releases = [{', '.join(rows)}]\n"
    (tmp_path / "mirrors.toml").write_text(text)
    return tmp_path


def made(place, *arguments):
    told = CliRunner().invoke(tasks_command, ["mirror", "--backend", "namespace", "--json", *arguments])
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    return found, load_tasks(place / "cache" / "mirrors.jsonl")


async def check_grades(tasks) -> None:
    async with make_backend("namespace") as backend:
        grader = CodeRepairGrader(backend, memo=Memo())
        for task in tasks:
            gold = task.metadata["gold"]
            assert (await grader.grade(task, gold["patch"])).channels["resolved"] == 1.0
            assert (await grader.grade(task, "")).channels["resolved"] == 0.0


def check_certified(tasks) -> None:
    (condition,) = PER_TASK
    for task in tasks:
        certificate = certificate_of(task)
        assert certificate is not None
        assert certificate.gold == certificate.untouched
        assert sum(of for _, of in certificate.gold.values()) == 5  # four runs and a grade
        assert (condition.name in certificate.gold) is (clock_library() is not None)


async def play(task) -> float:
    """Repair it with the full tools, as an agent would."""
    async with make_backend("namespace") as backend:
        env = CodeRepair(task, backend)
        try:
            await env.reset(seed=0)
            for edit in task.metadata["gold"]["bugs"]:
                text = restore(world_text(task.world, edit["path"]), edit)
                await env.step(Action.call("shell", command=f"cat > {edit['path']} <<'END'\n{text}END"))
            step = await env.step(Action.call("submit"))
            return step.reward or 0.0
        finally:
            await env.close()


async def look(task) -> str:
    """What the compact tools list as suspicious."""
    async with make_backend("namespace") as backend:
        env = CodeRepair(task, backend, tools="compact")
        try:
            await env.reset(seed=0)
            return str((await env.step(Action.say("localise"))).observation[-1].content)
        finally:
            await env.close()


def check_index(place, tasks) -> None:
    """It holds no code, and gives the same file byte by byte where nothing of the tasks is left."""
    index, again = place / "index.jsonl", place / "again.jsonl"
    head, *lines = index.read_text().splitlines()
    assert json.loads(head)["count"] == len(tasks)
    bare = [{name: row[name] for name in row if name != "recipe"} for row in map(json.loads, lines)]
    assert bare == [json.loads(json.dumps(index_row(task))) for task in tasks]
    assert "split()" not in index.read_text()
    packed = place / "packed.xz"
    kept = (place / "cache" / "mirrors.jsonl").read_bytes()
    write_mirror_index(tasks, packed, recipes_of(place / "mirrors.toml"))
    for one in (index, packed):
        shutil.rmtree(place / "cache" / "trees")
        shutil.rmtree(place / "cache" / "releases")
        told = CliRunner().invoke(tasks_command, ["rebuild", str(one), "--file", str(again)])
        assert told.exit_code == 0, told.output
        assert again.read_bytes() == kept
    damaged = json.loads(lines[0]) | {"hunks": ["0" * 12]}
    index.write_text("\n".join([json.dumps({"format": FORMAT, "count": 1}), json.dumps(damaged), ""]))
    with pytest.raises(ValueError, match="piece 000000000000 is not among the"):
        rebuild_mirrors(index)


@pytest.mark.slow
@pytest.mark.namespaces
def test_two_releases_become_one_task_for_each_repair_they_hold(place) -> None:
    found, tasks = made(place, "--recipe", str(place / "mirrors.toml"), "--index", str(place / "index.jsonl"))
    check_tasks(tasks)
    tests = {tuple(name.partition("::")[2] for name in task.metadata["fail_to_pass"]) for task in tasks}
    assert tests == {("test_initials_of_spaced_name", "test_initials_of_surrounded_name"), ("test_swapped_single",)}
    assert found["total"]["tests"]["feature"] == 1
    assert found["total"]["groups"] == {"valid": 2, "version": 1, "repeats": 1}
    assert found["packages"]["names"]["tests"]["grouped"] == 5, "the one of `count` among them"
    first = next(task for task in tasks if len(task.metadata["fail_to_pass"]) == 2)
    gold = first.metadata["gold"]
    assert [one["right"].count("split()") for one in gold["bugs"]] == [1]
    assert "in many forms" not in gold["patch"]
    assert "no longer fails for spaced names" in first.prompt
    assert "Lovelace (" not in first.prompt
    assert "Thanks" not in first.prompt
    assert "split()" not in first.prompt
    assert first.metadata["provenance"]["old"] == {
        "version": "1.0",
        "sha256": recipe(place / "mirrors.toml")[0].releases[0].sha256,
        "licence": "MIT",
    }
    check_index(place, tasks)
    asyncio.run(check_grades(tasks))
    assert set(reach_by_operator(tasks)) == {"all", "release-mirror"}
    again, same = made(place, "--recipe", str(place / "mirrors.toml"))
    assert list(same) == list(tasks)
    assert again["total"]["runs"] == found["total"]["runs"]


@pytest.mark.slow
@pytest.mark.namespaces
def test_certificates_of_releases_are_in_the_index(place) -> None:
    found, tasks = made(place, "--recipe", str(place / "mirrors.toml"), "--certify")
    assert found["total"]["groups"]["valid"] == len(tasks) == 2
    check_certified(tasks)
    write_mirror_index(tasks, place / "index.jsonl", recipes_of(place / "mirrors.toml"))
    assert rebuild_mirrors(place / "index.jsonl") == list(tasks)


def test_the_world_of_a_pair_is_the_earlier_code_under_the_later_tests(place) -> None:
    ((old, new),) = recipe(place / "mirrors.toml")[0].pairs()
    tree, layout = compose(pair_of(old, new), place / "cache")
    assert (tree / "names.py").read_text() == OLD["names.py"]
    assert (tree / "tests" / "test_names.py").read_text() == NEW["tests/test_names.py"]
    assert (tree / "CHANGES.md").read_text() == OLD["CHANGES.md"]
    assert (layout.package, layout.tests) == ("names.py", ("tests/test_more.py", "tests/test_names.py"))
    assert compose(pair_of(old, new), place / "cache")[0] == tree


def test_what_is_a_test_does_not_depend_on_where_it_lies() -> None:
    layout = Layout(package="p", tests=("p/check.py",))
    for path in ("p/check.py", "p/tests/data.json", "conftest.py", "tests/a.txt", "test_a.py", "p/test_a.py"):
        assert is_test(path, layout), path
    for path in ("p/a.py", "p/testing/a.py", "setup.py", "docs/a.rst"):
        assert not is_test(path, layout), path


def test_a_recipe_says_what_is_wrong_with_it(place) -> None:
    path = place / "mirrors.toml"
    text = path.read_text()
    path.write_text(text.replace('version = "1.0"', 'version = "1.1"'))
    with pytest.raises(
        ValueError, match=r"mirrors\.toml: mirror 0 \(names\): .*release 1.1 of names is listed 2 times"
    ):
        recipe(path)
    path.write_text(text.replace("package =", "packages ="))
    with pytest.raises(ValueError, match=r"mirror 0 \(names\): package"):
        recipe(path)
    told = CliRunner().invoke(tasks_command, ["mirror", "--recipe", str(place / "none.toml"), "--package", "x"])
    assert told.exit_code != 0


def test_the_recipe_of_this_project_is_whole() -> None:
    found = recipe()
    assert len({one.name for one in found}) == len(found) >= 1
    for one in found:
        for old, new in one.pairs():
            assert old.version != new.version


def test_the_index_of_this_project_is_of_its_recipe_and_repeats_nothing() -> None:
    known = recipes_of(None)
    rows = read_mirror_index(Path(mirrors.__file__).with_name("index.jsonl.xz"))
    assert len({row["id"] for row in rows}) == len(rows) >= LEAST
    assert not Counter(piece for row in rows for piece in pieces(row)).most_common(1)[0][1] > 1, (
        "each its own repair"
    )
    for row in rows:
        assert row["recipe"] == known[row["new"]["sha256"]].model_dump(mode="json"), row["id"]
        assert row["old"]["sha256"] in known, row["id"]
        certificate = Certificate.model_validate(row["certificate"])
        assert certificate.gold["graded"] == certificate.untouched["graded"] == (1, 1), row["id"]


def pieces(row) -> list[tuple[str, ...]]:
    """The pieces of a repair, as no other pair of states has them."""
    return [(row["old"]["sha256"], row["new"]["sha256"], digest) for digest in row["hunks"]]


def commit(repository, files, message, *, gone=()) -> None:
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    for name in gone:
        (repository / name).unlink()
    values = {"NAME": "Ada Lovelace", "EMAIL": "ada@example.org", "DATE": "2026-01-01T00:00:00Z"}
    person = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in values.items()}
    environment = {**os.environ, **person, "HOME": str(repository), "GIT_CONFIG_NOSYSTEM": "1"}
    for command in (["add", "-A"], ["commit", "-q", "-m", message]):
        subprocess.run(["git", "-C", str(repository), *command], check=True, env=environment)


@pytest.fixture
def repository(tmp_path):
    """A git repository of `names`: a first commit, one of the documentation, one repair, one feature."""
    path = tmp_path / "names"
    path.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "main", str(path)], check=True)
    code, tests = OLD["names.py"], OLD["tests/test_names.py"]
    commit(
        path, {"names.py": code, "tests/test_names.py": tests, ".gitattributes": "tests export-ignore\n"}, "Begin"
    )
    commit(path, {"README.md": "Names.\n"}, "Say what it is")
    code = code.replace('name.split(" "))', "name.split())")
    tests += '\n\ndef test_initials_of_spaced_name():\n    assert initials("Ada  Lovelace") == "AL"\n'
    message = "Take spaced names apart (#12)\n\nAda Lovelace saw it. Broken since 1a2b3c4d5e.\n\nFixes #12\n"
    message += "Signed-off-by: Ada Lovelace <ada@example.org>\n"
    commit(path, {"names.py": code, "tests/test_names.py": tests}, message)
    code += "\n\ndef whisper(name):\n    return name.lower()\n"
    tests += '\n\ndef test_whisper():\n    import names\n\n    assert names.whisper("A") == "a"\n'
    commit(path, {"names.py": code, "tests/test_names.py": tests}, "Whisper")
    (path / "secret").symlink_to("/etc/hostname")
    commit(path, {"tests/test_names.py": tests + "\n\nX = 1\n", "names.py": code + "\n\nX = 1\n"}, "Add an X")
    return path


@pytest.mark.slow
@pytest.mark.namespaces
def test_commits_become_tasks_without_history_and_names(place, repository) -> None:
    options = ("--git", str(repository), "--source", "names.py", "--tests", "tests/test_*.py", "--certify")
    found, tasks = made(place, *options)
    check_certified(tasks)
    reasons = {"feature_only": 1, "used": 1, "no_code": 1, "first_commit": 1, "no_failing_tests": 1}
    assert found["total"]["pairs"] == reasons
    assert not list((place / "cache" / "commits").glob("*/secret"))
    (task,) = tasks
    assert task.metadata["fail_to_pass"] == ["tests/test_names.py::test_initials_of_spaced_name"]
    assert "Take spaced names apart" in task.prompt
    for gone in ("#12", "saw it. Broken since 1a", "Ada ", "Lovelace saw", "ada@", "Signed", "split()"):
        assert gone not in task.prompt, gone
    assert task.world is not None
    (tree,) = task.world.trees
    assert not [name for _, folders, _ in os.walk(tree.source) for name in folders if name == ".git"]
    assert task.metadata["provenance"]["kind"] == "commit"
    asyncio.run(check_grades(tasks))
    assert asyncio.run(play(task)) == 1.0
    assert "name.split(" in asyncio.run(look(task))
    status = subprocess.run(["git", "-C", str(repository), "status", "--short"], check=True, capture_output=True)
    assert status.stdout == b""


def test_a_place_that_is_no_repository_is_named(place) -> None:
    told = CliRunner().invoke(tasks_command, ["mirror", "--git", str(place)])
    assert told.exit_code != 0
    assert isinstance(told.exception, ValueError)
    assert "there is no git repository at" in str(told.exception)
    assert str(place) in str(told.exception)
