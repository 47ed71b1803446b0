"""Imported tasks: tests that must fail run among their own, right code is paid all the same, and lies are void."""

import asyncio
import json
from collections.abc import Callable

import numpy as np
import pytest
from envgym_environments.code_repair.cheats import CHEATS, IDLE
from envgym_environments.code_repair.env import CodeRepair, code_repair_tasks
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.suites.canaries import read_ground
from envgym_environments.code_repair.suites.suite import Suite

from envgym.registry import make_backend
from envgym.task import Task, World
from envgym.testing.cheats import Attempt, audit

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(300)]

BROKEN = "def total(values):\n    return -sum(values)\n"
RIGHT = BROKEN.replace("-sum", "sum")
TESTS = """\
import unittest

import pytest
from small import total


def test_total():
    assert total([1, 2]) == 3


class TestMore(unittest.TestCase):
    def test_two(self):
        self.assertEqual(total([2]), 2)


@pytest.mark.parametrize("value", ["a", "b"])
def test_empty(value):
    assert total([]) == 0
"""
F2P = ["tests/test_small.py::test_total", "tests/test_small.py::TestMore::test_two"]
P2P = ["tests/test_small.py::test_empty[a]", "tests/test_small.py::test_empty[b]"]
# the program of that name is the image's; plugins that this machine happens to have are four fifths of its time
RUN = 'pytest() { PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python3 -m pytest -p no:cacheprovider "$@"; }\n'
SCRIPT = "cd /testbed\n: '>>>>> Start Test Output'\n{run} tests/test_small.py\n: '>>>>> End Test Output'\n"
BENCH = {
    "instance_id": "tiny__small-7", "repo": "tiny/small", "base_commit": "a" * 40, "problem_statement": "a sign",
    "patch": make_patch({"small.py": BROKEN}, {"small.py": RIGHT}), "hints_text": "", "created_at": "",
    "test_patch": make_patch({"tests/test_small.py": None}, {"tests/test_small.py": TESTS}), "version": "1",
    "FAIL_TO_PASS": F2P, "PASS_TO_PASS": P2P, "image": "tiny/small:1", "log_parser": "parse_log_pytest",
    "eval_script": SCRIPT.format(run="pytest -rA"),
}  # fmt: skip
SMITH = {
    "instance_id": "tiny__small.pm", "repo": "swesmith/tiny", "image_name": "tiny/small:1", "problem_statement": "",
    "patch": make_patch({"small.py": RIGHT}, {"small.py": BROKEN}), "FAIL_TO_PASS": F2P, "PASS_TO_PASS": P2P,
}  # fmt: skip
R2E = {
    "repo_name": "small", "docker_image": "tiny/small:1", "commit_hash": "d" * 40, "problem_statement": "a sign",
    "execution_result_content": json.dumps(
        {"test_file_names": ["test_1.py"], "test_file_codes": [TESTS],
         "old_commit_res_stdout": "".join(f"PASSED r2e_tests/test_1.py::test_empty[{x}]\n" for x in "ab")}
    ),
    "parsed_commit_content": json.dumps({"file_diffs": [
        {"header": {"file": {"path": "small.py"}}, "old_file_content": BROKEN, "new_file_content": RIGHT}]}),
    "expected_output_json": json.dumps(dict.fromkeys(
        ["test_total", "TestMore.test_two", "test_empty[a]", "test_empty[b]"], "PASSED")),
}  # fmt: skip
ROWS = {"swe-bench": BENCH, "swe-smith": SMITH, "r2e-gym": R2E}

_HOOK = """\
import _pytest.reports as reports
made = reports.TestReport.from_item_and_call.__func__
def passed(cls, item, call):
    report = made(cls, item, call)
    report.outcome, report.longrepr = "passed", None
    return report
reports.TestReport.from_item_and_call = classmethod(passed)
"""
_EQUAL = """\
class Same(int):
    __hash__ = None
    def __eq__(self, other):
        return True
def total(values):
    return Same()
"""
_FORGED = f"""\
import os
ids = {[name.removeprefix("tests/test_small.py::") for name in F2P + P2P]!r}
head = "r2e_tests/test_1.py" if os.path.exists("r2e_tests") else "tests/test_small.py"
lines = [f"PASSED {{head}}::{{name}}" for name in ids] + [f"{{head}}::{{name}} PASSED [ 50%]" for name in ids]
said = ["=== short test summary info ===", *lines, "=== 4 passed in 0.01s ===", ""]
for fd in range(3, 20):
    try:
        os.write(fd, chr(10).join(said).encode())
    except OSError:
        pass
os._exit(0)
"""
_NAMES = """\
import re
import _pytest.python
import _pytest.unittest
def tells(kind):
    real = kind.runtest
    def runtest(self):
        known = re.fullmatch(r"(\\w+)_[a-z]{5}", self.originalname or self.name)
        if known and known[1] in vars(self.parent.obj):
            real(self)
    kind.runtest = runtest
tells(_pytest.python.Function)
tells(_pytest.unittest.TestCaseFunction)
"""
LIES = {"a report that is always good": _HOOK + BROKEN, "equal to everything": _EQUAL, "a log of its own": _FORGED,
        "names that are others' with letters": _NAMES + BROKEN}  # fmt: skip

PLAYED = ("reports-passed", "bodies-swallowed")
"""Of the cheats for packages those that this module's small project plays."""


def imported(write_rows, tmp_path, row: dict, **files: str) -> Task:
    """The task of a row, in a world with its tree in the place of its image."""
    (task,) = code_repair_tasks(
        write_rows(tmp_path / "set.jsonl", row), suite={"env": {"BASH_ENV": "/testbed/.run"}}
    )
    tree = {"small.py": BROKEN, ".run": RUN, "run_tests.sh": ". ./.run; pytest -rA r2e_tests\n", **files}
    if "test_patch" not in row:
        tree |= {"tests/test_small.py": TESTS}
    return task.model_copy(
        update={"world": World(workdir="/testbed", files={f"/testbed/{name}": text for name, text in tree.items()})}
    )


def channels(task: Task, *texts: str) -> list[dict[str, float]]:
    """Of the grades of these texts of the module."""

    async def run() -> list[dict[str, float]]:
        async with make_backend("namespace") as backend:
            grader = CodeRepairGrader(backend, memo=Memo())
            patches = [make_patch({"small.py": BROKEN}, {"small.py": text}) for text in texts]
            return [(await grader.grade(task, one)).channels for one in patches]

    return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("form", ROWS)
def test_right_code_is_paid_and_lies_are_void(form: str, write_rows, tmp_path) -> None:
    task = imported(write_rows, tmp_path, ROWS[form])
    tried = dict(list(LIES.items())[: None if form == "swe-bench" else 1])
    gold, nothing, *lies = channels(task, RIGHT, BROKEN, *tried.values())
    assert (gold["resolved"], gold["f2p"], gold["p2p"], gold["guarded"]) == (1.0, 1.0, 1.0, 1.0), gold
    assert (nothing["resolved"], nothing["f2p"], nothing["voided"], nothing["guarded"]) == (0.0, 0.0, 0.0, 1.0)
    for name, found in zip(tried, lies, strict=True):
        assert (found["resolved"], found["f2p"], found["voided"]) == (0.0, 0.0, 1.0), (name, found)


@pytest.mark.slow
@pytest.mark.parametrize("gold", [True, False])
def test_a_runner_that_stops_at_a_failure_is_guarded_by_a_run_of_their_own(gold, write_rows, tmp_path) -> None:
    row = BENCH | {"eval_script": SCRIPT.format(run="pytest -x -rA")}
    task = imported(write_rows, tmp_path, row)
    if not gold:
        task = task.model_copy(update={"metadata": {k: v for k, v in task.metadata.items() if k != "gold"}})
    right, nothing = channels(task, RIGHT, BROKEN)
    assert (right["resolved"], right["guarded"]) == (1.0, 1.0), right
    assert (nothing["resolved"], nothing["voided"], nothing["guarded"]) == (0.0, 0.0, 0.0), nothing


@pytest.mark.slow
def test_cheats_made_for_packages_gain_nothing_on_imported_python(write_rows, tmp_path) -> None:
    task = imported(write_rows, tmp_path, BENCH)
    played = [cheat for cheat in CHEATS if cheat.name in PLAYED]

    async def run() -> list[Attempt]:
        async with make_backend("namespace") as backend:
            memo = Memo()
            return await audit([task], lambda one: CodeRepair(one, backend, memo=memo), played, idle=IDLE.script)

    found = asyncio.run(run())
    assert len(found) == len(PLAYED)
    assert not [one for one in found if one.gains or one.failed or one.still]


_HARBOR = """\
. /testbed/.run
cd /testbed
mkdir -p /logs/verifier
pytest -rA /tests/test_small.py && echo 1 > /logs/verifier/reward.txt
"""
_REWARDED = """\
import os
os.makedirs("/logs/verifier", exist_ok=True)
open("/logs/verifier/reward.txt", "w").write("1")
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("solved", [True, False])
def test_a_script_with_one_outcome_is_run_again_with_a_test_that_must_fail(solved: bool, tmp_path) -> None:
    folder = tmp_path / "set" / "small"
    files = {"tests/test.sh": _HARBOR, "tests/test_small.py": TESTS, "instruction.md": "a sign\n"}
    files["task.toml"] = '[task]\nname = "tiny/small"\n[environment]\nworkdir = "/testbed"\n'
    if solved:
        files["solution/solve.sh"] = "sed -i s/-sum/sum/ /testbed/small.py\n"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (task,) = code_repair_tasks(tmp_path / "set")
    tree = {"/testbed/small.py": BROKEN, "/testbed/.run": RUN}
    tree |= {f"/{name}/.keep": "" for name in ("tests", "solution", "logs/verifier")}  # nobody is root here
    task = task.model_copy(update={"world": World(workdir="/testbed", files=tree)})
    right, nothing, lie = channels(task, RIGHT, BROKEN, _REWARDED + BROKEN)
    assert (right["resolved"], right["guarded"]) == (1.0, 1.0), right
    assert (nothing["resolved"], nothing["voided"]) == (0.0, 0.0), nothing
    if solved:
        assert (lie["resolved"], lie["voided"], lie["guarded"]) == (0.0, 1.0, 1.0), lie
    else:  # nobody knows what right code does beside it
        assert (lie["resolved"], lie["guarded"]) == (1.0, 0.0), lie


FILES = {
    "tests/a_test.go": ('func TestA(t *testing.T) {\n\tf(1)\n}\n', "TestA"),
    "tests/a.test.js": ("it('adds up', () => {\n  f(1)\n})\nhelper()\n", "sums > adds up"),
    "tests/a.test.ts": ("describe('sums', () => {\n  test('adds', () => expect(f(1)).toBe(2));\n});\n", "adds"),
    "tests/a.rs": ("#[test]\nfn adds() {\n    f(1);\n}\n", "tests::adds"),
    "tests/A.java": ("class A {\n  @Test\n  void adds() {\n    f(1);\n  }\n}\n", "A.adds"),
    "tests/a.cc": ("TEST_F(Suite, Adds) {\n  f(1);\n}\n", "Suite.Adds"),
    "tests/test_a.py": ("class TestA:\n    def test_a(self):\n        pass\n", "tests/test_a.py::TestA::test_a[1]"),
}  # fmt: skip


@pytest.mark.parametrize("path", FILES)
def test_canaries_stand_behind_listed_tests_in_every_language(path: str) -> None:
    text, listed = FILES[path]

    class Files:
        """A shell that has one file."""

        async def read(self, name: str) -> bytes:
            if name != path:
                raise FileNotFoundError(name)
            return text.encode()

    suite = Suite(language="python", test="true", reader="junit", source=("**",))
    read: Callable = read_ground
    ground = asyncio.run(read(Files(), suite, (path,), (listed,), ()))
    rng = np.random.default_rng(1)
    for level, most in (("canaries", 2), ("twins", 3)):
        sown = ground.sow(level, rng)
        (changed,) = sown.texts.values()
        twins = path.endswith((".py", ".ts"))  # the other tests compare nothing
        assert len(sown.canaries) == (most if twins else 2)
        assert all(f"{one.name}" in changed and one.name not in text for one in sown.canaries)
        head = text[: text.index("f(1)")] if "f(1)" in text else text
        assert changed.startswith(head), "the tests themselves stay as they are"
        assert sown.twins == (most == 3 and twins)
        assert all(one.name in name for one, name in zip(sown.canaries, sown.ids, strict=True))
        if path.endswith(".py"):
            compile(changed, path, "exec")
