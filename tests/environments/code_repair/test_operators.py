import ast
import string

import numpy as np
import pytest
from envgym_environments.code_repair.operators import OPERATORS, apply, candidates
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


def test_there_are_at_least_eight_operators_and_each_of_most_finds_something_here() -> None:
    assert len({operator.name for operator in OPERATORS}) >= 8
    assert len({mutation.operator for mutation in FOUND}) >= 18


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
    assert not lines & {1, 2, 4, 8, 16}


def test_a_mutation_of_another_version_is_refused() -> None:
    mutation = next(mutation for mutation in FOUND if mutation.before == ">=")
    with pytest.raises(ValueError, match="another version"):
        apply(SOURCE.replace("LIMIT = 10\n", "LIMIT = 10\n\n"), mutation)


def test_text_that_is_not_python_is_refused() -> None:
    with pytest.raises(ValueError, match="not Python"):
        candidates("def f(:\n")


@settings(max_examples=40, deadline=None)
@given(
    names=st.lists(st.text(string.ascii_lowercase, min_size=1, max_size=3), min_size=2, max_size=4, unique=True),
    numbers=st.lists(st.integers(0, 99), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_mutation_of_any_small_function_parses_and_differs(names, numbers, seed) -> None:
    names = [f"v_{name}" for name in names]
    body = "\n".join(f"    {names[i % len(names)]} = {names[0]} + {number}" for i, number in enumerate(numbers))
    source = (
        f"def f({', '.join(names)}):\n{body}\n    return {names[-1]}[{numbers[0]}:] if {names[0]} else {names[1]}\n"
    )
    found = candidates(source)
    mutation = found[int(np.random.default_rng(seed).integers(len(found)))]
    broken = apply(source, mutation)
    assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(source))
