"""Programs that are proposed: what may be in one, and what inputs and outputs may be. Nothing is run here.

A program is the text of a function ``f``. It may import pure modules only and use no name that reaches out of it:
not for safety, which is the sandbox's matter, but because a task must have one answer. Inputs and outputs are
Python literals, compared by value.
"""

import ast

__all__ = ["MODULES", "Refused", "arguments", "checked", "literal", "same"]

MODULES = frozenset({
    "bisect", "cmath", "collections", "copy", "dataclasses", "decimal", "enum", "fractions", "functools",
    "heapq", "itertools", "math", "operator", "re", "statistics", "string", "textwrap", "typing",
})  # fmt: skip
"""What a program may import: modules without clocks, chance, files or processes."""
_FORBIDDEN = frozenset({
    "breakpoint", "compile", "delattr", "dir", "eval", "exec", "exit", "getattr", "globals", "help", "hash",
    "id", "input", "locals", "memoryview", "object", "open", "print", "quit", "setattr", "super", "type",
    "vars", "__import__", "__builtins__",
})  # fmt: skip
_MOST = 4000
_DEEP = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)


class Refused(Exception):
    """What is wrong with a proposal or an answer, said to who made it."""


def checked(program: str) -> str:
    """The program as it is run. Raises Refused."""
    if len(program) > _MOST:
        raise Refused(f"the program has {len(program)} characters; at most {_MOST} are taken")
    try:
        tree = ast.parse(program)
    except _DEEP as error:
        raise Refused(f"it is no Python: {type(error).__name__}: {str(error)[:200]}") from None
    if not any(isinstance(node, ast.FunctionDef) and node.name == "f" for node in tree.body):
        raise Refused("it defines no function f at its top level")
    for node in ast.walk(tree):
        _look(node)
    return program


def _look(node: ast.AST) -> None:
    match node:
        case ast.Import(names=names):
            found = [alias.name for alias in names]
        case ast.ImportFrom(module=module):
            found = [module or "."]
        case ast.Name(id=name) if name in _FORBIDDEN:
            raise Refused(f"it uses {name}, which a program here may not")
        case ast.Attribute(attr=name) if name.startswith("_"):
            raise Refused(f"it reaches for {name}; names with a leading underscore are not taken")
        case ast.AsyncFunctionDef() | ast.Await() | ast.Global():
            raise Refused(f"it has a {type(node).__name__}, which a program here may not")
        case _:
            return
    for name in found:
        if name.partition(".")[0] not in MODULES:
            raise Refused(f"it imports {name}; it may import {', '.join(sorted(MODULES))}")


def literal(text: str) -> object:
    """The value of a literal. Raises Refused."""
    if len(text) > _MOST:
        raise Refused(f"a value has {len(text)} characters; at most {_MOST} are taken")
    try:
        value = ast.literal_eval(text.strip())
        repr(value)
    except _DEEP:
        raise Refused(f"{text[:80]!r} is no Python literal") from None
    return value


def arguments(text: str) -> str:
    """An input, ``f``'s arguments with commas between, as the text of a tuple. Raises Refused."""
    value = literal(f"({text},)") if text.strip() else ()
    return repr(value)


def same(given: str, wanted: str) -> bool:
    """Whether two literals are of the same value and kind: 1 is not True, 0.1 + 0.2 is 0.3. Raises Refused."""
    return _alike(literal(given), literal(wanted))


def _alike(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (
            one == other or abs(one - other) <= 1e-9 * max(abs(one), abs(other)) or (one != one and other != other)
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        assert isinstance(other, list | tuple)
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict):
        assert isinstance(other, dict)
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    return one == other
