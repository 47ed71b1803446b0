"""How often the right fix is listed, and that it is the answer's own syntax that counts."""

import json

import pytest
from envgym_environments.code_repair.cli import tasks_command
from envgym_environments.code_repair.reach import Gold, reach_by_operator
from envgym_environments.code_repair.taskset import write_tasks
from typer.testing import CliRunner


def with_gold(task, line, column, wrong, right, operator):
    gold = {"path": "small.py", "line": line, "column": column, "wrong": wrong, "right": right, "patch": ""}
    metadata = {**task.metadata, "gold": gold, "operator": operator, "package": "small"}
    return task.model_copy(update={"id": f"small/{operator}", "metadata": metadata})


@pytest.fixture
def tasks(broken):
    """One bug that a fix for its line undoes, one (a made-up answer) that none does."""
    return [
        with_gold(broken, 9, 15, "-=", "+=", "arithmetic"),
        with_gold(broken, 9, 15, "-= value", "+= value * value", "unheard-of"),
    ]


def test_the_right_fix_is_found_by_its_syntax(tasks):
    gold = Gold.of(tasks[0])
    assert gold.original.split("\n")[8].strip() == "result += value"
    assert gold.listed()
    assert not gold.listed(5)
    assert reach_by_operator(tasks) == {"all": 0.5, "arithmetic": 1.0, "unheard-of": 0.0}


def test_an_answer_that_does_not_fit_is_refused(tasks, broken):
    with pytest.raises(ValueError, match="no world or no 'gold'"):
        Gold.of(broken)
    with pytest.raises(ValueError, match="expected '\\+=' at line 9"):
        Gold.of(with_gold(broken, 9, 15, "+=", "-=", "arithmetic"))


def test_the_console_says_how_often_the_right_fix_is_listed(tasks, tmp_path):
    place = tmp_path / "tasks.jsonl"
    write_tasks(tasks, place)
    said = CliRunner().invoke(tasks_command, ["stats", "--file", str(place), "--fixes"]).output
    assert "in 50% of the tasks: arithmetic 100%, unheard-of 0%" in " ".join(said.split())
    shown = CliRunner().invoke(tasks_command, ["stats", "--file", str(place), "--fixes", "--json"]).output
    assert json.loads(shown)["right_fix_listed"]["all"] == 0.5


def test_the_console_says_that_an_empty_file_has_no_fixes_to_count(tmp_path):
    place = tmp_path / "tasks.jsonl"
    write_tasks([], place)
    said = CliRunner().invoke(tasks_command, ["stats", "--file", str(place), "--fixes"])
    assert said.exit_code == 0
    assert "there is no task in" in said.output
