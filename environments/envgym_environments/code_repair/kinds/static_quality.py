"""How well a file of unit tests is written, seen without running it: rewards of static quality, one by one.

After RLSQM (Steenhoek et al., "Reinforcement Learning from Automatic Feedback for High-Quality Unit Test
Generation": static metrics of good practice and of test smells become rewards). Each metric is the share of the
file's tests that keep it. Pure.
"""

import ast
from collections.abc import Iterator

__all__ = ["METRICS", "forbidden", "static_quality", "test_functions"]

METRICS = ("asserts", "calls_focal", "distinct_asserts", "no_branches", "no_prints", "described")
"""asserts: at least one assertion. calls_focal: names the function under test. distinct_asserts: none twice.
no_branches: no if, loop or try. no_prints: nothing printed. described: a docstring, or a name of two words."""

_MODULES = frozenset(
    {"ast", "builtins", "code", "codecs", "ctypes", "dis", "fcntl", "gc", "glob", "hashlib", "importlib", "inspect",
     "io", "linecache", "marshal", "multiprocessing", "os", "pathlib", "pickle", "pkgutil", "platform", "random",
     "runpy", "secrets", "shutil", "signal", "site", "socket", "subprocess", "symtable", "sys", "sysconfig",
     "tempfile", "threading", "time", "token", "tokenize", "trace", "traceback", "tracemalloc", "types", "uuid",
     "weakref", "zlib", "_pytest", "pluggy", "atexit", "asyncio"}
)  # fmt: skip
_NAMES = frozenset(
    {"open", "exec", "eval", "compile", "globals", "locals", "vars", "id", "hash", "breakpoint", "input",
     "memoryview", "__import__", "__builtins__", "__loader__", "__spec__", "__file__", "__cached__"}
)  # fmt: skip
_PLAIN_DUNDERS = frozenset(
    {"__init__", "__len__", "__iter__", "__next__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__",
     "__hash__", "__repr__", "__str__", "__bool__", "__contains__", "__getitem__", "__setitem__", "__delitem__",
     "__call__", "__enter__", "__exit__", "__add__", "__name__", "__doc__", "__version__", "__all__"}
)  # fmt: skip
_REACHED = frozenset({"sys", "os", "inspect", "builtins", "importlib", "gc", "ctypes", "subprocess", "linecache"})
"""Modules that must not be reached through another one either."""
_FIXTURES = frozenset({"request", "pytestconfig", "monkeypatch", "tmp_path", "tmpdir", "cache", "pytester"})


def test_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """The tests of a file: functions at its top or in its classes whose names begin with "test"."""
    for node in tree.body:
        for one in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(one, ast.FunctionDef) and one.name.startswith("test"):
                yield one


def forbidden(tree: ast.Module) -> str:
    """What a written test may not use because it looks at code or chance and not at behaviour; "" for nothing."""
    return next((word for node in ast.walk(tree) for word in _refused(node)), "")


def _refused(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (one.name for one in names if one.name.partition(".")[0] in _MODULES)
        case ast.ImportFrom(module=module, names=names):
            words = [(module or "").partition(".")[0], *(one.name for one in names)]
            yield from (word for word in words if word in _MODULES)
        case ast.Name(id=word):
            yield from [word] * (word in _NAMES | _REACHED or _is_inner(word) or word.startswith("pytest_"))
        case ast.Attribute(attr=word):
            yield from [word] * (word in _REACHED or _is_inner(word) or word.startswith("pytest_"))
        case ast.Constant(value=str(word)):
            yield from [word] * _is_inner(word)
        case ast.arg(arg=word):
            yield from [word] * (word in _FIXTURES)
        case ast.FunctionDef(name=word) | ast.ClassDef(name=word):
            yield from [word] * word.startswith("pytest_")


def _is_inner(text: str) -> bool:
    """Whether a text is the name of something inner, as `getattr` would take it."""
    return text.startswith("__") and text.endswith("__") and len(text) > 4 and text not in _PLAIN_DUNDERS


def static_quality(text: str, focal: str) -> dict[str, float]:
    """Metric -> share of the tests that keep it; all 0 where there is no test, or the text is no Python.

    focal: the function under test; the last part of its name counts.
    """
    try:
        tests = list(test_functions(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tests = []
    kept = [_kept(one, focal.rpartition(".")[2]) for one in tests]
    return {name: sum(one[name] for one in kept) / len(kept) if kept else 0.0 for name in METRICS}


def _kept(test: ast.FunctionDef, focal: str) -> dict[str, bool]:
    inner = list(ast.walk(test))
    asserts = [ast.dump(one) for one in inner if _is_assertion(one)]
    names = {one.id for one in inner if isinstance(one, ast.Name)}
    names |= {one.attr for one in inner if isinstance(one, ast.Attribute)}
    branches = (ast.If, ast.For, ast.While, ast.Try, ast.Match)
    words = [part for part in test.name.removeprefix("test").split("_") if part]
    return {
        "asserts": bool(asserts),
        "calls_focal": focal in names or (focal.startswith("__") and bool(names)),
        "distinct_asserts": len(set(asserts)) == len(asserts),
        "no_branches": not any(isinstance(one, branches) for one in inner),
        "no_prints": "print" not in names,
        "described": bool(ast.get_docstring(test)) or len(words) >= 2,
    }


def _is_assertion(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return True
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return node.func.attr.startswith("assert") or node.func.attr in ("raises", "warns", "fail")
