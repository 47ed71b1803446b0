"""Every registered scheme: a source, a hand-computed test, the laws or what breaks them, a row in the bench.

The registry is enumerated, so that a scheme that is added without one of these is named here. The laws that bind it
and those that it claims are tried on each by `test_laws`.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from envgym.oracle.candidates import candidates_of
from envgym.registry import find, names

TESTS = Path(__file__).parent
DOCS = TESTS.parents[2] / "docs" / "credit.md"
SCHEMES = sorted(name for name in names("schemes") if find("schemes", name).make.__module__.startswith("envgym."))


@cache
def made_in_tests() -> dict[str, set[str]]:
    """For every test function that compares numbers: the names and words that stand in it."""
    found: dict[str, set[str]] = {}
    for path in sorted(TESTS.glob("test_*.py")):
        if path.name in (Path(__file__).name, "test_laws.py", "test_claims.py"):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                inside = [*ast.walk(node)]
                words = {one.id for one in inside if isinstance(one, ast.Name)}
                said = [one.value for one in inside if isinstance(one, ast.Constant)]
                words |= {one for one in said if isinstance(one, str)}
                if any(isinstance(one, int | float) for one in said):
                    found[f"{path.name}::{node.name}"] = words
    return found


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_has_a_source_a_test_its_laws_and_a_row(name):
    spec = find("schemes", name)
    assert re.search(r"(19|20)\d\d|arXiv|\bown\b", spec.source), f"no paper or year, nor 'own': {spec.source!r}"
    by_hand = [test for test, words in made_in_tests().items() if words & {name, spec.make.__name__}]
    assert by_hand, "no test of a function computes it by hand"
    missing = set("cde") - set(spec.claims) - spec.counterexamples.keys()
    assert not missing, f"laws {sorted(missing)} are neither claimed nor shown to break"
    assert candidates_of(spec, {}), "it has no row in envgym bench credit"
    assert f"`{name}`" in DOCS.read_text(), "docs/credit.md does not tell of it"
