import asyncio
import random
from typing import Any

import pytest
from envgym_environments.code_repair.disguise import make_disguise
from envgym_environments.code_repair.twins import make_twins
from hypothesis import given
from hypothesis import strategies as st

TEXT = """
import unittest

def helper(x):
    return x

def test_number():
    assert helper(3) == 3

def test_list():
    value = helper([1, "a"])
    assert value == [1, "a"]

def test_names():
    expected = helper(4)
    assert helper(4) == expected

def test_truth():
    assert helper(1)

class TestCase(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(helper({"a": None}), {"a": None})

    def test_other(self):
        self.fail("not wanted")
"""
NAMES = [
    f"t.py::{name}" for name in ("test_number", "test_list", "test_names", "test_truth", "TestCase::test_equal")
]


class Same:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def failures(seed: int, value: object = None) -> dict[str, str]:
    """What each twin says, with a helper that gives `value` or, by default, is honest."""
    twins = make_twins(NAMES, {"t.py": TEXT}.get, chance=random.Random(seed))
    assert twins is not None
    space: dict[str, object] = {}
    exec(twins.files["t.py"], space)
    if value is not None:
        space["helper"] = lambda x: value
    said: dict[str, str] = {}
    for name in twins.held:
        parts = name.split("::")[1:]
        function = space[parts[0]]
        run = getattr(function(parts[1]), parts[1]) if len(parts) > 1 else function  # type: ignore[operator]
        with pytest.raises(AssertionError) as caught:
            run()  # type: ignore[operator]
        said[name] = "held" if twins.held[name] in str(caught.value) else str(caught.value)
    return said


@given(st.integers(0, 2**32))
def test_a_twin_of_honest_code_fails_and_says_that_nothing_wrong_held(seed: int) -> None:
    said = failures(seed)
    assert set(said) == set(NAMES)
    assert set(said.values()) <= {"no", "end"}


@given(st.integers(0, 2**32))
def test_what_equals_everything_is_found_wherever_something_is_compared(seed: int) -> None:
    said = failures(seed, Same())
    assert [name for name, word in said.items() if word != "held"] == ["t.py::test_truth"]


def test_tests_that_are_not_in_the_file_have_no_twin() -> None:
    assert make_twins(["t.py::test_none"], {"t.py": TEXT}.get) is None
    assert make_twins(["u.py::test_number"], {"t.py": TEXT}.get) is None
    assert make_twins(["t.py::test_number"], {"t.py": "def test_number(:"}.get) is None


VALUES = [3, "a", 2.5, b"a", [1], (1,), {"a": 1}, {1}]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_what_equals_everything_of_its_own_kind_is_found_where_no_kind_is_written(value: object) -> None:
    kind = type(value)
    alike = {"__eq__": lambda self, other: isinstance(other, kind), "__hash__": lambda self: 1}
    said = failures(5, type("Alike", (kind,), alike)(value))  # type: ignore[call-overload]
    assert said["t.py::test_names"] == "held"


def test_twins_that_wait_or_return_early_fail_at_their_end_and_expected_failures_have_none() -> None:
    text = (
        "import asyncio\nimport pytest\n\nasync def test_waits():\n    await asyncio.sleep(0)\n\n"
        "def test_returns():\n    def inner():\n        return 3\n    if inner() == 3:\n        return\n\n"
        "@pytest.mark.xfail\ndef test_may_fail():\n    pass\n"
    )
    twins = make_twins(
        [f"t.py::{name}" for name in ("test_waits", "test_returns", "test_may_fail")], {"t.py": text}.get
    )
    assert twins is not None
    assert set(twins.held) == {"t.py::test_waits", "t.py::test_returns"}
    space: dict[str, Any] = {}
    exec(compile(twins.files["t.py"], "t.py", "exec"), space)
    with pytest.raises(AssertionError, match=r"^end$"):
        space["test_returns"]()
    with pytest.raises(AssertionError, match=r"^end$"):
        asyncio.run(space["test_waits"]())


def test_a_function_whose_name_is_then_given_to_something_else_has_neither_twin_nor_disguise() -> None:
    text = (
        "def test_one():\n    assert 1 == 1\n\nif True:\n    from other import test_one\n\n"
        "class Cases:\n    def test_two(self):\n        assert 2 == 2\n    test_two = made(test_two)\n\n"
        "def test_three():\n    assert 3 == 3\n"
    )
    names = ["t.py::test_one", "t.py::Cases::test_two", "t.py::test_three"]
    twins = make_twins(names, {"t.py": text}.get)
    assert twins is not None
    assert set(twins.held) == {"t.py::test_three"}
    assert set(make_disguise(names, {"t.py": text}.get).words) == {"t.py::test_three"}


def test_a_test_that_is_inherited_in_its_file_has_a_twin_where_it_is_written() -> None:
    text = (
        "class Base:\n    def test_it(self):\n        assert 1 + 1 == 2\n\n"
        "class One(Base):\n    pass\n\nclass Two(Base):\n    pass\n\nBase = None\n"
    )
    twins = make_twins(["t.py::One::test_it", "t.py::Two::test_it"], {"t.py": text.replace("Base = None", "")}.get)
    assert twins is not None
    assert set(twins.held) == {"t.py::One::test_it", "t.py::Two::test_it"}
    assert len(set(twins.held.values())) == 1
    assert "'end'" in twins.files["t.py"]
    assert make_twins(["t.py::Base::test_it"], {"t.py": text}.get) is None


def test_a_fixture_that_is_called_as_a_test_is_kept_beside_twins_and_disguises() -> None:
    text = (
        "import pytest\n\n@pytest.fixture(params=[1, 2])\ndef test_number(request):\n    return request.param\n\n"
        "def test_it(test_number):\n    assert test_number == test_number\n\ndef test_other():\n    assert 1 == 1\n"
    )
    twins = make_twins(["t.py::test_it[1]"], {"t.py": text}.get)
    assert twins is not None
    disguise = make_disguise(["t.py::test_it[1]"], {"t.py": text}.get)
    for made in (twins.files["t.py"], disguise.files["t.py"]):
        assert "def test_number(request)" in made
        assert "test_other" not in made


def test_twins_look_at_a_few_comparisons_of_a_few_tests_or_at_all_of_all() -> None:
    """One of nine values equals everything: a look at a few finds it now and then, one at all of them always."""
    lines = "".join(f"    assert f({number}) == {number}\n" for number in range(9))
    text = "".join(f"@twice\ndef test_{number}():\n{lines}\n" for number in range(70))
    names = [f"t.py::test_{number}" for number in range(70)]

    def found(sites: dict[str, None]) -> tuple[int, int]:
        twins = make_twins(names, {"t.py": text}.get, chance=random.Random(3), **sites)
        assert twins is not None
        values: dict[str, Any] = {"twice": lambda test: test, "f": lambda number: Same() if number == 7 else number}
        exec(twins.files["t.py"], values)
        held = 0
        for name, word in twins.held.items():
            with pytest.raises(AssertionError) as caught:
                values[name.partition("::")[2]]()
            held += word in str(caught.value)
        return len(twins.held), held

    tests, held = found({})
    assert tests == 64
    assert 10 < held < 50
    assert found({"sites": None}) == (70, 70)
