"""Conditions reach the tests, and what they bring to light is named."""

import time

import pytest
from envgym_environments.code_repair.baseline import measure, package_world
from envgym_environments.code_repair.conditions import Condition, clock_library, disagreeing, run_under
from envgym_environments.code_repair.runner import Layout, TestReport
from envgym_environments.code_repair.sources import Package

TELLING = """import os, time

SEEN = []

def test_a():
    SEEN.append("a")
    raise ValueError(f"{hash('text')} {time.strftime('%z')} {int(time.time())} {os.environ.get('PYTHONHASHSEED')}")

def test_b():
    SEEN.append("b")

def test_c():
    SEEN.append("c")

def test_d():
    SEEN.append("d")
"""

FRAGILE = """from small import clamp

DONE = []

def test_first():
    DONE.append(1)
    assert clamp(1, 0, 2) == 1

def test_needs_the_first():
    assert DONE == [1]

def test_needs_utc():
    import time
    assert time.strftime("%z") == "+0000"
""" + "".join(
    f"\ndef test_plain_{index}():\n    DONE.append({index})\n    assert clamp({index}, 0, 2) <= 2\n"
    for index in range(12)
)


def report(**outcomes) -> TestReport:
    return TestReport(outcomes=outcomes, errors={name: "why" for name, one in outcomes.items() if one == "failed"})


def test_what_disagrees_is_named_with_the_condition_and_the_error() -> None:
    runs = [("plain", report(a="passed", b="failed")), ("odd", report(a="failed", b="failed"))]
    assert disagreeing(runs, ["a", "b"]) == {"a": "failed under 'odd', passed before: why"}
    assert disagreeing(runs, ["b"]) == {}
    assert disagreeing(runs[:1], ["a", "c"]) == {}


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(120)
def test_every_condition_reaches_the_tests(tmp_path, in_backend) -> None:
    tree = tmp_path / "tree"
    (tree / "tests").mkdir(parents=True)
    (tree / "small.py").write_text("x = 1\n")
    (tree / "tests" / "test_telling.py").write_text(TELLING)
    layout = Layout(package="small.py", tests=("tests/test_telling.py",))
    telling = "tests/test_telling.py::test_a"
    found = {}

    async def body(backend) -> None:
        async with await backend.create(package_world(tree)) as sandbox:
            for condition in (
                Condition("plain"),
                Condition("order", order=1),
                Condition("reversed", order=1, reverse=True),
                Condition("hash", hash_seed=5),
                Condition("zone", zone="NPT-5:45"),
                Condition("date", later_s=400 * 86_400),
                Condition("busy", busy=2),
            ):
                found[condition.name] = await run_under(sandbox, layout, condition)

    in_backend(body)
    told = {name: one.errors[telling].split()[1:] for name, one in found.items()}
    assert list(found["plain"].outcomes) == [f"tests/test_telling.py::test_{name}" for name in "abcd"]
    assert set(found["order"].outcomes) == set(found["plain"].outcomes)
    assert list(found["order"].outcomes) != list(found["plain"].outcomes)
    assert list(found["reversed"].outcomes) == list(found["order"].outcomes)[::-1]
    assert told["hash"][0] != told["plain"][0]
    assert (told["plain"][1], told["zone"][1]) == ("+0000", "+0545")
    assert told["busy"][:2] == told["plain"][:2]
    later = int(told["date"][2]) - time.time()
    if clock_library():
        assert abs(later - 400 * 86_400) < 600
    else:
        assert abs(later) < 600


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(120)
def test_tests_that_depend_on_order_or_zone_are_quarantined_with_the_reason(small, tmp_path, in_backend) -> None:
    tree = tmp_path / "tree"
    (tree / "tests").mkdir(parents=True)
    (tree / "small.py").write_text("def clamp(value, low, high):\n    return max(low, min(value, high))\n")
    (tree / "tests" / "test_small.py").write_text(FRAGILE)
    layout = Layout(package="small.py", tests=("tests/test_small.py",))
    package: Package = small
    conditions = (
        Condition("shuffled order", order=1),
        Condition("that order reversed", order=1, reverse=True, hash_seed=3),
        Condition("other time zone", zone="NPT-5:45"),
    )
    found = []

    async def body(backend) -> None:
        async with await backend.create(package_world(tree)) as sandbox:
            found.append(await measure(sandbox, package, layout, conditions=conditions))

    in_backend(body)
    (baseline,) = found
    lost = {name.rpartition("::")[2]: why for name, why in baseline.quarantined.items()}
    assert set(lost) == {"test_needs_the_first", "test_needs_utc"}
    assert "order" in lost["test_needs_the_first"]
    assert "other time zone" in lost["test_needs_utc"]
    assert set(baseline.quarantined) <= set(baseline.layout.deselect)
    assert not set(baseline.quarantined) & set(baseline.tests)
    assert [name for name, _ in baseline.runs] == ["traced", "plain", "plain", *(one.name for one in conditions)]
    assert all(fine for _, fine in baseline.runs)
