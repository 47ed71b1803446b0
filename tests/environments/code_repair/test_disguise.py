"""Disguised tests: they do all that their tests do, and fail with a word that only doing it gives."""

import asyncio
import random
import sys
from typing import Any

import pytest
from envgym_environments.code_repair.disguise import Disguise, make_disguise

TEXT = """
import unittest
from unittest import mock

LOG = []

def helper():
    return test_used()

def test_used():
    return 4

def test_equal(value=3):
    LOG.append("first")
    assert value == 3, "not three"
    LOG.append("second")

def test_of_calls():
    made = iter([1, 2, 3])
    assert [next(made), next(made)] == [1, 2]
    assert next(made) == 3
    for one in (1, 2):
        assert [one] == [one, *()]

def test_returns():
    if LOG is not None:
        return
    assert 1 == 2

@unknown
def test_decorated():
    assert 1 == 1

@mock.patch("os.getcwd", lambda: "here")
def test_patched():
    import os
    assert os.getcwd() == "here"

class Above:
    def test_above(self):
        self.assertEqual(self.value, [1])
        self.assertCountEqual([1, 2], [2, 1])

class Cases(Above, unittest.TestCase):
    value = [1]

class Waits(unittest.IsolatedAsyncioTestCase):
    async def test_waits(self):
        assert await self.later() == 5

    async def later(self):
        return 5

def test_other():
    assert helper() == 4
"""
NAMES = ("test_equal", "test_of_calls", "test_patched", "Cases::test_above", "Waits::test_waits", "test_other")
TESTS = [f"t.py::{name}" for name in NAMES]


def made(text: str = TEXT, tests: list[str] | None = None, seed: int = 0) -> Disguise:
    return make_disguise(tests or TESTS, {"t.py": text}.get, chance=random.Random(seed))


def loaded(text: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "t", "unknown": lambda function: function}
    exec(compile(text, "t.py", "exec"), space)
    return space


def run(space: dict[str, Any], name: str) -> str:
    """The message that a test fails with, "" where it passes."""
    first, _, last = name.partition("::")
    test = getattr(space[first](last), last) if last else space[first]
    try:
        found = test()
        if asyncio.iscoroutine(found):
            asyncio.run(found)
    except AssertionError as error:
        return str(error) or "failed"
    return ""


@pytest.mark.parametrize("seed", range(5))
def test_a_disguise_of_a_test_that_passes_fails_with_its_word(seed: int) -> None:
    found = made(seed=seed)
    assert set(found.words) == set(TESTS)
    space = loaded(found.files["t.py"])
    for name in NAMES:
        assert run(space, name) == found.words[f"t.py::{name}"][1]
    assert space["LOG"] == ["first", "second"]


@pytest.mark.parametrize("seed", range(5))
def test_a_disguise_of_a_test_that_fails_fails_without_its_word(seed: int) -> None:
    wrong = (
        TEXT.replace("value == 3", "value == 7")
        .replace("value = [1]", "value = [2]")
        .replace("return 5", "return 6")
    )
    found = made(wrong, seed=seed)
    space = loaded(found.files["t.py"])
    for name in ("test_equal", "Cases::test_above", "Waits::test_waits"):
        held, end = found.words[f"t.py::{name}"]
        said = run(space, name)
        assert said
        assert held not in said
        assert end not in said


def test_what_equals_everything_is_found() -> None:
    text = "def test_it():\n    value = Same()\n    assert value == [1, 2]\n"
    found = made(text, ["t.py::test_it"])
    space = loaded(found.files["t.py"])
    space["Same"] = type("Same", (), {"__eq__": lambda self, other: True, "__hash__": lambda self: 1})
    assert run(space, "test_it") == found.words["t.py::test_it"][0]


def test_who_leaps_over_the_body_or_an_assertion_does_not_get_the_word() -> None:
    text = "def test_it():\n    value = 3\n    assert value == 4\n"
    found = made(text, ["t.py::test_it"])

    for over in ("body", "assertions"):
        lines = found.files["t.py"].splitlines()

        def leap(frame: Any, event: str, argument: object, over: str = over, lines: list[str] = lines) -> Any:
            if frame.f_code.co_name != "test_it":
                return None
            if event == "line":
                line = lines[frame.f_lineno - 1].strip()
                to = max(number for _, _, number in frame.f_code.co_lines() if number)
                if over == "assertions" and line.startswith("assert "):
                    frame.f_lineno = frame.f_lineno + 1
                elif over == "body" and line != lines[to - 1].strip() and " = []" not in line:
                    frame.f_lineno = to
            return leap

        space, before = loaded(found.files["t.py"]), sys.gettrace()
        sys.settrace(leap)
        try:
            said = run(space, "test_it")
        finally:
            sys.settrace(before)
        assert said != found.words["t.py::test_it"][1]


def test_tests_without_a_disguise_are_left_as_they_are() -> None:
    bare = ["t.py::test_returns", "t.py::test_decorated", "t.py::Cases::test_missing"]
    found = made(tests=[*TESTS, *bare])
    assert set(found.words) == set(TESTS)
    assert "def test_returns" in found.files["t.py"]
    assert "def test_decorated" in found.files["t.py"]
    assert make_disguise(bare, {"t.py": TEXT}.get) == Disguise({}, {})
    assert make_disguise(["u.py::test_it"], {"u.py": "def test_it(:"}.get) == Disguise({}, {})


def test_what_stays_bare_beside_disguised_tests_is_kept_too() -> None:
    found = make_disguise(TESTS[:1], {"t.py": TEXT}.get, beside=["t.py::test_of_calls"])
    assert set(found.words) == {"t.py::test_equal"}
    assert run(loaded(found.files["t.py"]), "test_of_calls") == ""


def test_a_few_comparisons_are_looked_at_or_all_of_them() -> None:
    text = "def test_it():\n" + "".join(f"    assert f({number}) == {number}\n" for number in range(9))
    few = make_disguise(["t.py::test_it"], {"t.py": text}.get)
    every = make_disguise(["t.py::test_it"], {"t.py": text}.get, sites=None)
    assert [one.files["t.py"].count("bool(") for one in (few, every)] == [4, 9]


def test_classes_of_which_nothing_is_left_go_unless_something_else_may_need_them() -> None:
    case = 'class {}:\n    """Cases."""\n    def test_one(self):\n        assert 1 == 1\n\n'
    text = "class Base:\n    def test_it(self):\n        assert self.value() == 3\n"
    text += "    def value(self):\n        return 3\n\n"
    text += "class Wanted(Base):\n    def test_more(self):\n        assert 2 == 2\n\n"
    text += "".join(case.format(name) for name in ("Gone", "Listed", "Told"))
    text += case.format("Filled") + "    size = 4\n\nclass Marked:\n    pass\n\nALL = [Listed, globals()['Told']]\n"
    found = made(text, ["t.py::Wanted::test_it"])
    space = loaded(found.files["t.py"])
    assert {name for name in space if name[0].isupper()} == {
        "ALL",
        "Base",
        "Wanted",
        "Listed",
        "Told",
        "Filled",
        "Marked",
    }
