"""A function of one expression goes: the expression stands wherever it was called, in every file. Pure.

A function is left alone where its expression might mean something else at a call (a name that is another one's
there), be worth something else (what is given would be evaluated twice, or after something else), or where it is
used otherwise than by a call.
"""

import ast
import builtins
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envgym_environments.code_repair.kinds.moves import dotted, imported_from
from envgym_environments.code_repair.kinds.references import names_in, of_frames

__all__ = ["inlinable", "inline_asked", "inline_checks", "inline_holds", "inlined"]

_LEAST_CALLS = 2
_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_NOT_INSIDE = (*_SCOPES, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.JoinedStr)
_NOT_ALWAYS = (ast.IfExp, ast.BoolOp)
_SIMPLE = (ast.Name, ast.Constant)
_Functions = (ast.FunctionDef, ast.AsyncFunctionDef)


def _function(text: str, name: str) -> ast.FunctionDef | None:
    found = (one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef) and one.name == name)
    return next(found, None)


def _expression(text: str, name: str) -> tuple[list[str], ast.expr] | None:
    """The parameters and the expression of a function that is nothing else; None for any other."""
    node = _function(text, name)
    if node is None or node.decorator_list:
        return None
    given, body = node.args, node.body[ast.get_docstring(node, clean=False) is not None :]
    if given.posonlyargs or given.kwonlyargs or given.vararg or given.kwarg or given.defaults or len(body) != 1:
        return None
    (only,) = body
    if not isinstance(only, ast.Return) or only.value is None:
        return None
    inside = list(ast.walk(only.value))
    if any(isinstance(one, _NOT_INSIDE) or (isinstance(one, ast.Name) and one.id == name) for one in inside):
        return None
    if any(map(of_frames, inside)):
        return None  # it would ask about its callers
    words = [one.arg for one in given.args]
    if any(_private(one) for one in inside) or (isinstance(only.value, ast.Name) and only.value.id in words):
        return None  # a name that a class would change; an expression that stands wherever anything does
    return words, only.value


def _private(node: ast.AST) -> bool:
    word = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return word.startswith("__") and not word.endswith("__")


def _calls(tree: ast.AST, name: str) -> list[ast.Call]:
    """The calls of a function by its word, in the order of the tree."""
    return [
        one
        for one in ast.walk(tree)
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == name
    ]


def inlinable(texts: Mapping[str, str], tests: Mapping[str, str], home: str, name: str, source_root: str) -> bool:
    """Whether a function of `home` can go. texts: the package's files; tests: its tests, which stay as they are."""
    found = _expression(texts[home], name)
    if found is None or any(name in text and names_in(text, name) for text in tests.values()):
        return False
    count = 0
    for path, text in texts.items():
        if name not in text or not names_in(text, name):
            continue
        calls, imports = _uses(text, path, name, dotted(home, source_root), source_root)
        own = 1 if path == home else 0
        if names_in(text, name) != len(calls) + len(imports) + own or (own and imports):
            return False
        if not _same_meaning(text, found, home=None if own else texts[home]) or not all(
            _takes(call, found) for call in calls
        ):
            return False
        count += len(calls)
    return count >= _LEAST_CALLS


def _uses(text: str, path: str, name: str, old: str, root: str) -> tuple[list[ast.Call], list[ast.ImportFrom]]:
    """The calls of a file that can be exchanged, and the statements at its top that import the function."""
    tree = ast.parse(text)
    told = [
        one for one in ast.walk(tree) if isinstance(one, ast.JoinedStr)
    ]  # whose places Python 3.11 does not tell
    hidden = {id(inner) for one in told for inner in ast.walk(one)}
    calls = _calls(tree, name)
    nested = {id(one) for call in calls for given in call.args for one in ast.walk(given)}
    top = {(one.lineno, one.end_lineno) for one in tree.body}
    imports = [
        node
        for node, module in imported_from(text, path, name, root)
        if module == old
        and (node.lineno, node.end_lineno) in top
        and all(one.asname is None for one in node.names if one.name == name)
    ]
    return [call for call in calls if id(call) not in hidden | nested], imports


def _same_meaning(text: str, found: tuple[Sequence[str], ast.expr], *, home: str | None) -> bool:
    """Whether the names of the expression that are no parameters mean in this file what they mean at its home.

    home: the text of that file; None where it is this one.
    """
    words, expression = found
    free = {one.id for one in ast.walk(expression) if isinstance(one, ast.Name)} - set(words)
    tree = ast.parse(text)
    if home is not None:
        bound = {word for where in (tree, ast.parse(home)) for node in ast.walk(where) for word in _binds(node)}
        return not free or (free <= set(dir(builtins)) - bound and "*" not in bound)
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, *_SCOPES)
    within = [
        inner
        for node in ast.walk(tree)
        if isinstance(node, scopes)
        for inner in ast.walk(node)
        if inner is not node
    ]
    return not any(free & set(_binds(inner)) for inner in within)


def _binds(node: ast.AST) -> Iterator[str]:
    """The names that a node itself binds."""
    match node:
        case ast.Name(id=word, ctx=ast.Store() | ast.Del()) | ast.arg(arg=word):
            yield word
        case ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word) | ast.ClassDef(name=word):
            yield word
        case ast.alias(name=word, asname=other):
            yield other or word.partition(".")[0]
        case ast.ExceptHandler(name=str(word)) | ast.MatchAs(name=str(word)) | ast.MatchStar(name=str(word)):
            yield word


def _takes(call: ast.Call, found: tuple[Sequence[str], ast.expr]) -> bool:
    """Whether what a call gives can stand in the expression: evaluated once, in order, or as often as one likes."""
    words, expression = found
    if call.keywords or len(call.args) != len(words) or any(isinstance(one, ast.Starred) for one in call.args):
        return False
    if all(isinstance(one, _SIMPLE) for one in call.args):
        return True
    order = list(_evaluated(expression))
    places = [at for at, one in enumerate(order) if isinstance(one, ast.Name) and one.id in words]
    used = [one.id for one in order if isinstance(one, ast.Name) and one.id in words]
    first = all(_settled(one) for one in order[: max(places, default=0)])
    chained = any(isinstance(one, ast.Compare) and len(one.ops) > 1 for one in ast.walk(expression))
    always = not chained and not any(isinstance(one, _NOT_ALWAYS) for one in ast.walk(expression))
    return used == list(words) and first and always


def _settled(node: ast.expr) -> bool:
    """Whether nothing that is evaluated after it changes its value, such as `" ".join` of a literal."""
    method = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Constant)
    return method or isinstance(node, (*_SIMPLE, ast.Tuple, ast.List))


def _evaluated(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions in a node in the order in which they get their values."""
    parts: Iterator[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.Dict):
        parts = (one for pair in zip(node.keys, node.values, strict=True) for one in pair if one is not None)
    for one in parts:
        yield from _evaluated(one)
    if isinstance(node, ast.expr):
        yield node


class _Put(ast.NodeTransformer):
    """What is given in the place of the parameters."""

    def __init__(self, given: Mapping[str, ast.expr]) -> None:
        self._given = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self._given.get(node.id, node))


def _found(text: str, home: str, name: str) -> tuple[list[str], ast.expr]:
    found = _expression(text, name)
    if found is None:
        raise ValueError(f"{name} of {home} is no function of a single expression")
    return found


def inlined(texts: Mapping[str, str], home: str, name: str, source_root: str) -> dict[str, str]:
    """Path -> text of every file that changes. Raises ValueError where the function is no single expression."""
    found = _found(texts[home], home, name)
    after: dict[str, str] = {}
    for path, text in texts.items():
        if names_in(text, name):
            calls, imports = _uses(text, path, name, dotted(home, source_root), source_root)
            rows = text.split("\n")
            for call in sorted(calls, key=lambda one: (one.lineno, one.col_offset), reverse=True):
                _exchange(rows, call, found)
            for node in sorted(imports, key=lambda one: one.lineno, reverse=True):
                _without(rows, node, name)
            if path == home:
                _drop(rows, name)
            after[path] = "\n".join(row for row in rows if row != _GONE)
    return after


def _exchange(rows: list[str], call: ast.Call, found: tuple[Sequence[str], ast.expr]) -> None:
    words, expression = found
    given = dict(zip(words, call.args, strict=True))
    new = f"({ast.unparse(_Put(given).visit(copy.deepcopy(expression)))})"
    last = call.end_lineno or call.lineno
    head, tail = (
        rows[call.lineno - 1].encode()[: call.col_offset],
        rows[last - 1].encode()[call.end_col_offset or 0 :],
    )
    rows[call.lineno - 1 : last] = [(head + new.encode() + tail).decode()]
    rows[call.lineno : call.lineno] = [_GONE] * (last - call.lineno)


_GONE = "\0"
"""A line that is no more: it stays until the end, so that places are still told by their numbers."""


def _without(rows: list[str], node: ast.ImportFrom, name: str) -> None:
    rest = [one for one in node.names if one.name != name]
    last = node.end_lineno or node.lineno
    new = [ast.unparse(ast.ImportFrom(node.module, rest, node.level))] if rest else []
    rows[node.lineno - 1 : last] = new + [_GONE] * (last - node.lineno + 1 - len(new))


def _drop(rows: list[str], name: str) -> None:
    text = "\n".join("" if row == _GONE else row for row in rows)
    node = _function(text, name)
    assert node is not None
    last = node.end_lineno or node.lineno
    while last < len(rows) and not rows[last].strip() and last - (node.end_lineno or 0) < 2:
        last += 1
    del rows[node.lineno - 1 : last]


def inline_checks(
    texts: Mapping[str, str], home: str, name: str, answer: Mapping[str, str]
) -> list[dict[str, Any]]:
    """What `inline_holds` looks at: the function is not there by any name, and its expression is everywhere."""
    words, expression = _found(texts[home], home, name)
    source = ast.unparse(expression)
    checks: list[dict[str, Any]] = []
    for path in sorted(answer):
        of = {"path": path, "name": name}
        times = _times_said(answer[path], words, source)
        checks += [
            {"check": "not named", **of},
            {"check": "functions", "functions": _functions(answer[path]), **of},
            {"check": "expression", "parameters": words, "expression": source, "times": times, **of},
        ]
    return checks


def inline_holds(check: Mapping[str, Any], text: str) -> bool:
    """Whether a module is as a check says that is of inlining alone."""
    if check["check"] == "functions":
        return _functions(text) == list(check["functions"])
    return _times_said(text, check["parameters"], check["expression"]) >= int(check["times"])


def inline_asked(home: str, name: str) -> tuple[str, str, str]:
    """The task in a sentence, what else is to be kept, and the task told vaguely."""
    return (
        f"Inline the function `{name}` of {home}: put its expression wherever it is called, and take it away.",
        "No file may name it any more, and no other function may come in its place.",
        f"`{name}` is not worth a function. Have its callers throughout the package say what it says.",
    )


def _times_said(text: str, words: Sequence[str], expression: str) -> int:
    """How often an expression stands in a module, with anything (the same each time) in the place of `words`."""
    pattern = ast.parse(expression, mode="eval").body
    return sum(_fits(pattern, node, set(words), {}) for node in ast.walk(ast.parse(text)))


def _fits(pattern: object, node: object, words: set[str], seen: dict[str, str]) -> bool:
    if isinstance(pattern, ast.Name) and pattern.id in words:
        return isinstance(node, ast.expr) and seen.setdefault(pattern.id, ast.dump(node)) == ast.dump(node)
    if isinstance(pattern, ast.AST):
        same = type(pattern) is type(node)
        return same and all(
            _fits(value, getattr(node, key), words, seen) for key, value in ast.iter_fields(pattern)
        )
    if isinstance(pattern, list):
        fits = isinstance(node, list) and len(pattern) == len(node)
        return fits and all(_fits(one, other, words, seen) for one, other in zip(pattern, node, strict=True))  # type: ignore[call-overload]
    return bool(pattern == node)


def _functions(text: str) -> list[str]:
    """The names of all functions of a module, sorted; one without a name is "lambda"."""
    nodes = list(ast.walk(ast.parse(text)))
    named = [one.name for one in nodes if isinstance(one, _Functions)]
    return sorted([*named, *("lambda" for one in nodes if isinstance(one, ast.Lambda))])
