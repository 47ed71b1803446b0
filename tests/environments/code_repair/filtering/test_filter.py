"""Near-duplicates and held-out tasks go, with a report; and the licence of every file is known."""

import json
import random

import pytest
from envgym_environments.code_repair.cli import tasks_command
from envgym_environments.code_repair.filtering.filter import HeldOut, filter_tasks
from envgym_environments.code_repair.filtering.licences import files_of, problems_of, sources_of_tree
from envgym_environments.code_repair.filtering.near import Neighbours, jaccard, shingles
from envgym_environments.code_repair.taskset import load_tasks, write_tasks
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from envgym.task import Task, Tree, World

WORDS = [f"word{number}" for number in range(60)]


def text(seed: int, count: int = 60) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(count))


def task(name: str, prompt: str, patch: str = "") -> Task:
    change = f"--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-{patch} wrong\n+{patch} right\n" if patch else ""
    return Task(id=name, prompt=prompt, metadata={"package": "p", "gold": {"patch": change}})


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(st.text("abcd ", max_size=30), min_size=1, max_size=8), st.floats(0.3, 1.0))
def test_no_pair_below_the_threshold_is_named_and_equal_texts_always_are(texts, threshold) -> None:
    known = Neighbours(threshold)
    for number, one in enumerate(texts):
        known.add(str(number), shingles(one))
    for one in texts:
        found = dict(known.like(shingles(one)))
        for key, similarity in found.items():
            assert similarity == jaccard(shingles(one), shingles(texts[int(key)])) >= threshold
        equal = {
            str(number) for number, other in enumerate(texts) if shingles(other) == shingles(one) != frozenset()
        }
        assert equal <= found.keys()


def test_duplicates_of_answers_go_and_the_first_stays() -> None:
    same = text(1)
    tasks = [task("a", text(2), same), task("b", text(3), text(4)), task("c", text(5), f"{same} end")]
    found = filter_tasks(tasks)
    assert [one.id for one in found.kept] == ["a", "b"]
    (gone,) = found.dropped
    assert (gone.task, gone.why, gone.like, gone.view) == ("c", "duplicate", "a", "patch")
    assert 0.8 <= gone.similarity < 1.0
    assert all(one.metadata["filtered_by"] == found.settings["filter"] for one in found.kept)
    assert not filter_tasks(tasks, within=()).dropped


def test_what_resembles_held_out_tasks_or_texts_goes(tmp_path) -> None:
    held, note = tmp_path / "held.jsonl", tmp_path / "note.txt"
    write_tasks([task("h", text(1), text(2))], held)
    note.write_text(text(3))
    tasks = [
        task("a", text(1), text(9)),
        task("b", text(8), text(2)),
        task("c", text(3)),
        task("d", text(7), text(6)),
    ]
    found = filter_tasks(tasks, [HeldOut.of_tasks(held, list(load_tasks(held))), HeldOut.of_text(note)])
    assert [one.id for one in found.kept] == ["d"]
    assert [(one.task, one.view, one.like) for one in found.dropped] == [
        ("a", "prompt", "held.jsonl:h"),
        ("b", "patch", "held.jsonl:h"),
        ("c", "prompt", "note.txt:note.txt"),
    ]


def test_the_command_writes_tasks_and_a_report_that_names_its_inputs(tmp_path) -> None:
    place, held, out = (tmp_path / name for name in ("tasks.jsonl", "held.jsonl", "out.jsonl"))
    write_tasks([task("a", text(1), text(2)), task("b", text(3), text(4)), task("c", text(5), text(4))], place)
    write_tasks([task("h", text(1), text(7))], held)
    done = CliRunner().invoke(tasks_command, ["filter", str(out), "--file", str(place), "--against", str(held)])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "out.filter.json").read_text())
    assert (report["kept"], report["duplicates"], report["contaminated"]) == (1, 1, 1)
    assert report["held_out"][0]["name"] == "held.jsonl"
    assert [row["task"] for row in report["dropped"]] == ["a", "c"]
    assert [one.id for one in load_tasks(out)] == ["b"]
    refused = CliRunner().invoke(tasks_command, ["filter", str(out), "--file", str(place), "--by", "smell"])
    assert refused.exit_code != 0


@pytest.mark.parametrize("threshold", [0.0, 1.5, float("nan")])
def test_a_threshold_that_is_none_is_refused(threshold) -> None:
    with pytest.raises(ValueError, match="threshold"):
        Neighbours(threshold)
    with pytest.raises(ValueError, match="the views"):
        filter_tasks([], within=("smell",))


@pytest.fixture
def licensed(tmp_path):
    """A tree with vendored code, a file with a line of its own, and its task."""
    tree = tmp_path / "tree"
    (tree / "pkg" / "vendor").mkdir(parents=True)
    (tree / "pkg" / "core.py").write_text("x = 1\n")
    (tree / "pkg" / "own.py").write_text("# SPDX-License-Identifier: Apache-2.0\n")
    (tree / "pkg" / "vendor" / "LICENSE.txt").write_text("BSD 3-Clause License\n\nCopyright\n")
    (tree / "pkg" / "vendor" / "lib.py").write_text("y = 2\n")
    sources = sources_of_tree(tree, origin="pypi pkg==1", sha256="0" * 64, licence="MIT")
    world = World(trees=(Tree(source=str(tree), target="/repo"),), files={"/repo/pkg/core.py": "x = 2\n"})
    return tree, Task(id="t", prompt="", world=world, metadata={"package": "pkg", "sources": sources})


def test_every_file_has_the_licence_that_stands_nearest_to_it(licensed) -> None:
    _, task = licensed
    found = {one.path: (one.licence, one.said_by) for one in files_of(task)}
    assert found == {
        "pkg/core.py": ("MIT", "package"),
        "pkg/own.py": ("Apache-2.0", "its own SPDX line"),
        "pkg/vendor/LICENSE.txt": ("BSD 3-Clause License", "pkg/vendor/LICENSE.txt"),
        "pkg/vendor/lib.py": ("BSD 3-Clause License", "pkg/vendor/LICENSE.txt"),
        "/repo/pkg/core.py": ("MIT", "the task"),
    }
    assert problems_of(task) == []
    assert task.metadata["sources"]["files"] == 4


def test_the_check_finds_what_is_not_recorded_changed_or_without_a_licence(licensed, tmp_path) -> None:
    tree, task = licensed
    bare = task.model_copy(update={"metadata": {"package": "pkg"}})
    assert problems_of(bare) == ["where its files are from is not recorded"]
    nameless = sources_of_tree(tree, origin="x", sha256="", licence="")
    (found,) = problems_of(task.model_copy(update={"metadata": {"sources": nameless}}))
    assert "without a licence" in found
    other = {**task.metadata["sources"], "digest": "0"}
    (found,) = problems_of(task.model_copy(update={"metadata": {"sources": other}}))
    assert "not what was recorded" in found
    place = tmp_path / "tasks.jsonl"
    write_tasks([task], place)
    listed = CliRunner().invoke(tasks_command, ["licences", "--file", str(place), "--files", "--check"])
    assert listed.exit_code == 0, listed.output
    assert "Apache-2.0  pkg/own.py" in listed.stdout
    write_tasks([bare], place)
    assert CliRunner().invoke(tasks_command, ["licences", "--file", str(place), "--check"]).exit_code == 1
