"""A module that does the same and looks different: local names and empty statements are drawn anew each time.

Written tests run against disguised code only, so what recognises a text, a byte code or a hash, and not a
behaviour, fails on code that is right. Nothing is run here.
"""

import ast
from collections.abc import Iterator
from random import Random

__all__ = ["disguised"]

_NESTED = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)
_OPEN = frozenset({"locals", "vars", "exec", "eval", "globals", "dir"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def disguised(source: str, chance: Random) -> str:
    """The module with other local names, and with statements that do nothing. Raises SyntaxError."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            _rename(node, chance)
    for node in list(ast.walk(tree)):
        if isinstance(node, _Function):
            at = chance.randrange(1, len(node.body) + 1)
            node.body.insert(at, ast.Expr(ast.Constant(chance.randrange(10**9))))
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _rename(function: _Function, chance: Random) -> None:
    """Give names that only this function binds and sees other names."""
    own, foreign = list(_own(function)), set[str]()
    stored = {one.id for one in own if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    if any(isinstance(one, ast.Name) and one.id in _OPEN for one in own):
        return
    for one in own:
        if isinstance(one, _NESTED):
            foreign |= {inner.id for inner in ast.walk(one) if isinstance(inner, ast.Name)}
            foreign |= {name for inner in ast.walk(one) for name in _words(inner)}
        foreign |= {*_words(one)}
    arguments = function.args
    foreign |= {one.arg for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
    foreign |= {one.arg for one in (arguments.vararg, arguments.kwarg) if one}
    new = {name: f"{name}_{chance.randrange(16**6):06x}" for name in sorted(stored - foreign)}
    for one in own:
        if isinstance(one, ast.Name) and one.id in new:
            one.id = new[one.id]


def _own(function: _Function) -> Iterator[ast.AST]:
    """The nodes of a function's body; nested scopes are given, but not looked into."""
    queue: list[ast.AST] = list(function.body)
    while queue:
        node = queue.pop()
        yield node
        if not isinstance(node, _NESTED):
            queue += ast.iter_child_nodes(node)


def _words(node: ast.AST) -> Iterator[str]:
    """Names that a node binds or declares as a word, not as a `Name`."""
    if isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names
    elif isinstance(node, ast.ExceptHandler | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name:
        yield node.name
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest
