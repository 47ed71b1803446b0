"""Quick fixes of calls that lack an argument: what an editor underlines when it knows how many a function needs.

It knows functions of the same file, methods of the same class and some builtins; everywhere else it only proposes
names that are bound and never read, or near. It never removes an argument.
"""

import ast
from collections.abc import Iterator

from envgym_environments.code_repair.fixes.line import Edit, Function, Line, Source
from envgym_environments.code_repair.fixes.names import Scope, scope_of

__all__ = ["call_fixes"]

_LEAST = {
    "map": 2, "filter": 2, "isinstance": 2, "issubclass": 2, "getattr": 2, "hasattr": 2, "setattr": 3, "delattr": 2,
    "divmod": 2, "pow": 2, "reduce": 2, "len": 1, "iter": 1, "next": 1, "sorted": 1, "enumerate": 1, "reversed": 1,
    "re.match": 2, "re.search": 2, "re.fullmatch": 2, "re.split": 2, "re.findall": 2, "re.finditer": 2, "re.sub": 3,
    "islice": 2, "itertools.islice": 2, "takewhile": 2, "itertools.takewhile": 2, "dropwhile": 2, "groupby": 1,
    "functools.reduce": 2, "functools.partial": 1, "repeat": 1, "itertools.repeat": 1, "min": 1, "max": 1,
}  # fmt: skip
"""Builtins and common functions -> how many positional arguments they need at least."""


def call_fixes(source: Source, line: Line) -> Iterator[Edit]:
    """Every fix of this family for one logical line, unordered."""
    if line.function is None:
        return
    scope = scope_of(line.function)
    for node, _parent in line.nodes():
        if isinstance(node, ast.Call) and not _open_ended(node):
            yield from _add(source, node, line, scope)


def _open_ended(node: ast.Call) -> bool:
    """Whether it passes ``*args`` or ``**kwargs``, so that nobody can count."""
    return any(isinstance(arg, ast.Starred) for arg in node.args) or any(key.arg is None for key in node.keywords)


def _add(source: Source, node: ast.Call, line: Line, scope: Scope) -> Iterator[Edit]:
    callee = _callee(source, node, line)
    lacking = _lacking(node, callee)
    given = {arg.id for arg in (*node.args, *(key.value for key in node.keywords)) if isinstance(arg, ast.Name)}
    end = source.span(node)[1] - 1
    lead = ", " if node.args or node.keywords else ""
    names = [name for name in _near(scope, line.first) if name not in given]
    if lacking and source.code(node.func) in ("isinstance", "issubclass"):
        names = [name for name in ("str", "tuple", "list", *names) if name not in given]
    elif lacking:
        names.sort(key=lambda name: name != lacking[0])  # a name like the parameter's comes first
    for rank, name in enumerate(names[: 3 if lacking else 2]):
        cost = 0.5 + 0.4 * rank if lacking else (1.8 if scope.unused(name) else 3.0 + 0.9 * rank)
        if not node.keywords:
            yield Edit("argument", end, end, f"{lead}{name}", f"add argument {name}", cost)
        if scope.unused(name):
            yield Edit("argument", end, end, f"{lead}{name}={name}", f"add {name}={name}", cost + 0.2)
    for name in _optional(node, callee):
        if name in scope.bound and name not in given:
            yield Edit("argument", end, end, f"{lead}{name}={name}", f"add {name}={name}", 1.7)


def _near(scope: Scope, number: int) -> list[str]:
    """Names bound before a line: never-read ones first, then by the distance of their nearest mention."""
    found = []
    for order, (name, lines) in enumerate(scope.bound.items()):
        if min(lines) <= number and name not in ("self", "cls", "_"):
            mentions = [at for at in (*lines, *scope.read.get(name, ())) if at <= number]
            found.append((not scope.unused(name), min(number - at for at in mentions), order, name))
    return [name for *_, name in sorted(found)]


def _callee(source: Source, node: ast.Call, line: Line) -> Function | int | None:
    """The function a call reaches, where this file shows it; a number where only its least arity is known."""
    function = node.func
    if isinstance(function, ast.Name):
        for part in source.tree.body:
            if isinstance(part, Function) and part.name == function.id:
                return part
            if isinstance(part, ast.ClassDef) and part.name == function.id:
                return next(
                    (one for one in part.body if isinstance(one, Function) and one.name == "__init__"), None
                )
    elif (
        isinstance(function, ast.Attribute)
        and line.cls
        and source.code(function) in (f"self.{function.attr}", f"cls.{function.attr}")
    ):
        methods = (one for one in line.cls.body if isinstance(one, Function))
        return next((one for one in methods if one.name == function.attr and not one.decorator_list), None)
    return _LEAST.get(source.code(function))


def _parameters(callee: Function) -> tuple[list[str], int]:
    """Positional parameters without `self`, and how many of them have no default."""
    names = [arg.arg for arg in (*callee.args.posonlyargs, *callee.args.args)]
    needed = len(names) - len(callee.args.defaults)
    own = names[:1] in (["self"], ["cls"])
    return names[own:], needed - own


def _lacking(node: ast.Call, callee: Function | int | None) -> list[str]:
    """The parameters that the call leaves out although they have no default ("" where no name is known)."""
    if callee is None:
        return []
    if isinstance(callee, int):
        return [""] * (callee - len(node.args) - len(node.keywords))
    names, needed = _parameters(callee)
    keywords = {key.arg for key in node.keywords}
    return [name for name in names[len(node.args) : needed] if name not in keywords]


def _optional(node: ast.Call, callee: Function | int | None) -> list[str]:
    """The parameters with a default that the call leaves out."""
    if not isinstance(callee, Function):
        return []
    names, needed = _parameters(callee)
    names = [*names[max(needed, len(node.args)) :], *(arg.arg for arg in callee.args.kwonlyargs)]
    keywords = {key.arg for key in node.keywords}
    return [name for name in names if name not in keywords]
