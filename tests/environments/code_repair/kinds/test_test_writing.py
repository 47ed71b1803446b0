import ast
from pathlib import Path
from random import Random

import pytest
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.kinds.disguise import disguised
from envgym_environments.code_repair.kinds.static_quality import METRICS, forbidden, static_quality
from envgym_environments.code_repair.kinds.test_writing import own_tests
from envgym_environments.code_repair.kinds.written_tests import States, blocks, function_at, probed, try_tests
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.trials import Trials

pytestmark = pytest.mark.timeout(400)

CODE = """
def f(values, start=0):
    '''Doc.'''
    total = start
    seen = []
    for value in values:
        if value is None:
            continue
        try:
            total += value
        except TypeError as wrong:
            seen.append(str(wrong)[:0])
    rest = [value for value in seen]
    def inner():
        return seen + rest
    return total, inner()
"""


@pytest.mark.parametrize("seed", range(8))
def test_a_disguise_looks_different_and_does_the_same(seed) -> None:
    text = disguised(CODE, Random(seed))
    assert text != disguised(CODE, Random(seed + 100))
    assert "total_" in text, "locals are renamed"
    assert "start_" not in text, "arguments are not"
    before, after = {}, {}
    exec(CODE, before)
    exec(text, after)
    for values in ([], [1, None, 2], ["a", 3]):
        assert before["f"](values, start=1) == after["f"](values, start=1)
    assert after["f"].__doc__ == "Doc."


def test_a_function_that_looks_at_its_own_names_keeps_them() -> None:
    assert "x_" not in disguised("def f():\n    x = 1\n    return locals()\n", Random(1))


def test_static_quality_counts_each_fault_by_itself() -> None:
    good = "def test_f_adds():\n    assert f(1) == 2\n"
    assert static_quality(good, "m.f") == dict.fromkeys(METRICS, 1.0)
    bad = (
        "def test_f_adds():\n    assert f(1) == 2\n    assert f(1) == 2\n\n"
        "def test():\n    for x in (1, 2):\n        print(g(x))\n"
    )
    said = static_quality(bad, "f")
    assert said == {
        "asserts": 0.5,
        "calls_focal": 0.5,
        "distinct_asserts": 0.5,
        "no_branches": 0.5,
        "no_prints": 0.5,
        "described": 0.5,
    }
    assert set(static_quality("def (", "f").values()) == {0.0}
    assert set(static_quality("x = 1", "f").values()) == {0.0}


@pytest.mark.parametrize(
    "line",
    [
        "import inspect",
        "from os import path",
        "import importlib.util as u",
        "x = f.__code__",
        "x = open('a')",
        "x = getattr(f, '__globals__')",
        "x = box.sys",
        "def test_x(request): pass",
        "def pytest_runtest_call(item): pass",
        "x = __file__",
    ],
)
def test_tests_that_look_at_code_and_not_at_behaviour_are_named(line) -> None:
    assert forbidden(ast.parse(line))
    assert not forbidden(
        ast.parse("import pytest\nfrom shelf import box\ndef test_a():\n    assert box.f().__len__()")
    )


def test_own_tests_are_those_that_are_named() -> None:
    text = "import a\ndef test_x(): pass\ndef test_y(): pass\nclass TestZ:\n    n = 1\n"
    text += "    def test_p(self): pass\n    def test_q(self): pass\n"
    kept = own_tests(text, ["t.py::test_y[1]", "t.py::TestZ::test_q"])
    assert [word in kept for word in ("test_y", "test_q", "import a", "n = 1")] == [True] * 4
    assert [word in kept for word in ("test_x", "test_p")] == [False] * 2


def test_a_probe_raises_where_its_block_begins() -> None:
    function = function_at(ast.parse(CODE), "f")
    assert len(blocks(function)) >= 4
    space = {}
    exec(probed(CODE, "f", 0), space)
    with pytest.raises(RuntimeError, match="reached"):
        space["f"]([])


@pytest.mark.namespaces
@pytest.mark.slow
def test_tests_are_asked_for_graded_and_not_gained_by_tricks(made_of_shelf, keeps_the_contract, in_backend) -> None:
    async def body(backend) -> None:
        tasks, counts = await made_of_shelf(backend, "tests")
        assert counts.tasks == 2
        await keeps_the_contract(backend, tasks)
        task, grader = tasks[0], CodeRepairGrader(backend, memo=Memo())
        goal = task.metadata["goal"]
        target, module = goal["target"], goal["path"].removesuffix(".py").replace("/", ".")
        head = f"import pytest\nimport {module}\n"

        async def graded(text: str) -> dict[str, float]:
            return (await grader.grade(task, make_patch({target: None}, {target: text}))).channels

        gold = (await grader.grade(task, task.metadata["gold"]["patch"])).channels
        assert (gold["reward"], gold["killed"], gold["coverage"], gold["valid"]) == (1.0, 1.0, 1.0, 1.0)
        nothing = await graded(f"{head}def test_nothing_at_all():\n    assert {module}\n")
        assert (nothing["valid"], nothing["reward"], nothing["killed"]) == (1.0, 0.0, 0.0)
        for text in ("def test_x():\n    assert False\n", "x = 1\n", "raise SystemExit(0)\n"):
            assert (await graded(head + text))["reward"] == 0.0
        looks = await graded(f"{head}import inspect\ndef test_x():\n    assert inspect.getsource({module})\n")
        assert looks["voided"] == 1.0
        assert (await graded("def ("))["malformed"] == 1.0
        elsewhere = make_patch({"tests/test_other.py": None}, {"tests/test_other.py": "def test_x(): assert 0\n"})
        other = (await grader.grade(task, elsewhere)).channels
        assert (other["reward"], other["stripped"]) == (0.0, 1.0)

    in_backend(body)


@pytest.mark.namespaces
def test_tests_that_know_the_text_of_the_code_fail_on_its_disguises(broken, in_backend) -> None:
    tree = Path(broken.world.trees[0].source)
    source = (tree / "small.py").read_text()
    knows = "import small\ndef test_it():\n    assert 'result -= value' in open(small.__file__).read()\n"
    honest = "import small\ndef test_it():\n    assert small.total([1, None, 2]) == -3\n"
    mutant = source.replace("result = start", "result = start + 1")
    states = States("small.py", source, (mutant,), (probed(source, "total", 0),))

    async def body(backend) -> None:
        trials = Trials(broken, backend, Memo())
        found = await try_tests(trials, "tests/test_new.py", knows, states)
        assert not found.valid
        found = await try_tests(trials, "tests/test_new.py", honest, states)
        assert (found.valid, found.mutants, found.probes) == (True, (True,), (True,))

    in_backend(body)
