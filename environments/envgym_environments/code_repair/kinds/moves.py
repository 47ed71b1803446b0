"""A function moves to a module of its own: what it needs goes with it, who imports it imports it there. Pure."""

import ast
import builtins
import sys
from collections.abc import Mapping
from pathlib import PurePosixPath

__all__ = ["dotted", "imported_from", "moved", "needs", "target_of"]

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def dotted(path: str, source_root: str) -> str:
    """The name by which a file is imported."""
    inner = path if source_root == "." else path.removeprefix(f"{source_root}/")
    return inner.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _function(tree: ast.Module, name: str) -> _Function:
    for node in tree.body:
        if isinstance(node, _Function) and node.name == name:
            return node
    raise ValueError(f"there is no function {name} at the top of this module")


def needs(text: str, name: str) -> list[ast.stmt] | None:
    """The import statements that a function needs; None where it needs more than the standard library gives."""
    tree = ast.parse(text)
    function = _function(tree, name)
    if function.decorator_list or any(isinstance(one, ast.Global) for one in ast.walk(function)):
        return None
    bound = {one.arg for one in ast.walk(function) if isinstance(one, ast.arg)} | {name}
    stored = (ast.Store, ast.Del)
    bound |= {one.id for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, stored)}
    bound |= {one.name for one in ast.walk(function) if isinstance(one, ast.ExceptHandler) and one.name}
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    bound |= {one.name for one in ast.walk(function) if isinstance(one, inner)}
    used = {one.id for one in ast.walk(function) if isinstance(one, ast.Name)} - bound - set(dir(builtins))
    found: list[ast.stmt] = []
    for node in tree.body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = {one.asname or one.name.partition(".")[0] for one in node.names}
        if names & used:
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            level = node.level if isinstance(node, ast.ImportFrom) else 0
            if level or any(one.partition(".")[0] not in sys.stdlib_module_names for one in modules):
                return None
            found.append(node)
            used -= names
    return None if used else found


def imported_from(text: str, path: str, name: str, source_root: str) -> list[tuple[ast.ImportFrom, str]]:
    """The statements of a file that import `name`, each with the module that it imports from."""
    here = dotted(path, source_root).split(".")
    package = here if path.endswith("__init__.py") else here[:-1]
    found: list[tuple[ast.ImportFrom, str]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and any(one.name == name for one in node.names):
            above = package[: len(package) - node.level + 1] if node.level else []
            found.append((node, ".".join([*above, *([node.module] if node.module else [])])))
    return found


def moved(texts: Mapping[str, str], home: str, name: str, target: str, source_root: str) -> dict[str, str]:
    """Path -> text of every file that changes when a function moves from `home` to the new file `target`."""
    source = texts[home]
    function, lines = _function(ast.parse(source), name), source.split("\n")
    last = function.end_lineno or function.lineno
    body = "\n".join(lines[function.lineno - 1 : last])
    imports = [ast.unparse(one) for one in needs(source, name) or []]
    head = "\n".join([*imports, "", ""] if imports else [])
    place = dotted(target, source_root)
    lines[function.lineno - 1 : last] = [f"from {place} import {name}"]
    after = {target: f'"""`{name}`, by itself."""\n\n{head}{body}\n', home: "\n".join(lines)}
    for path, text in texts.items():
        if path != home and (new := _importing(text, path, name, dotted(home, source_root), place, source_root)):
            after[path] = new
    return after


def _importing(text: str, path: str, name: str, old: str, place: str, source_root: str) -> str:
    """A file that imports the function from its new place; "" where it did not import it."""
    rows = text.split("\n")
    changed = False
    for node, module in reversed(imported_from(text, path, name, source_root)):
        if module != old:
            continue
        mine = [one for one in node.names if one.name == name]
        rest = [one for one in node.names if one.name != name]
        indent = " " * node.col_offset
        new = [indent + ast.unparse(ast.ImportFrom(place, mine, 0))]
        if rest:
            new.insert(0, indent + ast.unparse(ast.ImportFrom(node.module, rest, node.level)))
        rows[node.lineno - 1 : node.end_lineno] = new
        changed = True
    return "\n".join(rows) if changed else ""


def target_of(home: str, name: str) -> str:
    """The new module's file, beside the old one."""
    return str(PurePosixPath(home).parent / f"{name.strip('_').lower()}_code.py")
