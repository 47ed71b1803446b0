"""Extract and inline: what is asked for can be followed by names alone, and the checks see through stand-ins."""

import ast

import pytest
from envgym_environments.code_repair.kinds.extracts import extract_checks, extracted, parts
from envgym_environments.code_repair.kinds.inlines import inlinable, inline_checks, inlined
from envgym_environments.code_repair.kinds.refactoring import holds

TEXT = '''def whole(values, most=3):
    """Of values."""
    total = 0
    for value in values:
        total += value  # each
    if total > most:
        total = most
    print(total)
    return total, most
'''


def test_the_longest_stretch_of_statements_becomes_a_function_that_takes_and_gives_what_it_must() -> None:
    (part,) = parts(TEXT, "whole")
    assert (part.first, part.last, part.takes, part.gives) == (1, 4, ("values", "most"), ("total",))
    after = extracted(TEXT, "whole", part)
    assert after.startswith("def whole_part(values, most):\n    total = 0\n    for value in values:\n")
    assert "        total += value  # each\n" in after
    assert after.endswith('"""Of values."""\n    total = whole_part(values, most)\n    return total, most\n')
    before_space, after_space = {}, {}
    exec(TEXT, before_space)
    exec(after, after_space)
    for values in ([], [1], [2, 5]):
        assert before_space["whole"](values) == after_space["whole"](values)


@pytest.mark.parametrize(
    "body",
    [
        "    a = 1\n    b = 2\n    return a\n    c = b\n",  # no stretch of three lines without the return
        "    a = [\n        1,\n    ]\n    b = lambda: a\n    a = 2\n    return b()\n",
        "    for a in x:\n        b = a\n    c = x\n    return b\n",  # b may not be bound
        "    a = x\n    b = [\n        locals()]\n    return a, b\n",
        "    a = x\n    yield a\n    a = x\n    return a\n",
        "    global a\n    a = x\n    a = x\n    return a\n",
        "  a = x\n  b = x\n  c = x\n  return a\n",
        "    import math\n    a = x\n    b = [\n        math.e]\n    return a, b\n",
        "    a = x; b = a; c = b\n    return a\n",
    ],
)
def test_statements_that_cannot_be_followed_stay(body: str) -> None:
    assert parts(f"def f(x):\n{body}", "f") == []


def test_names_of_comprehensions_are_their_own() -> None:
    (part,) = parts("def f(x):\n    a = [y for y in x]\n    b = {\n        a[0]: 1}\n    return b, a\n", "f")
    assert (part.takes, part.gives) == (("x",), ("a", "b"))


def test_extract_is_checked_on_the_tree() -> None:
    (part,) = parts(TEXT, "whole")
    after = extracted(TEXT, "whole", part)
    checks = extract_checks(TEXT, "a.py", "whole", part, after)
    assert all(holds(check, after) for check in checks)
    rest = TEXT[TEXT.index("    total = 0") : TEXT.index("    return")]
    copy = TEXT + f"\n\ndef whole_part(values, most):\n{rest}    return total\n"
    wrapper = TEXT + "\n\ndef whole_part(values, most):\n    return whole(values, most)[0]\n"
    for wrong in (
        TEXT,
        copy,
        wrapper,
        after.replace("(values, most)\n", "(values, 3)\n").replace("def whole_p", "def w"),
    ):
        assert not all(holds(check, wrong) for check in checks)
    assert not holds(checks[-1], copy)  # a copy beside it that nobody calls
    assert not holds(checks[-2], copy)


HOME = """LIMIT = 3


def capped(value, most):
    \"\"\"Of one.\"\"\"
    return min(value, most) or LIMIT


def both(a):
    return capped(a, 1), capped(
        a, 2
    )


def last(é):
    return [é, capped(é, most=1) if é else capped("é", 2)]
"""


def one(expression: str, calls: str, other: str = "") -> bool:
    """Whether `f(x, y)` of this expression can go from these calls."""
    texts = {"p/a.py": f"K = 1\n\n\ndef f(x, y):\n    return {expression}\n\n\n{calls}\n", "p/b.py": other}
    return inlinable(texts, {}, "p/a.py", "f", ".")


def test_a_function_of_one_expression_goes_from_every_file() -> None:
    home = HOME.replace("most=1", "1")
    assert inlinable({"p/home.py": home}, {"t.py": "other"}, "p/home.py", "capped", ".")
    assert inlined({"p/home.py": home}, "p/home.py", "capped", ".") == {
        "p/home.py": "LIMIT = 3\n\n\ndef both(a):\n    return (min(a, 1) or LIMIT), (min(a, 2) or LIMIT)\n\n\n"
        "def last(é):\n    return [é, (min(é, 1) or LIMIT) if é else (min('é', 2) or LIMIT)]\n"
    }
    texts = {
        "p/a.py": "def f(x, y):\n    return max(x, y)\n",
        "p/b.py": "from p.a import (\n    f,\n    g,\n)\n\nz = f(1, h(2))\n",
        "p/c.py": "from .a import f\n\nz = f(g(), 3)\n",
    }
    assert inlinable(texts, {}, "p/a.py", "f", ".")
    after = inlined(texts, "p/a.py", "f", ".")
    assert after == {
        "p/a.py": "",
        "p/b.py": "from p.a import g\n\nz = (max(1, h(2)))\n",
        "p/c.py": "\nz = (max(g(), 3))\n",
    }


@pytest.mark.parametrize(
    ("expression", "calls"),
    [
        ("x + y", "z = f(1, y=2), f(1, 2)"),
        ("x + y", "z = f(1, 2), map(f, [])"),
        ("x + y", "z = f(1, f(2, 3)), f(1, 2)"),
        ("x + y", "z = f'{f(1, 2)}', f(1, 2)"),
        ("x + y", "z = f(*a), f(1, 2)"),
        ("x + y", "z = f(1, 2)"),
        ("y + x", "z = f(g(), h()), f(1, 2)"),
        ("x + x + y", "z = f(g(), h()), f(1, 2)"),
        ("x and y", "z = f(g(), h()), f(1, 2)"),
        ("len(K) + x + y", "z = f(g(), h()), f(1, 2)"),  # g() may change K
        ("{x: K.pop(), y: 1}", "z = f(g(), h()), f(1, 2)"),
        ("x.__a + y", "class C:\n    z = f(1, 2), f(1, 2)"),
        ("x", "z = f(1, 2), f(1, 2)"),
        ("K + x + y", "def g(K):\n    return f(1, 2), f(3, 4)"),
        ("[x for x in y]", "z = f(1, 2), f(1, 2)"),
        ("f(x, y - 1)", "z = f(1, 2), f(1, 2)"),
        ("x + y", "z = f(1, 2), f(1, 2)\n__all__ = ['f']"),
    ],
)
def test_a_function_that_would_mean_something_else_stays(expression: str, calls: str) -> None:
    assert not one(expression, calls)


@pytest.mark.parametrize("expression", ["' '.join([x, y])", "'{}{}'.format(x, y)", "[1, x, y]", "x + y"])
def test_what_nothing_can_change_may_stand_before_what_is_given(expression: str) -> None:
    assert one(expression, "z = f(g(), h()), f(1, 2)")


def test_a_name_of_the_module_goes_to_no_other_file_and_tests_keep_what_they_name() -> None:
    other = "from p.a import f\nz = f(1, 2), f(3, 4)\n"
    assert one("x + y", "", other)
    assert not one("x + K", "", other)
    assert not one("len(x) + y", "", other + "def len(x):\n    return 0\n")
    assert not one("len(x) + y", "def len(x):\n    return 0", other)
    assert not one("len(x) + y", "", "from q import *\n" + other)
    assert one("len(x) + y", "", other)
    assert not one("x + y", "", other.replace("import f", "import f as f"))
    texts = {"p/a.py": "def f(x):\n    return -x\n\n\nz = f(1), f(2)\n"}
    assert inlinable(texts, {}, "p/a.py", "f", ".")
    assert not inlinable(texts, {"t.py": "from p.a import f\n"}, "p/a.py", "f", ".")


FRAMES = ["dir()", "locals()", "globals()", "eval('K')", "sys._getframe(1)", "warn(x, stacklevel=y)",
          "warnings.warn('a', DeprecationWarning, 2)", "warn(*x)", "inspect.stack()", "traceback.extract_stack()",
          "sys._current_frames()", "builtins.eval('K')"]  # fmt: skip


@pytest.mark.parametrize("asked", FRAMES)
def test_what_asks_which_frame_it_runs_in_stays_where_it_is(asked: str) -> None:
    assert one("[x, y]", "z = f(1, 2), f(3, 4)")
    assert not one(f"[x, y, {asked}]", "z = f(1, 2), f(3, 4)")
    body = "def g(x, y):\n    a = x\n    b = [\n        {}]\n    return a, b\n"
    assert parts(body.format("x, y"), "g")
    assert not parts(body.format(asked), "g")


@pytest.mark.parametrize("asked", ["x.eval()", "x.dir", "x.stack()", "x.warn('a', y)", "y.exec('select')"])
def test_a_member_that_is_called_like_what_asks_for_a_frame_may_move(asked: str) -> None:
    assert one(f"[x, y, {asked}]", "z = f(1, 2), f(3, 4)")


def test_inline_is_checked_on_the_tree() -> None:
    texts = {"a.py": HOME.replace("most=1", "1")}
    after = inlined(texts, "a.py", "capped", ".")
    checks = inline_checks(texts, "a.py", "capped", after)
    assert all(holds(check, after["a.py"]) for check in checks)
    renamed = texts["a.py"].replace("capped", "bounded")
    as_lambda = after["a.py"].replace(
        "LIMIT = 3", "LIMIT = 3\nbounded = lambda value, most: min(value, most) or LIMIT"
    )
    for wrong in (texts["a.py"], renamed, as_lambda, after["a.py"].replace("min(a, 2) or LIMIT", "2")):
        ast.parse(wrong)
        assert not all(holds(check, wrong) for check in checks)
