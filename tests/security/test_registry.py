"""The table of weaknesses is about attacks and backends that there are."""

import ast
from pathlib import Path

from attack_backends import BACKENDS, WEAKER


def test_every_declared_weakness_names_an_attack_and_a_backend():
    files = Path(__file__).parent.glob("test_*.py")
    trees = [ast.parse(file.read_text()) for file in files]
    attacks = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    names = {backend.name for backend in BACKENDS}
    assert len(names) == len(BACKENDS)
    for attack, backend in WEAKER:
        assert attack in attacks
        assert backend in names
        assert WEAKER[attack, backend].reason


def test_there_are_at_least_sixty_attacks_in_every_backend():
    files = Path(__file__).parent.glob("test_*.py")
    functions = [
        node
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    attacks = [one.name for one in functions if any(argument.arg == "cell" for argument in one.args.args)]
    assert len(attacks) >= 60, sorted(attacks)
