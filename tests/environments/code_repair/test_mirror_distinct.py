"""Which tasks repeat one repair of one change, and which only look like it."""

import pytest
from envgym_environments.code_repair.mirrors.distinct import changed_tokens, distinct, likeness
from hypothesis import given
from hypothesis import strategies as st

from envgym.task import Task


def task(name: str, *edits: tuple[str, str], tests: tuple[str, ...] = ("t.py::test_a",)) -> Task:
    places = [{"wrong": wrong, "right": right} for wrong, right in edits]
    return Task(id=name, prompt="Repair it.", metadata={"gold": {"bugs": places}, "fail_to_pass": list(tests)})


def names(*tasks: Task) -> str:
    return "".join(one.id for one in distinct(tasks))


def match(pattern: str) -> tuple[str, str]:
    return f'    return re.match(r"{pattern}", value)\n', f'    return re.fullmatch(r"{pattern}", value)\n'


def test_one_edit_in_sibling_functions_is_one_repair() -> None:
    """The release that this rule was made for: eleven functions, two modules, one idea."""
    several = ("t.py::test_b[1]", "t.py::test_b[2]")
    a = task("a", match("^[0-9a-f]{32}$"), tests=("t.py::test_a[md5]",))
    b = task("b", match("^[A-Z2-7]+=*$"), tests=several)
    c = task("c", ("    re.match(r'^x')\n", "    # Whole.\n    re.fullmatch(\n        r'^x')\n"))
    assert names(a, b, c) == "b", "the one with the most tests"
    assert names(a, c) == "a", "the first of as many"


def test_other_edits_stay() -> None:
    a = task("a", ("if n < 6:\n", "if n < 7:\n"))
    b = task("b", ("if n < 6:\n", "if n <= 6:\n"))
    assert names(a, b) == "ab"
    c = task("c", ("if n < 6:\n", "if n < 7:\n"), ("x = 1\n", "x = yield from other(2)\n"), tests=("t.py::test_c",))
    assert names(a, c) == "ac", "half of it is another"


def test_with_one_test_function_less_likeness_is_enough() -> None:
    edits = (
        ("return len(value) == 9 and f(value)\n", 'return len(value) == 9 and value[-1] in "019" and f(value)\n'),
        ("if len(value) != 7:\n", 'if len(value) != 7 or value[-1] not in "019":\n'),
    )
    one, other = (
        task(name, edit, tests=(f"t.py::test_check[{name}]",)) for name, edit in zip("ab", edits, strict=True)
    )
    assert (
        0.5
        <= likeness(*(changed_tokens([dict(zip(("wrong", "right"), edit, strict=True))]) for edit in edits))
        < 0.8
    )
    assert names(one, other) == "a"
    assert names(one, task("b", edits[1], tests=("t.py::test_other",))) == "ab"


def test_what_has_no_place_or_no_token_resembles_nothing() -> None:
    blank = ('# Old.\n    """Of old."""\n', '# New.\n\n    """Of new,\n    and more."""\n')
    assert names(task("a", blank), task("b", blank)) == "ab"
    patch = [Task(id=name, prompt="p", metadata={"gold": {"patch": "+x"}, "fail_to_pass": ["t"]}) for name in "ab"]
    assert names(*patch) == "ab"
    assert distinct([]) == []


_EDIT = st.tuples(
    st.sampled_from(["", "a\n", "a.b\n", "f(a, 'x # y')\n"]), st.sampled_from(["", "b\n", "f(b) # c\n"])
)


@given(st.lists(st.lists(_EDIT, min_size=1, max_size=3), max_size=6))
def test_what_stays_is_left_as_it_is_and_stays_once(found: list[list[tuple[str, str]]]) -> None:
    tasks = [task(str(number), *edits, tests=(f"t.py::test_{number}",)) for number, edits in enumerate(found)]
    kept = distinct(tasks)
    assert [one for one in tasks if one in kept] == kept
    assert distinct(kept) == kept
    tokens = {one.id: changed_tokens(one.metadata["gold"]["bugs"]) for one in tasks}
    for one in tasks:
        alike = [other for other in tasks if other is not one and likeness(tokens[one.id], tokens[other.id]) >= 0.8]
        assert alike or one in kept, "who goes resembles somebody"
        assert one not in kept or not [other for other in alike if other in kept], "no two that stay are alike"


@pytest.mark.parametrize("text", ["'it''s' # no\n", 'r"\\d#" x', "f'{a}' f\"#\""])
def test_signs_in_strings_are_no_comments(text: str) -> None:
    assert not any(token.startswith("#") for _, token in changed_tokens([{"wrong": "", "right": text}]))
    assert sum(changed_tokens([{"wrong": "", "right": text}]).values()) == 2
