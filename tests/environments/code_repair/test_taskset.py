import asyncio
import json
from collections import Counter

import pytest
from envgym_environments.code_repair.cli import tasks_command
from envgym_environments.code_repair.factory import Plan, Yield
from envgym_environments.code_repair.sources import packages
from envgym_environments.code_repair.taskset import (
    _keep_part,
    _part_path,
    _write_yields,
    build_tasks,
    load_tasks,
    load_yields,
    write_tasks,
)
from typer.testing import CliRunner

from envgym.cli import run
from envgym.registry import make_backend
from envgym.task import Task, Tree, World

pytestmark = pytest.mark.timeout(60)


def some(cache, count=3, split="train", package="small"):
    tree = cache / "trees" / "small"
    tree.mkdir(parents=True, exist_ok=True)
    world = World(trees=(Tree(source=str(tree), target="/repo"),), files={"/repo/a.py": "é = 1\u2028\n"})
    return [
        Task(id=f"{package}/{i}", prompt="p", world=world, split=split, metadata={"package": package})
        for i in range(count)
    ]


def test_what_is_written_is_read_back(cache) -> None:
    path, tasks = cache / "tasks.jsonl", some(cache)
    write_tasks(tasks, path, cache=cache)
    assert list(load_tasks(path, cache=cache)) == tasks


def test_a_task_file_can_be_moved_to_another_cache(cache, tmp_path) -> None:
    write_tasks(some(cache), cache / "tasks.jsonl", cache=cache)
    moved = cache.rename(tmp_path / "elsewhere")
    task = load_tasks(moved / "tasks.jsonl", cache=moved)[0]
    assert task.world is not None
    assert task.world.trees[0].source == str(moved / "trees" / "small")


def test_no_file_says_how_to_make_one(cache) -> None:
    with pytest.raises(FileNotFoundError, match="envgym tasks build"):
        load_tasks(cache / "none.jsonl", cache=cache)


def test_damage_is_named_with_file_and_line(cache) -> None:
    path = cache / "tasks.jsonl"
    write_tasks(some(cache), path, cache=cache)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(ValueError, match=r"tasks\.jsonl: 2 task lines, but line 1 announces 3"):
        load_tasks(path, cache=cache)
    path.write_bytes(whole.replace(b'"prompt":"p"', b'"prompt":"q"', 1))
    with pytest.raises(ValueError, match="changed by hand"):
        load_tasks(path, cache=cache)
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(ValueError, match="line 1: not the header"):
        load_tasks(path, cache=cache)


def test_a_bad_field_is_named_with_its_line(cache) -> None:
    from envgym_environments.code_repair import taskset

    path = cache / "tasks.jsonl"
    line = json.dumps({"id": "a", "prompt": 3})
    with pytest.raises(ValueError, match=r"tasks\.jsonl, line 7: field 'prompt'.*3"):
        taskset._read_task(path, 7, line, str(cache))


def test_an_id_that_occurs_twice_is_refused_and_nothing_is_left(cache) -> None:
    with pytest.raises(ValueError, match="occurs twice"):
        write_tasks(some(cache) * 2, cache / "tasks.jsonl", cache=cache)
    assert not list(cache.glob("*tasks*"))


def test_a_package_in_two_splits_is_refused(cache) -> None:
    path = cache / "tasks.jsonl"
    mixed = some(cache, 1) + [task.model_copy(update={"id": "b", "split": "heldout"}) for task in some(cache, 1)]
    write_tasks(mixed, path, cache=cache)
    with pytest.raises(ValueError, match="one split"):
        load_tasks(path, cache=cache)


def test_a_missing_source_tree_is_named(cache) -> None:
    path = cache / "tasks.jsonl"
    write_tasks(some(cache), path, cache=cache)
    (cache / "trees" / "small").rmdir()
    with pytest.raises(FileNotFoundError, match="trees/small"):
        load_tasks(path, cache=cache)


@pytest.mark.slow
@pytest.mark.namespaces
def test_a_build_writes_one_file_goes_on_after_a_stop_and_survives_a_bad_package(small, cache) -> None:
    bad = small.model_copy(update={"name": "bad", "tests": ("nothing/*.py",)})
    kept = cache / "sdists" / f"{bad.slug}-{bad.sha256[:16]}.tar.gz"
    kept.write_bytes((cache / "sdists" / f"{small.slug}-{small.sha256[:16]}.tar.gz").read_bytes())
    path, said = cache / "tasks.jsonl", []

    async def build():
        async with make_backend("namespace") as backend:
            return await build_tasks(
                [bad, small], backend, plan=Plan(per_package=4), path=path, progress=said.append, cache=cache
            )

    built = asyncio.run(build())
    assert list(built.failed) == ["bad"]
    assert "nothing" in said[0]
    assert list(load_tasks(path, cache=cache)) == built.tasks
    assert len(built.tasks) == 4
    assert load_yields(path)["small"].valid == 4
    again = asyncio.run(build())
    assert again.tasks == built.tasks
    assert again.yields["small"].seconds == built.yields["small"].seconds  # taken over, not built again


def test_the_console_counts_and_shows_tasks_and_names_an_unknown_one(cache, monkeypatch) -> None:
    monkeypatch.setenv("ENVGYM_CACHE", str(cache))
    gold = {"patch": "-wrong\n+right\n"}
    tasks = [
        task.model_copy(
            update={"metadata": {**task.metadata, "fail_to_pass": ["t"], "pass_to_pass": [], "gold": gold}}
        )
        for task in some(cache)
    ]
    write_tasks(tasks, cache / "tasks.jsonl")
    console = CliRunner()
    assert "3 tasks: 3 train" in console.invoke(tasks_command, ["stats"]).output
    shown = console.invoke(tasks_command, ["show", "small/1"]).output
    assert "fail_to_pass: 1 tests" in shown
    assert "+right" not in shown
    assert "+right" in console.invoke(tasks_command, ["show", "small/1", "--gold"]).output
    record = json.loads(console.invoke(tasks_command, ["show", "small/1", "--json"]).output)
    assert (record["id"], "gold" in record["metadata"]) == ("small/1", False)
    answered = json.loads(console.invoke(tasks_command, ["show", "small/1", "--json", "--gold"]).output)
    assert answered == tasks[1].model_dump(mode="json")
    refused = console.invoke(tasks_command, ["show", "nothing"])
    assert refused.exit_code == 2
    assert "no task id ends with 'nothing'" in " ".join(refused.output.replace("│", " ").split())
    several = console.invoke(tasks_command, ["show", ""])
    assert several.exit_code == 2
    said = " ".join(several.output.replace("│", " ").split())
    assert "the end of several task ids: 'small/0', 'small/1', 'small/2'" in said
    unknown = console.invoke(tasks_command, ["build", "--package", "nothing"])
    assert unknown.exit_code == 2
    assert "toolz" in unknown.output


def test_the_console_tells_a_build_as_json(cache, monkeypatch) -> None:
    monkeypatch.setenv("ENVGYM_CACHE", str(cache))
    path, chosen = cache / "tasks.jsonl", next(one for one in packages() if one.name == "toolz")
    plan = Plan(per_package=3)
    part = _part_path(chosen, plan, path)
    write_tasks(some(cache, package="toolz"), part)  # a finished share of a build is taken over
    _write_yields({"toolz": Yield({"names": Counter(valid=3, flaky=1)}, seconds=36.0, tasks=3)}, part)
    arguments = ["build", "--per-package", "3", "--package", "toolz", "--json", "--backend", "local"]
    told = CliRunner().invoke(tasks_command, arguments)
    found = json.loads(told.stdout)
    assert (found["file"], found["tasks"], found["failed"]) == (str(path), 3, {})
    assert [(row["operator"], row["tried"], row["valid"]) for row in found["operators"]] == [("names", 4, 3)]
    assert [(row["package"], row["per_hour"]) for row in found["packages"]] == [("toolz", 300)]


def test_counts_are_written_whole_and_before_their_tasks(cache) -> None:
    path, old = cache / "tasks.jsonl", cache / "old"
    _write_yields({"small": Yield(tasks=3)}, path)
    old.hardlink_to(path.with_suffix(".yield.json"))
    _write_yields({"small": Yield(tasks=4)}, path)
    assert '"tasks": 3' in old.read_text(), "it was replaced, so that a kill leaves the one or the other"
    assert load_yields(path)["small"].tasks == 4
    part = cache / "parts" / "small.jsonl"
    with pytest.raises(ValueError, match="occurs twice"):  # as a kill between the two would
        _keep_part(some(cache) * 2, "small", Yield(tasks=5), part, cache=cache)
    assert load_yields(part)["small"].tasks == 5
    assert [one.name for one in part.parent.iterdir()] == ["small.yield.json"]


def test_torn_counts_are_named_and_lost_ones_are_told(cache, monkeypatch) -> None:
    monkeypatch.setenv("ENVGYM_CACHE", str(cache))
    path, chosen = cache / "tasks.jsonl", next(one for one in packages() if one.name == "toolz")
    part = _part_path(chosen, Plan(per_package=3), path)
    write_tasks(some(cache, package="toolz"), part)
    torn = part.with_suffix(".yield.json")
    for text in ('{"toolz": {"verd', '{"toolz": 3}', '{"toolz": {"verdicts": {}, "no": 1}}', "[]", "\udcff"):
        torn.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(ValueError, match=r"toolz-.*\.yield\.json: .*remove it"):
            load_yields(part)
    assert run(["tasks", "stats", "--file", str(part)]) == 2
    torn.unlink()
    arguments = ["build", "--per-package", "3", "--package", "toolz", "--json", "--backend", "local"]
    told = CliRunner().invoke(tasks_command, arguments)
    assert told.exit_code == 0, told.output
    assert f"{torn}: not there" in told.stderr
    assert [(row["package"], row["tasks"]) for row in json.loads(told.stdout)["packages"]] == [("toolz", 3)]


def test_the_statistics_are_whole_where_no_terminal_bounds_them(cache, monkeypatch) -> None:
    monkeypatch.setenv("ENVGYM_CACHE", str(cache))
    path = cache / "tasks.jsonl"
    write_tasks(some(cache), path)
    names = [f"wrong-operator-with-a-name-as-long-as-number-{number}" for number in range(3)]
    counts = Yield({name: Counter(valid=3, flaky=1) for name in names}, seconds=36.0, tasks=9)
    _write_yields({"small": counts}, path)
    told = CliRunner().invoke(tasks_command, ["stats"], env={"COLUMNS": "80"}).output
    assert all(name in told for name in names)
    assert [line.split() for line in told.splitlines()[1:3]] == [
        ["split", "package", "tasks"],
        ["train", "small", "3"],
    ]
    assert ["small", "12", "9", "9", "0", "0", "0", "36", "900"] in [line.split() for line in told.splitlines()]
    found = json.loads(CliRunner().invoke(tasks_command, ["stats", "--json"]).stdout)
    assert [(row["package"], row["per_hour"]) for row in found["packages"]] == [("small", 900)]


def test_a_missing_task_file_and_a_damaged_one_have_one_exit_status(cache, tmp_path, capsys) -> None:
    path = tmp_path / "tasks.jsonl"
    write_tasks(some(cache), path)
    path.write_text(path.read_text().replace("small/1", "small/9"))
    for command in (["stats"], ["show", "small/2"]):
        for place, said in ((path, "changed by hand"), (tmp_path / "none", "no task file at")):
            assert run(["tasks", *command, "--file", str(place)]) == 2, "it is --file that must be another"
            told = capsys.readouterr().err
            assert (told.count("\n"), said in told) == (1, True)
