import json
from pathlib import Path

import pytest
from envgym_environments.code_repair.cli import tasks_command
from envgym_environments.code_repair.difficulty import PassRate, pass_rates, rated
from envgym_environments.code_repair.taskset import load_tasks, write_tasks
from typer.testing import CliRunner

from envgym.env import Grade, Step, StopReason
from envgym.episode import Episode, Turn
from envgym.errors import Boundary, Failure
from envgym.messages import Action
from envgym.store import StoreWriter
from envgym.task import Task


def attempt(name: str, task: str, success: float | None, **given: object) -> Episode:
    """One that ended with a verdict, or (None) was cut off before there was one."""
    channels = {} if success is None else {"success": success}
    stop = StopReason.TURN_LIMIT if success is None else StopReason.SUBMITTED
    turn = Turn("agent", (Action.say("x").message,), Step(channels=channels, stop=stop))
    values = {"stop": stop, "provenance": (("agent", "lm"),)} | given
    return Episode(name, task, Step(), (turn,), 0, **values)  # type: ignore[arg-type]


FAILED = Failure(boundary=Boundary.GRADER, kind="GraderFailure", message="it broke", where="hard", turn=0)
EASY = [attempt(f"easy-{number}", "easy", 1.0) for number in range(4)]
HARD = [attempt("hard-0", "hard", 1.0), *(attempt(f"hard-{number}", "hard", 0.0) for number in range(1, 5))]
BROKEN = attempt("broken", "hard", 1.0, stop=None, failure=FAILED)
CUT = [attempt("cut", "never", None)]


def test_the_rate_is_of_attempts_whose_world_held() -> None:
    found = pass_rates([*EASY, *HARD, BROKEN, *CUT])
    assert found["easy"] == PassRate(4, 4, ("lm",))
    assert (found["hard"].rate, found["hard"].band) == (0.2, "hard")
    assert found["never"].band == "unsolved"
    assert PassRate(1, 2).band == "medium"


def test_a_later_grade_is_believed() -> None:
    again = HARD[1].graded(Grade(grader="code-repair", version="9", channels={"success": 1.0}))
    other = HARD[1].graded(Grade(grader="another", version="1", channels={"success": 1.0}))
    assert pass_rates([again])["hard"].rate == 1.0
    assert pass_rates([other])["hard"].rate == 0.0


def test_no_rate_is_made_of_nothing() -> None:
    for resolved, attempts in ((0, 0), (2, 1)):
        with pytest.raises(ValueError, match="at least one attempt"):
            PassRate(resolved, attempts)


def test_bounds_leave_out_what_is_outside_and_what_nobody_tried() -> None:
    tasks = [Task(id=name, prompt="") for name in ("easy", "hard", "never", "untried")]
    rates = pass_rates([*EASY, *HARD, *CUT])
    kept, left = rated(tasks, rates, attempts=1, least=0.1, most=0.9)
    assert [task.id for task in kept] == ["hard"]
    assert dict(left) == {"too easy": 1, "too hard": 1, "too few attempts": 1}
    kept, left = rated(tasks, rates, attempts=2, least=0.0, most=1.0)
    assert ["pass_rate" in task.metadata for task in kept] == [True, True, False, False]
    assert not left


def test_the_command_grades_a_file_by_stores(broken: Task, tmp_path: Path) -> None:
    file, out, store = tmp_path / "tasks.jsonl", tmp_path / "out.jsonl", tmp_path / "store"
    task = broken.model_copy(update={"metadata": broken.metadata | {"operator": "arithmetic"}})
    write_tasks([task], file)
    with StoreWriter(store) as writer:
        for number in range(3):
            writer.append(attempt(f"a-{number}", task.id, float(number == 0)))
    told = CliRunner().invoke(
        tasks_command, ["difficulty", str(store), "--file", str(file), "--out", str(out), "--json"]
    )
    assert told.exit_code == 0, told.output
    (row,) = json.loads(told.output)["operators"]
    assert row["operator"] == "arithmetic"
    assert (row["resolved"], row["attempts"], row["medium"]) == (1, 3, 1)
    (again,) = load_tasks(out)
    assert again.metadata["pass_rate"] == {"resolved": 1, "attempts": 3, "solvers": ["lm"], "band": "medium"}
    plain = CliRunner().invoke(tasks_command, ["difficulty", str(store), "--file", str(file), "--least", "0.5"])
    assert "arithmetic: 1 of 3 attempts (1 medium)" in plain.output
    assert "left out: 1 too hard" in plain.output
