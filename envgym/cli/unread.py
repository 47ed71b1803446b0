"""What a source says of the thing behind an entry point, read without importing it: a package may take seconds."""

import ast
from collections.abc import Collection
from functools import lru_cache
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["constants", "source_of", "summary"]


def summary(entry: EntryPoint) -> str:
    """The first line of the docstring behind an entry point; "" where there is none."""
    tree = _tree(entry)
    if tree is None:
        return ""
    named = _call(tree, entry.attr)
    if named is not None and (
        said := _constants(named, ["help"]).get("help")
    ):  # a group of commands: Typer(help="...")
        return str(said).splitlines()[0]
    nodes: list[ast.AST] = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == entry.attr
    ]
    for node in [*nodes, tree]:
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
        text = ast.get_docstring(node)
        if text and not text.startswith("See `"):  # that only refers to a contract; the module says more
            return text.splitlines()[0]
    return ""


def constants(entry: EntryPoint, maker: str, names: Collection[str]) -> dict[str, Any] | None:
    """Those of the named arguments that the source gives in ``THING = maker(...)``, each a constant.

    None where it says something else: a thing that another function makes, an expression, ``**options``.
    """
    tree = _tree(entry)
    called = None if tree is None else _call(tree, entry.attr)
    if called is None or not isinstance(called.func, ast.Name) or called.func.id != maker:
        return None
    given = [one for one in called.keywords if one.arg is None or one.arg in names]
    return _constants(called, names) if all(isinstance(one.value, ast.Constant) for one in given) else None


def source_of(entry: EntryPoint) -> Path | None:
    """The source file of an entry point's module; only its top-level package is looked up, none is imported."""
    top, *rest = entry.module.split(".")
    found = find_spec(top)
    if found is None:
        return None
    if not rest:
        return Path(found.origin) if found.origin else None
    for root in found.submodule_search_locations or ():
        place = Path(root, *rest)
        for candidate in (place.with_suffix(".py"), place / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def _tree(entry: EntryPoint) -> ast.Module | None:
    source = source_of(entry)
    try:
        return None if source is None else _parsed(source, source.stat().st_mtime_ns)
    except (OSError, SyntaxError, ValueError):
        return None  # a broken source is reported when it is imported, not while help is shown


@lru_cache(maxsize=16)
def _parsed(source: Path, changed_ns: int) -> ast.Module:
    """Many things are named in one module."""
    return ast.parse(source.read_text("utf-8"))


def _call(tree: ast.Module, name: str) -> ast.Call | None:
    """The call whose value the module gives a name; None where it is anything else."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=targets, value=ast.Call() as called):
                if name in [target.id for target in targets if isinstance(target, ast.Name)]:
                    return called
    return None


def _constants(called: ast.Call, names: Collection[str]) -> dict[str, Any]:
    return {
        given.arg: given.value.value
        for given in called.keywords
        if given.arg is not None and given.arg in names and isinstance(given.value, ast.Constant)
    }
