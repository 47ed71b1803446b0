"""A parameter of a function gets another name: in its head and body, and wherever a caller names it. Pure.

Places are told by the syntax tree, and the text around them stays as it is. A function is left alone where its
parameter cannot be followed by names alone: another function inside that has the same word, `locals()`, a word in
an f-string of it or of a caller (whose places the parser of Python 3.11 does not tell).
"""

import ast
from collections.abc import Iterator, Mapping

__all__ = ["in_f_strings", "named_by_callers", "parameters", "times_named", "with_parameter"]

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_OPEN = frozenset({"locals", "vars", "exec", "eval", "partial", "signature"})


def _function(text: str, name: str) -> _Function | None:
    found = (one for one in ast.parse(text).body if isinstance(one, _Function) and one.name == name)
    return next(found, None)


def _arguments(node: _Function) -> list[ast.arg]:
    """Those that a caller can name."""
    return [*node.args.args, *node.args.kwonlyargs]


def parameters(text: str, name: str) -> list[str] | None:
    """The words of a function's head in order, "/", "*" and "**" in their places; None where it is not there."""
    node = _function(text, name)
    if node is None:
        return None
    given = node.args
    star = [f"*{given.vararg.arg}"] if given.vararg else ["*"] * bool(given.kwonlyargs)
    found = [one.arg for one in given.posonlyargs] + ["/"] * bool(given.posonlyargs)
    found += [one.arg for one in given.args] + star + [one.arg for one in given.kwonlyargs]
    return found + ([f"**{given.kwarg.arg}"] if given.kwarg else [])


def named_by_callers(texts: Mapping[str, str], home: str, name: str) -> list[str]:
    """The parameters of a function of `home` that callers in other files name, in the order of its head."""
    node = _function(texts[home], name)
    if node is None or not _followed(node):
        return []
    said: set[str] = set()
    for path, text in texts.items():
        if path != home and name in text:
            said |= {word.arg for word in _keywords(ast.parse(text), name) if word.arg}
    return [one.arg for one in _arguments(node) if one.arg in said and _alone(node, one.arg)]


def _followed(node: _Function) -> bool:
    """Whether nothing in it asks for its names as texts."""
    return not any(isinstance(one, ast.Name) and one.id in _OPEN for one in ast.walk(node))


def _alone(node: _Function, word: str) -> bool:
    """Whether the word means the parameter and nothing else throughout the function."""
    inside = [one for part in node.body for one in ast.walk(part)]
    again = any(isinstance(one, ast.arg) and one.arg == word for one in inside)
    told = any(isinstance(one, ast.Global | ast.Nonlocal) and word in one.names for one in inside)
    in_text = any(
        isinstance(inner, ast.Name) and inner.id == word
        for one in inside
        if isinstance(one, ast.JoinedStr)
        for inner in ast.walk(one)
    )
    return not (again or told or in_text)


def _keywords(tree: ast.AST, name: str) -> Iterator[ast.keyword]:
    """What calls of a function name, by its word or as a member of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            word = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            if word == name:
                yield from node.keywords


def in_f_strings(texts: Mapping[str, str], name: str, word: str) -> bool:
    """Whether a call that names the parameter stands in an f-string of some file."""
    for text in texts.values():
        inside = (one for one in ast.walk(ast.parse(text)) if name in text and isinstance(one, ast.JoinedStr))
        if any(keyword.arg == word for one in inside for keyword in _keywords(one, name)):
            return True
    return False


def times_named(text: str, name: str, word: str) -> int:
    """How often calls of a function name this parameter."""
    return sum(one.arg == word for one in _keywords(ast.parse(text), name))


def with_parameter(text: str, name: str, word: str, new: str, *, home: bool) -> str:
    """The text with the parameter called `new`. home: the function stands there; its head and body change, too."""
    tree, rows = ast.parse(text), text.split("\n")
    places = {(one.lineno, one.col_offset) for one in _keywords(tree, name) if one.arg == word}
    node = _function(text, name) if home else None
    if node is not None:
        places |= {(one.lineno, one.col_offset) for one in _arguments(node) if one.arg == word}
        names = (one for part in node.body for one in ast.walk(part) if isinstance(one, ast.Name))
        places |= {(one.lineno, one.col_offset) for one in names if one.id == word}
    for row, column in sorted(places, reverse=True):
        line = rows[row - 1].encode()
        assert line[column : column + len(word.encode())] == word.encode()
        rows[row - 1] = (line[:column] + new.encode() + line[column + len(word.encode()) :]).decode()
    return "\n".join(rows)
