import pytest
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.kinds.debugging import EXPLANATION, explained, program_of
from envgym_environments.code_repair.patch import parse_patch

pytestmark = pytest.mark.timeout(300)

TESTS = """import unittest
import pytest


def test_a():
    assert 1


@pytest.fixture
def f():
    return 1


def test_b(f):
    assert f


class TestC(unittest.TestCase):
    def setUp(self):
        self.x = 1

    def test_d(self):
        self.assertEqual(self.x, 1)
"""


def test_a_test_becomes_a_program_of_its_own() -> None:
    assert program_of(TESTS, "t.py::test_a").endswith('if __name__ == "__main__":\n    test_a()\n')
    assert "TestC('test_d').debug()" in program_of(TESTS, "t.py::TestC::test_d")
    assert "def test_a" not in program_of(TESTS, "t.py::TestC::test_d")
    assert program_of(TESTS, "t.py::test_b") == "", "it needs a fixture"


def test_an_explanation_names_function_file_and_line() -> None:
    goal = {"function": "Box.put", "path": "shelf/box.py", "line": "if a  >= b:"}
    assert explained(goal, "put in shelf/box.py compares: if a >= b:") == 1.0
    assert explained(goal, "put is wrong") == pytest.approx(1 / 3)
    assert explained(goal, "the output is wrong") == 0.0
    assert explained(goal, None) == 0.0
    assert explained(goal, "put in shelf/box.py: if a >= b:" + "x" * 900) == 0.0


@pytest.mark.namespaces
@pytest.mark.slow
def test_a_failing_program_is_repaired_and_the_explanation_counts_only_then(
    made_of_shelf, keeps_the_contract, in_backend
) -> None:
    async def body(backend) -> None:
        tasks, _ = await made_of_shelf(backend, "debug")
        await keeps_the_contract(backend, tasks)
        (task,) = tasks
        gold = task.metadata["gold"]["patch"]
        assert {part.path for part in parse_patch(gold)} == {task.metadata["goal"]["path"], EXPLANATION}
        async with await backend.create(task.world) as sandbox:
            failed = await sandbox.exec("python3 failing_program.py", timeout_s=60)
            assert failed.exit_code == 1
            for path in task.metadata["withheld"]:
                assert await sandbox.read(path) == b""
        at = gold.index(f"--- /dev/null\n+++ b/{EXPLANATION}")
        cut = gold.find("--- a/", at + 1)
        note, fix = gold[at:cut] if cut > 0 else gold[at:], gold[:at] + (gold[cut:] if cut > 0 else "")
        grader = CodeRepairGrader(backend)
        only_note = (await grader.grade(task, note)).channels
        only_fix = (await grader.grade(task, fix)).channels
        assert (only_note["reward"], only_note["explained"]) == (0.0, 0.0)
        assert (only_fix["reward"], only_fix["resolved"], only_fix["explained"]) == (0.8, 1.0, 0.0)

    in_backend(body)
