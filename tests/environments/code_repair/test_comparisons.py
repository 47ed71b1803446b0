"""Objects of a test's own that equal everything say nothing of the submission; all others still do."""

import ast
import random

import pytest
from envgym_environments.code_repair.comparisons import always_equal
from envgym_environments.code_repair.disguise import make_disguise
from envgym_environments.code_repair.twins import make_twins

ANY = 'class Any:\n    """Of the test."""\n    def __eq__(self, other):\n        return True\n\n'
NAME = "t.py::test_it"


class Same:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def said(text: str, made: object) -> list[str]:
    """What the test's disguise and its twin say of code that makes `made`: "held", or something else."""
    disguise = make_disguise([NAME], {"t.py": text}.get, sites=None)
    twins = make_twins([NAME], {"t.py": text}.get, chance=random.Random(0))
    assert twins is not None
    found = []
    for source, held in [
        (disguise.files["t.py"], disguise.words[NAME][0]),
        (twins.files["t.py"], twins.held[NAME]),
    ]:
        space: dict[str, object] = {"make": lambda: made}
        exec(source, space)
        with pytest.raises(AssertionError) as caught:
            space["test_it"]()  # type: ignore[operator]
        found.append("held" if held in str(caught.value) else str(caught.value))
    return found


@pytest.mark.parametrize("sides", ["make() == Any()", "Any() == make()"])
def test_a_value_beside_what_the_test_file_lets_equal_everything_is_looked_at_alone(sides: str) -> None:
    text = f"{ANY}def test_it():\n    assert {sides}\n"
    assert "held" not in said(text, 3)
    assert said(text, Same()) == ["held", "held"]


def test_two_such_objects_have_nothing_to_look_at() -> None:
    assert "held" not in said(f"{ANY}def test_it():\n    assert Any() == Any()\n", 3)


@pytest.mark.parametrize(
    "text",
    [
        ANY.replace("Any:", "Any(package.Thing):"),
        ANY.replace("Any:", "Any(metaclass=package.Meta):"),
        "@package.made\n" + ANY,
        ANY.replace("return True", "return package.same(self, other)"),
        ANY.replace("        return True", "        other = package.seen(other)\n        return True"),
        ANY.replace("    def", "    @package.wrapped\n    def"),
        ANY + "    __eq__ = package.same\n",
        ANY + "    def __new__(cls):\n        return package.thing()\n",
        ANY + "from package import Any\n",
        ANY + "from package import *\n",
        ANY + "def test_it(Any):\n    assert 1 == Any()\n",
        ANY + "def test_it():\n    with package.opened() as Any:\n        assert 1 == Any()\n",
        "class Outer:\n    class Any:\n        def __eq__(self, other):\n            return True\n",
    ],
)
def test_only_a_class_whose_comparison_no_submission_can_decide_is_taken_for_one(text: str) -> None:
    assert not always_equal(ast.parse(text))
    assert always_equal(ast.parse(ANY)) == {"Any"}
