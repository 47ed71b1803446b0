import ast
from pathlib import Path

import pytest
from envgym_environments.code_repair import compact
from envgym_environments.code_repair import suggest as suggest_module
from envgym_environments.code_repair.fixes.naming import fix_vocabulary
from envgym_environments.code_repair.suggest import MOST, apply_fix, line_of, suggest
from hypothesis import given, settings
from hypothesis import strategies as st

HERE = Path(suggest_module.__file__).parent
SOURCES = [path.read_text() for path in sorted([*HERE.glob("*.py"), *(HERE / "fixes").glob("*.py")])]
FUNCTION = """def f(self, a, b, items):
    total = 0
    for item in items:
        {line}
    return total
"""


def results(line: str, template: str = FUNCTION) -> list[str]:
    source = template.format(line=line)
    number = 1 + next(n for n, row in enumerate(template.split("\n")) if "{line}" in row)
    return [apply_fix(source, fix).split("\n")[number - 1].strip() for fix in suggest(source, number)]


@pytest.mark.slow
@settings(max_examples=60)
@given(st.sampled_from(SOURCES), st.integers(1, 400))
def test_every_fix_parses_changes_the_tree_and_has_a_name_of_its_own(source: str, number: int) -> None:
    line = 1 + number % source.count("\n")
    fixes = suggest(source, line)
    before = ast.dump(ast.parse(source))
    trees = [ast.dump(ast.parse(apply_fix(source, fix))) for fix in fixes]
    assert len(fixes) <= MOST
    assert before not in trees
    assert len(set(trees)) == len(trees)
    assert len({fix.name for fix in fixes}) == len(fixes)
    assert {fix.name for fix in fixes} <= set(fix_vocabulary())
    assert all("\n" not in fix.description and len(fix.description) < 60 for fix in fixes)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("if a < b: pass", "if a <= b: pass"),
        ("if a >= b: pass", "if a < b: pass"),
        ("if a == b: pass", "if a != b: pass"),
        ("if item in items: pass", "if item not in items: pass"),
        ("if a is None: pass", "if a is not None: pass"),
        ("total = a and b", "total = a or b"),
        ("if not item: pass", "if item: pass"),
        ("if item: pass", "if not item: pass"),
        ("total += item", "total -= item"),
        ("total = a - b", "total = a + b"),
        ("total = b // a", "total = b % a"),
        ("total = b - a", "total = a - b"),
        ("total = items[0]", "total = items[1]"),
        ("total = items[1:]", "total = items[:]"),
        ("total = items[:-1]", "total = items[:]"),
        ("total = a(item, b)", "total = a(b, item)"),
        ("total = max(a, item)", "total = min(a, item)"),
        ("items.append(a)", "items.extend(a)"),
        ("raise ValueError(a)", "raise TypeError(a)"),
        ("total = True", "total = False"),
        ("break", "continue"),
        ("yield item", "yield from item"),
        ("total = a if item else b", "total = b if item else a"),
        ("return None", "return item"),
        ("total = a", "total = item"),
        ("items.startswith(a)", "items.endswith(a)"),
    ],
)
def test_common_slips_are_in_the_list(line: str, wanted: str) -> None:
    assert wanted in results(line)


def test_a_name_that_is_never_read_is_proposed_where_something_seems_missing() -> None:
    source = "class A:\n    def __init__(self, a, b):\n        self.a = a\n"
    assert "insert self.b = b" in [fix.description for fix in suggest(source, 3)]
    called = "def f(a, b):\n    return g(a)\n"
    assert any(apply_fix(called, fix).endswith("return g(a, b)\n") for fix in suggest(called, 2))


def test_columns_are_counted_in_characters_not_bytes() -> None:
    source = "def f(a):\n    return 'é東' if a < 1 else 'ü'\n"
    assert any("'é東' if a <= 1 else 'ü'" in apply_fix(source, fix) for fix in suggest(source, 2))


def test_a_statement_over_several_lines_is_called_by_its_first() -> None:
    source = "def f(a, b):\n    return (a <\n            b)\n"
    assert line_of(source, 3) == line_of(source, 2) == 2
    assert suggest(source, 3) == suggest(source, 2) != ()


@pytest.mark.parametrize("source", ['"""Text."""\n', "\n", "x = (\n", "x = '\0'\n", "# only a comment\n"])
def test_nothing_is_proposed_where_there_is_no_code(source: str) -> None:
    assert suggest(source, 1) == ()


def test_a_fix_refuses_another_text() -> None:
    fix = suggest("x = 1 < 2\n", 1)[0]
    with pytest.raises(ValueError, match="the fix replaces"):
        apply_fix("something quite different\n", fix)


def test_it_shares_no_code_with_what_makes_bugs_and_never_sees_the_answer() -> None:
    for path in [HERE / "suggest.py", HERE / "localise.py", Path(compact.__file__), *(HERE / "fixes").glob("*.py")]:
        text = path.read_text()
        modules = {
            name.name if isinstance(node, ast.Import) else str(node.module)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in node.names
        }
        assert not [name for name in modules if "operators" in name or "libcst" in name or "factory" in name]
        assert "gold" not in text
