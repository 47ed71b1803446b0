import pytest
from envgym_environments.code_repair.certify import certificate_of
from envgym_environments.code_repair.cli import tasks_command
from envgym_environments.code_repair.factory import Plan
from envgym_environments.code_repair.judge import Verdict
from envgym_environments.code_repair.kinds.build import certify_task, graded_again
from envgym_environments.code_repair.kinds.expert import gold_actions
from envgym_environments.code_repair.taskset import build_tasks, default_path, load_tasks, load_yields, write_tasks
from typer.testing import CliRunner

from envgym.registry import find


def test_the_command_names_the_kinds_there_are() -> None:
    done = CliRunner().invoke(tasks_command, ["build", "--kind", "songs"], env={"COLUMNS": "300", "NO_COLOR": "1"})
    assert done.exit_code == 2
    assert "known: class, tests, refactor, debug, speed, ml" in done.output
    done = CliRunner().invoke(
        tasks_command,
        ["build", "--kind", "class", "--language", "go", "--certify"],
        env={"COLUMNS": "300", "NO_COLOR": "1"},
    )
    assert done.exit_code == 2
    assert "--kind" in done.output
    assert "--certify" not in done.output, "suites of other languages are certified too"


def test_programs_that_learn_are_made_of_packages_that_are_built_in(tmp_path) -> None:
    wide = {"COLUMNS": "300", "NO_COLOR": "1"}
    for more in (["--source", str(tmp_path)], ["--package", "toolz"]):
        done = CliRunner().invoke(tasks_command, ["build", "--kind", "ml", *more], env=wide)
        assert done.exit_code == 2
        assert "built in" in done.output or "ml-series" in done.output


def test_each_kind_has_a_file_of_its_own(tmp_path) -> None:
    assert default_path(tmp_path, "class") == tmp_path / "tasks-class.jsonl"
    assert default_path(tmp_path) == tmp_path / "tasks.jsonl"


@pytest.mark.namespaces
@pytest.mark.timeout(300)
def test_a_build_of_a_kind_is_stored_with_its_yield_and_can_be_played(
    shelf, shelf_cache, tmp_path, in_backend
) -> None:
    async def body(backend) -> None:
        plan = Plan(kind="class", per_package=1, seed=3)
        place = tmp_path / "built.jsonl"
        built = await build_tasks([shelf], backend, plan=plan, path=place, cache=shelf_cache)
        assert not built.failed
        (task,) = load_tasks(place, cache=shelf_cache)
        assert (task.split, task.seed) == (shelf.split, 3)
        assert load_yields(place)["shelf"].tasks == 1
        assert certificate_of(task).gold == {"graded": (2, 2)}
        assert find("agents", "gold")(task, seed=0)
        changed = {**task.metadata, "goal": {"other": 1}}
        with pytest.raises(ValueError, match="changed afterwards"):
            certificate_of(task.model_copy(update={"metadata": changed}))

    in_backend(body)


@pytest.mark.namespaces
@pytest.mark.timeout(300)
def test_a_task_whose_answer_does_not_score_full_gets_no_certificate(broken, in_backend) -> None:
    wrong = '--- a/small.py\n+++ b/small.py\n@@ -1,1 +1,1 @@\n-"""Small sums."""\n+"""Sums."""\n'
    task = broken.model_copy(update={"metadata": {**broken.metadata, "gold": {"patch": wrong}}})

    async def body(backend) -> None:
        assert await certify_task(task, backend, runs=1) is Verdict.NOT_RESTORED
        assert await graded_again(task, backend) == "the answer does not get the full reward"

    in_backend(body)


def test_the_gold_agent_needs_an_answer(broken) -> None:
    with pytest.raises(ValueError, match="has no answer"):
        gold_actions(broken)


def test_what_other_tools_cannot_say_is_not_exported(broken, tmp_path) -> None:
    task = broken.model_copy(update={"metadata": {**broken.metadata, "kind": "refactor"}})
    place = tmp_path / "set.jsonl"
    write_tasks([task], place)
    done = CliRunner().invoke(
        tasks_command, ["export", str(place), "--format", "swe-bench", "--out", str(tmp_path / "out.jsonl")]
    )
    assert isinstance(done.exception, ValueError)
    assert "of the kind 'refactor'" in str(done.exception)
