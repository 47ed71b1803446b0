"""Statements of a function become a function of their own: which can, and the text in which they do. Pure.

Only whole statements that stand directly in the body of a function at the top of a module, where what they need and
what they leave are names that are surely bound. What cannot be followed by names alone is left where it is:
returns, yields, functions inside, names asked for as texts.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envgym_environments.code_repair.kinds.references import of_frames

__all__ = ["Part", "extract_asked", "extract_checks", "extract_holds", "extracted", "part_of", "parts"]

_LEAST_LINES = 3
_MOST_GIVEN = 2
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_NOT_INSIDE = (*_SCOPES, ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.Delete,
               ast.Import, ast.ImportFrom, ast.NamedExpr, ast.Match)  # fmt: skip
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class Part:
    """Statements `first` to `last` (indices in the function's body) and what they are as a function.

    takes: its parameters, in order. gives: the names that are read behind it.
    """

    first: int
    last: int
    takes: tuple[str, ...]
    gives: tuple[str, ...]


def _new_name(name: str) -> str:
    """What the function is called that is made of a part of another."""
    return f"{name}_part"


def _function(text: str, name: str) -> ast.FunctionDef | None:
    found = (one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef) and one.name == name)
    return next(found, None)


def parts(text: str, name: str) -> list[Part]:
    """The longest stretch of a function's statements that can be a function of their own, the first of such."""
    node = _function(text, name)
    if node is None or _new_name(name) in text or not _followed(node):
        return []
    begin = 1 if ast.get_docstring(node, clean=False) is not None else 0
    found = [
        part
        for first in range(begin, len(node.body))
        for last in range(first + 1, len(node.body))
        if last - first + 1 < len(node.body) - begin and (part := _part(node, first, last))
    ]
    return [min(found, key=lambda part: (part.first - part.last, part.first))] if found else []


def part_of(text: str, name: str, first: int, last: int) -> Part:
    """These statements as a part. Raises ValueError where they are none."""
    node = _function(text, name)
    found = None if node is None or not _followed(node) else _part(node, first, last)
    if found is None:
        raise ValueError(f"statements {first} to {last} of {name} cannot be a function of their own here")
    return found


def _followed(node: ast.FunctionDef) -> bool:
    """Whether names alone say what is read and written in it."""
    inside = [one for part in node.body for one in ast.walk(part)]
    closed = any(isinstance(one, (*_SCOPES, ast.Global, ast.Nonlocal, ast.NamedExpr, ast.Match)) for one in inside)
    return node.col_offset == 0 and not closed and not any(map(of_frames, inside))


def _part(node: ast.FunctionDef, first: int, last: int) -> Part | None:
    block, before, after = node.body[first : last + 1], node.body[:first], node.body[last + 1 :]
    if not _in_lines(node, first, last) or any(isinstance(one, _NOT_INSIDE) for one in _all(block)):
        return None
    heads = [one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)]
    maybe = [*heads, *(name for one in before for name in _written(one))]
    surely = {*heads, *(name for one in before for name in _bound(one))}
    written = list(dict.fromkeys(name for one in block for name in _written(one)))
    later = {name for one in after for name in _read(one)}
    gives = tuple(name for name in written if name in later)
    needed = {name for one in block for name in _read(one)} | set(gives)
    if needed & _imported(node):
        return None
    takes = tuple(name for name in dict.fromkeys(maybe) if name in needed)
    made = {*takes, *(name for one in block for name in _bound(one))}
    sound = set(takes) <= surely and set(gives) <= made and len(gives) <= _MOST_GIVEN
    return Part(first, last, takes, gives) if sound else None


def _imported(node: ast.FunctionDef) -> set[str]:
    """The names that a function imports for itself: they would be no parameters that anybody writes."""
    names = [name for one in ast.walk(node) if isinstance(one, ast.Import | ast.ImportFrom) for name in one.names]
    return {one.asname or one.name.partition(".")[0] for one in names}


def _in_lines(node: ast.FunctionDef, first: int, last: int) -> bool:
    """Whether the statements have lines of their own, at least three, indented as those of a new function are."""
    begin, end = node.body[first], node.body[last]
    ends = end.end_lineno or end.lineno
    above = node.body[first - 1].end_lineno or 0 if first else node.lineno
    below = node.body[last + 1].lineno if last + 1 < len(node.body) else ends + 1
    return (
        begin.col_offset == 4 and above < begin.lineno and ends < below and ends - begin.lineno + 1 >= _LEAST_LINES
    )


def _all(block: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    for one in block:
        yield from ast.walk(one)


def _of_comprehensions(node: ast.AST) -> dict[int, set[str]]:
    """Nodes inside of comprehensions, by identity -> the names that are these comprehensions' own there."""
    found: dict[int, set[str]] = {}
    for one in ast.walk(node):
        if isinstance(one, _COMPREHENSIONS):
            targets = [inner for part in one.generators for inner in ast.walk(part.target)]
            own = {inner.id for inner in targets if isinstance(inner, ast.Name)}
            for inner in ast.walk(one):
                found.setdefault(id(inner), set()).update(own)
    return found


def _read(node: ast.AST) -> set[str]:
    own = _of_comprehensions(node)
    names = {
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load) and one.id not in own.get(id(one), ())
    }
    added = (one.target for one in ast.walk(node) if isinstance(one, ast.AugAssign))
    return names | {one.id for one in added if isinstance(one, ast.Name)}


def _written(node: ast.AST) -> list[str]:
    own = _of_comprehensions(node)
    names = [
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load) and one.id not in own.get(id(one), ())
    ]
    return names + [one.name for one in ast.walk(node) if isinstance(one, ast.ExceptHandler) and one.name]


def _bound(statement: ast.stmt) -> set[str]:
    """The names that are surely bound behind a statement which came to its end."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    elif isinstance(statement, ast.If):
        yes, no = ({name for one in block for name in _bound(one)} for block in (statement.body, statement.orelse))
        return yes & no
    return {
        one.id
        for target in targets
        for one in ast.walk(target)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }


def extracted(text: str, name: str, part: Part) -> str:
    """The module in which the part is a function in front of its own, which calls it."""
    node, rows = _function(text, name), text.split("\n")
    assert node is not None
    first, last = node.body[part.first], node.body[part.last]
    ends = last.end_lineno or last.lineno
    given = ", ".join(part.gives)
    body = [*rows[first.lineno - 1 : ends], *([f"    return {given}"] if given else [])]
    call = f"{_new_name(name)}({', '.join(part.takes)})"
    rows[first.lineno - 1 : ends] = [f"    {given} = {call}" if given else f"    {call}"]
    above = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    rows[above - 1 : above - 1] = [f"def {_new_name(name)}({', '.join(part.takes)}):", *body, "", ""]
    return "\n".join(rows)


def extract_checks(text: str, home: str, name: str, part: Part, answer: str) -> list[dict[str, Any]]:
    """What `extract_holds` looks at: the statements are in the new function, no more in the old, which calls it."""
    new, node = _new_name(name), _function(text, name)
    assert node is not None
    moved = [ast.dump(one) for one in node.body[part.first : part.last + 1]]
    left = Counter(_statements(answer, name))
    gone = [one for one in dict.fromkeys(moved) if not left[one]]
    return [
        {"check": "defined", "path": home, "name": new},
        {"check": "parameters", "path": home, "name": new, "words": list(part.takes)},
        {"check": "statements", "path": home, "name": new, "statements": moved},
        {"check": "no statements", "path": home, "name": name, "statements": gone, "most": left.total()},
        {"check": "calls", "path": home, "name": name, "called": new},
    ]


def extract_holds(check: Mapping[str, Any], text: str) -> bool:
    """Whether a module is as a check says that is of extracting alone."""
    name, node = str(check["name"]), _function(text, str(check["name"]))
    if node is None:
        return False
    if check["check"] == "calls":
        inside = [one for one in ast.walk(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)]
        return any(isinstance(one.func, ast.Name) and one.func.id == check["called"] for one in inside)
    wanted = list(check["statements"])
    if check["check"] == "no statements":
        there = _statements(text, name)
        return len(there) <= int(check["most"]) and not set(there) & set(wanted)
    body = [ast.dump(one) for one in node.body]
    return any(body[at : at + len(wanted)] == wanted for at in range(len(body)))


def extract_asked(text: str, home: str, name: str, part: Part) -> tuple[str, str, str]:
    """The task in a sentence, what else is to be kept, and the task told vaguely."""
    node, new = _function(text, name), _new_name(name)
    assert node is not None
    rows, first, last = text.split("\n"), node.body[part.first], node.body[part.last]
    begin, end = rows[first.lineno - 1].strip(), rows[(last.end_lineno or last.lineno) - 1].strip()
    takes = ", ".join(f"`{one}`" for one in part.takes) or "nothing"
    gives = " and ".join(f"`{one}`" for one in part.gives)
    returns = f"It takes {takes}{f' and returns {gives}' if gives else ''}, in this order."
    where = f"lines {first.lineno} to {last.end_lineno} of {home}, in `{name}`,"
    return (
        f"Extract {where} into a new function `{new}` there.",
        f"{returns} The statements move as they stand, and `{name}` calls it in their place.",
        f"`{name}` does too much. From `{begin}` to `{end}` it should be a function `{new}` beside it. {returns}",
    )


def _statements(text: str, name: str) -> list[str]:
    """Every statement of a function at the top of a module, those inside of others too, as its tree is told."""
    node = _function(text, name)
    inside = () if node is None else (inner for one in node.body for inner in ast.walk(one))
    return [ast.dump(one) for one in inside if isinstance(one, ast.stmt)]
