"""The house's shape: the star, the layers, and modules that can be read in one sitting."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"envgym": ROOT, "envgym_sandboxes": ROOT / "sandboxes", "envgym_environments": ROOT / "environments"}
SOURCES["envgym_agents"] = ROOT / "agents"
MODULES = sorted(path for package, root in SOURCES.items() for path in (root / package).rglob("*.py"))
LONGEST_MODULE, LONGEST_FUNCTION = 420, 60


def imported(path: Path) -> set[str]:
    """The top-level names that a module imports, at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; name the package"
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.slow
def test_leaves_know_only_the_trunk_and_the_trunk_no_leaf():
    for package, root in SOURCES.items():
        allowed = {package, "envgym"}
        for path in (root / package).rglob("*.py"):
            known = imported(path) & set(SOURCES)
            assert known <= allowed, f"{path.relative_to(ROOT)} imports {known - allowed}"


def test_the_trunk_imports_nothing_heavy():
    heavy = {
        "torch",
        "transformers",
        "tokenizers",
        "docker",
        "playwright",
        "libcst",
        "starlette",
        "uvicorn",
        "openai",
    }
    for path in (ROOT / "envgym").rglob("*.py"):
        assert not imported(path) & heavy, path


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement below a node; what is in their expressions is not looked at."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, block, ()):
            yield inner
            yield from statements(inner)


def faults(path: Path) -> Iterator[str]:
    """Why a module cannot be read in one sitting."""
    text = path.read_text()
    tree = ast.parse(text)
    if not ast.get_docstring(tree):
        yield "it does not begin with its idea"
    if text.count("\n") > LONGEST_MODULE:
        yield f"it has more than {LONGEST_MODULE} lines"
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > LONGEST_FUNCTION:
                yield f"{node.name} has {length} lines, not {LONGEST_FUNCTION} at most"
    if found := re.search(r"\b(TODO|FIXME|XXX)\b", text):
        yield f"it says {found[0]}"


@pytest.mark.slow
def test_every_module_says_its_idea_and_can_be_read_in_one_sitting():
    """One test for all: a test for each of a thousand modules costs the core suite seconds."""
    assert [f"{path.relative_to(ROOT)}: {fault}" for path in MODULES for fault in faults(path)] == []


def test_what_makes_a_module_hard_to_read_is_told(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("x = 1\n" * 421 + "def f():\n" + "    x = 2\n" * 60 + "# TO" + "DO\n")
    assert list(faults(path)) == [
        "it does not begin with its idea",
        "it has more than 420 lines",
        "f has 61 lines, not 60 at most",
        "it says TO" + "DO",
    ]


def test_nothing_draws_from_a_global_generator():
    drawing = re.compile(
        r"np\.random\.(rand|randn|randint|choice|shuffle|permutation|seed)\b|^import random$", re.M
    )
    guest = (
        "code_repair/guest.py"  # a program of its own inside the sandbox, which fixes the generators of the tests
    )
    for path in MODULES:
        assert path.as_posix().endswith(guest) or not drawing.search(path.read_text()), path


def sleeps(tree: ast.AST, *, polling: bool = False) -> Iterator[int]:
    """The lines of calls that sleep for a constant time outside a loop that looks again."""
    for node in ast.iter_child_nodes(tree):
        inside = polling or isinstance(node, ast.While | ast.For | ast.AsyncFor)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep":
            constant = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value != 0
            if constant and not inside:
                yield node.lineno
        yield from sleeps(node, polling=inside)


@pytest.mark.slow
def test_no_code_sleeps_instead_of_waiting_for_something():
    for path in MODULES:
        assert list(sleeps(ast.parse(path.read_text()))) == [], path
