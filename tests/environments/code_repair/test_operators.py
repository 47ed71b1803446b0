import ast
import string

import numpy as np
import pytest
from envgym_environments.code_repair.describe import restore
from envgym_environments.code_repair.operators import OPERATORS, apply, apply_all, candidates
from hypothesis import given, settings
from hypothesis import strategies as st

SOURCE = '''"""A module."""
import os

LIMIT = 10


class Box:
    """A box."""

    def __init__(self, items=None, size=3):
        self.items = items or []
        self.size = size
        self.name = "box"

    def add(self, item, *others):
        """Add (item + 1)."""
        if item is None or not others:
            raise ValueError("nothing")
        if len(self.items) >= self.size:
            return False
        self.items.append(item)
        self.items.extend(others)
        return True

    def window(self, start, stop):
        return self.items[start:stop], self.size - start


def walk(tree, depth=0, *, key=None):
    found = []
    for node in tree:
        if node == key and depth < 5:
            break
        depth += 1
        value = max(node, depth) if key else min(depth, node)
        found.append((value, node % 2, depth // 3))
        try:
            yield from sorted(found, key=key)
        except (KeyError, TypeError):
            continue
    yield found[-1] * 2.5
'''
FOUND = candidates(SOURCE)

SMITH = {
    "class base removal": "drop-base",
    "method removal": "drop-method",
    "method shuffle": "swap-members",
    "invert if/else": "invert-branches",
    "shuffle lines": "swap-lines",
    "remove assignment": "drop-assignment",
    "remove conditional": "drop-conditional",
    "remove loop": "drop-loop",
    "remove wrapper": "drop-wrapper",
    "break operator chains": "break-chain",
    "change constant": "wrong-constant",
    "change operator": "arithmetic",
    "swap operands": "swap-operands",
}
"""The kinds of SWE-smith, and what makes them here."""

EXAMPLES = {
    "drop-base": ("class A(B, C):\n    x = 1\n", "class A(C):\n    x = 1\n"),
    "drop-method": ("class A:\n    x = 1\n    def f(self):\n        return 1\n", "class A:\n    x = 1\n"),
    "swap-members": (
        "class A:\n    low: int\n    # a bound\n    high: int\n",
        "class A:\n    high: int\n    # a bound\n    low: int\n",
    ),
    "drop-wrapper": (
        "def f(x):\n    try:\n        return g(x)\n    except KeyError:\n        return 0\n",
        "def f(x):\n    return g(x)\n",
    ),
    "invert-branches": (
        "def f(x):\n    if x:\n        return 1\n    else:\n        return 2\n",
        "def f(x):\n    if x:\n        return 2\n    else:\n        return 1\n",
    ),
    "drop-conditional": (
        "def f(x):\n    if x:\n        x = 2\n    elif g(x):\n        x = 3\n    return x\n",
        "def f(x):\n    if x:\n        x = 2\n    return x\n",
    ),
    "drop-loop": (
        "def f(x):\n    for y in x:\n        g(y)\n    return x\n",
        "def f(x):\n    return x\n",
    ),
    "swap-lines": (
        "def f(x):\n    y = g(x)\n    x = h(x)\n    return x\n",
        "def f(x):\n    x = h(x)\n    y = g(x)\n    return x\n",
    ),
    "drop-assignment": ("def f(x):\n    y = g(x)\n    return y\n", "def f(x):\n    return y\n"),
    "break-chain": ("def f(a, b, c):\n    return a < b < c\n", "def f(a, b, c):\n    return a < b\n"),
    "wrong-indent": (
        "def f(x):\n    for y in x:\n        g(y)\n    return x\n",
        "def f(x):\n    for y in x:\n        g(y)\n        return x\n",
    ),
    "drop-await": ("async def f(x):\n    return await x\n", "async def f(x):\n    return x\n"),
    "none-or-falsy": ("def f(x):\n    return x is None\n", "def f(x):\n    return not x\n"),
    "missing-none-check": ("def f(x):\n    return x is not None and x.y\n", "def f(x):\n    return x.y\n"),
    "mutable-default": (
        "def f(x=None):\n    if x is None:\n        x = []\n    return x\n",
        "def f(x=[]):\n    if x is None:\n        x = []\n    return x\n",
    ),
    "drop-copy": ("def f(x):\n    return list(x)\n", "def f(x):\n    return x\n"),
    "stale-cache": (
        "def f(self, x):\n    self.x = x\n    self._cache.clear()\n",
        "def f(self, x):\n    self.x = x\n",
    ),
    "lost-result": ("def f(x):\n    x = x.strip()\n    return x\n", "def f(x):\n    x.strip()\n    return x\n"),
    "lost-accumulation": ("def f(x, y):\n    x += y\n    return x\n", "def f(x, y):\n    x = y\n    return x\n"),
    "api-misuse": ("def f(x):\n    return x.get('a', 1)\n", "def f(x):\n    return x['a']\n"),
    "wrong-unit": ("def f(x):\n    return x * 1000\n", "def f(x):\n    return x * 1024\n"),
    "swallowed-exception": (
        "def f(x):\n    try:\n        g(x)\n    except KeyError:\n        raise\n",
        "def f(x):\n    try:\n        g(x)\n    except KeyError:\n        pass\n",
    ),
    "narrow-exception": (
        "def f(x):\n    try:\n        g(x)\n    except (KeyError, OSError):\n        h(x)\n",
        "def f(x):\n    try:\n        g(x)\n    except (OSError):\n        h(x)\n",
    ),
    "range-bound": ("def f(x):\n    return range(x)\n", "def f(x):\n    return range(x - 1)\n"),
    "drop-filter": ("def f(x):\n    return [y for y in x if y]\n", "def f(x):\n    return [y for y in x]\n"),
    "drop-star": ("def f(x, **y):\n    return g(x, **y)\n", "def f(x, **y):\n    return g(x)\n"),
    "self-other": (
        "def f(self, other):\n    return self.x == other.x\n",
        "def f(self, other):\n    return other.x == other.x\n",
    ),
}
"""What an operator makes of a small function."""


NAMES = {operator.name for operator in OPERATORS}


def test_the_thirteen_kinds_of_swe_smith_and_at_least_ten_others_are_there() -> None:
    assert len(SMITH) == 13
    assert set(SMITH.values()) <= NAMES
    assert len(NAMES - set(SMITH.values())) >= 10
    assert len({mutation.operator for mutation in FOUND}) >= 18


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_operator_makes_its_example_and_restoring_undoes_exactly_that(name) -> None:
    source, broken = EXAMPLES[name]
    only = [operator for operator in OPERATORS if operator.name == name]
    made = {apply(source, mutation): mutation for mutation in candidates(source, operators=only)}
    assert broken in made
    mutation = made[broken]
    gold = {"line": mutation.line, "column": mutation.column, "wrong": mutation.after, "right": mutation.before}
    assert restore(broken, gold) == source


def test_no_operator_finds_anything_in_a_module_without_functions_and_classes() -> None:
    assert candidates("x = [1, 2, 3]\nif x is None:\n    x += x[1:]\n") == []


def test_bugs_that_lie_apart_are_applied_together_and_those_that_overlap_are_refused() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        one, other = (FOUND[int(index)] for index in rng.choice(len(FOUND), 2, replace=False))
        spans = sorted(
            [
                (one.line, one.column, one.end_line, one.end_column),
                (other.line, other.column, other.end_line, other.end_column),
            ]
        )
        if spans[0][2:] > spans[1][:2]:
            with pytest.raises(ValueError, match="overlap"):
                apply_all(SOURCE, [one, other])
            continue
        both = apply_all(SOURCE, [one, other])
        assert both == apply_all(SOURCE, [other, one])
        first, second = sorted([one, other], key=lambda mutation: (mutation.line, mutation.column))
        for mutation in (first, second):  # in text order, each at its place in the original
            both = restore(
                both,
                {
                    "line": mutation.line,
                    "column": mutation.column,
                    "wrong": mutation.after,
                    "right": mutation.before,
                },
            )
        assert both == SOURCE


def test_candidates_come_in_a_fixed_order_without_repetition() -> None:
    assert candidates(SOURCE) == FOUND
    assert len({mutation.digest for mutation in FOUND}) == len(FOUND)


@pytest.mark.parametrize("mutation", FOUND, ids=lambda mutation: f"{mutation.operator}-{mutation.digest}")
def test_a_mutation_changes_one_place_and_the_syntax_tree_and_still_parses(mutation) -> None:
    broken = apply(SOURCE, mutation)
    assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(SOURCE))
    at = sum(len(line) for line in SOURCE.splitlines(keepends=True)[: mutation.line - 1]) + mutation.column
    assert broken[:at] == SOURCE[:at]
    assert broken == SOURCE[:at] + mutation.after + SOURCE[at + len(mutation.before) :]


def test_docstrings_imports_and_module_level_are_left_alone() -> None:
    lines = {mutation.line for mutation in FOUND}
    assert not lines & {1, 2, 4, 8}


def test_a_mutation_of_another_version_is_refused() -> None:
    mutation = next(mutation for mutation in FOUND if mutation.before == ">=")
    with pytest.raises(ValueError, match="another version"):
        apply(SOURCE.replace("LIMIT = 10\n", "LIMIT = 10\n\n"), mutation)


def test_text_that_is_not_python_is_refused() -> None:
    with pytest.raises(ValueError, match="not Python"):
        candidates("def f(:\n")


@pytest.mark.slow
@settings(max_examples=40)
@given(
    names=st.lists(st.text(string.ascii_lowercase, min_size=1, max_size=3), min_size=2, max_size=4, unique=True),
    numbers=st.lists(st.integers(0, 99), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_mutation_of_any_small_function_parses_and_differs(names, numbers, seed) -> None:
    names = [f"v_{name}" for name in names]
    body = "\n".join(f"    {names[i % len(names)]} = {names[0]} + {number}" for i, number in enumerate(numbers))
    source = (
        f"class A(B):\n  x = 1\n  def f({', '.join(names)}, **more):\n{body.replace('    ', '      ')}\n"
        f"      for {names[0]} in range({names[1]}):\n        if {names[1]} is not None and {names[0]} < 3:\n"
        f"          {names[1]} += {numbers[-1]}  # a remark\n\n        else:\n          g({names[0]}, **more)\n"
        f"        {names[1]} = h({names[1]})\n"
        f"      return {names[-1]}[{numbers[0]}:] if {names[0]} else {names[1]}\n"
    )
    found = candidates(source)
    assert found
    mutation = found[int(np.random.default_rng(seed).integers(len(found)))]
    broken = apply(source, mutation)
    assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(source))
