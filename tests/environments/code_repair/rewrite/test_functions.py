"""What a model's answer makes of a function: exactly one replaced stretch, or a reason."""

import ast

import pytest
from envgym_environments.code_repair.operators import apply
from envgym_environments.code_repair.rewrite.functions import replaced, targets
from hypothesis import given
from hypothesis import strategies as st

SOURCE = '''import math


class Box:
    def size(self, unit=1):
        """How large."""
        wide = self.wide * unit
        return math.ceil(wide)

    @property
    def flat(self):
        wide = self.wide
        return not wide


def short(): return 1


async def load(path):
    data = await path.read()
    return data
'''
BY_NAME = {one.name: one for one in targets("box.py", SOURCE)}


def test_functions_are_found_with_their_rows_and_heads() -> None:
    assert list(BY_NAME) == ["Box.size", "Box.flat", "load"]
    size = BY_NAME["Box.size"]
    assert (size.first, size.body, size.last) == (5, 7, 8)
    assert size.head == '    def size(self, unit=1):\n        """How large."""'
    assert targets("x.py", "def broken(:") == []


def test_an_answer_replaces_the_function_and_nothing_else() -> None:
    code = "def size(self, unit=1):\n    wide = self.wide * unit\n    return math.floor(wide)"
    for answer in (
        code,
        f"Here:\n```python\n{code}\n```\nDone.",
        f"```\n    {code.replace(chr(10), chr(10) + '    ')}\n```",
    ):
        made = replaced(BY_NAME["Box.size"], SOURCE, answer, operator="lm-modify")
        assert not isinstance(made, str), made
        after = apply(SOURCE, made)
        assert "math.floor(wide)\n\n    @property" in after
        assert after.replace(made.after, made.before) == SOURCE


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "no_such_function"),
        ("I cannot.", "no_code"),
        ("def other(self, unit=1):\n    return 1", "no_such_function"),
        ("def size(self):\n    return 1", "other_parameters"),
        ("async def size(self, unit=1):\n    return 1", "other_parameters"),
        ('def size(self, unit=1):\n    """Other words."""\n    wide = self.wide * unit\n    return math.ceil(wide)',
         "unchanged"),
    ],
)  # fmt: skip
def test_what_is_no_such_function_has_a_reason(answer, why) -> None:
    assert replaced(BY_NAME["Box.size"], SOURCE, answer, operator="lm-modify") == why


@given(st.text(max_size=200), st.sampled_from(sorted(BY_NAME)))
def test_whatever_is_answered_the_file_still_parses_or_there_is_a_reason(answer, name) -> None:
    made = replaced(
        BY_NAME[name], SOURCE, f"def {name.rpartition('.')[2]}(self):\n    {answer}", operator="lm-modify"
    )
    if not isinstance(made, str):
        ast.parse(apply(SOURCE, made))
